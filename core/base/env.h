/* The one place that reads the environment. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_BASE_ENV_H
#define INFER_BASE_ENV_H

/* Value of an environment variable; NULL where it is unset or empty, or the process runs with raised privileges.
 * Borrowed; valid until the environment is changed. Any thread, as long as nobody calls setenv. */
const char *infer_env_get(const char *name);

#endif
