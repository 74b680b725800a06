/* A scheduler without devices, and a model of what they would hold. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TESTS_SCHED_WORLD_H
#define INFER_TESTS_SCHED_WORLD_H

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "sched/places.h"
#include "unit/rng.h"
#include "unit/sched_util.h"

/* A scheduler with an image, and a model of what the devices hold: which text the keys in each cache slot are of, and
 * the rows of sampling counts. */
typedef struct world {
    infer_sched s;
    infer_plan *plan;
    infer_step_image im[2];
    infer_step steps[2], *st; /* st: the last one that was built */
    infer_step *under_way;    /* with laps: begun, and its tokens not known */
    uint64_t *host;           /* as cache, by place in host memory */
    uint64_t *cache;          /* by slot: the hash of the key and the tokens up to there */
    int32_t last[256];        /* the text of a request that ended */
    uint32_t n_last;
    infer_file file;
    uint16_t (*counts)[VOCAB];
    uint64_t next_id, now;
    uint32_t logits_seen[4096]; /* by id: prompt positions whose logits came */
    uint64_t n_rows;
    infer_req *dead;
    int keep; /* who ended stays until the world ends */
} world;

typedef struct shape {
    uint32_t blocks, block, parallel, batched, step_tokens, chunk, ctx, logits, no_prefix_cache, places, drafts;
    uint32_t host, slots; /* of the prefix cache; slots: of a real file */
} shape;

static uint32_t next_policy; /* of the next world */
static uint64_t next_tenant; /* of the next requests */

static inline void nobody_waits(void *user)
{
    (void)user;
}

/* Host memory and a file for what the prefix cache has to give up; the file takes as many places as it has slots. */
static inline void world_tiers(world *w, shape sh)
{
    infer_tier *t = &w->s.tier;
    t->n_stage = sh.slots;
    t->n_slots = sh.slots;
    t->n_places = sh.host + sh.slots;
    t->fetch = INFER_PREFIX_FETCH_ALWAYS;
    const infer_prefix_options po = {6 * EMBD, (int32_t)sh.places, t->n_places, t->n_stage, t->n_slots};
    infer_prefix_destroy(w->s.prefix);
    assert_int_equal(infer_prefix_create(w->s.pool, &po, &w->s.prefix, NULL), INFER_OK);
    if (!sh.slots)
        return;
    char dir[] = "/tmp/infer-sched-XXXXXX";
    infer_plan p = {.n_devs = 1};
    const infer_places places = {
        .p = &p, .mem = {(uint8_t *)w->host}, .bytes = {sh.block * sizeof *w->host}, .n = sh.places + t->n_places};
    infer_error e = {0};
    assert_non_null(mkdtemp(dir));
    const infer_engine_options o = {.prefix_file_dir = dir};
    if (infer_tier_open(t, &places, sh.places, &o, nobody_waits, NULL, &e))
        fail_msg("%s", e.text);
    assert_int_equal(rmdir(dir), 0); /* the file has no name */
}

