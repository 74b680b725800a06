/* The scheduler: which rows run in the next step. First come, first served within a priority; decodes first. Knows no
 * device. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "sched/private.h"
#include "text/tokenizer.h"

infer_status infer_sched_create(infer_sched *s, const infer_plan *p, const infer_engine_options *o, infer_error *err)
{
    memset(s, 0, sizeof *s);
    s->max_running = p->opt.n_parallel;
    s->max_logits = p->opt.max_logit_rows;
    s->max_blocks = p->dec.step.max_blocks;
    s->max_tokens = p->opt.max_batched_tokens;
    if (o->max_step_tokens && o->max_step_tokens < s->max_tokens)
        s->max_tokens = o->max_step_tokens;
    infer_budget_init(&s->budget, o->target_itl_ns, s->max_tokens);
    infer_spec_init(&s->spec, o->speculative, o->max_draft_tokens, o->target_itl_ns, s->max_tokens);
    s->prefill_chunk = o->prefill_chunk ? o->prefill_chunk : s->max_tokens;
    const infer_policy *policy = infer_policy_get(o->policy);
    if (!policy)
        return infer_error_set(err, INFER_E_INVALID, "policy %u: no such policy", o->policy);
    if (o->speculative > INFER_SPECULATIVE_ALWAYS)
        return infer_error_set(err, INFER_E_INVALID, "speculative = %u: no such kind", o->speculative);
    INFER_TRY(infer_kv_pool_create(p->n_blocks, p->block_size, &s->pool, err));
    s->group_reuse = UINT64_MAX;
    for (uint32_t i = 0; i < p->n_devs; i++)
        if (p->devs[i].kv.spec.n_layers)
            s->group_reuse = infer_kv_group_serves(&p->devs[i].kv.spec, s->group_reuse);
    /* With 12 d^2 weights a layer a token's attention costs as much as the rest at position 6 d: see prefix.h. */
    infer_prefix_options po = {.even_at = 6ull * p->file->hp.n_embd, .first_place = (int32_t)infer_sched_places(p, o)};
    infer_status st = infer_tier_create(&s->tier, s->max_blocks, s->max_running, err);
    if (st == INFER_OK && s->group_reuse && !o->no_prefix_cache) {
        st = infer_tier_sizes(p, o, &s->tier, err);
        po.n_places = s->tier.n_places;
        po.n_stage = s->tier.n_stage;
        po.n_slots = s->tier.n_slots;
        if (st == INFER_OK)
            st = infer_prefix_create(s->pool, &po, &s->prefix, err);
    }
    if (st == INFER_OK)
        st = infer_queue_create(&s->queue, policy, infer_sched_max_queue(o) + s->max_running, err);
    if (st != INFER_OK) {
        infer_sched_destroy(s);
        return st;
    }
    if ((st = infer_swap_create(&s->swap, infer_sched_places(p, o), o->preemption, err)) != INFER_OK) {
        infer_sched_destroy(s);
        return st;
    }
    s->running = infer_calloc(s->max_running, sizeof *s->running);
    s->order = infer_calloc(s->max_running, sizeof *s->order);
    s->free_slots = infer_calloc(s->max_running, sizeof *s->free_slots);
    if (!s->running || !s->order || !s->free_slots) {
        infer_sched_destroy(s);
        return infer_error_set(err, INFER_E_NO_MEMORY, "scheduler: no host memory");
    }
    while (s->n_free_slots < s->max_running) {
        s->free_slots[s->n_free_slots] = (int32_t)(s->max_running - 1 - s->n_free_slots);
        s->n_free_slots++;
    }
    return INFER_OK;
}

void infer_sched_destroy(infer_sched *s)
{
    infer_tier_close(&s->tier);
    infer_swap_destroy(&s->swap);
    infer_queue_destroy(&s->queue);
    infer_prefix_destroy(s->prefix);
    infer_kv_pool_destroy(s->pool);
    infer_free(s->running);
    infer_free(s->order);
    infer_free(s->free_slots);
    memset(s, 0, sizeof *s);
}

