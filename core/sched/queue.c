/* Waiting requests: lanes in a treap, requests by id. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "sched/private.h"

/* Lanes of nobody alive that are remembered for what they are charged. */
#define MAX_IDLE 1024u

struct infer_lane {
    uint64_t tenant, counter;
    uint64_t owed; /* charged, and not in the counter yet: settled when the lane comes up */
    int32_t priority;
    uint32_t n_live;         /* requests, waiting or not */
    infer_req *first, *last; /* those that wait */
    infer_lane *left, *right;
    infer_lane *chain;             /* in its bucket */
    infer_lane *idle_up, *idle_on; /* older, newer */
};

static const infer_policy policies[] = {
    [INFER_POLICY_FAIR] = {"fair", 1, 1, 1},
    [INFER_POLICY_FCFS] = {"fcfs", 0, 0, 1},
    [INFER_POLICY_PRIORITY] = {"priority", 1, 0, 1},
    [INFER_POLICY_PREFIX] = {"prefix", 1, 1, 32},
};

const infer_policy *infer_policy_get(uint32_t policy)
{
    return policy < sizeof policies / sizeof policies[0] ? &policies[policy] : NULL;
}

infer_status infer_queue_create(infer_queue *q, const infer_policy *policy, uint32_t n_live, infer_error *err)
{
    memset(q, 0, sizeof *q);
    q->policy = policy;
    q->n_buckets = 64;
    while (q->n_buckets < n_live && q->n_buckets < 1u << 20)
        q->n_buckets *= 2;
    q->lanes = infer_calloc(q->n_buckets, sizeof *q->lanes);
    q->by_id = infer_calloc(q->n_buckets, sizeof *q->by_id);
    if (q->lanes && q->by_id)
        return INFER_OK;
    infer_queue_destroy(q);
    return infer_error_set(err, INFER_E_NO_MEMORY, "queue: no host memory for %u requests", n_live);
}

void infer_queue_destroy(infer_queue *q)
{
    for (infer_lane *l = q->idle_old; l;) {
        infer_lane *next = l->idle_on;
        infer_lane_destroy(l);
        l = next;
    }
    infer_free(q->lanes);
    infer_free(q->by_id);
    memset(q, 0, sizeof *q);
}

infer_lane *infer_lane_create(void)
{
    return infer_calloc(1, sizeof(infer_lane));
}

void infer_lane_destroy(infer_lane *l)
{
    infer_free(l);
}

/* ---- The treap of lanes in which somebody waits ---------------------------------------------------------------- */

/* Whether a's head starts before b's. Arrivals differ. */
static int before(const infer_lane *a, const infer_lane *b)
{
    if (a->priority != b->priority)
        return a->priority < b->priority;
    if (a->counter != b->counter)
        return a->counter < b->counter;
    return a->first->arrival < b->first->arrival;
}

static uint64_t heap_rank(const infer_lane *l)
{
    return infer_hash_u64((uint64_t)(uintptr_t)l);
}

static void tree_insert(infer_queue *q, infer_lane *l)
{
    infer_lane **link = &q->root;
    while (*link && heap_rank(*link) > heap_rank(l))
        link = before(l, *link) ? &(*link)->left : &(*link)->right;
    /* what stood here is parted into what comes before it and what comes after */
    infer_lane *rest = *link, **lower = &l->left, **upper = &l->right;
    *link = l;
    while (rest) {
        if (before(l, rest)) {
            *upper = rest;
            upper = &rest->left;
            rest = *upper;
        } else {
            *lower = rest;
            lower = &rest->right;
            rest = *lower;
        }
    }
    *lower = *upper = NULL;
}

static void tree_remove(infer_queue *q, infer_lane *x)
{
    infer_lane **link = &q->root, *l = x->left, *r = x->right;
    while (*link != x)
        link = before(x, *link) ? &(*link)->left : &(*link)->right;
    while (l && r) {
        if (heap_rank(l) > heap_rank(r)) {
            *link = l;
            link = &l->right;
            l = *link;
        } else {
            *link = r;
            link = &r->left;
            r = *link;
        }
    }
    *link = l ? l : r;
}

/* The least served lane of a priority in which somebody waits; NULL: nobody does. */
static const infer_lane *least_served(const infer_queue *q, int32_t priority)
{
    const infer_lane *best = NULL;
    for (const infer_lane *l = q->root; l;) {
        if (l->priority == priority)
            best = l;
        l = l->priority >= priority ? l->left : l->right;
    }
    return best;
}

static void settle(infer_lane *l)
{
    l->counter += l->owed;
    l->owed = 0;
}

/* ---- Lanes ------------------------------------------------------------------------------------------------------- */

static infer_lane **lane_bucket(const infer_queue *q, uint64_t tenant, int32_t priority)
{
    return &q->lanes[infer_hash_u64(tenant ^ ((uint64_t)(uint32_t)priority << 32)) & (q->n_buckets - 1)];
}

static infer_req **id_bucket(const infer_queue *q, uint64_t id)
{
    return &q->by_id[id & (q->n_buckets - 1)];
}

static void leave_idle(infer_queue *q, infer_lane *l)
{
    *(l->idle_up ? &l->idle_up->idle_on : &q->idle_old) = l->idle_on;
    *(l->idle_on ? &l->idle_on->idle_up : &q->idle_new) = l->idle_up;
    l->idle_up = l->idle_on = NULL;
    q->n_idle--;
}

static void forget_lane(infer_queue *q, infer_lane *l)
{
    infer_lane **at = lane_bucket(q, l->tenant, l->priority);
    while (*at != l)
        at = &(*at)->chain;
    *at = l->chain;
    leave_idle(q, l);
    infer_lane_destroy(l);
}