static inline world *world_of(shape sh)
{
    world *w = calloc(1, sizeof *w);
    infer_plan *p = w->plan = calloc(1, sizeof *p);
    infer_engine_options o = {.struct_size = sizeof o,
                              .policy = next_policy,
                              .prefill_chunk = sh.chunk,
                              .max_step_tokens = sh.step_tokens,
                              .no_prefix_cache = sh.no_prefix_cache,
                              .speculative = sh.drafts ? INFER_SPECULATIVE_ALWAYS : INFER_SPECULATIVE_OFF,
                              .max_draft_tokens = sh.drafts};
    w->file.hp.n_embd = EMBD;
    p->file = &w->file;
    p->opt.n_parallel = sh.parallel;
    p->opt.max_batched_tokens = sh.batched;
    p->opt.max_logit_rows = sh.logits > sh.parallel ? sh.logits : sh.parallel;
    p->opt.ctx_size = sh.ctx;
    p->block_size = sh.block;
    p->n_blocks = sh.blocks;
    p->dec.step.max_blocks = (sh.ctx + sh.block - 1) / sh.block;
    assert_int_equal(infer_sched_create(&w->s, p, &o, NULL), INFER_OK);
    w->s.n_vocab = VOCAB;
    infer_swap_destroy(&w->s.swap);
    assert_int_equal(infer_swap_create(&w->s.swap, sh.places, INFER_PREEMPTION_SWAP, NULL), INFER_OK);
    w->host = calloc((size_t)(sh.places + sh.host + sh.slots) * sh.block + 1, sizeof *w->host);
    if (w->s.prefix && sh.host + sh.slots)
        world_tiers(w, sh);
    uint32_t t = sh.batched, l = p->opt.max_logit_rows;
    for (uint32_t i = 0; i < 2; i++) {
        infer_step_image *im = &w->im[i];
        im->counts = calloc(INFER_COUNT_MAX, 4);
        im->ids = calloc(t, 4);
        im->pos = calloc(t, 4);
        im->slots = calloc(t, 4);
        im->adapter_row = calloc(t, 4);
        im->logit_rows = calloc(l, 4);
        im->kv_len = calloc(sh.parallel, 4);
        im->q_start = calloc(sh.parallel + 1, 4);
        im->block_table = calloc((size_t)sh.parallel * p->dec.step.max_blocks, 4);
        im->sample_rows = calloc(l, sizeof *im->sample_rows);
        im->bias = calloc((size_t)sh.parallel * INFER_ROW_BIAS, sizeof *im->bias);
        assert_int_equal(infer_step_create(&w->steps[i], &w->s, i, im, NULL), INFER_OK);
    }
    w->st = &w->steps[1];
    w->cache = calloc((size_t)sh.blocks * sh.block, sizeof *w->cache);
    w->counts = calloc(sh.parallel, sizeof *w->counts);
    w->next_id = 1;
    return w;
}

static inline void bury(world *w)
{
    while (w->dead) {
        infer_req *r = w->dead;
        w->dead = r->next_dead;
        infer_req_destroy(r);
    }
}

static inline void world_free(world *w)
{
    bury(w);
    infer_sched_destroy(&w->s);
    for (uint32_t k = 0; k < 2; k++) {
        infer_step_image *im = &w->im[k];
        void *all[] = {im->adapter_row, im->counts,  im->ids,  im->pos,         im->slots,      im->logit_rows,
                       im->kv_len,      im->q_start, im->bias, im->block_table, im->sample_rows};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            free(all[i]);
        infer_step_destroy(&w->steps[k]);
    }
    free(w->cache);
    free(w->host);
    free(w->counts);
    free(w->plan);
    free(w);
}

static inline infer_req *submit(world *w, const infer_request *q)
{
    infer_req *r = make(q, w->plan->opt.ctx_size);
    assert_int_equal(infer_kv_seq_init(w->s.pool, &r->seq, r->cap_tokens, NULL), INFER_OK);
    r->id = w->next_id++;
    r->tenant = next_tenant;
    assert_true(infer_spec_join(&w->s, r));
    if (w->s.tier.store)
        r->nodes = malloc(w->s.tier.max_path * sizeof *r->nodes);
    if (w->s.swap.n_places)
        r->places = malloc((r->cap_tokens / infer_kv_pool_block_size(w->s.pool) + 1) * sizeof *r->places);
    infer_sched_enqueue(&w->s, r);
    return r;
}

static inline infer_req *submit_n(world *w, uint32_t n_prompt, int64_t max_tokens, int32_t priority)
{
    int32_t prompt[512];
    infer_request q = plain();
    for (uint32_t i = 0; i < n_prompt; i++)
        prompt[i] = (int32_t)((i * 7 + w->next_id) % VOCAB); /* nothing in common with the last forty */
    q.prompt = prompt;
    q.n_prompt = n_prompt;
    q.max_tokens = max_tokens;
    q.priority = priority;
    return submit(w, &q);
}

