/* Tiers of the prefix cache, and who waits for them. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "base/alloc.h"
#include "sched/places.h"
#include "sched/private.h"

#define NEW 0.1 /* weight of a new time in the mean */

/* ---- Life -------------------------------------------------------------------------------------------------------- */

infer_status infer_tier_sizes(const infer_plan *p, const infer_engine_options *o, infer_tier *t, infer_error *err)
{
    const uint64_t block = infer_plan_block_bytes(p), most = INT32_MAX / 4;
    uint64_t places = block ? o->prefix_host_bytes / block : 0, stage = 0,
             slots = block && o->prefix_file_dir ? o->prefix_file_bytes / infer_kv_store_slot_bytes(block) : 0;
    if (slots) {
        INFER_TRY(infer_kv_store_check(o->prefix_file_dir, o->prefix_file_bytes, err));
        const uint64_t step = (p->opt.max_batched_tokens + p->block_size - 1) / p->block_size;
        const uint64_t context = (p->opt.ctx_size + p->block_size - 1) / p->block_size, few = (256u << 20) / block;
        stage = context < few ? context : few;
        if (stage < 2 * step)
            stage = 2 * step;
        if (stage > slots)
            stage = slots;
    }
    places = places < most ? places : most;
    t->n_stage = (uint32_t)(stage < most ? stage : most);
    t->n_places = (uint32_t)places + t->n_stage;
    t->n_slots = (uint32_t)(slots < most ? slots : most);
    t->fetch = o->prefix_fetch;
    return INFER_OK;
}

infer_status infer_tier_create(infer_tier *t, uint32_t max_path, uint32_t max_running, infer_error *err)
{
    t->max_path = max_path;
    t->max_aside = max_running + 64;
    t->path = infer_calloc(max_path, sizeof *t->path);
    t->aside = infer_calloc(t->max_aside, sizeof *t->aside);
    if (t->path && t->aside)
        return INFER_OK;
    return infer_error_set(err, INFER_E_NO_MEMORY, "scheduler: no host memory");
}

infer_status infer_tier_open(infer_tier *t, const infer_places *places, uint32_t first, const infer_engine_options *o,
                             void (*wake)(void *user), void *user, infer_error *err)
{
    infer_kv_store_part parts[INFER_GRAPH_MAX_DEVS];
    infer_kv_store_options so = {.dir = o->prefix_file_dir,
                                 .n_slots = t->n_slots,
                                 .n_jobs = t->n_places,
                                 .parts = parts,
                                 .trial_place = (int32_t)first,
                                 .wake = wake,
                                 .user = user};
    if (!o->prefix_file_dir || o->no_prefix_cache)
        return INFER_OK;
    if (!t->n_slots)
        return infer_error_set(
            err, INFER_E_INVALID, "prefix cache: a file of %llu bytes does not hold a block, of %llu bytes",
            (unsigned long long)o->prefix_file_bytes, (unsigned long long)infer_plan_block_bytes(places->p));
    for (uint32_t i = 0; i < places->p->n_devs; i++)
        if (places->mem[i])
            parts[so.n_parts++] = (infer_kv_store_part){places->mem[i], places->bytes[i]};
    INFER_TRY(infer_kv_store_create(&so, &t->store, err));
    t->read_ns = infer_kv_store_read_ns(t->store);
    return INFER_OK;
}

void infer_tier_close(infer_tier *t)
{
    infer_kv_store_destroy(t->store);
    infer_free(t->path);
    infer_free(t->aside);
    memset(t, 0, sizeof *t);
}

