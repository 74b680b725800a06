/*
 * Blocks of requests that gave way, kept in host memory: whose text is long comes back by a copy rather than by being
 * computed again, where that was measured to be cheaper. This is the book of the places; the runner has the memory and
 * makes the copies at the beginning of a step: all those out, then of shared blocks, then all those in.
 *
 * A place that is given back in one step is filled again in a later one at the earliest, since a step in which requests
 * give way starts none. One thread (the engine's). SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_SCHED_SWAP_H
#define INFER_SCHED_SWAP_H

#include <stdint.h>

#include <infer/error.h>

typedef struct infer_swap {
    uint32_t n_places, n_free;
    int32_t *free_places; /* a stack */
    uint32_t mode;        /* INFER_PREEMPTION_* */
    double out_ns, in_ns; /* of a block's way out, and back, as measured */
    uint64_t n_out, n_in; /* blocks so far */
} infer_swap;

struct infer_req;
struct infer_sched;
struct infer_step;

/* n_places 0: nothing is ever swapped. */
infer_status infer_swap_create(infer_swap *w, uint32_t n_places, uint32_t mode, infer_error *err);
void infer_swap_destroy(infer_swap *w);
/* The request is about to give its blocks back: in step `st` they are copied out first, if there are places for them
 * and coming back so is cheaper than computing its n_computed tokens again. */
void infer_swap_out(struct infer_sched *s, struct infer_step *st, struct infer_req *r);
/* Tokens that lie in places. */
uint64_t infer_swap_tokens(const struct infer_req *r);
/* The request's sequence has been grown to `n_tokens`, of which its places hold those from whole block `first` on: they
 * are copied in with step `st`, and the places given back. */
void infer_swap_in(struct infer_sched *s, struct infer_step *st, struct infer_req *r, uint32_t first,
                   uint64_t n_tokens);
/* Its places are given back. */
void infer_swap_forget(struct infer_sched *s, struct infer_req *r);
/* A step failed, or did not begin: what it was to copy out is nowhere. */
void infer_swap_failed(struct infer_sched *s, struct infer_step *st);

#endif
