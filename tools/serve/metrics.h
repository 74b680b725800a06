/*
 * Counters and histograms in Prometheus' text form, under vLLM's suffixes, labels and buckets.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_SERVE_METRICS_H
#define INFER_SERVE_METRICS_H

#include <pthread.h>
#include <stdint.h>

#include <infer/infer.h>

#include "sbuf.h"

enum metric {
    METRIC_TTFT,
    METRIC_ITL,
    METRIC_TPOT,
    METRIC_E2E,
    METRIC_QUEUE,
    METRIC_PREFILL,
    METRIC_DECODE,
    METRIC_INFERENCE,
    METRIC_PROMPT_TOKENS,
    METRIC_GENERATION_TOKENS,
    METRIC_MAX_GENERATION_TOKENS,
    METRIC_COMPUTED_TOKENS,
    METRIC_PARAMS_N,
    METRIC_PARAMS_MAX_TOKENS,
    METRIC_STEP_TOKENS,
    METRIC_COUNT
};

/* Why a request was turned away before its handler. */
enum rejected { REJECTED_KEY, REJECTED_SCOPE, REJECTED_LIMIT, REJECTED_STATE, REJECTED_COUNT };

#define METRIC_MAX_BUCKETS 40

typedef struct histogram {
    uint64_t counts[METRIC_MAX_BUCKETS + 1]; /* not cumulative; the last is above every bucket */
    uint64_t n;
    double sum;
} histogram;

/* What steps said of a device, or of two that a value crossed. Names are the engine's, which outlives this. */
typedef struct metrics_device {
    const char *name;
    uint64_t busy_ns;
} metrics_device;

typedef struct metrics_link {
    const char *src, *dst;
    uint64_t bytes;
} metrics_link;

#define METRIC_MAX_DEVICES 16
#define METRIC_MAX_LINKS   64

typedef struct metrics {
    pthread_mutex_t lock;
    metrics_device devices[METRIC_MAX_DEVICES];
    metrics_link links[METRIC_MAX_LINKS];
    uint64_t max_len; /* of a request; token buckets end there */
    histogram h[METRIC_COUNT];
    uint64_t finished[8];  /* by INFER_FINISH_* */
    uint64_t responses[6]; /* by the status' hundreds; 0: the client left */
    uint64_t rejected[REJECTED_COUNT];
} metrics;

void metrics_init(metrics *m);
void metrics_destroy(metrics *m);
/* All from any thread. */
void metrics_observe(metrics *m, enum metric which, double value);
void metrics_finished(metrics *m, uint32_t finish);
void metrics_params(metrics *m, uint64_t n, int64_t max_tokens);
void metrics_http(metrics *m, unsigned status);
void metrics_step(metrics *m, const infer_step_info *step);
void metrics_rejected(metrics *m, enum rejected why);

struct server;
/* Everything under one prefix ("infer_" or "vllm:"). */
void metrics_print(struct server *s, const char *prefix, sbuf *out);

#endif
