/* The scheduler, without devices, under random arrivals, ends and cancellations against a model of the cache.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>

#include "unit/rng.h"
#include "unit/sched_util.h"

/* A scheduler with an image, and a model of what the devices hold: which text the keys in each cache slot are of, and
 * the rows of sampling counts. */
typedef struct world {
    infer_sched s;
    infer_plan *plan;
    infer_step_image im;
    uint64_t *cache;   /* by slot: the hash of the key and the tokens up to there */
    int32_t last[256]; /* the text of a request that ended */
    uint32_t n_last;
    infer_file file;
    uint16_t (*counts)[VOCAB];
    uint64_t next_id, now;
    uint32_t logits_seen[4096]; /* by id: prompt positions whose logits came */
    uint64_t steps, rows;
} world;

typedef struct shape {
    uint32_t blocks, block, parallel, batched, step_tokens, chunk, ctx, logits, no_prefix_cache;
} shape;

static uint32_t next_policy; /* of the next world */
static uint64_t next_tenant; /* of the next requests */

static world *world_of(shape sh)
{
    world *w = calloc(1, sizeof *w);
    infer_plan *p = w->plan = calloc(1, sizeof *p);
    infer_engine_options o = {.struct_size = sizeof o,
                              .policy = next_policy,
                              .prefill_chunk = sh.chunk,
                              .max_step_tokens = sh.step_tokens,
                              .no_prefix_cache = sh.no_prefix_cache};
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
    infer_step_image *im = &w->im;
    uint32_t t = sh.batched, l = p->opt.max_logit_rows;
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
    w->cache = calloc((size_t)sh.blocks * sh.block, sizeof *w->cache);
    w->counts = calloc(sh.parallel, sizeof *w->counts);
    w->next_id = 1;
    return w;
}

static void world_free(world *w)
{
    infer_sched_destroy(&w->s);
    infer_step_image *im = &w->im;
    void *all[] = {im->adapter_row, im->counts, im->ids,         im->pos,         im->slots, im->logit_rows, im->kv_len,
                   im->q_start,     im->bias,   im->block_table, im->sample_rows, w->cache,  w->counts,      w->plan};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    free(w);
}

static infer_req *submit(world *w, const infer_request *q)
{
    infer_req *r = make(q, w->plan->opt.ctx_size);
    assert_int_equal(infer_kv_seq_init(w->s.pool, &r->seq, r->cap_tokens, NULL), INFER_OK);
    r->id = w->next_id++;
    r->tenant = next_tenant;
    infer_sched_enqueue(&w->s, r);
    return r;
}

static infer_req *submit_n(world *w, uint32_t n_prompt, int64_t max_tokens, int32_t priority)
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

static void end(world *w, infer_req *r)
{
    w->n_last = r->n_tokens < 256 ? (uint32_t)r->n_tokens : 256;
    memcpy(w->last, r->tokens, w->n_last * sizeof *w->last);
    infer_sched_remove(&w->s, r);
    assert_int_equal(r->seq.n_blocks, 0);
    infer_req_destroy(r);
}