/* Its memory stays until the world ends, as images may point to it. */
static inline void end(world *w, infer_req *r)
{
    w->n_last = r->n_made < 256 ? (uint32_t)r->n_made : 256;
    memcpy(w->last, r->tokens, w->n_last * sizeof *w->last);
    infer_sched_remove(&w->s, r);
    assert_int_equal(r->seq.n_blocks, 0);
    r->next_dead = w->dead;
    w->dead = r;
    if (!w->under_way && !w->keep)
        bury(w);
}

/* Blocks are held by running requests and the prefix cache only; slots of the sampling counts are theirs alone. */
static inline void check_books(world *w)
{
    uint32_t n_wait = 0, refs[1024] = {0}, held = 0;
    uint8_t used[256] = {0};
    uint64_t slack = 0;
    for (uint32_t i = 0; i < w->s.n_running; i++) {
        const infer_req *r = w->s.running[i];
        slack += (uint64_t)r->seq.n_blocks * infer_kv_pool_block_size(w->s.pool) - r->seq.n_tokens;
        for (uint32_t b = 0; b < r->seq.n_blocks; b++)
            held += !refs[r->seq.blocks[b]]++;
        assert_true(r->slot >= 0 && (uint32_t)r->slot < w->s.max_running);
        assert_false(used[r->slot]);
        used[r->slot] = 1;
    }
    for (uint32_t i = 0; i < w->s.n_free_slots; i++)
        assert_false(used[w->s.free_slots[i]]++);
    for (uint32_t i = 0; i < w->s.max_running; i++)
        assert_int_equal(used[i], 1);
    for (uint64_t id = 1; id < w->next_id; id++) {
        const infer_req *r = infer_queue_find(&w->s.queue, id);
        if (!r || !infer_queue_is_waiting(r))
            continue;
        n_wait++;
        assert_int_equal(r->slot, -1);
        assert_int_equal(r->seq.n_blocks, 0);
        assert_true(!w->s.queue.policy->by_priority || r->priority >= infer_queue_head(&w->s.queue)->priority);
    }
    assert_int_equal(n_wait, w->s.queue.n);
    uint32_t places = w->s.swap.n_free;
    for (uint64_t id = 1; w->s.swap.n_places && id < w->next_id; id++) {
        const infer_req *r = infer_queue_find(&w->s.queue, id);
        places += r ? r->n_places : 0;
        assert_true(!r || !r->n_places || infer_queue_is_waiting(r));
    }
    assert_int_equal(places, w->s.swap.n_places);
    assert_true(infer_queue_check(&w->s.queue));
    assert_int_equal(slack, infer_kv_pool_slack(w->s.pool));
    assert_int_equal(held + infer_sched_free_blocks(&w->s), infer_kv_pool_total(w->s.pool));
    for (int32_t b = 0; b < (int32_t)infer_kv_pool_total(w->s.pool); b++)
        assert_int_equal(infer_kv_pool_refs(w->s.pool, b), (int)refs[b] + infer_kv_pool_is_kept(w->s.pool, b));
    assert_true(!w->s.prefix || infer_prefix_check(w->s.prefix));
    assert_true(w->s.n_running <= w->s.max_running);
}

/* hash[t]: of a request's tokens up to t, as rows of the step read them: tokens, then drafts. */
static inline void hash_text(const infer_step_image *im, uint32_t q, const infer_req *r, uint64_t *hash)
{
    const int32_t *ids = &im->ids[im->q_start[q]];
    const uint64_t n = (uint64_t)im->kv_len[q], first = n - (uint64_t)(im->q_start[q + 1] - im->q_start[q]);
    rng h = {r->key.w[0] + 1};
    for (uint64_t t = 0; t < n; t++)
        h.x = hash[t] = rng_next(&h) ^ (uint64_t)(t < first ? r->tokens[t] : ids[t - first]);
}