int infer_tier_ready(const infer_tier *t)
{
    return t->store && infer_kv_store_ready(t->store);
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

/* What computing a block again takes; 0: not known yet. */
static double again_ns(const infer_sched *s)
{
    return infer_budget_row_ns(&s->budget) * infer_kv_pool_block_size(s->pool);
}

static int pays(const infer_sched *s, double way_ns, uint32_t n)
{
    return s->tier.fetch == INFER_PREFIX_FETCH_ALWAYS || way_ns < again_ns(s) * n;
}

/* What is to be written, as far as there is room for what is on its way. */
static void write_out(infer_sched *s)
{
    infer_kv_io io;
    while (s->tier.store && infer_prefix_write(s->prefix, &io))
        infer_kv_store_post(s->tier.store, &io);
}

void infer_tier_reclaim(infer_sched *s, infer_step *st, uint32_t n)
{
    /* What would not be brought back is not kept. */
    const int keep = s->tier.n_places && (again_ns(s) <= 0 || pays(s, s->swap.in_ns, 1));
    if (s->prefix)
        infer_prefix_reclaim(s->prefix, n, keep ? st->x.outs : NULL, &st->x.n_outs);
}

void infer_tier_done(infer_sched *s, infer_step *st, int ok)
{
    for (uint32_t i = 0; i < st->x.n_outs; i++)
        if (st->x.outs[i].node >= 0)
            infer_prefix_out_done(s->prefix, &st->x.outs[i], ok);
    for (uint32_t i = 0; i < st->x.n_ins; i++)
        if (st->x.ins[i].node >= 0)
            infer_prefix_in_done(s->prefix, &st->x.ins[i], ok);
    st->x.n_outs = st->x.n_ins = 0;
    write_out(s);
}

/* ---- Who waits --------------------------------------------------------------------------------------------------- */

static void let_go(infer_sched *s, infer_req *r)
{
    while (r->n_nodes)
        infer_prefix_let_go(s->prefix, r->nodes[--r->n_nodes]);
    r->n_seen = 0;
}

void infer_tier_forget(infer_sched *s, infer_req *r)
{
    infer_tier *t = &s->tier;
    for (uint32_t i = 0; r->is_aside && i < t->n_aside; i++) {
        if (t->aside[i] != r)
            continue;
        memmove(&t->aside[i], &t->aside[i + 1], (--t->n_aside - i) * sizeof *t->aside);
        break;
    }
    r->is_aside = 0;
    let_go(s, r);
}

/* Whether what it waits for is there, or will never be. */
static int is_ready(const infer_sched *s, infer_req *r)
{
    while (r->n_seen < r->n_nodes && !infer_prefix_is_read(s->prefix, r->nodes[r->n_seen]))
        r->n_seen++;
    return r->n_seen == r->n_nodes;
}

void infer_tier_poll(infer_sched *s)
{
    infer_tier *t = &s->tier;
    infer_kv_io io;
    uint32_t n = 0;
    if (!t->store)
        return;
    for (; infer_kv_store_take(t->store, &io); n++) {
        if (!io.is_write) {
            t->n_reads--;
            t->read_ns += NEW * ((double)io.ns - t->read_ns);
        }
        infer_prefix_io_done(s->prefix, &io);
    }
    if (n)
        write_out(s);
    for (uint32_t i = t->n_aside; n && i-- > 0;) { /* the first to come goes back last, to the front */
        infer_req *r = t->aside[i];
        if (!is_ready(s, r))
            continue;
        memmove(&t->aside[i], &t->aside[i + 1], (--t->n_aside - i) * sizeof *t->aside);
        r->is_aside = 0;
        infer_queue_put_back(&s->queue, r);
    }
}

uint64_t infer_tier_find(infer_sched *s, infer_req *r, uint64_t most)
{
    infer_tier *t = &s->tier;
    t->n_ready = 0;
    if (!t->n_places)
        return r->seq.n_tokens;
    const uint32_t n = infer_prefix_path(s->prefix, &r->key, r->tokens, most, &r->seq, t->path, t->max_path);
    while (t->n_ready < n && infer_prefix_state(s->prefix, t->path[t->n_ready]) == INFER_PREFIX_IN_HOST)
        t->n_ready++;
    if (!pays(s, s->swap.in_ns, 1))
        t->n_ready = 0;
    return r->seq.n_tokens + (uint64_t)t->n_ready * infer_kv_pool_block_size(s->pool);
}

int infer_tier_step_aside(infer_sched *s, infer_req *r, uint64_t most)
{
    infer_tier *t = &s->tier;
    infer_kv_io io;
    if (!t->store || r->was_aside || !r->nodes || t->n_aside == t->max_aside)
        return 0;
    const uint32_t n = infer_prefix_path(s->prefix, &r->key, r->tokens, most, &r->seq, t->path, t->max_path);
    uint32_t end = 0, in_file = 0;
    for (; end < n; end++) {
        const int state = infer_prefix_state(s->prefix, t->path[end]),
                  read = infer_prefix_is_read(s->prefix, t->path[end]);
        if (state != INFER_PREFIX_IN_HOST && state != INFER_PREFIX_IN_FILE && !read)
            break;
        in_file += state == INFER_PREFIX_IN_FILE || read;
    }
    if (!in_file || !pays(s, t->read_ns * (t->n_reads + in_file) + s->swap.in_ns * end, end))
        return 0;
    let_go(s, r);
    for (uint32_t i = 0; i < end; i++)
        infer_prefix_hold(s->prefix, r->nodes[r->n_nodes++] = t->path[i]);
    uint32_t reads = 0;
    for (uint32_t i = 0; i < end; i++) {
        if (infer_prefix_is_read(s->prefix, t->path[i])) {
            reads++;
            continue;
        }
        if (infer_prefix_state(s->prefix, t->path[i]) != INFER_PREFIX_IN_FILE)
            continue;
        if (!infer_prefix_read(s->prefix, t->path[i], &io))
            break;
        infer_kv_store_post(t->store, &io);
        t->n_reads++;
        reads++;
    }
    r->was_aside = 1; /* once: what is not there by then is computed */
    if (!reads) {
        let_go(s, r);
        return 0;
    }
    infer_queue_take(&s->queue, r);
    r->is_aside = 1;
    t->aside[t->n_aside++] = r;
    return 1;
}

void infer_tier_hold(infer_sched *s)
{
    for (uint32_t i = 0; i < s->tier.n_ready; i++)
        infer_prefix_hold(s->prefix, s->tier.path[i]);
}

void infer_tier_in(infer_sched *s, infer_step *st, infer_req *r, uint32_t first)
{
    infer_tier *t = &s->tier;
    for (uint32_t i = 0; i < t->n_ready; i++) {
        infer_prefix_let_go(s->prefix, t->path[i]);
        infer_prefix_in(s->prefix, t->path[i], r->seq.blocks[first + i], &st->x.ins[st->x.n_ins++]);
    }
    t->n_ready = 0;
}