infer_status infer_step_create(infer_step *st, const infer_sched *s, uint32_t number, infer_step_image *im,
                               infer_error *err)
{
    *st = (infer_step){.number = number,
                       .im = im,
                       .batch = infer_calloc(s->max_running, sizeof *st->batch),
                       .tables = infer_calloc(s->max_running, sizeof *st->tables),
                       .x = {.late = infer_calloc(s->max_running, sizeof *st->x.late),
                             .copies = infer_calloc(s->max_running, sizeof *st->x.copies),
                             .inits = infer_calloc(s->max_running, sizeof *st->x.inits),
                             .outs = infer_calloc(s->swap.n_places + s->tier.n_places, sizeof *st->x.outs),
                             .ins = infer_calloc(s->swap.n_places + s->tier.n_places, sizeof *st->x.ins)}};
    if (st->batch && st->tables && st->x.late && st->x.copies && st->x.inits && st->x.outs && st->x.ins)
        return INFER_OK;
    infer_step_destroy(st);
    return infer_error_set(err, INFER_E_NO_MEMORY, "scheduler: no host memory for a step");
}

void infer_step_destroy(infer_step *st)
{
    infer_free(st->batch);
    infer_free(st->tables);
    infer_free(st->x.late);
    infer_free(st->x.copies);
    infer_free(st->x.inits);
    infer_free(st->x.outs);
    infer_free(st->x.ins);
    memset(st, 0, sizeof *st);
}

uint32_t infer_sched_places(const infer_plan *p, const infer_engine_options *o)
{
    const uint64_t bytes = infer_plan_block_bytes(p), n = bytes ? o->swap_bytes / bytes : 0;
    return n > p->n_blocks ? p->n_blocks : (uint32_t)n;
}

uint32_t infer_sched_max_queue(const infer_engine_options *o)
{
    return o->max_queue ? o->max_queue : 1024;
}

void infer_sched_enqueue(infer_sched *s, infer_req *r)
{
    infer_queue_add(&s->queue, r);
}

uint32_t infer_sched_free_blocks(const infer_sched *s)
{
    return infer_kv_pool_free(s->pool) + infer_kv_pool_idle(s->pool);
}

/* The blocks go back. What a step under way computes is not kept: it may fail. After one that did, what lies in the
 * blocks is unknown: a copy that it began with may not have been made. */
static void let_go(infer_sched *s, infer_req *r)
{
    if (s->prefix && !r->tainted)
        infer_prefix_insert(s->prefix, &r->key, r->tokens, r->n_done, &r->seq, &r->n_known, 1);
    infer_kv_seq_truncate(s->pool, &r->seq, 0);
    r->n_computed = r->n_done = 0;
    r->tainted = 0;
    r->n_known = 0;
    r->was_aside = 0;
}

static void stop_one(infer_sched *s, infer_req *r)
{
    uint32_t i = 0;
    while (i < s->n_running && s->running[i] != r)
        i++;
    if (i == s->n_running)
        return;
    memmove(&s->running[i], &s->running[i + 1], (s->n_running - i - 1) * sizeof *s->running);
    s->n_running--;
    s->free_slots[s->n_free_slots++] = r->slot;
    r->slot = -1;
    r->step_rows = 0;
    let_go(s, r);
}

/* Out of the running set, with all that belong to it; its blocks go back. */
static void stop_running(infer_sched *s, infer_req *r)
{
    for (uint32_t i = 0; i < infer_beams_width(r); i++)
        stop_one(s, infer_beams_member(r, i));
    infer_beams_forget(r);
}

void infer_sched_remove(infer_sched *s, infer_req *r)
{
    if (r->slot >= 0)
        stop_running(s, r);
    infer_swap_forget(s, r);
    infer_tier_forget(s, r);
    infer_queue_drop(&s->queue, r);
    for (uint32_t k = 0; k < infer_beams_width(r); k++) {
        infer_req *m = infer_beams_member(r, k);
        for (int i = 0; i < 2; i++) {
            if (m->in[i])
                m->in[i]->r = NULL;
            m->in[i] = NULL;
        }
        infer_kv_seq_free(s->pool, &m->seq);
    }
}

/* Whether a gives way to b: the lower priority first, then the newer. */
static int gives_way(const infer_sched *s, const infer_req *a, const infer_req *b)
{
    if (s->queue.policy->by_priority && a->priority != b->priority)
        return a->priority > b->priority;
    return a->admission > b->admission;
}

static int has_rows(infer_req *r)
{
    int rows = 0;
    for (uint32_t i = 0; i < infer_beams_width(r); i++)
        rows |= infer_beams_member(r, i)->step_rows != 0;
    return rows;
}

