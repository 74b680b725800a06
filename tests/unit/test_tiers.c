/* core/kv/tiers: the prefix tree with host memory and a file below its pool, against a model of what lies in every slot
 * of all three, under random matches, steps, evictions, reads and writes, with steps, reads and writes that fail.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "unit/unit.h"

#include "kv/prefix.h"
#include "unit/rng.h"

enum {
    MAX_TEXT = 96,
    MAX_LIVE = 8,
    MAX_BLOCKS = 40,
    MAX_PLACES = 24,
    MAX_SLOTS = 64,
    MAX_IO = 64,
    SIZE = 4,
    FIRST = 3
};

typedef struct live {
    int32_t ids[MAX_TEXT];
    uint32_t n;
    infer_kv_seq s;
    uint32_t n_known, n_computed, n_rows; /* n_rows: in the step being built */
    int in_step;
} live;

typedef struct block {
    uint64_t x[SIZE]; /* of each token: a hash of the text up to it */
} block;

typedef struct world {
    infer_kv_pool *pool;
    infer_prefix *t;
    infer_prefix_options o;
    uint32_t n_blocks;
    block pool_mem[MAX_BLOCKS], host_mem[MAX_PLACES], file_mem[MAX_SLOTS];
    live l[MAX_LIVE];
    uint32_t n_live;
    infer_kv_move outs[MAX_PLACES], ins[MAX_PLACES];
    infer_kv_copy copies[MAX_LIVE];
    uint32_t n_outs, n_ins, n_copies;
    infer_kv_io io[MAX_IO]; /* under way, in order */
    block at_post[MAX_IO];
    uint32_t n_io;
    uint64_t out, in, read, written, failed_steps, failed_io;
} world;

static void world_open(world *w, uint32_t n_blocks, uint32_t n_places, uint32_t n_stage, uint32_t n_slots)
{
    memset(w, 0, sizeof *w);
    w->n_blocks = n_blocks;
    w->o = (infer_prefix_options){16, FIRST, n_places, n_stage, n_slots};
    assert_int_equal(infer_kv_pool_create(n_blocks, SIZE, &w->pool, NULL), INFER_OK);
    assert_int_equal(infer_prefix_create(w->pool, &w->o, &w->t, NULL), INFER_OK);
}

static void world_close(world *w)
{
    infer_prefix_destroy(w->t);
    assert_int_equal(infer_kv_pool_free(w->pool), w->n_blocks);
    infer_kv_pool_destroy(w->pool);
}

static uint64_t hash_upto(const live *l, uint32_t n)
{
    rng h = {7};
    uint64_t v = rng_next(&h);
    for (uint32_t i = 0; i < n; i++) {
        h.x = v ^ (uint64_t)(uint32_t)l->ids[i];
        v = rng_next(&h);
    }
    return v;
}

static uint64_t *slot_of(world *w, const live *l, uint32_t k)
{
    const int32_t at = infer_kv_seq_slot(w->pool, &l->s, k);
    return &w->pool_mem[at / SIZE].x[at % SIZE];
}

static void check(const world *w)
{
    assert_true(infer_prefix_check(w->t));
}

/* What the tree wants to be written begins. */
static void post_writes(world *w)
{
    infer_kv_io io;
    while (w->n_io < MAX_IO && infer_prefix_write(w->t, &io)) {
        w->at_post[w->n_io] = w->host_mem[io.place - FIRST];
        w->io[w->n_io++] = io;
    }
}

/* The oldest copy from or to the file ends. */
static void end_io(world *w, int ok)
{
    infer_kv_io io = w->io[0];
    block *place = &w->host_mem[io.place - FIRST];
    if (io.is_write) {
        assert_memory_equal(place, &w->at_post[0], sizeof *place); /* nobody wrote there meanwhile */
        w->file_mem[io.slot] = *place;
        if (!ok)
            memset(&w->file_mem[io.slot], 0, sizeof(block));
    } else {
        *place = w->file_mem[io.slot];
        if (!ok)
            memset(place, 0, sizeof *place);
    }
    io.ok = ok;
    w->written += io.is_write && ok;
    w->failed_io += !ok;
    memmove(w->io, w->io + 1, --w->n_io * sizeof w->io[0]);
    memmove(w->at_post, w->at_post + 1, w->n_io * sizeof w->at_post[0]);
    infer_prefix_io_done(w->t, &io);
    check(w);
}

