/* In what order requests start, by policy. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "unit/sched_world.h"

/* Starts requests one at a time to the end; gives their numbers in the order in which they started. */
static void order_of(world *w, uint64_t *ids, uint32_t n)
{
    rng r = {1};
    w->keep = 1;
    for (uint32_t i = 0; i < n;) {
        step(w, &r);
        if (w->st->n_batch && w->st->batch[0].r->id && (!i || ids[i - 1] != w->st->batch[0].r->id))
            ids[i++] = w->st->batch[0].r->id;
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
        check_image(w, build(w));
        for (uint32_t k = 0; k < w->st->n_batch; k++) {
            const infer_batch_entry *e = &w->st->batch[k];
            const infer_req *q = e->r;
            if (q->n_computed <= q->n_cached)
                served[q->tenant] += q->n_prompt - q->n_cached;
            served[q->tenant] += e->samples ? 2 : 0;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_policies),
        cmocka_unit_test(test_fair),
        cmocka_unit_test(test_prefix_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