/* The image says what the requests say, every row's past lies where the page table says, and nothing is done twice. */
static inline void check_image(world *w, uint32_t rows)
{
    const infer_sched *s = &w->s;
    const infer_step *st = w->st;
    const infer_step_image *im = st->im;
    uint32_t bs = infer_kv_pool_block_size(s->pool), logit = 0;
    assert_int_equal(rows, im->n_tokens);
    assert_int_equal(im->n_seqs, st->n_batch);
    assert_true(rows <= s->max_tokens);
    assert_true(im->n_logits <= s->max_logits);
    assert_true(st->x.n_copies <= st->n_batch);
    for (uint32_t i = 0; i < st->x.n_outs; i++)
        memcpy(&w->host[(uint32_t)st->x.outs[i].place * bs], &w->cache[(uint32_t)st->x.outs[i].block * bs],
               bs * sizeof *w->cache);
    for (uint32_t i = 0; i < st->x.n_copies; i++)
        memcpy(&w->cache[(uint32_t)st->x.copies[i].dst * bs], &w->cache[(uint32_t)st->x.copies[i].src * bs],
               bs * sizeof *w->cache);
    for (uint32_t i = 0; i < st->x.n_ins; i++)
        memcpy(&w->cache[(uint32_t)st->x.ins[i].block * bs], &w->host[(uint32_t)st->x.ins[i].place * bs],
               bs * sizeof *w->cache);
    uint64_t hash[512];
    for (uint32_t i = 0; i < st->x.n_inits; i++)
        memcpy(w->counts[st->x.inits[i].row], st->x.inits[i].counts, sizeof w->counts[0]);
    for (uint32_t q = 0; q < st->n_batch; q++) {
        const infer_batch_entry *e = &st->batch[q];
        const infer_req *r = e->r;
        uint32_t first = (uint32_t)im->q_start[q], n = (uint32_t)im->q_start[q + 1] - first;
        assert_int_equal(n, e->rows);
        if (!r) { /* nobody's rows write something, no one knows what */
            for (uint32_t i = 0; i < n; i++)
                w->cache[im->slots[first + i]] = 0;
            logit += e->n_logits;
            continue;
        }
        assert_true(n >= 1 + e->n_drafts && n - e->n_drafts <= s->prefill_chunk);
        assert_true(!e->n_drafts || (e->samples && !r->counts && !w->under_way && r->n_made == r->n_tokens));
        assert_true(!e->n_drafts || (e->n_drafts <= s->spec.most && r->n_tokens + e->n_drafts < r->cap_tokens));
        assert_int_equal(im->kv_len[q], r->n_computed + n);
        assert_int_equal(e->first, r->n_computed);
        assert_true(r->n_computed + n - e->n_drafts <= r->n_tokens);
        assert_int_equal(r->seq.n_tokens, r->n_computed + n);
        const int32_t *table = &im->block_table[(size_t)q * s->max_blocks];
        hash_text(im, q, r, hash);
        for (uint32_t i = 0; i < n; i++) {
            uint64_t t = r->n_computed + i;
            uint32_t row = first + i;
            assert_int_equal(im->pos[row], t);
            const int is_draft = i >= n - e->n_drafts;
            assert_int_equal(is_draft, t >= r->n_tokens);
            assert_true(is_draft ? im->ids[row] >= 0 && im->ids[row] < VOCAB : im->ids[row] == r->tokens[t]);
            assert_int_equal(im->adapter_row[row], -1);
            assert_int_equal(im->slots[row], table[t / bs] * (int32_t)bs + (int32_t)(t % bs));
            w->cache[im->slots[row]] = hash[t];
            int last = i + e->n_drafts + 1 >= n && e->samples;
            if (!last && !(r->on_row && t < r->n_prompt && t >= r->n_rows_given))
                continue;
            assert_int_equal(im->logit_rows[logit], row);
            const infer_sample_row *sr = &im->sample_rows[logit++];
            assert_true(sr->bias_first + sr->bias_count <= im->n_bias || !sr->bias_count);
            if (!last)
                continue;
            assert_int_equal(sr->position, t + 1);
            const uint32_t n_ends = r->n_stop_ids + (r->flags & INFER_REQ_IGNORE_EOS ? 0 : s->n_end_ids);
            assert_int_equal(sr->bias_count, r->sampling.n_bias + (t + 1 - r->n_prompt < r->min_tokens ? n_ends : 0));
            assert_int_equal(sr->counts_row, r->counts ? r->slot : -1);
            assert_int_equal(sr->flags, r->n_top ? 0 : INFER_SAMPLE_NO_TOP);
            if (!r->counts)
                continue;
            for (uint64_t k = 0; k < VOCAB; k++) {
                uint32_t made = 0, asked = 0;
                for (uint64_t x = 0; x < r->n_tokens; x++)
                    *(x < r->n_prompt ? &asked : &made) += r->tokens[x] == (int32_t)k;
                assert_int_equal(w->counts[r->slot][k], (asked ? 0x8000u : 0) | made);
            }
        }
    }
    assert_int_equal(logit, im->n_logits);
    /* after all writes of the step: every key that a row reads is of its own text */
    for (uint32_t q = 0; q < st->n_batch; q++) {
        const int32_t *table = &im->block_table[(size_t)q * s->max_blocks];
        if (!st->batch[q].r)
            continue;
        hash_text(im, q, st->batch[q].r, hash);
        for (int32_t t = 0; t < im->kv_len[q]; t++)
            assert_true(w->cache[table[(uint32_t)t / bs] * (int32_t)bs + t % (int32_t)bs] == hash[t]);
    }
}

