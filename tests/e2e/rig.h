/* A runtime, model and engine for tests of the engine API, and answers collected from its events.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TESTS_RIG_H
#define INFER_TESTS_RIG_H

#include "unit/unit.h"

#include <infer/infer.h>

typedef struct rig_options {
    const char *model;                                                      /* a path; see rig_golden, rig_made */
    const char *devices, *split, *cache_type, *cache_type_v, *quantization; /* cache_type_v NULL: as the other */
    const char *const *settings;                                            /* NULL-terminated "BACKEND.KEY=VALUE" */
    uint32_t ctx, parallel, batched, logit_rows, block, chunk, step_tokens, queue;
    uint64_t kv_memory, swap; /* bytes */
    uint32_t preemption;      /* INFER_PREEMPTION_* */
    uint32_t no_prefix_cache;
    uint32_t speculative, drafts;      /* INFER_SPECULATIVE_*, most in a step */
    uint64_t prefix_host, prefix_file; /* bytes; the file in prefix_dir */
    const char *prefix_dir;            /* NULL: none */
    uint32_t prefix_fetch;             /* INFER_PREFIX_FETCH_* */
    uint32_t validate;                 /* every call to a plugin is checked */
    uint32_t deterministic;            /* as --deterministic */
    const char *trace;                 /* file that gets a line for each call to a plugin; NULL: none */
    const char *modules;               /* folders of modules; NULL: INFER_BACKEND_PATH */
    void (*on_step)(void *user, const infer_step_info *step);
    void *step_user;
    infer_runtime *runtime; /* another rig's, which outlives this one; NULL: its own */
} rig_options;

typedef struct rig {
    infer_runtime *rt;
    int borrowed; /* rt */
    infer_file *file;
    infer_plan *plan;
    infer_model *model;
    infer_engine *engine;
    infer_error err; /* of the call that failed */
} rig;

/* tests/golden/tiny-NAME.gguf; the string is the caller's to keep until the next four calls. */
const char *rig_golden(const char *name);
/* A file that tools/mkmodel wrote with these arguments, made once a process in a folder that goes with it. */
const char *rig_made(const char *args);

/* Each step; a failure is the test's, except with rig_try. */
void rig_open(rig *r, const rig_options *o);
infer_status rig_try(rig *r, const rig_options *o);
void rig_close(rig *r);
/* Whether a device exists here. */
int rig_has(const char *device);

/* A hypothesis of a beam search; ids and text are owned. */
typedef struct hypothesis {
    int32_t *ids;
    uint64_t n;
    double sum, score;
    char *text;
    uint32_t finish;
} hypothesis;

/* What came back for one request. */
typedef struct answer {
    uint64_t id;
    int done;
    uint32_t finish;
    infer_status status;
    char error[INFER_ERROR_TEXT];
    uint32_t n;
    int32_t *ids;
    float *logprobs;
    char *text; /* of TOKEN and DONE events together */
    size_t n_text;
    uint64_t n_prompt, n_cached, n_generated, t_submit, t_first_run, t_first_token, t_end;
    infer_logprob top[20]; /* of the last token */
    uint32_t n_top;
    hypothesis hyps[INFER_MAX_BEAMS];
    uint32_t n_hyps;
} answer;

/* Submits; the answer is the request's `user`. */
void rig_submit(rig *r, infer_request *q, answer *a);
/* Takes events until those n answers are done, or until poll fails, which it returns. */
infer_status rig_collect(rig *r, answer *const *a, uint32_t n);
/* Takes what events there are now. */
infer_status rig_poll(rig *r, int32_t timeout_ms);
void answer_free(answer *a);
infer_engine_stats rig_stats(const rig *r);
/* Bytes of cache that hold so many tokens: all planes of all layers. */
uint64_t rig_cache_bytes(const rig_options *o, uint64_t tokens);
/* Waits until the engine has nothing to do and its blocks are free; fails when that takes too long. */
void rig_idle(rig *r);

/* The control table of the module that decorates devices (tests/plugins/fault), reset; and settings that make it
 * decorate the backend of a name. */
struct infer_fault_api;
const struct infer_fault_api *rig_fault(void);
const char *rig_wrap(const char *backend);

/* The rest of the process must be over by then: prints where it hangs and ends it. */
void rig_watchdog(unsigned seconds);

#endif