/* A request starts: what the pool has, then what host memory has. What the file has after that is read for whoever
 * comes next. */
static void start(world *w, rng *r, const int32_t *ids, uint32_t n)
{
    static const infer_prefix_key key;
    live *l = &w->l[w->n_live++];
    *l = (live){.n = n, .in_step = 1}; /* it may share what comes in with the step */
    memcpy(l->ids, ids, n * sizeof *ids);
    assert_int_equal(infer_kv_seq_init(w->pool, &l->s, MAX_TEXT, NULL), INFER_OK);
    infer_prefix_match(w->t, &key, ids, n - 1, &l->s);
    l->n_computed = (uint32_t)l->s.n_tokens;
    l->n_known = l->n_computed / SIZE;
    infer_prefix_ref path[MAX_TEXT / SIZE];
    const uint32_t n_path = infer_prefix_path(w->t, &key, ids, n - 1, &l->s, path, MAX_TEXT / SIZE);
    uint32_t n_in = 0, i;
    for (i = 0; i < n_path; i++)
        infer_prefix_hold(w->t, path[i]);
    check(w);
    while (n_in < n_path && infer_prefix_state(w->t, path[n_in]) == INFER_PREFIX_IN_HOST)
        n_in++;
    const uint32_t kept = infer_prefix_n_nodes(w->t);
    if (n_in && infer_prefix_reclaim(w->t, n_in, w->outs, &w->n_outs)) {
        infer_kv_copy none;
        uint32_t n_none;
        assert_true(infer_prefix_n_nodes(w->t) <= kept);
        assert_int_equal(infer_kv_seq_grow(w->pool, &l->s, n_in * SIZE, &none, &n_none), INFER_OK);
        assert_int_equal(n_none, 0);
        for (i = 0; i < n_in; i++)
            infer_prefix_in(w->t, path[i], l->s.blocks[l->s.n_blocks - n_in + i], &w->ins[w->n_ins++]);
        l->n_computed = (uint32_t)l->s.n_tokens;
        w->in += n_in;
        check(w);
    }
    for (i = n_in; i < n_path && rng_below(r, 4) && w->n_io < MAX_IO; i++) {
        if (infer_prefix_state(w->t, path[i]) != INFER_PREFIX_IN_FILE ||
            !infer_prefix_read(w->t, path[i], &w->io[w->n_io]))
            break;
        assert_true(infer_prefix_is_read(w->t, path[i]));
        w->read++;
        w->n_io++;
    }
    for (i = 0; i < n_path; i++)
        infer_prefix_let_go(w->t, path[i]);
    check(w);
}

/* Rows of the step: as many tokens as fit. */
static void compute(world *w, live *l, uint32_t n)
{
    uint32_t n_copy;
    while (n && !infer_prefix_reclaim(w->t, infer_kv_seq_need(w->pool, &l->s, n), w->outs, &w->n_outs))
        n--;
    if (!n)
        return;
    assert_int_equal(infer_kv_seq_grow(w->pool, &l->s, n, &w->copies[w->n_copies], &n_copy), INFER_OK);
    w->n_copies += n_copy;
    l->n_rows = n;
    l->in_step = 1;
    check(w);
}