/* What a request with drafts samples: often what they say. It may end at any of its tokens. */
static inline void make_many(world *w, const infer_step *st, infer_batch_entry *e, rng *pick, uint32_t stop)
{
    infer_req *r = e->r;
    int32_t ids[256] = {0};
    const int32_t *drafts = &st->im->ids[st->im->logit_rows[e->first_logit] + 1];
    uint32_t right = 0, taken;
    for (uint32_t k = 0; k <= e->n_drafts; k++)
        ids[e->first_logit + k] = k < e->n_drafts && rng_below(pick, 4) ? drafts[k] : (int32_t)rng_below(pick, VOCAB);
    while (right < e->n_drafts && ids[e->first_logit + right] == drafts[right])
        right++;
    assert_int_equal(infer_spec_accepted(st, e, ids), right);
    taken = right + 1;
    if (stop && !rng_below(pick, 4)) {
        taken = 1 + rng_below(pick, taken);
        r->text_stopped = 1;
    }
    memcpy(&r->tokens[r->n_made], &ids[e->first_logit], taken * sizeof *ids);
    r->n_made += taken;
    infer_spec_read(&w->s.spec, r->spec, r->tokens, r->n_made);
    infer_spec_settle(&w->s, e, right);
    assert_true(r->n_computed < e->first + 2 + right && r->n_computed <= r->n_made);
}

/* A step is done: its tokens are there. */
static inline void make_tokens(world *w, infer_step *st, rng *pick, uint32_t stop)
{
    for (uint32_t i = 0; i < st->n_batch; i++) {
        infer_batch_entry *e = &st->batch[i];
        infer_req *r = e->r;
        if (!r || !e->samples)
            continue;
        if (e->n_drafts) {
            make_many(w, st, e, pick, stop);
            continue;
        }
        int32_t id = (int32_t)rng_below(pick, VOCAB);
        r->tokens[e->token_at] = id;
        r->n_made = e->token_at + 1;
        if (r->spec)
            infer_spec_read(&w->s.spec, r->spec, r->tokens, r->n_made);
        if (r->counts && r->slot >= 0 && r->admission == e->admission)
            w->counts[r->slot][id]++;
    }
}

/* What follows it. A request may end before its length, once in `stop` tokens. */
static inline void after(world *w, infer_step *st, rng *pick, uint32_t stop)
{
    infer_tier_done(&w->s, st, 1);
    for (uint32_t i = 0; i < st->n_batch; i++) {
        infer_batch_entry *e = &st->batch[i];
        infer_req *r = e->r;
        if (!r)
            continue;
        for (uint32_t k = 0; k < e->n_logits; k++) {
            uint64_t pos = (uint64_t)st->im->pos[st->im->logit_rows[e->first_logit + k]];
            if (!r->on_row || pos >= r->n_prompt || pos < r->n_rows_given)
                continue;
            assert_int_equal(pos, r->n_rows_given);
            r->n_rows_given = pos + 1;
            w->logits_seen[r->id]++;
        }
        infer_sched_finish(&w->s, st, e);
        if (e->samples ? r->n_made == r->cap_tokens || r->text_stopped || (stop && !rng_below(pick, stop))
                       : e->first + e->rows == r->n_tokens)
            end(w, r);
    }
}