/* Gives up the running request that gives way to all others and has no rows in this step, to be computed again later;
 * never `keep`, nor one that `keep` gives way to: whoever stands first always goes on. */
static int preempt(infer_sched *s, infer_step *st, const infer_req *keep)
{
    infer_req *victim = NULL;
    for (uint32_t i = 0; i < s->n_running; i++) {
        infer_req *v = infer_beams_leader(s->running[i]);
        if (v != keep && !has_rows(v) && gives_way(s, v, keep) && (!victim || gives_way(s, v, victim)))
            victim = v;
    }
    if (!victim)
        return 0;
    infer_swap_out(s, st, victim);
    stop_running(s, victim);
    infer_queue_put_back(&s->queue, victim);
    s->preemptions++;
    return 1;
}

/* Tokens that fit without another block of the pool, and with all that are free. */
static uint64_t room_of(const infer_sched *s, const infer_req *r)
{
    uint64_t n = infer_kv_pool_block_size(s->pool), free = infer_sched_free_blocks(s);
    uint64_t slack = r->seq.n_blocks * n - r->seq.n_tokens;
    if (slack && infer_kv_seq_need(s->pool, &r->seq, 1)) /* its last block is to be copied first */
        return free ? slack + (free - 1) * n : 0;
    return slack + free * n;
}

/* Room for n more tokens, or as many as there is room for; preempts others while that helps. */
static uint32_t make_room(infer_sched *s, infer_step *st, infer_req *r, uint32_t n)
{
    while (infer_kv_seq_need(s->pool, &r->seq, n) > infer_sched_free_blocks(s)) {
        if (preempt(s, st, r))
            continue;
        uint64_t room = room_of(s, r);
        return room < n ? (uint32_t)room : n;
    }
    return n;
}

static void put_sampling(infer_sched *s, infer_step *st, infer_req *r, uint32_t row)
{
    infer_step_image *im = st->im;
    const infer_sampling *sp = &r->sampling;
    infer_sample_row *o = &im->sample_rows[row];
    *o = (infer_sample_row){.temperature = sp->temperature,
                            .top_p = sp->top_p,
                            .min_p = sp->min_p,
                            .top_k = sp->top_k,
                            .repetition_penalty = sp->repetition_penalty,
                            .presence_penalty = sp->presence_penalty,
                            .frequency_penalty = sp->frequency_penalty,
                            .counts_row = r->counts ? r->slot : -1,
                            .seed = sp->seed,
                            .position = r->n_tokens,
                            .bias_first = im->n_bias,
                            .flags = r->n_top ? 0 : INFER_SAMPLE_NO_TOP};
    memcpy(&im->bias[im->n_bias], r->bias, sp->n_bias * sizeof *r->bias);
    im->n_bias += sp->n_bias;
    /* Before min_tokens whatever would end the request is forbidden. */
    if (r->n_tokens - r->n_prompt < r->min_tokens) {
        for (uint32_t i = 0; i < r->n_stop_ids; i++)
            im->bias[im->n_bias++] = (infer_sample_bias){r->stop_ids[i], -INFINITY};
        for (uint32_t i = 0; i < s->n_end_ids && !(r->flags & INFER_REQ_IGNORE_EOS); i++)
            im->bias[im->n_bias++] = (infer_sample_bias){s->end_ids[i], -INFINITY};
    }
    o->bias_count = im->n_bias - o->bias_first;
    if (r->counts && r->counts_stale) {
        st->x.inits[st->x.n_inits++] = (infer_counts_init){(uint32_t)r->slot, r->counts};
        r->counts_stale = 0;
    }
}

/* Whether the caller waits for the row of token t. */
static int wants_row(const infer_req *r, uint64_t t)
{
    return r->on_row && t < r->n_prompt && t >= r->n_rows_given;
}

/* The row after another of its request's samples behind a draft: as that one, a position later. */
static void put_draft_sampling(infer_step_image *im, const infer_req *r, uint32_t row)
{
    infer_sample_row *o = &im->sample_rows[row];
    *o = im->sample_rows[row - 1];
    if (++o->position - r->n_prompt >= r->min_tokens)
        o->bias_count = r->sampling.n_bias; /* these are first */
}

