/*
 * The prefix cache's tiers below the pool (kv/prefix.h), as the scheduler has them: which copies a step makes, what is
 * read and written, and who waits for it. Whether what lies in a tier is brought back is decided by measured times: a
 * block's way against its tokens times what a prompt's row adds to a step (budget.h).
 *
 * A request whose text goes on in the file stands aside while that is read: it neither waits in the queue nor runs, and
 * comes back in front of its lane. It does so once each time that it starts, so that a request does not wait for ever
 * for what others push out. One thread (the engine's); the store has its own. SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_SCHED_TIER_H
#define INFER_SCHED_TIER_H

#include "kv/prefix.h"
#include "kv/store.h"

struct infer_engine_options;
struct infer_plan;
struct infer_places;
struct infer_req;
struct infer_sched;
struct infer_step;

typedef struct infer_tier {
    infer_kv_store *store; /* NULL: no file */
    uint32_t n_places, n_stage, n_slots;
    uint32_t fetch;         /* INFER_PREFIX_FETCH_* */
    double read_ns;         /* of a block from the file, an exponentially weighted mean */
    uint32_t n_reads;       /* under way */
    infer_prefix_ref *path; /* of the request that is being admitted: max_path */
    uint32_t n_ready;       /* of it, in host memory and worth bringing in */
    uint32_t max_path;
    struct infer_req **aside; /* who waits for the file, in order of arrival */
    uint32_t n_aside, max_aside;
} infer_tier;

/* Places and slots by the options. A file takes places of its own, for what is on its way: two steps' blocks, and a
 * context's as far as those are 256 MiB. Errors as of infer_kv_store_check: before records are made for what there is
 * no room for. */
infer_status infer_tier_sizes(const struct infer_plan *p, const struct infer_engine_options *o, infer_tier *t,
                              infer_error *err);
/* Its arrays; sizes are set. infer_tier_close frees them. */
infer_status infer_tier_create(infer_tier *t, uint32_t max_path, uint32_t max_running, infer_error *err);
/* Makes the file, where one is asked for. The places of the tree are from `first` on among those of `places`. wake: as
 * the store's. */
infer_status infer_tier_open(infer_tier *t, const struct infer_places *places, uint32_t first,
                             const struct infer_engine_options *o, void (*wake)(void *user), void *user,
                             infer_error *err);
/* Joins the store's thread: before the places go. */
void infer_tier_close(infer_tier *t);
/* Whether copies from or to the file are done, that infer_tier_poll takes in. */
int infer_tier_ready(const infer_tier *t);

/* Before a step is built: takes in what the store has done; who waited for it waits in the queue again. */
void infer_tier_poll(struct infer_sched *s);
/* Makes n blocks of the pool free, as infer_prefix_reclaim; the copies out are the step's. */
void infer_tier_reclaim(struct infer_sched *s, struct infer_step *st, uint32_t n);
/* After a match of r's tokens, `most` at most: what follows from host memory is tier.path[0 .. n_ready). Returns the
 * tokens that it has with them. */
uint64_t infer_tier_find(struct infer_sched *s, struct infer_req *r, uint64_t most);
/* What follows from the file is to be read, and is worth it: r steps aside, out of the queue. */
int infer_tier_step_aside(struct infer_sched *s, struct infer_req *r, uint64_t most);
/* Keeps tier.path while room is made for it. */
void infer_tier_hold(struct infer_sched *s);
/* r's sequence has been grown for the n_ready blocks, which start at `first`: they come in with the step. */
void infer_tier_in(struct infer_sched *s, struct infer_step *st, struct infer_req *r, uint32_t first);
/* r waits for nothing, and holds nothing in a tier. */
void infer_tier_forget(struct infer_sched *s, struct infer_req *r);
/* The step is done, or failed (of two the later one first), or does not begin. */
void infer_tier_done(struct infer_sched *s, struct infer_step *st, int ok);

#endif