/* The step runs: copies in order, then its rows, which read everything before them. */
static void run(world *w, int ok)
{
    for (uint32_t i = 0; i < w->n_outs; i++)
        w->host_mem[w->outs[i].place - FIRST] = w->pool_mem[w->outs[i].block];
    for (uint32_t i = 0; i < w->n_copies; i++)
        w->pool_mem[w->copies[i].dst] = w->pool_mem[w->copies[i].src];
    for (uint32_t i = 0; i < w->n_ins; i++)
        w->pool_mem[w->ins[i].block] = w->host_mem[w->ins[i].place - FIRST];
    for (uint32_t i = 0; !ok && i < w->n_outs; i++)
        memset(&w->host_mem[w->outs[i].place - FIRST], 0, sizeof(block));
    for (uint32_t i = 0; !ok && i < w->n_ins; i++)
        memset(&w->pool_mem[w->ins[i].block], 0, sizeof(block));
    for (uint32_t i = 0; i < w->n_live; i++) {
        live *l = &w->l[i];
        for (uint32_t k = 0; k < l->n_rows; k++)
            *slot_of(w, l, l->n_computed + k) = ok ? hash_upto(l, l->n_computed + k + 1) : 0;
        l->n_computed += l->n_rows;
        l->n_rows = 0;
        for (uint32_t k = 0; (ok || !l->in_step) && k < l->n_computed; k++)
            assert_true(*slot_of(w, l, k) == hash_upto(l, k + 1));
    }
}

static void end(world *w, uint32_t i, int keep)
{
    static const infer_prefix_key key;
    live *l = &w->l[i];
    if (keep)
        infer_prefix_insert(w->t, &key, l->ids, l->n_computed, &l->s, &l->n_known, 1);
    infer_kv_seq_free(w->pool, &l->s);
    *l = w->l[--w->n_live];
    check(w);
}

static void finish(world *w, int ok)
{
    static const infer_prefix_key key;
    if (!ok) /* who was in it ends, and nothing of it is kept */
        for (uint32_t i = w->n_live; i-- > 0;)
            if (w->l[i].in_step)
                end(w, i, 0);
    for (uint32_t i = 0; i < w->n_outs; i++)
        infer_prefix_out_done(w->t, &w->outs[i], ok);
    for (uint32_t i = 0; i < w->n_ins; i++)
        infer_prefix_in_done(w->t, &w->ins[i], ok);
    w->out += w->n_outs;
    w->failed_steps += !ok;
    w->n_outs = w->n_ins = w->n_copies = 0;
    for (uint32_t i = 0; i < w->n_live; i++) {
        live *l = &w->l[i];
        l->in_step = 0;
        infer_prefix_insert(w->t, &key, l->ids, l->n_computed, &l->s, &l->n_known, 0);
    }
    check(w);
}

static void test_random(void **state)
{
    (void)state;
    static world w;
    uint64_t out = 0, in = 0, read = 0, written = 0, failed_steps = 0, failed_io = 0, lost = 0, evicted = 0;
    for (int seed = 0; seed < (getenv("INFER_TEST_LONG") ? 2000 : 80); seed++) {
        rng r = {(uint64_t)seed};
        const uint32_t places = 1 + rng_below(&r, MAX_PLACES), slots = seed % 3 ? rng_below(&r, MAX_SLOTS) : 0;
        const uint32_t stage = seed % 3 == 1 ? places : 1 + rng_below(&r, places);
        int32_t texts[6][MAX_TEXT];
        world_open(&w, MAX_TEXT / SIZE + rng_below(&r, MAX_BLOCKS - MAX_TEXT / SIZE + 1), places, slots ? stage : 0,
                   slots);
        for (uint32_t i = 0; i < 6; i++)
            for (uint32_t k = 0; k < MAX_TEXT; k++)
                texts[i][k] = i && k < i % 3 * 20 ? texts[0][k] : (int32_t)rng_below(&r, 1000);
        for (int i = 0; i < 500; i++) {
            infer_prefix_step(w.t);
            while (w.n_live < MAX_LIVE && rng_below(&r, 2))
                start(&w, &r, texts[rng_below(&r, 6)], 2 + rng_below(&r, MAX_TEXT - 1));
            for (uint32_t k = 0; k < w.n_live; k++)
                if (w.l[k].n > w.l[k].n_computed && rng_below(&r, 2))
                    compute(&w, &w.l[k], 1 + rng_below(&r, w.l[k].n - w.l[k].n_computed));
            const int ok = rng_below(&r, 20) != 0;
            while (w.n_io && rng_below(&r, 3)) /* while it runs */
                end_io(&w, rng_below(&r, 12) != 0);
            run(&w, ok);
            finish(&w, ok);
            post_writes(&w);
            check(&w);
            if (w.n_live && rng_below(&r, 2))
                end(&w, rng_below(&r, w.n_live), rng_below(&r, 5) != 0);
        }
        while (w.n_live)
            end(&w, 0, 1);
        infer_prefix_step(w.t);
        assert_true(infer_prefix_reclaim(w.t, w.n_blocks, NULL, NULL)); /* the pool can always be had whole */
        while (w.n_io)
            end_io(&w, 1);
        infer_prefix_counts c;
        for (uint32_t tier = INFER_TIER_HOST; tier < INFER_TIER_COUNT; tier++) {
            infer_prefix_get_counts(w.t, tier, &c);
            lost += c.lost, evicted += c.evicted;
        }
        check(&w);
        out += w.out, in += w.in, read += w.read, written += w.written;
        failed_steps += w.failed_steps, failed_io += w.failed_io;
        world_close(&w);
    }
    print_message(
        "%llu out, %llu in, %llu written, %llu read, %llu evicted, %llu lost; %llu steps and %llu copies failed\n",
        (unsigned long long)out, (unsigned long long)in, (unsigned long long)written, (unsigned long long)read,
        (unsigned long long)evicted, (unsigned long long)lost, (unsigned long long)failed_steps,
        (unsigned long long)failed_io);
    assert_true(out > 1000 && in > 300 && written > 300 && read > 100 && evicted > 100 && failed_steps > 100 &&
                failed_io > 50);
}