static uint32_t prompt_rows(const infer_req *r, uint32_t n)
{
    const uint64_t left = r->n_prompt > r->n_computed ? r->n_prompt - r->n_computed : 0;
    return left < n ? (uint32_t)left : n;
}

/* A sequence's blocks into its row of the image, but for those that stand there. */
static void put_table(const infer_sched *s, infer_step *st, uint32_t row, const infer_kv_seq *seq)
{
    infer_table_row *t = &st->tables[row];
    if (t->edition != seq->edition)
        *t = (infer_table_row){.edition = seq->edition};
    int32_t *to = &st->im->block_table[(size_t)row * s->max_blocks];
    for (; t->n_blocks < seq->n_blocks; t->n_blocks++)
        to[t->n_blocks] = seq->blocks[t->n_blocks];
}

/* Adds `n` rows of a request, and n_drafts more, for which there is room, to the image. */
static void put_rows(infer_sched *s, infer_step *st, infer_req *r, uint32_t n, uint32_t n_drafts)
{
    n += n_drafts;
    infer_step_image *im = st->im;
    uint32_t n_copy = 0, seq = im->n_seqs++;
    infer_batch_entry *b = &st->batch[st->n_batch++];
    *b = (infer_batch_entry){.r = r,
                             .first = r->n_computed,
                             .token_at = r->n_tokens,
                             .admission = r->admission,
                             .rows = n,
                             .first_logit = im->n_logits,
                             .prompt_rows = prompt_rows(r, n),
                             .n_drafts = n_drafts,
                             .samples = r->n_computed + n - n_drafts == r->n_tokens && r->n_tokens < r->cap_tokens};
    st->n_drafts += n_drafts;
    r->in[st->number] = b;
    r->step_rows = n;
    const uint32_t need = infer_kv_seq_need(s->pool, &r->seq, n);
    if (need)
        infer_tier_reclaim(s, st, need);
    infer_kv_seq_grow(s->pool, &r->seq, n, &st->x.copies[st->x.n_copies], &n_copy);
    st->x.n_copies += n_copy;
    if (n_copy) /* what the copy brings is not there before the step is done */
        r->n_done -= r->n_done % infer_kv_pool_block_size(s->pool);
    st->beams |= r->beams != NULL;
    im->q_start[seq] = (int32_t)im->n_tokens;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t t = r->n_computed + i;
        uint32_t row = im->n_tokens++;
        const int is_draft = t >= r->n_tokens;
        if (is_draft) {
            im->ids[row] = infer_draft_token(&r->spec->draft, r->tokens, (uint32_t)(t - r->n_tokens));
        } else if (t < r->n_made) {
            im->ids[row] = r->tokens[t];
        } else { /* the step under way is making it */
            const infer_batch_entry *before = r->in[1 - st->number];
            im->ids[row] = -1;
            st->x.late[st->x.n_late++] = (infer_late_id){row, before->first_logit + before->n_logits - 1};
        }
        im->pos[row] = (int32_t)t;
        im->slots[row] = infer_kv_seq_slot(s->pool, &r->seq, t);
        im->adapter_row[row] = (int32_t)r->adapter - 1;
        int sampled = i + n_drafts + 1 >= n && b->samples, wanted = wants_row(r, t);
        st->x.want_logits |= wanted && r->output == INFER_OUTPUT_LOGITS;
        st->x.want_hidden |= wanted && r->output != INFER_OUTPUT_LOGITS;
        if (sampled || wanted) {
            if (is_draft) {
                put_draft_sampling(im, r, im->n_logits);
            } else if (sampled) {
                put_sampling(s, st, r, im->n_logits);
                st->x.want_sample = 1;
            } else {
                im->sample_rows[im->n_logits] = (infer_sample_row){
                    .top_p = 1, .repetition_penalty = 1, .counts_row = -1, .flags = INFER_SAMPLE_NO_TOP};
            }
            im->logit_rows[im->n_logits++] = (int32_t)row;
        }
    }
    b->n_logits = im->n_logits - b->first_logit;
    im->kv_len[seq] = (int32_t)(r->n_computed + n);
    im->q_start[seq + 1] = (int32_t)im->n_tokens;
    put_table(s, st, seq, &r->seq);
    st->x.want_top |= b->samples && r->n_top;
}