/* Blocks are held by running requests and the prefix cache only; slots of the sampling counts are theirs alone. */
static void check_books(world *w)
{
    uint32_t n_wait = 0, refs[1024] = {0}, held = 0;
    uint8_t used[256] = {0};
    for (uint32_t i = 0; i < w->s.n_running; i++) {
        const infer_req *r = w->s.running[i];
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
    assert_true(infer_queue_check(&w->s.queue));
    assert_int_equal(held + infer_sched_free_blocks(&w->s), infer_kv_pool_total(w->s.pool));
    for (int32_t b = 0; b < (int32_t)infer_kv_pool_total(w->s.pool); b++)
        assert_int_equal(infer_kv_pool_refs(w->s.pool, b), (int)refs[b] + infer_kv_pool_is_kept(w->s.pool, b));
    assert_true(!w->s.prefix || infer_prefix_check(w->s.prefix));
    assert_true(w->s.n_running <= w->s.max_running);
}

/* hash[t]: of a request's tokens up to t. */
static void hash_text(const infer_req *r, uint64_t n, uint64_t *hash)
{
    rng h = {r->key.w[0] + 1};
    for (uint64_t t = 0; t < n; t++)
        h.x = hash[t] = rng_next(&h) ^ (uint64_t)r->tokens[t];
}

/* The image says what the requests say, every row's past lies where the page table says, and nothing is done twice. */
static void check_image(world *w, uint32_t rows)
{
    const infer_sched *s = &w->s;
    const infer_step_image *im = &w->im;
    uint32_t bs = infer_kv_pool_block_size(s->pool), logit = 0;
    assert_int_equal(rows, im->n_tokens);
    assert_int_equal(im->n_seqs, s->n_batch);
    assert_true(rows <= s->max_tokens);
    assert_true(im->n_logits <= s->max_logits);
    assert_true(s->n_copies <= s->n_batch);
    for (uint32_t i = 0; i < s->n_copies; i++)
        memcpy(&w->cache[(uint32_t)s->copies[i].dst * bs], &w->cache[(uint32_t)s->copies[i].src * bs],
               bs * sizeof *w->cache);
    uint64_t hash[512];
    for (uint32_t i = 0; i < s->n_inits; i++)
        memcpy(w->counts[s->inits[i].row], s->inits[i].counts, sizeof w->counts[0]);
    for (uint32_t q = 0; q < s->n_batch; q++) {
        const infer_req *r = s->batch[q];
        uint32_t first = (uint32_t)im->q_start[q], n = (uint32_t)im->q_start[q + 1] - first;
        assert_int_equal(n, r->step_rows);
        assert_true(n >= 1 && n <= s->prefill_chunk);
        assert_int_equal(im->kv_len[q], r->n_computed + n);
        assert_true(r->n_computed + n <= r->n_tokens);
        assert_int_equal(r->seq.n_tokens, r->n_computed + n);
        const int32_t *table = &im->block_table[(size_t)q * s->max_blocks];
        hash_text(r, r->n_tokens, hash);
        for (uint32_t i = 0; i < n; i++) {
            uint64_t t = r->n_computed + i;
            uint32_t row = first + i;
            assert_int_equal(im->pos[row], t);
            assert_int_equal(im->ids[row], r->tokens[t]);
            assert_int_equal(im->adapter_row[row], -1);
            assert_int_equal(im->slots[row], table[t / bs] * (int32_t)bs + (int32_t)(t % bs));
            w->cache[im->slots[row]] = hash[t];
            int last = i + 1 == n && r->step_samples;
            if (!last && !(r->on_row && t < r->n_prompt && t >= r->n_rows_given))
                continue;
            assert_int_equal(im->logit_rows[logit], row);
            const infer_sample_row *sr = &im->sample_rows[logit++];
            assert_true(sr->bias_first + sr->bias_count <= im->n_bias || !sr->bias_count);
            if (!last)
                continue;
            assert_int_equal(sr->position, r->n_tokens);
            assert_int_equal(sr->counts_row, r->counts ? r->slot : -1);
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
    for (uint32_t q = 0; q < s->n_batch; q++) {
        const int32_t *table = &im->block_table[(size_t)q * s->max_blocks];
        hash_text(s->batch[q], (uint64_t)im->kv_len[q], hash);
        for (int32_t t = 0; t < im->kv_len[q]; t++)
            assert_true(w->cache[table[(uint32_t)t / bs] * (int32_t)bs + t % (int32_t)bs] == hash[t]);
    }
}

/* What follows a step that was built; `pick` makes the tokens. */
static void finish_step(world *w, rng *pick)
{
    infer_sched *s = &w->s;
    infer_req *ended[256];
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_batch; i++) {
        infer_req *r = s->batch[i];
        for (uint32_t k = 0; k < r->step_n_logits; k++) {
            uint64_t pos = (uint64_t)w->im.pos[w->im.logit_rows[r->step_first_logit + k]];
            if (!r->on_row || pos >= r->n_prompt || pos < r->n_rows_given)
                continue;
            assert_int_equal(pos, r->n_rows_given);
            r->n_rows_given = pos + 1;
            w->logits_seen[r->id]++;
        }
        infer_sched_advance(s, r);
        if (r->step_samples) {
            int32_t id = (int32_t)rng_below(pick, VOCAB);
            r->tokens[r->n_tokens++] = id;
            if (r->counts)
                w->counts[r->slot][id]++;
        }
        if (r->step_samples ? r->n_tokens == r->cap_tokens : r->n_computed == r->n_tokens)
            ended[n++] = r;
        r->step_rows = 0;
    }
    while (n)
        end(w, ended[--n]);
}

/* One step as the engine does it. Returns the rows. */
static uint32_t step(world *w, rng *pick)
{
    infer_sched *s = &w->s;
    uint32_t rows = infer_sched_build(s, &w->im, ++w->now);
    check_books(w);
    check_image(w, rows);
    assert_true(rows > 0 || (!s->n_running && !s->queue.n));
    w->steps++;
    w->rows += rows;
    finish_step(w, pick);
    return rows;
}

static void drain(world *w, rng *pick)
{
    for (uint64_t i = 0; step(w, pick); i++)
        assert_true(i < 200000); /* every request ends */
    assert_int_equal(infer_sched_free_blocks(&w->s), infer_kv_pool_total(w->s.pool));
}

/* Builds a step and carries it out but for the sampled tokens. */
static uint32_t half_step(world *w)
{
    uint32_t rows = infer_sched_build(&w->s, &w->im, ++w->now);
    check_books(w);
    check_image(w, rows);
    for (uint32_t i = 0; i < w->s.n_batch; i++)
        infer_sched_advance(&w->s, w->s.batch[i]);
    return rows;
}

static void test_budgets(void **state)
{
    (void)state;
    rng r = {1};
    world *w = world_of(
        (shape){.blocks = 64, .block = 4, .parallel = 4, .batched = 32, .step_tokens = 20, .chunk = 8, .ctx = 64});
    submit_n(w, 13, 4, 0);
    submit_n(w, 30, 4, 0);
    infer_req *one = submit_n(w, 1, 4, 0);
    submit_n(w, 40, 4, 0);
    submit_n(w, 3, 4, 0); /* a fifth: waits */
    assert_int_equal(half_step(w), 20);
    assert_int_equal(w->s.n_batch, 4); /* 8 + 8 + 1 + 3 */
    assert_int_equal(w->s.batch[0]->step_rows, 8);
    assert_int_equal(w->s.batch[3]->step_rows, 3);
    assert_int_equal(w->s.queue.n, 1);
    one->tokens[one->n_tokens++] = 1; /* it decodes now, so it comes first */
    assert_int_equal(half_step(w), 20);
    assert_ptr_equal(w->s.batch[0], one);
    assert_int_equal(w->s.batch[1]->step_rows, 5); /* the end of 13 */
    assert_true(w->s.batch[1]->step_samples);
    assert_false(w->s.batch[2]->step_samples);
    one->tokens[one->n_tokens++] = 1;
    w->s.running[0]->tokens[w->s.running[0]->n_tokens++] = 1;
    drain(w, &r);
    world_free(w);
}

static void test_priority(void **state)
{
    (void)state;
    rng r = {1};
    world *w = world_of((shape){.blocks = 64, .block = 4, .parallel = 1, .batched = 32, .ctx = 64});
    infer_req *a = submit_n(w, 3, 1, 5), *b = submit_n(w, 3, 1, 0), *c = submit_n(w, 3, 1, 5),
              *d = submit_n(w, 3, 1, -1);
    uint64_t order[] = {d->id, b->id, a->id, c->id};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(infer_queue_head(&w->s.queue)->id, order[i]);
        step(w, &r);
    }
    world_free(w);
}

/* Starts requests one at a time to the end; gives their numbers in the order in which they started. */
static void order_of(world *w, uint64_t *ids, uint32_t n)
{
    rng r = {1};
    for (uint32_t i = 0; i < n;) {
        step(w, &r);
        if (w->s.n_batch && w->s.batch[0]->id && (!i || ids[i - 1] != w->s.batch[0]->id))
            ids[i++] = w->s.batch[0]->id;
    }
}

static world *world_of_policy(uint32_t policy)
{
    next_policy = policy;
    world *w = world_of((shape){.blocks = 64, .block = 4, .parallel = 1, .batched = 64, .ctx = 64});
    next_policy = 0;
    return w;
}

/* Each policy's order of the same six requests. */
static void test_policies(void **state)
{
    (void)state;
    static const struct {
        uint32_t policy;
        uint64_t order[6];
    } rows[] = {
        {INFER_POLICY_FCFS, {1, 2, 3, 4, 5, 6}},
        {INFER_POLICY_PRIORITY, {5, 1, 2, 3, 4, 6}},
        /* the second tenant has its turn after the first one's first request, and is behind after 40 tokens */
        {INFER_POLICY_FAIR, {5, 1, 4, 2, 3, 6}},
    };
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        world *w = world_of_policy(rows[k].policy);
        uint64_t ids[6];
        next_tenant = 1;
        for (int i = 0; i < 3; i++)
            submit_n(w, 4, 1, 0);
        next_tenant = 2;
        submit_n(w, 40, 1, 0);
        submit_n(w, 4, 1, -1);
        submit_n(w, 4, 1, 0);
        next_tenant = 0;
        order_of(w, ids, 6);
        for (int i = 0; i < 6; i++)
            assert_int_equal(ids[i], rows[k].order[i]);
        world_free(w);
    }
}

