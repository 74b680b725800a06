/* The scheduler, without devices, under random arrivals, ends and cancellations against a model of the cache.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>

#include "unit/sched_world.h"

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
    assert_int_equal(w->st->n_batch, 4); /* 8 + 8 + 1 + 3 */
    assert_int_equal(w->st->batch[0].rows, 8);
    assert_int_equal(w->st->batch[3].rows, 3);
    assert_int_equal(w->s.queue.n, 1);
    give(one, 1); /* it decodes now, so it comes first */
    assert_int_equal(half_step(w), 20);
    assert_ptr_equal(w->st->batch[0].r, one);
    assert_int_equal(w->st->batch[1].rows, 5); /* the end of 13 */
    assert_true(w->st->batch[1].samples);
    assert_false(w->st->batch[2].samples);
    give(one, 1);
    give(w->s.running[0], 1);
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

/* Who gives way into host memory goes on where it was, without a row computed again; without enough places, or where to
 * compute is cheaper, it is computed again. */
static void test_swap(void **state)
{
    (void)state;
    rng r = {1};
    static const struct {
        uint32_t places, mode;
        double block_ns; /* of a copy; a row takes 1000 */
        int swaps;
    } rows[] = {
        {8, INFER_PREEMPTION_SWAP, 1e9, 1}, {1, INFER_PREEMPTION_SWAP, 1, 0},   {8, INFER_PREEMPTION_RECOMPUTE, 1, 0},
        {8, INFER_PREEMPTION_AUTO, 3e3, 1}, {8, INFER_PREEMPTION_AUTO, 5e3, 0},
    };
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        world *w = world_of((shape){.blocks = 8,
                                    .block = 4,
                                    .parallel = 4,
                                    .batched = 64,
                                    .ctx = 32,
                                    .places = rows[k].places,
                                    .no_prefix_cache = 1});
        w->s.swap.mode = rows[k].mode;
        w->s.swap.out_ns = rows[k].block_ns;
        infer_budget_note(&w->s.budget, 10, 10000);
        infer_budget_note(&w->s.budget, 60, 60000);
        submit_n(w, 8, 20, 0);
        const uint64_t id = submit_n(w, 8, 20, 0)->id;
        while (!w->s.preemptions)
            step(w, &r);
        const infer_req *gone = infer_queue_head(&w->s.queue);
        assert_int_equal(gone->id, id);
        const uint64_t had = gone->n_swapped;
        assert_int_equal(gone->n_places != 0, rows[k].swaps);
        assert_int_equal(w->s.swap.n_out, rows[k].swaps ? gone->n_places : 0);
        uint64_t first = 0;
        while (infer_queue_is_waiting(gone))
            step(w, &r);
        for (uint32_t i = 0; i < w->st->n_batch; i++)
            first = w->st->batch[i].r == gone ? w->st->batch[i].first : first;
        assert_int_equal(first, rows[k].swaps ? had : 0);
        drain(w, &r);
        assert_int_equal(w->s.swap.n_in, w->s.swap.n_out);
        world_free(w);
    }
}