/* How many rows of a request fit the step's budgets of rows and logits. */
static uint32_t chunk_of(const infer_sched *s, const infer_step *st, const infer_req *r)
{
    const infer_step_image *im = st->im;
    uint64_t left = r->n_tokens - r->n_computed, n = left;
    uint64_t budget = st->max_rows - im->n_tokens, logits = s->max_logits - im->n_logits;
    if (n > budget)
        n = budget;
    if (n > s->prefill_chunk)
        n = s->prefill_chunk;
    if (r->on_row && r->n_rows_given < r->n_prompt) {
        uint64_t from = r->n_rows_given > r->n_computed ? r->n_rows_given : r->n_computed;
        if (n > from - r->n_computed + logits)
            n = from - r->n_computed + logits;
    }
    if (n == left && !logits) /* the last row samples */
        n--;
    return (uint32_t)n;
}

/* Tokens of a starting request that need not be computed if somebody has them. The last one is, for its logits, and so
 * is whatever the caller waits for rows of. */
static uint64_t most_known(const infer_sched *s, const infer_req *r)
{
    uint64_t most = r->n_tokens - 1;
    if (r->on_row && r->n_rows_given < r->n_prompt && r->n_rows_given < most)
        most = r->n_rows_given;
    return most < s->group_reuse ? most : s->group_reuse;
}

/* The running request whose prompt a starting one shares; NULL: there is none, or nothing to share. */
static const infer_req *forked_from(const infer_sched *s, const infer_req *r)
{
    const infer_req *p = r->fork_of ? infer_queue_find(&s->queue, r->fork_of) : NULL;
    if (!p || p == r || p->slot < 0 || p->tainted || p->n_prompt != r->n_prompt || p->adapter != r->adapter ||
        memcmp(&p->key, &r->key, sizeof p->key) || memcmp(p->tokens, r->tokens, r->n_prompt * sizeof *r->tokens) ||
        !most_known(s, r))
        return NULL;
    return p;
}

/* It shares the blocks of its prompt's first tokens, `most` at most. */
static void share_blocks(infer_sched *s, const infer_req *p, infer_req *r, uint64_t most)
{
    const uint64_t done = p->n_done < r->n_prompt ? p->n_done : r->n_prompt, n = most < done ? most : done;
    const uint32_t size = infer_kv_pool_block_size(s->pool);
    for (uint64_t at = 0; at < n; at += size)
        infer_kv_seq_share(s->pool, &r->seq, p->seq.blocks[at / size], n - at < size ? (uint32_t)(n - at) : size);
    r->n_known = p->n_known < n / size ? p->n_known : (uint32_t)(n / size);
}

/* A starting request takes what others computed of its tokens: of its prompt by the one it is a fork of, else what the
 * prefix cache has. */
static void take_known(infer_sched *s, infer_req *r, const infer_req *p)
{
    const uint32_t size = infer_kv_pool_block_size(s->pool);
    const uint64_t most = most_known(s, r);
    r->n_known = UINT32_MAX;
    if (p)
        share_blocks(s, p, r, most);
    else if (s->prefix)
        infer_prefix_match(s->prefix, &r->key, r->tokens, most, &r->seq);
    /* A last block that is shared is to be copied: without a block for it the request does without, for when it is
     * alone it must start. */
    if (r->seq.n_tokens % size && !infer_sched_free_blocks(s))
        infer_kv_seq_truncate(s->pool, &r->seq, r->seq.n_tokens / size * size);
    /* What lies in host memory goes on from a whole block: the prefix cache's, or its own if that goes further. */
    s->tier.n_ready = 0;
    r->n_computed = p || !s->prefix ? r->seq.n_tokens : infer_tier_find(s, r, most);
    uint64_t swapped = infer_swap_tokens(r);
    if (swapped > r->n_tokens - 1)
        swapped = r->n_tokens - 1;
    if (swapped > r->n_computed) {
        infer_kv_seq_truncate(s->pool, &r->seq, r->seq.n_tokens / size * size);
        r->n_computed = swapped;
        s->tier.n_ready = 0;
    }
    if (r->n_known > r->seq.n_tokens / size)
        r->n_known = (uint32_t)(r->seq.n_tokens / size);
    r->n_done = (uint64_t)r->n_known * size; /* the rest comes by a copy, with the step */
}

