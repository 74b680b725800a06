/*
 * The conformance kit: runs a backend through numbered tiers of cases and says which it passes. What infer-conform
 * prints, a program can get here. Part of the engine API.
 *
 * Tiers: T0 load, ABI, memory, copies, timelines, queries; T1 every op that the backend answers, against the reference,
 * at odd shapes and between guard zones; T2 weight formats; T3 the paged cache over several steps; T4 programs; T5
 * several devices; T6 faults; T7 speed, which is reported and cannot fail. docs/conformance.md says what each promises.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_CONFORM_H
#define INFER_CONFORM_H

#include <stdint.h>

#include <infer/backend.h>
#include <infer/error.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INFER_CONFORM_MAX_TIER 7

#define INFER_CONFORM_PASS     0u
#define INFER_CONFORM_FAIL     1u
#define INFER_CONFORM_SKIP     2u /* an absent optional slot, an excluded case, a refused variant of an op */
#define INFER_CONFORM_FALLBACK 3u /* an op that the device answers NO to in every case: it would run elsewhere */

/* One case, valid during the report call only. */
typedef struct infer_conform_case {
    uint32_t struct_size;
    uint32_t outcome; /* INFER_CONFORM_* */
    uint32_t tier;
    uint32_t reserved;
    uint64_t seed;      /* with `name` it repeats the case alone */
    const char *name;   /* "t0.copy.strided", "t1.rope.3"; of a fallback the op's name */
    const char *detail; /* why it failed, was skipped or falls back and at what cost; figures of a T7 pass; else "" */
} infer_conform_case;

typedef struct infer_conform_verdict infer_conform_verdict;

typedef struct infer_conform_options {
    uint32_t struct_size;
    uint32_t max_tier;           /* highest tier to run, at most INFER_CONFORM_MAX_TIER */
    const char *backend;         /* name of an installed backend, or NULL */
    const char *plugin;          /* else a module file, or NULL */
    infer_plugin_query_fn query; /* else a query function of this process */
    const char *device;          /* id, PCI address or UUID; NULL: the backend's first usable device */
    const char *backend_path;    /* folders with modules, colon-separated; NULL: the usual ones */
    const char *only;            /* run only cases whose name matches this shell pattern; NULL: all */
    const char *lists;           /* folder with BACKEND.never and BACKEND.notyet, or NULL */
    uint64_t seed;               /* of all random data */
    /* A backend's setting or NULL; borrowed while the run lasts. May be NULL. */
    const char *(*setting)(void *user, const char *backend, const char *key);
    /* Every case as it ends, from the calling thread. May be NULL. */
    void (*report)(void *user, const infer_conform_case *c);
    /* The backend's log lines (level as in infer_host.log); any thread. May be NULL. */
    void (*log)(void *user, int level, const char *area, const char *text);
    void *user;
    uint32_t case_timeout_s; /* what a case may take (below); 0: no bound */
    uint32_t reserved;
    /* A case took longer: called once, from another thread, while the run's thread is in the case, with the case as
     * failed and the verdict so far, to which it is counted. Nothing can end the case: a program prints what it has and
     * leaves by _exit. If the function returns, the run waits on. NULL: nobody is told. */
    void (*hang)(void *user, const infer_conform_case *c, const infer_conform_verdict *v);
    const char *trace_calls; /* as in infer_runtime_options, or NULL */
} infer_conform_options;

struct infer_conform_verdict {
    uint32_t struct_size;
    int32_t level; /* highest tier that passed together with all lower ones; -1: none. Cases left out by `only` do not
                      count against it, nor do excluded ones */
    uint32_t n_pass, n_fail, n_skip, n_fallback;
    char backend[64], version[64];
    char device[32], device_name[96];
    char hung[64]; /* the case in which the device hung, "" if it did not. It is not closed then: leave by _exit */
};

/* Loads the backend, opens the device, runs the cases. OK whenever a verdict was reached, whatever it is (out is
 * written); INFER_E_NO_DEVICE where there is no usable device; INFER_E_ABI where the plugin does not load, whatever the
 * reason; INFER_E_BAD_FILE for a wrong exclusion list. One run at a time in a process.
 *
 * Waits for the device end after a minute, or a quarter of case_timeout_s where that is less: the case fails, and so do
 * those after it, which are not run. What waits inside the plugin or the core (a slot that does not return, a program's
 * end) has no bound but case_timeout_s and `hang`; loading, opening and closing are watched like cases, under the names
 * "loading", "opening" and "closing".
 *
 * An exclusion list has one line a case: a shell pattern for its name, then the reason. Cases in .never do not apply to
 * the backend and are not run; those in .notyet run, and one that passes is a failure of the list. '#' starts a
 * comment line. */
INFER_API infer_status infer_conform_run(const infer_conform_options *opt, infer_conform_verdict *out,
                                         infer_error *err);

#ifdef __cplusplus
}
#endif
#endif