/* A tenant with ten times as many requests gets no more than the other while both wait, whatever their lengths; one who
 * was away has saved nothing up. */
static void test_fair(void **state)
{
    (void)state;
    rng r = {4};
    world *w = world_of((shape){.blocks = 256, .block = 4, .parallel = 4, .batched = 64, .ctx = 64});
    uint64_t served[4] = {0}, waiting[4] = {0}, most = 0;
    for (int i = 0; i < 3000; i++) {
        uint32_t n[4] = {0};
        for (uint64_t id = 1; id < w->next_id; id++) {
            const infer_req *q = infer_queue_find(&w->s.queue, id);
            if (q && infer_queue_is_waiting(q))
                n[q->tenant]++;
        }
        for (uint32_t t = 1; t <= 3; t++) { /* the third comes late */
            for (next_tenant = t; n[t] < (t == 1 ? 20u : 2u) && (t < 3 || i >= 1500); n[t]++)
                submit_n(w, 1 + rng_below(&r, t == 2 ? 30 : 10), 1 + rng_below(&r, 20), 0);
            waiting[t] += n[t];
        }
        next_tenant = 0;
        check_image(w, infer_sched_build(&w->s, &w->im, ++w->now));
        for (uint32_t k = 0; k < w->s.n_batch; k++) {
            const infer_req *q = w->s.batch[k];
            if (q->n_computed <= q->n_cached)
                served[q->tenant] += q->n_prompt - q->n_cached;
            served[q->tenant] += q->step_samples ? 2 : 0;
        }
        finish_step(w, &r);
        if (i == 1499)
            served[1] = served[2] = 0;
        const uint64_t apart = served[1] > served[2] ? served[1] - served[2] : served[2] - served[1];
        most = apart > most ? apart : most;
    }
    assert_true(waiting[1] > 5 * waiting[2]);
    assert_true(served[1] > 2500);
    /* the paper's bound: what a request may cost, for each that runs, twice */
    assert_true(most <= 2 * 4 * (30 + 2 * 20));
    for (uint32_t t = 2; t <= 3; t++)
        assert_true(served[t] > served[1] * 9 / 10 && served[t] < served[1] * 11 / 10);
    drain(w, &r);
    world_free(w);
}