/* What take_known took goes back as it was. */
static int not_yet(infer_sched *s, infer_req *r)
{
    infer_kv_seq_truncate(s->pool, &r->seq, 0);
    r->n_computed = r->n_done = 0;
    r->n_known = 0;
    return 0;
}

/* Whether the blocks that were missing when it was last tried are still missing. */
static int still_blocked(infer_sched *s, const infer_req *r)
{
    enum { PATIENCE = 32 };
    return s->blocked_id == r->id && s->n_running && infer_sched_free_blocks(s) < s->blocked_free &&
           ++s->blocked_steps < PATIENCE;
}

/* Blocks for what lies in host memory, and the copies. There is room: all blocks are free but those of the running
 * ones, and a pool holds a context. */
static void bring_back(infer_sched *s, infer_step *st, infer_req *r)
{
    infer_kv_copy none;
    uint32_t n_none;
    const uint64_t more = r->n_computed - r->seq.n_tokens;
    const uint32_t first = r->seq.n_blocks;
    infer_tier_hold(s);
    infer_tier_reclaim(s, st, infer_kv_seq_need(s->pool, &r->seq, more));
    infer_kv_seq_grow(s->pool, &r->seq, more, &none, &n_none); /* it ends on a block's edge: nothing is copied */
    if (s->tier.n_ready)
        infer_tier_in(s, st, r, first);
    else
        infer_swap_in(s, st, r, first, r->n_computed);
}

static void run(infer_sched *s, infer_req *r)
{
    r->slot = s->free_slots[--s->n_free_slots];
    r->admission = s->n_admitted;
    r->step_rows = 0;
    s->running[s->n_running++] = r;
}

static int admit(infer_sched *s, infer_step *st, infer_req *r, uint64_t now)
{
    const uint32_t free_before = infer_sched_free_blocks(s), width = infer_beams_width(r);
    if (width > s->max_running - s->n_running)
        return 0;
    const infer_req *p = forked_from(s, r);
    if (p && p->n_done < r->n_prompt - 1) /* its prompt is being read */
        return 0;
    if (still_blocked(s, r))
        return 0;
    s->blocked_id = 0;
    take_known(s, r, p);
    if (!p && !infer_swap_tokens(r) && infer_tier_step_aside(s, r, most_known(s, r))) {
        not_yet(s, r);
        return 1; /* others go on */
    }
    uint32_t n = chunk_of(s, st, r);
    if (!n)
        return not_yet(s, r);
    /* A request starts when its whole known text and a token fit, so that it is not preempted at once; alone it always
     * starts. */
    uint64_t text = r->n_tokens < r->cap_tokens ? r->n_tokens + 1 : r->n_tokens;
    const uint32_t need = infer_kv_seq_need(s->pool, &r->seq, text - r->seq.n_tokens) +
                          infer_beams_blocks(r, infer_kv_pool_block_size(s->pool)),
                   free = infer_sched_free_blocks(s);
    if (s->n_running && need > free) {
        s->blocked_id = r->id;
        s->blocked_free = free_before + (need - free);
        s->blocked_steps = 0;
        return not_yet(s, r);
    }
    if (r->n_computed > r->seq.n_tokens)
        bring_back(s, st, r);
    infer_swap_forget(s, r); /* what of it the prefix cache had */
    infer_tier_forget(s, r);
    uint64_t room = room_of(s, r);
    if (n > room)
        n = (uint32_t)room;
    s->n_admitted++;
    infer_queue_take(&s->queue, r);
    for (uint32_t i = 0; i < width; i++)
        run(s, infer_beams_member(r, i));
    if (!r->t_first_run) {
        r->t_first_run = now;
        r->n_cached = r->n_computed;
        s->prefix_queries += s->prefix ? r->n_prompt : 0;
        s->prefix_hits += r->n_cached;
        infer_queue_charge(&s->queue, r, r->n_prompt - r->n_cached);
    }
    if (r->counts)
        infer_req_count(r, s->n_vocab);
    put_rows(s, st, r, n, 0);
    return 1;
}

/* Who starts next: the head of the queue, or, where the policy asks for it, of the first in its lane the one of whose
 * prompt most is computed; nobody is passed over more often than that many times. */
