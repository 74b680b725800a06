/*
 * What the files of the conformance kit share: the run, the case in progress, and the small verbs that cases are
 * written with (buffers that free themselves, copies that wait, a check that ends the case). SPDX-License-Identifier:
 * Apache-2.0
 */
#ifndef INFER_CTS_H
#define INFER_CTS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <infer/conform.h>

#include "hal/hal.h"

#define CTS_TIMEOUT_NS cts_timeout_ns /* after this a device counts as hanging */
#define CTS_MAX_BUFS   512u
#define CTS_MAX_TLS    80u

/* Of the one run that there is: a minute, or a quarter of what a case may take. */
extern uint64_t cts_timeout_ns;

/* Tells options.hang of a case that takes too long (cts_watch.c). */
typedef struct cts_watch {
    pthread_t thread;
    int running;
    pthread_mutex_t mu;
    pthread_cond_t changed;
    /* under mu: */
    const char *name; /* what runs, NULL: nothing that is watched */
    uint32_t tier;
    uint64_t due_ns;
    int stop;
} cts_watch;

/* An excluded pattern of a list. */
typedef struct cts_exclusion {
    struct cts_exclusion *next;
    char *pattern, *reason;
    int notyet;
} cts_exclusion;

/* The whole run. */
typedef struct cts_run {
    const infer_conform_options *opt;
    infer_conform_verdict verdict;
    int failed_tier[INFER_CONFORM_MAX_TIER + 1];
    cts_exclusion *exclusions;
    infer_hal *hal;
    uint32_t backend;                 /* row in the hal */
    infer_hal_backend_info info;      /* of that row */
    const infer_backend_ops *raw;     /* the plugin's own table, as long as its struct_size says */
    const infer_hal_device_info *row; /* the device */
    infer_hal_dev *dev;               /* NULL while cases open it themselves */
    int no_gate;                      /* queues are not held back by a timeline of the host's (cts_gate.c) */
    cts_watch watch;
    char dead[160]; /* why nothing more can be run: a hang, a lost device; "" while alive */
    char hung[64];  /* the case in which the device hung, "" */
} cts_run;

/* The case in progress. */
typedef struct cts {
    cts_run *run;
    const char *name;
    void *arg; /* of generated cases */
    uint64_t rng;
    int failed, skipped;
    char detail[320];
    /* For cases with an open device: */
    infer_hal_dev *dev;
    infer_device *h;
    const infer_backend_ops *ops; /* normalised */
    const infer_device_props *props;
    const infer_heap_info *heap;
    infer_queue *queue; /* the case's own, with its own timeline */
    infer_hal_tl *tl;
    uint64_t value; /* last value signalled on tl */
    infer_buffer *bufs[CTS_MAX_BUFS];
    uint32_t n_bufs;
    infer_hal_tl *tls[CTS_MAX_TLS];
    uint32_t n_tls;
} cts;

typedef void (*cts_fn)(cts *c);

/* A case of the fixed tables. */
typedef struct cts_case {
    const char *name;
    cts_fn fn;
} cts_case;

/* ---- cts_run.c ---- */

/* Marks the case as failed (the first text is kept) or as skipped. */
void cts_fail(cts *c, const char *fmt, ...) INFER_PRINTF(2, 3);
void cts_skip(cts *c, const char *fmt, ...) INFER_PRINTF(2, 3);
/* Ends the case at label `out` unless cond holds. */
#define NEED(cond, ...)                                                                                                \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            cts_fail(c, __VA_ARGS__);                                                                                  \
            goto out;                                                                                                  \
        }                                                                                                              \
    } while (0)
/* Runs fn as case `name` of a tier unless it is filtered or excluded; with_device: with its own queue. */
void cts_case_run(cts_run *r, uint32_t tier, const char *name, cts_fn fn, int with_device, void *arg);
/* The highest tier that passed with all lower ones, -1: none. */
int32_t cts_level(const cts_run *r);
/* The device hangs: nothing is run on it any more, and it is not closed. */
void cts_hung(cts *c);
/* Closes a device between cases, where none hangs; NULL is fine. */
void cts_close(cts_run *r, infer_hal_dev *dev);
void cts_report(cts_run *r, uint32_t tier, uint32_t outcome, const char *name, const char *detail);

/* ---- cts_watch.c ---- */