/* With the prefix policy those start first whose prompts are known furthest; the head is passed over 32 times at most.
 */
static void test_prefix_first(void **state)
{
    (void)state;
    rng r = {1};
    world *w = world_of_policy(INFER_POLICY_PREFIX);
    int32_t known[20], other[20];
    for (int i = 0; i < 20; i++) {
        known[i] = i;
        other[i] = VOCAB - 1 - i;
    }
    infer_request q = plain();
    q.prompt = known;
    q.n_prompt = 20;
    q.max_tokens = 1;
    submit(w, &q);
    step(w, &r);
    q.prompt = other;
    const uint64_t head = submit(w, &q)->id;
    q.prompt = known;
    uint32_t passed = 0;
    submit(w, &q);
    for (; infer_queue_find(&w->s.queue, head); passed++) {
        submit(w, &q);
        step(w, &r);
    }
    assert_int_equal(passed, 32 + 1);
    drain(w, &r);
    world_free(w);
}

/* When blocks run out the newest gives way, its order kept; the oldest is never held up. */
static void test_preemption(void **state)
{
    (void)state;
    rng r = {1};
    world *w = world_of((shape){.blocks = 8, .block = 4, .parallel = 4, .batched = 64, .ctx = 32});
    infer_req *a = submit_n(w, 7, 25, 0), *b = submit_n(w, 7, 25, 0), *c = submit_n(w, 7, 25, 0);
    uint64_t ids[] = {a->id, b->id, c->id};
    step(w, &r);
    assert_int_equal(w->s.n_running, 3);
    while (!w->s.preemptions)
        step(w, &r);
    assert_int_equal(w->s.n_running, 2);
    assert_int_equal(infer_queue_head(&w->s.queue)->id, ids[2]);
    while (w->s.preemptions < 2)
        step(w, &r);
    assert_int_equal(w->s.running[0]->id, ids[0]);
    assert_int_equal(infer_queue_head(&w->s.queue)->id, ids[1]);
    assert_int_equal(infer_queue_next_in_lane(infer_queue_head(&w->s.queue))->id, ids[2]);
    drain(w, &r);
    world_free(w);
    /* a lower priority gives way before a newer one */
    w = world_of((shape){.blocks = 8, .block = 4, .parallel = 4, .batched = 64, .ctx = 32});
    a = submit_n(w, 7, 25, 3);
    step(w, &r);
    b = submit_n(w, 7, 25, 0);
    ids[0] = a->id;
    ids[1] = b->id;
    while (!w->s.preemptions)
        step(w, &r);
    assert_int_equal(infer_queue_head(&w->s.queue)->id, ids[0]);
    assert_int_equal(w->s.running[0]->id, ids[1]);
    drain(w, &r);
    world_free(w);
}