static infer_req *next_to_start(infer_sched *s)
{
    infer_req *head = infer_queue_head(&s->queue), *best = head;
    uint32_t window = s->prefix ? s->queue.policy->window : 1;
    if (!head || window == 1 || head->n_passed >= window)
        return head;
    infer_req *blocked = infer_queue_find(&s->queue, s->blocked_id);
    if (blocked && infer_queue_is_waiting(blocked) && blocked->lane == head->lane)
        return blocked;
    uint64_t most = 0;
    for (infer_req *r = head; r && window--; r = infer_queue_next_in_lane(r)) {
        const uint64_t n = infer_prefix_known(s->prefix, &r->key, r->tokens, r->n_tokens - 1);
        if (n > most) {
            most = n;
            best = r;
        }
    }
    return best;
}

/* A beam without any block takes the prompt's from the first one. 0: that one has yet to compute them. */
static int has_prompt(infer_sched *s, infer_req *r)
{
    const infer_req *p = infer_beams_leader(r);
    if (r == p || r->n_computed)
        return 1;
    if (p->n_done < r->n_prompt)
        return 0;
    share_blocks(s, p, r, r->n_prompt);
    r->n_computed = r->seq.n_tokens;
    r->n_done = (uint64_t)r->n_known * infer_kv_pool_block_size(s->pool); /* the rest comes by a copy, with the step */
    return 1;
}

enum { PROMPTS, DECODES, BEAMS };

/* What steps read and write of a request. */
static void foresee_hot(const infer_req *r)
{
    enum { LINE = 64 };
    for (size_t at = 0; at < offsetof(infer_req, next); at += LINE)
        __builtin_prefetch((const char *)r + at, 1);
}

/* One pass over the running ones: decodes, prompts, or beams. Preemption shortens the list meanwhile, hence the copy.
 * Returns how many have rows that another pass puts. */
static uint32_t put_running(infer_sched *s, infer_step *st, int which)
{
    uint32_t n = s->n_running, others = 0;
    memcpy(s->order, s->running, n * sizeof *s->order);
    for (uint32_t i = 0; i < n; i++) {
        enum { FAR = 6, NEAR = 3 }; /* of some 30 ns each */
        infer_req *r = s->order[i];
        if (which == DECODES && i + FAR < n) /* the first pass */
            foresee_hot(s->order[i + FAR]);
        if (which == DECODES && i + NEAR < n)
            infer_kv_seq_foresee(s->pool, &s->order[i + NEAR]->seq);
        const int waits = r->n_computed == r->n_tokens || /* for its last rows, or for its last token */
                          (r->n_made < r->n_tokens && (r->n_tokens == r->cap_tokens || r->beams)); /* or for others */
        if (r->slot < 0 || r->step_rows || waits || (r->beams && !has_prompt(s, r)))
            continue;
        if (which == BEAMS ? !r->beams : (r->n_tokens - r->n_computed == 1) != (which == DECODES)) {
            others++;
            continue;
        }
        uint32_t rows = chunk_of(s, st, r);
        if (rows && (rows = make_room(s, st, r, rows)))
            put_rows(s, st, r, rows, which == DECODES ? infer_spec_drafts(s, st, r) : 0);
    }
    return others;
}

void infer_sched_go_on(infer_sched *s, infer_step *st)
{
    const uint64_t preempted = s->preemptions;
    put_running(s, st, BEAMS);
    st->preempted |= s->preemptions != preempted;
}

uint32_t infer_sched_top_up(infer_sched *s, infer_step *st, uint64_t now)
{
    /* The running ones had their choice: a block that is free now is one that none of them could use. */
    while (s->queue.n && !st->preempted && s->n_running < s->max_running && st->im->n_tokens < st->max_rows) {
        infer_req *r = next_to_start(s);
        for (infer_req *p = infer_queue_head(&s->queue); p != r; p = infer_queue_next_in_lane(p))
            p->n_passed++;
        if (!admit(s, st, r, now))
            break;
    }
    return st->im->n_tokens;
}

