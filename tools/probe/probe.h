/* What infer-probe found, as JSON and as text. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TOOLS_PROBE_H
#define INFER_TOOLS_PROBE_H

#include <jansson.h>

#include "session.h"

/* {devices[], links[], backends[], topology} of a probed runtime; NULL without memory. */
json_t *probe_json(infer_runtime *rt);
/* The same, and a plan of infer_plan_json, for people. */
void probe_print(const json_t *o, FILE *f);
void probe_print_plan(const json_t *plan, FILE *f);

#endif