infer_status cts_watch_start(cts_run *r, infer_error *err);
void cts_watch_stop(cts_run *r);
/* Between these, `name` is what runs. */
void cts_watch_enter(cts_run *r, uint32_t tier, const char *name);
void cts_watch_leave(cts_run *r);

/* ---- cts_dev.c: verbs ---- */

/* From the run's seed and the case's name, so that a case sees the same numbers alone and among others. */
uint64_t cts_rand(cts *c);
uint64_t cts_below(cts *c, uint64_t n); /* 0 .. n-1 */
void cts_bytes(cts *c, void *p, uint64_t n);

/* Whether the plugin itself has a slot (member offset of infer_backend_ops). */
int cts_has(const cts *c, size_t offset);
#define CTS_HAS(c, slot) cts_has(c, offsetof(infer_backend_ops, slot))

/* The queue and timeline of a case with a device, and the end of them and of its buffers; 0: failed. For cts_case_run.
 */
int cts_open_queue(cts *c);
void cts_close_queue(cts *c);
/* A buffer of the case (freed at its end), or NULL with the case failed. */
infer_buffer *cts_buf(cts *c, uint64_t bytes);
void cts_buf_free(cts *c, infer_buffer *b);
/* A timeline of the case, or NULL with the case failed. */
infer_hal_tl *cts_tl(cts *c);
/* Submits, again while the plugin answers AGAIN (back-pressure). */
infer_status cts_copy(cts *c, infer_queue *q, infer_copy_end dst, infer_copy_end src, const infer_copy_region *r,
                      uint32_t n);
infer_status cts_fill(cts *c, infer_queue *q, infer_buffer *b, uint64_t offset, uint64_t bytes, uint32_t pattern,
                      uint32_t pattern_bytes);
infer_status cts_update(cts *c, infer_queue *q, const infer_range *dst, const void *data, uint64_t bytes);
infer_status cts_op(cts *c, infer_queue *q, const infer_op_desc *op, const infer_op_args *args);
infer_status cts_signal(cts *c, infer_queue *q, infer_hal_tl *tl, uint64_t value);
infer_status cts_wait(cts *c, infer_queue *q, infer_hal_tl *tl, uint64_t value);
/* Signals the case's timeline on its queue and waits for it. 1: done; 0: the case is failed. */
int cts_sync(cts *c);
/* Whole-range transfers that wait. 1: done; 0: the case is failed. */
int cts_write(cts *c, infer_buffer *b, uint64_t offset, const void *data, uint64_t bytes);
int cts_read(cts *c, infer_buffer *b, uint64_t offset, void *data, uint64_t bytes);
/* A status that must be OK: 1, else 0 with the case failed and the plugin's text in its detail. */
int cts_ok(cts *c, infer_status s, const char *what);
/* First byte that differs, or -1. */
int64_t cts_differ(const void *a, const void *b, uint64_t n);
void cts_sleep_ms(uint32_t ms);

/* ---- cts_gate.c ---- */

/* Holds the case's queue back. Where it cannot wait for the host, it is kept busy instead; where work runs inside the
 * submitting call, nothing is done. After a second it goes on by itself. */
typedef struct cts_gate {
    infer_hal_tl *tl;
    infer_buffer *busy;
    pthread_t thread;
    int running;
    atomic_int asked, opened;
    infer_status s;
} cts_gate;
/* 1, or 0 with the case failed; cts_gate_open is called in both cases. */
int cts_gate_close(cts *c, cts_gate *g);
void cts_gate_open(cts *c, cts_gate *g);

/* ---- The tiers ---- */

void cts_t0_abi(cts_run *r); /* before the device is opened */
void cts_t0_mem(cts_run *r); /* with it, from here on */
void cts_t0_copy(cts_run *r);
void cts_t0_queue(cts_run *r);
void cts_t0_query(cts_run *r);
void cts_t1_ops(cts_run *r);
void cts_t2(cts_run *r);        /* weight formats */
void cts_t3(cts_run *r);        /* the paged cache */
void cts_t4(cts_run *r);        /* programs */
void cts_t5(cts_run *r);        /* two devices */
void cts_t6(cts_run *r);        /* faults */
void cts_t6_closed(cts_run *r); /* those that open the device themselves: the core has closed it */
void cts_t7(cts_run *r);        /* speed: passes carry their figures as detail */

#endif