/* A stream of small requests does not keep a large one from the blocks it waits for. */
static void test_no_starvation(void **state)
{
    (void)state;
    rng r = {3};
    uint64_t id, steps;
    int there;
    for (int is_long = 0; is_long < 2; is_long++) { /* a long answer, a long prompt */
        world *w = world_of((shape){.blocks = 8, .block = 4, .parallel = 8, .batched = 64, .chunk = 4, .ctx = 32});
        id = (is_long ? submit_n(w, 30, 2, 0) : submit_n(w, 4, 28, 0))->id;
        for (there = 1, steps = 0; there; steps++) {
            while (w->s.queue.n < 4)
                submit_n(w, 1 + rng_below(&r, 3), 1 + rng_below(&r, 3), 0);
            step(w, &r);
            there = 0;
            for (uint32_t i = 0; i < w->s.n_running; i++)
                there |= w->s.running[i]->id == id;
            assert_true(steps < 28 + 4 * 8); /* it waits at most a block's length for each of the others */
        }
        drain(w, &r);
        world_free(w);
    }
    world *w = world_of((shape){.blocks = 8, .block = 4, .parallel = 8, .batched = 64, .ctx = 32});
    /* and a large one that waits gets in before those that came later */
    submit_n(w, 20, 8, 0);
    submit_n(w, 20, 8, 0);
    id = w->next_id - 1;
    for (steps = 0, there = 1; there; steps++) {
        submit_n(w, 2, 2, 0);
        step(w, &r);
        there = 0;
        for (infer_req *q = infer_queue_head(&w->s.queue); q; q = infer_queue_next_in_lane(q))
            there |= q->id == id;
    }
    assert_true(steps < 20);
    drain(w, &r);
    world_free(w);
}

