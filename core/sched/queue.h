/*
 * The requests that a scheduler knows, and in what order those that wait start. Requests of one priority and tenant
 * stand in a lane, first come first; lanes stand in a tree. A policy is a row of facts: which of the two tell lanes
 * apart.
 *
 * Between tenants of one priority the least served goes first: the virtual token counter of Y. Sheng et al., "Fairness
 * in Serving Large Language Models" (OSDI 2024, algorithm 2). A tenant who comes back with nothing waiting is lifted to
 * the least counter of those who wait, so that nobody saves up; what he had beyond that stays charged to him.
 *
 * Costs: everything is O(log lanes) except where said, nothing depends on how many wait. Nothing is allocated: a
 * request brings the record of its lane. One thread (the engine's); knows no device and no block.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_SCHED_QUEUE_H
#define INFER_SCHED_QUEUE_H

#include <stdint.h>

#include <infer/error.h>

struct infer_req;

typedef struct infer_policy {
    const char *name;
    uint8_t by_priority, by_tenant;
    uint32_t window; /* of so many that come first in a lane, who has the longest known prefix starts first; 1: off */
} infer_policy;

/* A row of the table by number (INFER_POLICY_*); NULL: no such policy. */
const infer_policy *infer_policy_get(uint32_t policy);

typedef struct infer_lane infer_lane;

typedef struct infer_queue {
    const infer_policy *policy;
    uint32_t n; /* waiting */
    /* private */
    infer_lane *root;                /* of the lanes in which somebody waits */
    infer_lane **lanes;              /* all, by tenant and priority, chained */
    struct infer_req **by_id;        /* all live requests, chained */
    uint32_t n_buckets, n_idle;      /* idle: of nobody alive, kept for what they are charged */
    infer_lane *idle_old, *idle_new; /* in order of falling idle */
    uint64_t arrivals, left_at;      /* left_at: counter of the lane that was last emptied */
} infer_queue;

/* n_live: requests that may be alive at once, about; it sizes the tables. */
infer_status infer_queue_create(infer_queue *q, const infer_policy *policy, uint32_t n_live, infer_error *err);
/* Safe on a zeroed struct. No request may be alive. */
void infer_queue_destroy(infer_queue *q);

/* The record of a lane, which a request brings with it (request.c). NULL: no memory. */
infer_lane *infer_lane_create(void);
void infer_lane_destroy(infer_lane *l);

/* A request comes in: id, tenant and priority are set. It waits from here on. */
void infer_queue_add(infer_queue *q, struct infer_req *r);
/* It has started: it waits no more. */
void infer_queue_take(infer_queue *q, struct infer_req *r);
/* It waits again, in front of its lane. */
void infer_queue_put_back(infer_queue *q, struct infer_req *r);
/* It ends: whether it waits or not, the queue forgets it. */
void infer_queue_drop(infer_queue *q, struct infer_req *r);
/* Charges its tenant for so many tokens. */
void infer_queue_charge(infer_queue *q, struct infer_req *r, uint64_t tokens);

/* Who is to start next; NULL: nobody waits. */
struct infer_req *infer_queue_head(infer_queue *q);
/* Who comes after it in its lane; NULL: nobody. */
struct infer_req *infer_queue_next_in_lane(const struct infer_req *r);
int infer_queue_is_waiting(const struct infer_req *r);
/* A live request; NULL: none has this id. */
struct infer_req *infer_queue_find(const infer_queue *q, uint64_t id);

/* For tests: whether all links agree; walks everything. */
int infer_queue_check(const infer_queue *q);

#endif