/* Choices of one question share its prompt's blocks, with and without a prefix cache, and part where they differ. */
static void test_fork(void **state)
{
    (void)state;
    for (uint32_t off = 0; off < 2; off++) {
        world *w = world_of((shape){
            .blocks = 32, .block = 4, .parallel = 5, .batched = 64, .chunk = 8, .ctx = 64, .no_prefix_cache = off});
        rng r = {1};
        infer_req *a = submit_n(w, 14, 20, 0), *c[3];
        infer_request q = plain();
        int32_t prompt[14];
        memcpy(prompt, a->tokens, sizeof prompt);
        q.prompt = prompt;
        q.n_prompt = 14;
        q.max_tokens = 20;
        q.fork_of = a->id;
        for (int i = 0; i < 3; i++)
            c[i] = submit(w, &q);
        prompt[13]++; /* another question: nothing to wait for */
        submit(w, &q);
        assert_int_equal(half_step(w), 8);
        assert_int_equal(half_step(w), 6);
        assert_int_equal(w->s.queue.n, 4);
        give(a, 1);
        assert_int_equal(step(w, &r), 1 + 3 * 1 + (off ? 8 : 2));
        for (int i = 0; i < 3; i++) {
            assert_int_equal(c[i]->n_cached, 13);
            assert_memory_equal(c[i]->seq.blocks, a->seq.blocks, 3 * sizeof *a->seq.blocks);
            for (int k = 0; k < i; k++)
                assert_true(c[i]->seq.blocks[3] != c[k]->seq.blocks[3]);
            assert_true(c[i]->seq.blocks[3] != a->seq.blocks[3]);
        }
        drain(w, &r);
        world_free(w);
    }
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
    const infer_batch_entry *e = &w->st->batch[0];
    while (e->r != r)
        e++;
    const infer_sample_row *sr = &w->st->im->sample_rows[e->first_logit + e->n_logits - 1];
    for (uint32_t i = 0; i < sr->bias_count; i++)
        ids[i] = w->st->im->bias[sr->bias_first + i].id;
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
    assert_true(isinf(w->st->im->bias[1].bias) && w->st->im->bias[1].bias < 0);
    assert_int_equal(bias_of(w, b, ids), 3);
    for (int i = 0; i < 2; i++) {
        give(a, 1);
        give(b, 1);
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
    q.n_top_logprobs = q.n_prompt % 4 ? 0 : 3;
    q.priority = (int32_t)rng_below(r, 3);
    if (rng_below(r, 3) == 0)
        q.sampling.repetition_penalty = 1.1f;
    if (rng_below(r, 5) == 0) {
        q.flags |= INFER_REQ_PROMPT_ROWS;
        q.on_row = on_logits;
    }
    q.min_tokens = rng_below(r, 4);
    /* or another choice of the last one's question */
    const infer_req *last = rng_below(r, 4) ? NULL : infer_queue_find(&w->s.queue, w->next_id - 1);
    if (last) {
        q.fork_of = last->id;
        q.n_prompt = last->n_prompt;
        memcpy(prompt, last->tokens, q.n_prompt * sizeof *prompt);
    }
    submit(w, &q)->key.w[0] = last ? last->key.w[0] : rng_below(r, 8) == 0;
}

/* While a step runs and the next is built, requests come and go. */
static void come_and_go(world *w, rng *r)
{
    if (rng_below(r, 4) == 0) {
        random_request(w, r, w->plan->opt.ctx_size);
        infer_sched_top_up(&w->s, w->st, w->now);
    }
    if (rng_below(r, 8) == 0 && w->s.n_running)
        end(w, w->s.running[rng_below(r, w->s.n_running)]);
    check_books(w);
}

/* The step under way fails: its requests end, those of the next start again. */
static void failing_lap(world *w)
{
    infer_step *failed = w->under_way;
    if (!infer_spec_waits(&w->s, failed)) {
        build(w);
        infer_sched_undo(&w->s, w->st);
    }
    infer_swap_failed(&w->s, failed);
    check_books(w);
    for (uint32_t i = 0; i < failed->n_batch; i++) {
        if (!failed->batch[i].r)
            continue;
        failed->batch[i].r->tainted = 1;
        end(w, failed->batch[i].r);
    }
    infer_tier_done(&w->s, failed, 0);
    w->under_way = NULL;
    bury(w);
    check_books(w);
}

static void test_fuzz(void **state)
{
    (void)state;
    const char *rounds = getenv("INFER_TEST_LONG");
    uint64_t preemptions = 0, hits = 0, swapped = 0, drafted = 0, accepted = 0, aside = 0, back[INFER_TIER_COUNT] = {0};
    infer_prefix_counts c;
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
                                    .no_prefix_cache = seed % 4 == 0,
                                    .places = seed % 5 < 2 ? rng_below(&r, per * 4) : 0,
                                    .drafts = seed % 7 < 3 ? 1 + rng_below(&r, 12) : 0,
                                    .host = seed % 7 < 4 ? rng_below(&r, per * 4) : 0,
                                    .slots = seed % 7 == 3 ? 1 + rng_below(&r, per * 6) : 0});
        assert_int_equal(w->s.prefix == NULL, seed % 4 == 0);
        next_policy = 0;
        const int laps = seed % 2;
        for (int i = 0; i < 400; i++) {
            next_tenant = rng_below(&r, 3);
            if (w->s.queue.n < 20 && rng_below(&r, 3) == 0)
                random_request(w, &r, ctx);
            if (rng_below(&r, 8) == 0 && w->s.n_running)
                end(w, w->s.running[rng_below(&r, w->s.n_running)]);
            if (rng_below(&r, 16) == 0 && w->s.queue.n)
                end(w, infer_queue_head(&w->s.queue));
            aside += w->s.tier.n_aside;
            if (rng_below(&r, 16) == 0 && w->s.tier.n_aside)
                end(w, w->s.tier.aside[rng_below(&r, w->s.tier.n_aside)]);
            check_books(w);
            if (w->s.tier.store && rng_below(&r, 4) == 0) /* the file's thread has time */
                nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
            if (!laps)
                step(w, &r);
            else if (w->under_way && rng_below(&r, 40) == 0)
                failing_lap(w);
            else
                lap(w, &r, come_and_go, 20);
        }
        next_tenant = 0;
        while (laps && (lap(w, &r, NULL, 20) || w->under_way)) {
        }
        drain(w, &r);
        preemptions += w->s.preemptions;
        hits += w->s.prefix_hits;
        swapped += w->s.swap.n_in;
        drafted += w->s.spec.n_draft_tokens;
        accepted += w->s.spec.n_accepted;
        for (uint32_t tier = INFER_TIER_HOST; w->s.prefix && tier <= INFER_TIER_FILE; tier++) {
            infer_prefix_get_counts(w->s.prefix, tier, &c);
            back[tier] += c.hits;
        }
        assert_true(w->s.prefix ? w->s.prefix_hits < w->s.prefix_queries : !w->s.prefix_queries);
        world_free(w);
    }
    print_message("%llu drafts, %llu right\n", (unsigned long long)drafted, (unsigned long long)accepted);
    print_message("back: %llu blocks from host memory, %llu from the file, %llu waits\n",
                  (unsigned long long)back[INFER_TIER_HOST], (unsigned long long)back[INFER_TIER_FILE],
                  (unsigned long long)aside);
    assert_true(preemptions > 100 && hits > 100000 && swapped > 1000);
    assert_true(drafted > 10000 && accepted > 3000 && accepted < drafted);
    assert_true(back[INFER_TIER_HOST] > 1000 && back[INFER_TIER_FILE] > 20 && aside > 20);
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
    assert_int_equal(w->st->x.n_copies, 1); /* 17 lies inside a block */
    q.n_prompt = 24;                        /* 18 are known, whatever the answer's token was */
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
    give(a, 1);
    give(b, 2);
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
    build(w);
    infer_sched_begin(&w->s, w->st);
    a->tainted = 1;
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
        cmocka_unit_test(test_budgets),       cmocka_unit_test(test_priority),   cmocka_unit_test(test_preemption),
        cmocka_unit_test(test_swap),          cmocka_unit_test(test_fork),       cmocka_unit_test(test_no_starvation),
        cmocka_unit_test(test_prompt_logits), cmocka_unit_test(test_min_tokens), cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_groups),        cmocka_unit_test(test_fuzz),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