static inline uint32_t build(world *w)
{
    w->st = &w->steps[1 - w->st->number];
    w->s.spec.ready = !w->under_way;
    uint32_t rows = infer_sched_build(&w->s, w->st, ++w->now);
    for (uint32_t q = 0; q < w->st->n_batch;
         q++) { /* rows of the table stay from step to step: here they are up to date */
        const infer_req *r = w->st->batch[q].r;
        if (r)
            assert_memory_equal(&w->st->im->block_table[(size_t)q * w->s.max_blocks], r->seq.blocks,
                                r->seq.n_blocks * sizeof *r->seq.blocks);
    }
    check_books(w);
    return rows;
}

/* What follows a step that was built. */
static inline void finish_step(world *w, rng *pick)
{
    infer_sched_begin(&w->s, w->st);
    make_tokens(w, w->st, pick, 0);
    after(w, w->st, pick, 0);
}

/* One step from its beginning to its end. Returns the rows. */
static inline uint32_t step(world *w, rng *pick)
{
    infer_sched *s = &w->s;
    assert_null(w->under_way);
    uint32_t rows = build(w);
    check_image(w, rows);
    assert_true(rows > 0 || (!s->n_running && !s->queue.n));
    w->n_rows += rows;
    finish_step(w, pick);
    return rows;
}

/* As the engine does it: a step is built while the one before it runs, and what that one gives is taken in while this
 * one runs. `late` are called, if at all, between the two. Returns the rows. */
static inline uint32_t lap(world *w, rng *pick, void (*late)(world *w, rng *pick), uint32_t stop)
{
    infer_step *before = w->under_way;
    if (before && infer_spec_waits(&w->s, before)) {
        make_tokens(w, before, pick, stop);
        before = w->under_way = NULL;
        after(w, &w->steps[w->st->number], pick, stop);
    }
    uint32_t rows = build(w);
    assert_true(rows > 0 || before || (!w->s.n_running && !w->s.queue.n));
    if (before && late)
        late(w, pick);
    rows = w->st->im->n_tokens;
    if (before) {
        int32_t ids[256] = {0};
        make_tokens(w, before, pick, stop);
        for (uint32_t i = 0; i < before->n_batch; i++) {
            const infer_batch_entry *e = &before->batch[i];
            if (e->r && e->samples)
                ids[e->first_logit + e->n_logits - 1] = e->r->tokens[e->token_at];
        }
        infer_sched_fill_ids(w->st, ids, VOCAB);
    }
    check_image(w, rows);
    w->under_way = rows ? w->st : NULL;
    if (rows)
        infer_sched_begin(&w->s, w->st);
    if (before)
        after(w, before, pick, stop);
    if (!rows)
        bury(w);
    return rows;
}

static inline void drain(world *w, rng *pick)
{
    for (uint64_t i = 0; step(w, pick) || w->s.tier.n_aside; i++) {
        assert_true(i < 200000); /* every request ends */
        if (w->s.tier.n_aside)
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    assert_int_equal(infer_sched_free_blocks(&w->s), infer_kv_pool_total(w->s.pool));
}

/* A step but for the sampled tokens, which `give` gives. */
static inline uint32_t half_step(world *w)
{
    uint32_t rows = build(w);
    check_image(w, rows);
    infer_sched_begin(&w->s, w->st);
    infer_tier_done(&w->s, w->st, 1);
    for (uint32_t i = 0; i < w->st->n_batch; i++)
        infer_sched_finish(&w->s, w->st, &w->st->batch[i]);
    return rows;
}

static inline void give(infer_req *r, int32_t id)
{
    r->tokens[r->n_made++] = id;
}

#endif