/* Every prompt position's logits come once, whatever chunks and preemptions there are. */
static void test_prompt_logits(void **state)
{
    (void)state;
    rng r = {9};
    for (uint32_t chunk = 1; chunk < 20; chunk += 6) {
        world *w = world_of((shape){.blocks = 16,
                                    .block = 2,
                                    .parallel = 3,
                                    .batched = 24,
                                    .chunk = chunk,
                                    .ctx = 32,
                                    .logits = chunk % 2 ? 3 : 9});
        uint32_t want[64] = {0};
        for (int i = 0; i < 40; i++) {
            int32_t prompt[24];
            infer_request q = plain();
            for (int k = 0; k < 24; k++)
                prompt[k] = (int32_t)rng_below(&r, VOCAB);
            q.prompt = prompt;
            q.n_prompt = 1 + rng_below(&r, 24);
            q.max_tokens = rng_below(&r, 3) ? (int64_t)rng_below(&r, 9) : 0;
            if (i % 2) {
                q.flags = INFER_REQ_PROMPT_ROWS;
                q.on_row = on_logits;
                want[w->next_id] = (uint32_t)q.n_prompt;
            }
            submit(w, &q);
        }
        drain(w, &r);
        assert_true(w->s.preemptions > 0);
        for (uint32_t i = 1; i < w->next_id; i++)
            assert_int_equal(w->logits_seen[i], want[i]);
        world_free(w);
    }
}

static uint32_t bias_of(const world *w, const infer_req *r, int32_t *ids)
{
    const infer_sample_row *sr = &w->im.sample_rows[r->step_first_logit + r->step_n_logits - 1];
    for (uint32_t i = 0; i < sr->bias_count; i++)
        ids[i] = w->im.bias[sr->bias_first + i].id;
    return sr->bias_count;
}

/* Before min_tokens exactly the ids that would end the request are forbidden. */
static void test_min_tokens(void **state)
{
    (void)state;
    world *w = world_of((shape){.blocks = 16, .block = 4, .parallel = 3, .batched = 24, .ctx = 32});
    int32_t stop_ids[] = {4, 5}, ids[16];
    infer_sample_bias bias[] = {{9, 1.5f}};
    w->s.end_ids[0] = 30;
    w->s.end_ids[1] = 31;
    w->s.n_end_ids = 2;
    infer_request q = plain();
    q.min_tokens = 2;
    q.stop_ids = stop_ids;
    q.n_stop_ids = 2;
    q.sampling.bias = bias;
    q.sampling.n_bias = 1;
    infer_req *a = submit(w, &q);
    q.flags = INFER_REQ_IGNORE_EOS;
    infer_req *b = submit(w, &q);
    half_step(w);
    assert_int_equal(bias_of(w, a, ids), 5);
    assert_int_equal(ids[0], 9);
    assert_int_equal(ids[1], 4);
    assert_int_equal(ids[3], 30);
    assert_true(isinf(w->im.bias[1].bias) && w->im.bias[1].bias < 0);
    assert_int_equal(bias_of(w, b, ids), 3);
    for (int i = 0; i < 2; i++) {
        a->tokens[a->n_tokens++] = 1;
        b->tokens[b->n_tokens++] = 1;
        half_step(w);
        assert_int_equal(bias_of(w, a, ids), i == 0 ? 5 : 1);
    }
    end(w, a);
    end(w, b);
    world_free(w);
}