/* A text is computed and ends, alone in the pool. */
static void know(world *w, const int32_t *ids, uint32_t n)
{
    rng r = {1};
    infer_prefix_step(w->t);
    start(w, &r, ids, n);
    compute(w, &w->l[0], n - w->l[0].n_computed);
    run(w, 1);
    finish(w, 1);
    end(w, 0, 1);
}

static uint32_t nodes(const world *w, uint32_t tier)
{
    infer_prefix_counts c;
    infer_prefix_get_counts(w->t, tier, &c);
    return c.nodes;
}

/* From the pool to host memory, to the file, and back: the same path, from the end backwards; the file's copy stays. */
static void test_way(void **state)
{
    (void)state;
    static world w;
    int32_t ids[16];
    infer_prefix_counts c;
    for (int i = 0; i < 16; i++)
        ids[i] = i;
    world_open(&w, 4, 4, 2, 4);
    know(&w, ids, 16);
    infer_prefix_step(w.t);
    assert_true(infer_prefix_reclaim(w.t, 3, w.outs, &w.n_outs));
    assert_int_equal(w.n_outs, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(w.outs[i].block, 3 - i); /* leaves first */
    assert_int_equal(nodes(&w, INFER_TIER_HOST), 3);
    post_writes(&w);
    assert_int_equal(w.n_io, 0); /* not before they are there */
    run(&w, 1);
    finish(&w, 1);
    post_writes(&w);
    assert_int_equal(w.n_io, 1); /* two places are to be free, one is */
    end_io(&w, 1);
    assert_int_equal(nodes(&w, INFER_TIER_HOST), 2);
    assert_int_equal(nodes(&w, INFER_TIER_FILE), 1);
    static const infer_prefix_key key;
    assert_int_equal(infer_prefix_known(w.t, &key, ids, 16), 16);
    rng r = {0};
    infer_prefix_step(w.t);
    start(&w, &r, ids, 15); /* as if the end were another */
    assert_int_equal(w.n_ins, 2);
    assert_int_equal(w.l[0].n_computed, 12);
    run(&w, 1);
    finish(&w, 1);
    infer_prefix_get_counts(w.t, INFER_TIER_HOST, &c);
    assert_int_equal(c.hits, 2);
    assert_int_equal(c.lost, 0);
    end(&w, 0, 1);
    know(&w, ids, 16); /* what the file has is computed: it is in the pool, and the file's copy serves later */
    assert_int_equal(nodes(&w, INFER_TIER_FILE), 0);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_way)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
