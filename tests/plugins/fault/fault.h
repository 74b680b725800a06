/*
 * Control of the fault decorator, for tests. A module test gets the table by dlsym("infer_fault_control"); a program
 * that compiles fault.c in calls it directly. One decorated backend a process; all functions from any thread.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_FAULT_H
#define INFER_FAULT_H

#include <infer/backend.h>

/* Calls are counted and failed by class. */
#define INFER_FAULT_CLASSES(X)                                                                                         \
    X(OPEN, "open")               /* backend_init, dev_open, queue_create, tl_create */                                \
    X(QUERY, "query")             /* props, heaps, statistics, op_query, kv_query, weight_plan, dev_edge, … */       \
    X(ALLOC, "alloc")             /* buf_alloc, buf_import_host, buf_import */                                         \
    X(MAP, "map")                 /* buf_map, buf_export */                                                            \
    X(COPY, "copy")               /* cmd_copy, cmd_update, cmd_fill */                                                 \
    X(OP, "op")                   /* cmd_op */                                                                         \
    X(WAIT, "wait")               /* queue_wait */                                                                     \
    X(SIGNAL, "signal")           /* queue_signal */                                                                   \
    X(WEIGHT, "weight")           /* weight_begin, weight_append, weight_finish */                                     \
    X(BUILD, "build")             /* prog_claim, prog_build, prog_save, prog_load */                                   \
    X(INSTANTIATE, "instantiate") /* prog_instantiate, prog_update */                                                  \
    X(RUN, "run")                 /* prog_submit */                                                                    \
    X(TIMELINE, "timeline")       /* tl_query, tl_wait, tl_signal_host of native timelines */                          \
    X(HOST, "host")               /* host->alloc, as the plugin sees it: NULL */                                       \
    X(DONE, "done")               /* a signal of a software timeline arrives: the timeline fails instead */            \
    X(ANY, "any")                 /* each of the above but query, timeline, host and done */

enum {
#define X(id, name) INFER_FAULT_##id,
    INFER_FAULT_CLASSES(X)
#undef X
        INFER_FAULT_N
};

typedef struct infer_fault_api {
    /* Forgets what is armed, delayed, lost and counted. The wrapped backend stays. */
    void (*reset)(void);
    /* The backend to decorate, instead of the setting "wrap"; before the query function is called. */
    void (*wrap)(infer_plugin_query_fn query);
    /* After n more calls of a class the next one fails once with `status` (0: the class's own, which is NO_MEMORY for
     * set-up and INFER_E_QUEUE for commands). A status of queue radius makes every later command fail too, one of
     * device radius or more every later call ("lost"), until reset. n < 0 disarms. */
    void (*arm)(uint32_t cls, int64_t n, infer_status status);
    /* Every call of a class takes ns longer. */
    void (*delay)(uint32_t cls, uint64_t ns);
    /* Calls of a class, and failures delivered, since reset: walk n = 0, 1, … until a run delivers none. */
    uint64_t (*calls)(uint32_t cls);
    uint64_t (*injected)(void);
} infer_fault_api;

INFER_PLUGIN_EXPORT const infer_fault_api *infer_fault_control(void);

#endif