uint32_t infer_sched_build(infer_sched *s, infer_step *st, uint64_t now)
{
    infer_step_image *im = st->im;
    im->n_tokens = im->n_seqs = im->n_logits = im->n_bias = 0;
    im->q_start[0] = 0;
    st->n_batch = st->n_drafts = 0;
    st->x.n_late = st->x.n_copies = st->x.n_inits = st->x.n_outs = st->x.n_ins = 0;
    st->x.want_sample = st->x.want_top = st->x.want_logits = st->x.want_hidden = 0;
    st->beams = 0;
    st->beam_prompt = st->beam_made = 0;
    const uint64_t preempted = s->preemptions;
    if (s->prefix)
        infer_prefix_step(s->prefix);
    infer_tier_poll(s);
    st->max_rows = s->max_tokens;
    infer_spec_begin(s);
    const uint32_t prompts = put_running(s, st, DECODES);
    if (im->n_tokens)
        st->max_rows = infer_budget_rows(&s->budget, im->n_tokens);
    if (prompts)
        put_running(s, st, PROMPTS);
    st->preempted = s->preemptions != preempted;
    return infer_sched_top_up(s, st, now);
}

void infer_sched_fill_ids(infer_step *st, const int32_t *sampled, uint32_t n_vocab)
{
    for (uint32_t i = 0; i < st->x.n_late; i++) {
        const int32_t id = sampled[st->x.late[i].logit];
        st->im->ids[st->x.late[i].row] = id < 0 || (uint32_t)id >= n_vocab ? 0 : id; /* then its request fails */
    }
    st->x.n_late = 0;
}

void infer_sched_note_time(infer_sched *s, const infer_step_image *im, uint64_t ns)
{
    infer_budget_note(&s->budget, im->n_tokens, ns);
    if (im->n_logits == im->n_tokens)
        infer_spec_note(&s->spec, im->n_tokens, ns);
}

void infer_sched_begin(infer_sched *s, infer_step *st)
{
    enum { OUTPUT_WEIGHT = 2 }; /* as in the paper: an output token costs about two of the prompt */
    s->spec.n_with = st->n_drafts ? s->spec.n_with + 1 : 0;
    for (uint32_t i = 0; i < st->n_batch; i++) {
        infer_req *r = st->batch[i].r;
        if (!r)
            continue;
        r->step_rows = 0;
        r->n_computed += st->batch[i].rows;
        if (!st->batch[i].samples)
            continue;
        r->tokens[r->n_tokens++] = -1;
        infer_queue_charge(&s->queue, infer_beams_leader(r), OUTPUT_WEIGHT);
    }
}

/* An entry that makes a token; NULL: there is none, or it makes none. */
static const infer_batch_entry *maker(const infer_step *st, uint32_t i)
{
    const infer_batch_entry *b = i < st->n_batch ? &st->batch[i] : NULL;
    return b && b->r && b->samples ? b : NULL;
}

void infer_step_foresee(const infer_step *st, uint32_t i, const infer_step_result *res, const infer_tokenizer *tok)
{
    enum { FAR = 8, NEAR = 4 }; /* an entry takes 0.1 us: memory answers within a few */
    const infer_batch_entry *far = maker(st, i + FAR), *near = maker(st, i + NEAR);
    if (!tok)
        return;
    if (far) {
        foresee_hot(far->r);
        infer_tokenizer_foresee(tok, res->ids[far->first_logit + far->n_logits - 1]);
    }
    if (near && near->r->detok) {
        __builtin_prefetch(&near->r->tokens[near->r->n_made], 1);
        infer_detok_foresee(near->r->detok);
    }
}

void infer_sched_finish(infer_sched *s, infer_step *st, infer_batch_entry *b)
{
    infer_req *r = b->r;
    r->in[st->number] = NULL;
    if (r->slot < 0 || r->admission != b->admission) /* it gave way meanwhile */
        return;
    r->n_done = b->first + b->rows;
    if (s->prefix && r->n_done >= (r->n_known + 1ull) * infer_kv_pool_block_size(s->pool))
        infer_prefix_insert(s->prefix, &r->key, r->tokens, r->n_done, &r->seq, &r->n_known, 0);
}

void infer_sched_undo(infer_sched *s, infer_step *st)
{
    for (uint32_t i = st->n_batch; i-- > 0;) {
        infer_req *r = st->batch[i].r;
        if (!r)
            continue;
        r->in[st->number] = NULL;
        if (st->batch[i].samples) /* it may have begun */
            r->n_tokens = st->batch[i].token_at;
        if (r->slot < 0) /* a beam of those that stopped */
            continue;
        infer_beams_taint(r);
        stop_running(s, r);
        infer_queue_put_back(&s->queue, infer_beams_leader(r));
    }
    infer_swap_failed(s, st);
    infer_tier_done(s, st, 0);
    st->n_batch = 0;
}