/* Nobody of it is alive any more. */
static void fall_idle(infer_queue *q, infer_lane *l)
{
    l->idle_up = q->idle_new;
    *(q->idle_new ? &q->idle_new->idle_on : &q->idle_old) = l;
    q->idle_new = l;
    if (++q->n_idle > MAX_IDLE)
        forget_lane(q, q->idle_old);
}

/* The lane of a request; where there is none, the record that the request brought becomes it. */
static infer_lane *lane_of(infer_queue *q, infer_req *r)
{
    const uint64_t tenant = q->policy->by_tenant ? r->tenant : 0;
    const int32_t priority = q->policy->by_priority ? r->priority : 0;
    infer_lane **bucket = lane_bucket(q, tenant, priority), *l = *bucket;
    while (l && (l->tenant != tenant || l->priority != priority))
        l = l->chain;
    if (!l) {
        l = r->lane_record;
        r->lane_record = NULL;
        *l = (infer_lane){.tenant = tenant, .priority = priority, .chain = *bucket};
        *bucket = l;
    } else if (!l->n_live) {
        leave_idle(q, l);
    }
    l->n_live++;
    return l;
}

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

/* Links a request in after `prev` (NULL: in front). */
static void link_in(infer_queue *q, infer_lane *l, infer_req *prev, infer_req *r)
{
    infer_req *next = prev ? prev->next : l->first;
    if (!prev && l->first) /* the lane's head, and so its place, changes */
        tree_remove(q, l);
    r->prev = prev;
    r->next = next;
    *(prev ? &prev->next : &l->first) = r;
    *(next ? &next->prev : &l->last) = r;
    if (!prev)
        tree_insert(q, l);
    r->waits = 1;
    q->n++;
}

void infer_queue_add(infer_queue *q, infer_req *r)
{
    infer_lane *l = r->lane = lane_of(q, r);
    infer_req **bucket = id_bucket(q, r->id);
    r->id_chain = *bucket;
    *bucket = r;
    r->arrival = ++q->arrivals;
    if (!l->first) {
        settle(l);
        const infer_lane *least = least_served(q, l->priority);
        const uint64_t lift = least ? least->counter : q->n ? 0 : q->left_at;
        if (l->counter < lift)
            l->counter = lift;
    }
    link_in(q, l, l->last, r);
}

void infer_queue_put_back(infer_queue *q, infer_req *r)
{
    link_in(q, r->lane, NULL, r);
}

void infer_queue_take(infer_queue *q, infer_req *r)
{
    infer_lane *l = r->lane;
    const int head = l->first == r;
    if (head)
        tree_remove(q, l);
    *(r->prev ? &r->prev->next : &l->first) = r->next;
    *(r->next ? &r->next->prev : &l->last) = r->prev;
    r->next = r->prev = NULL;
    r->waits = 0;
    q->n--;
    if (head && l->first)
        tree_insert(q, l);
    else if (head)
        q->left_at = l->counter;
}

void infer_queue_drop(infer_queue *q, infer_req *r)
{
    infer_lane *l = r->lane;
    if (!l)
        return;
    if (r->waits)
        infer_queue_take(q, r);
    infer_req **at = id_bucket(q, r->id);
    while (*at != r)
        at = &(*at)->id_chain;
    *at = r->id_chain;
    r->lane = NULL;
    if (!--l->n_live)
        fall_idle(q, l);
}

void infer_queue_charge(infer_queue *q, infer_req *r, uint64_t tokens)
{
    infer_lane *l = r->lane;
    if (!q->policy->by_tenant || !tokens)
        return;
    l->owed += tokens;
}

infer_req *infer_queue_head(infer_queue *q)
{
    /* Counters only rise: a lane that comes first with all it owes does come first. */
    for (infer_lane *l = q->root; l;) {
        if (l->left) {
            l = l->left;
            continue;
        }
        if (!l->owed)
            return l->first;
        tree_remove(q, l);
        settle(l);
        tree_insert(q, l);
        l = q->root;
    }
    return NULL;
}

infer_req *infer_queue_next_in_lane(const infer_req *r)
{
    return r->next;
}

int infer_queue_is_waiting(const infer_req *r)
{
    return r->waits;
}

infer_req *infer_queue_find(const infer_queue *q, uint64_t id)
{
    infer_req *r = *id_bucket(q, id);
    while (r && r->id != id)
        r = r->id_chain;
    return r;
}

/* ---- For tests --------------------------------------------------------------------------------------------------- */

/* Lanes below l, which all lie between low and high; -1: they do not. */
static int64_t count_tree(const infer_lane *l, const infer_lane *low, const infer_lane *high)
{
    if (!l)
        return 0;
    if (!l->first || (low && !before(low, l)) || (high && !before(l, high)) ||
        (l->left && heap_rank(l->left) > heap_rank(l)) || (l->right && heap_rank(l->right) > heap_rank(l)))
        return -1;
    const int64_t a = count_tree(l->left, low, l), b = count_tree(l->right, l, high);
    return a < 0 || b < 0 ? -1 : a + b + 1;
}

int infer_queue_check(const infer_queue *q)
{
    uint32_t n = 0, n_idle = 0;
    int64_t n_lanes = 0;
    for (uint32_t i = 0; i < q->n_buckets; i++) {
        for (const infer_lane *l = q->lanes[i]; l; l = l->chain) {
            n_lanes += l->first != NULL;
            n_idle += !l->n_live;
            const infer_req *prev = NULL;
            for (const infer_req *r = l->first; r; prev = r, r = r->next, n++)
                if (r->lane != l || !r->waits || r->prev != prev || infer_queue_find(q, r->id) != r)
                    return 0;
            if (l->last != prev)
                return 0;
        }
    }
    return n == q->n && n_idle == q->n_idle && count_tree(q->root, NULL, NULL) == n_lanes;
}
