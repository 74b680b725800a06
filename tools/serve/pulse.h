/* What the server looks after once a second. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_SERVE_PULSE_H
#define INFER_SERVE_PULSE_H

#include "server.h"

/* The main thread's own. */
typedef struct pulse {
    uint64_t next_ns; /* when to look again */
    int began;
    uint64_t steps, moved_ns; /* the last step that was seen, and when, or when there was nothing to do */
    uint64_t said_ns;         /* of the last line of statistics */
    infer_engine_stats said;
    int said_idle; /* it told of nothing to do */
} pulse;

/* When it is time: cuts off late clients, tells a step that hangs (then every request under way is failed, and new ones
 * are refused until a step ends), logs a line of statistics. The main thread. */
void pulse_beat(server *s, pulse *p, uint64_t now);

#endif