static void random_request(world *w, rng *r, uint32_t ctx)
{
    int32_t prompt[256];
    infer_request q = plain();
    q.n_prompt = 1 + rng_below(r, rng_below(r, 3) ? ctx / 4 : ctx - 1);
    q.prompt = prompt;
    for (uint64_t i = 0; i < q.n_prompt; i++)
        prompt[i] = (int32_t)rng_below(r, VOCAB);
    /* often the beginning of a text that was there, and what comes next */
    uint32_t alike = w->n_last && rng_below(r, 3) ? 1 + rng_below(r, w->n_last) : 0;
    memcpy(prompt, w->last, (alike < q.n_prompt ? alike : q.n_prompt) * sizeof *prompt);
    q.max_tokens = rng_below(r, 10) ? (int64_t)rng_below(r, 30) : -1;
    q.priority = (int32_t)rng_below(r, 3);
    if (rng_below(r, 3) == 0)
        q.sampling.repetition_penalty = 1.1f;
    if (rng_below(r, 5) == 0) {
        q.flags |= INFER_REQ_PROMPT_ROWS;
        q.on_row = on_logits;
    }
    q.min_tokens = rng_below(r, 4);
    submit(w, &q)->key.w[0] = rng_below(r, 8) == 0;
}

static void test_fuzz(void **state)
{
    (void)state;
    const char *rounds = getenv("INFER_TEST_LONG");
    uint64_t preemptions = 0, hits = 0;
    int most = rounds ? 20000 : 600;
    for (int seed = 0; seed < most; seed++) {
        rng r = {(uint64_t)seed * 77 + 5};
        uint32_t block = 1 + rng_below(&r, 9), ctx = 16 + rng_below(&r, 100), per = (ctx + block - 1) / block;
        uint32_t parallel = 1 + rng_below(&r, 12), batched = parallel + rng_below(&r, 60);
        next_policy = (uint32_t)seed % 3 ? (uint32_t)seed / 3 % 4 : INFER_POLICY_FAIR;
        world *w = world_of((shape){.blocks = per + rng_below(&r, per * 3),
                                    .block = block,
                                    .parallel = parallel,
                                    .batched = batched,
                                    .step_tokens = rng_below(&r, 3) ? 0 : 1 + rng_below(&r, batched),
                                    .chunk = rng_below(&r, 2) ? 0 : 1 + rng_below(&r, 20),
                                    .ctx = ctx,
                                    .logits = rng_below(&r, 30),
                                    .no_prefix_cache = seed % 4 == 0});
        assert_int_equal(w->s.prefix == NULL, seed % 4 == 0);
        next_policy = 0;
        for (int i = 0; i < 400; i++) {
            next_tenant = rng_below(&r, 3);
            if (w->s.queue.n < 20 && rng_below(&r, 3) == 0)
                random_request(w, &r, ctx);
            if (rng_below(&r, 8) == 0 && w->s.n_running)
                end(w, w->s.running[rng_below(&r, w->s.n_running)]);
            if (rng_below(&r, 16) == 0 && w->s.queue.n)
                end(w, infer_queue_head(&w->s.queue));
            check_books(w);
            step(w, &r);
        }
        next_tenant = 0;
        drain(w, &r);
        preemptions += w->s.preemptions;
        hits += w->s.prefix_hits;
        assert_true(w->s.prefix ? w->s.prefix_hits < w->s.prefix_queries : !w->s.prefix_queries);
        world_free(w);
    }
    assert_true(preemptions > 100 && hits > 100000);
}

