/* What a module does when it is loaded and probed, found out in a process of its own. SPDX-License-Identifier:
 * Apache-2.0 */
#ifndef INFER_HAL_MODULE_CHECK_H
#define INFER_HAL_MODULE_CHECK_H

#include <infer/error.h>

#define INFER_MODULE_CHECK_DEFAULT 0u /* what INFER_MODULE_CHECK says, else CACHED */
#define INFER_MODULE_CHECK_CACHED  1u /* once for each file and boot of the machine; the verdict is kept */
#define INFER_MODULE_CHECK_ALWAYS  2u /* anew, and kept */
#define INFER_MODULE_CHECK_NEVER   3u

/* Loads and probes the module `path` in a process of its own (infer-check-module, which lies beside the library or
 * among the modules). OK: it came back, with whatever status, or this could not be found out (no such program, no
 * process). INFER_E_ABI: it crashed, ended the process, or did not come back in time; the text says in which step.
 * Blocks up to the time limit: INFER_MODULE_TIMEOUT seconds, else 30. [any thread] */
infer_status hal_module_check(const char *path, unsigned mode, infer_error *err);

/* The other side: a line that names the step that begins now ("load", "query", "start", "probe"), "back" at the end. */
#define HAL_MODULE_MARK '\1'

#endif