/* What is computed once is not computed again, to the token; the last token is, and rows that the caller waits for. */
static void test_prefix(void **state)
{
    (void)state;
    rng r = {1};
    world *w = world_of((shape){.blocks = 32, .block = 4, .parallel = 4, .batched = 64, .ctx = 64, .logits = 64});
    int32_t prompt[24];
    for (int i = 0; i < 24; i++)
        prompt[i] = (i * i + 3) % VOCAB;
    infer_request q = plain();
    q.prompt = prompt;
    q.n_prompt = 18;
    q.max_tokens = 1;
    submit(w, &q);
    assert_int_equal(step(w, &r), 18);
    submit(w, &q);
    assert_int_equal(step(w, &r), 1);
    assert_int_equal(w->s.n_copies, 1); /* 17 lies inside a block */
    q.n_prompt = 24;                    /* 18 are known, whatever the answer's token was */
    submit(w, &q);
    assert_int_equal(step(w, &r), 6);
    prompt[9]++;
    submit(w, &q);
    assert_int_equal(step(w, &r), 24 - 9);
    prompt[9]--;
    submit(w, &q)->key.w[1] = 7; /* another tenant's */
    assert_int_equal(step(w, &r), 24);
    assert_int_equal(w->s.prefix_queries, 18 + 18 + 24 + 24 + 24);
    assert_int_equal(w->s.prefix_hits, 17 + 18 + 9);
    q.flags = INFER_REQ_PROMPT_ROWS;
    q.on_row = on_logits;
    submit(w, &q);
    assert_int_equal(step(w, &r), 24);
    /* two at once compute the same and keep one of it; who comes while they run shares it */
    q = plain();
    q.prompt = prompt;
    prompt[0]++;
    q.n_prompt = 16;
    q.max_tokens = 8;
    infer_req *a = submit(w, &q), *b = submit(w, &q);
    assert_int_equal(half_step(w), 32);
    assert_memory_equal(a->seq.blocks, b->seq.blocks, 4 * sizeof *a->seq.blocks);
    infer_req *c = submit(w, &q);
    a->tokens[a->n_tokens++] = 1;
    b->tokens[b->n_tokens++] = 2;
    assert_int_equal(half_step(w), 3);
    assert_memory_equal(a->seq.blocks, c->seq.blocks, 3 * sizeof *a->seq.blocks);
    assert_int_equal(c->n_cached, 15);
    end(w, c);
    end(w, b);
    end(w, a);
    /* a step that failed leaves nothing behind */
    q.n_prompt = 3;
    prompt[0] = 39;
    a = submit(w, &q);
    const uint32_t nodes = infer_prefix_n_nodes(w->s.prefix);
    infer_sched_build(&w->s, &w->im, 1);
    end(w, a);
    assert_int_equal(infer_prefix_n_nodes(w->s.prefix), nodes);
    drain(w, &r);
    world_free(w);
    /* with no other block than those it shares, a request that is alone starts all the same */
    w = world_of((shape){.blocks = 4, .block = 4, .parallel = 4, .batched = 64, .ctx = 16});
    q.n_prompt = 15;
    q.max_tokens = 1;
    submit(w, &q);
    assert_int_equal(step(w, &r), 15);
    submit(w, &q);
    assert_int_equal(step(w, &r), 3); /* the last block is not copied for want of another, but computed */
    drain(w, &r);
    world_free(w);
}

/* A model with a cache group that cannot go on from a prefix does without. */
static void test_groups(void **state)
{
    (void)state;
    for (uint32_t kind = INFER_GROUP_FULL; kind <= INFER_GROUP_ENCODER; kind++) {
        infer_plan *p = calloc(1, sizeof *p);
        infer_file f = {.hp.n_embd = EMBD};
        infer_engine_options o = {.struct_size = sizeof o};
        infer_sched s;
        p->file = &f;
        p->opt = (infer_plan_options){.n_parallel = 1, .max_batched_tokens = 4, .max_logit_rows = 1};
        p->block_size = p->n_blocks = 4;
        p->n_devs = 2;
        p->devs[0].kv.spec = (infer_kv_spec){.kind = INFER_GROUP_FULL, .n_layers = 3};
        p->devs[1].kv.spec = (infer_kv_spec){.kind = kind, .n_layers = 1};
        assert_int_equal(infer_sched_create(&s, p, &o, NULL), INFER_OK);
        assert_int_equal(s.prefix != NULL, kind <= INFER_GROUP_LATENT);
        infer_sched_destroy(&s);
        p->devs[1].kv.spec.n_layers = 0; /* it holds none of it */
        assert_int_equal(infer_sched_create(&s, p, &o, NULL), INFER_OK);
        assert_non_null(s.prefix);
        infer_sched_destroy(&s);
        free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budgets),       cmocka_unit_test(test_policies),      cmocka_unit_test(test_fair),
        cmocka_unit_test(test_prefix_first),  cmocka_unit_test(test_priority),      cmocka_unit_test(test_preemption),
        cmocka_unit_test(test_no_starvation), cmocka_unit_test(test_prompt_logits), cmocka_unit_test(test_min_tokens),
        cmocka_unit_test(test_prefix),        cmocka_unit_test(test_groups),        cmocka_unit_test(test_fuzz),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
