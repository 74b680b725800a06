/* core/kv/prefix: the tree against a model that keeps every node's whole text and what lies in every slot of the cache,
 * under random matches, insertions, ends and evictions; the order of giving back; keys. SPDX-License-Identifier:
 * Apache-2.0 */
#include "config.h"

#include "unit/unit.h"

#include "base/alloc.h"
#include "kv/prefix.h"
#include "unit/rng.h"

enum { MAX_TEXT = 96, MAX_LIVE = 12, MAX_BLOCKS = 64 };

typedef struct text {
    infer_prefix_key key;
    int32_t ids[MAX_TEXT];
    uint32_t n;
} text;

/* A sequence as a scheduler has it. */
typedef struct live {
    text x;
    infer_kv_seq s;
    uint32_t n_known, n_computed;
} live;

typedef struct world {
    infer_kv_pool *pool;
    infer_prefix *t;
    uint32_t size, n_blocks;
    uint64_t mem[MAX_BLOCKS * 8]; /* what the slot's keys are of: a hash of the text up to there */
    text path[MAX_BLOCKS];        /* of kept blocks */
    live l[MAX_LIVE];
    uint32_t n_live;
    uint64_t matched, inside, replaced, evicted;
} world;

static void world_open(world *w, uint32_t n_blocks, uint32_t size)
{
    memset(w, 0, sizeof *w);
    w->n_blocks = n_blocks;
    w->size = size;
    assert_int_equal(infer_kv_pool_create(n_blocks, size, &w->pool, NULL), INFER_OK);
    assert_int_equal(infer_prefix_create(w->pool, &(infer_prefix_options){.even_at = 16}, &w->t, NULL), INFER_OK);
}

static void world_close(world *w)
{
    infer_prefix_destroy(w->t);
    assert_int_equal(infer_kv_pool_free(w->pool), w->n_blocks);
    assert_int_equal(infer_kv_pool_idle(w->pool), 0);
    infer_kv_pool_destroy(w->pool);
}

static uint64_t hash_upto(const text *x, uint32_t n)
{
    rng h = {x->key.w[0] * 31 + x->key.w[1]};
    uint64_t v = rng_next(&h);
    for (uint32_t i = 0; i < n; i++) {
        h.x = v ^ (uint64_t)(uint32_t)x->ids[i];
        v = rng_next(&h);
    }
    return v;
}

static uint32_t common_of(const text *a, const text *b)
{
    uint32_t i = 0;
    if (memcmp(&a->key, &b->key, sizeof a->key))
        return 0;
    while (i < a->n && i < b->n && a->ids[i] == b->ids[i])
        i++;
    return i;
}

/* References are those of live sequences and the tree's; every slot of a live sequence holds its own text. */
static void check(const world *w)
{
    uint32_t refs[MAX_BLOCKS] = {0}, idle = 0, nodes = 0;
    for (uint32_t i = 0; i < w->n_live; i++) {
        const live *l = &w->l[i];
        for (uint32_t b = 0; b < l->s.n_blocks; b++)
            refs[l->s.blocks[b]]++;
        for (uint32_t k = 0; k < l->n_computed; k++)
            assert_true(w->mem[infer_kv_seq_slot(w->pool, &l->s, k)] == hash_upto(&l->x, k + 1));
    }
    for (uint32_t b = 0; b < w->n_blocks; b++) {
        const int kept = infer_kv_pool_is_kept(w->pool, (int32_t)b);
        assert_int_equal(infer_kv_pool_refs(w->pool, (int32_t)b), refs[b] + (uint32_t)kept);
        idle += kept && !refs[b];
        nodes += (uint32_t)kept;
        for (uint32_t k = 0; kept && k < (w->path[b].n - 1) % w->size + 1; k++) {
            const uint32_t first = (w->path[b].n - 1) / w->size * w->size;
            assert_true(w->mem[b * w->size + k] == hash_upto(&w->path[b], first + k + 1));
        }
    }
    assert_int_equal(idle, infer_kv_pool_idle(w->pool));
    assert_int_equal(nodes, infer_prefix_n_nodes(w->t));
    assert_true(infer_prefix_check(w->t));
}

/* The longest beginning that the kept blocks have, by comparing all of them. */
static uint32_t naive_match(const world *w, const text *x, uint32_t limit)
{
    uint32_t best = 0;
    for (uint32_t b = 0; b < w->n_blocks; b++) {
        uint32_t n = infer_kv_pool_is_kept(w->pool, (int32_t)b) ? common_of(&w->path[b], x) : 0;
        best = n > best ? n : best;
    }
    return best < limit ? best : limit;
}

static live *start(world *w, const text *x, uint32_t limit)
{
    live *l = &w->l[w->n_live++];
    *l = (live){.x = *x};
    assert_int_equal(infer_kv_seq_init(w->pool, &l->s, MAX_TEXT, NULL), INFER_OK);
    const uint32_t want = naive_match(w, x, limit);
    assert_int_equal(infer_prefix_match(w->t, &x->key, x->ids, limit, &l->s), want);
    assert_int_equal(l->s.n_tokens, want);
    l->n_computed = want;
    l->n_known = want / w->size;
    w->matched += want;
    w->inside += want % w->size != 0;
    return l;
}

/* Computes n more tokens, or what fits once the tree has given what it can. */
static uint32_t compute(world *w, live *l, uint32_t n)
{
    infer_kv_copy c;
    uint32_t n_copy, before = infer_prefix_n_nodes(w->t);
    while (n && !infer_prefix_reclaim(w->t, infer_kv_seq_need(w->pool, &l->s, n), NULL, NULL))
        n--;
    w->evicted += before - infer_prefix_n_nodes(w->t);
    assert_int_equal(infer_kv_seq_grow(w->pool, &l->s, n, &c, &n_copy), INFER_OK);
    if (n_copy)
        memcpy(&w->mem[(uint32_t)c.dst * w->size], &w->mem[(uint32_t)c.src * w->size], w->size * sizeof w->mem[0]);
    for (uint32_t i = 0; i < n; i++, l->n_computed++)
        w->mem[infer_kv_seq_slot(w->pool, &l->s, l->n_computed)] = hash_upto(&l->x, l->n_computed + 1);
    return n;
}

static void insert(world *w, live *l, int last)
{
    uint8_t kept[MAX_BLOCKS];
    const uint32_t used = infer_kv_pool_free(w->pool), known = l->n_known;
    for (uint32_t b = 0; b < w->n_blocks; b++)
        kept[b] = (uint8_t)infer_kv_pool_is_kept(w->pool, (int32_t)b);
    infer_prefix_insert(w->t, &l->x.key, l->x.ids, l->n_computed, &l->s, &l->n_known, last);
    assert_int_equal(l->n_known, l->n_computed / w->size);
    for (uint32_t i = 0; i < l->s.n_blocks; i++) {
        const int32_t b = l->s.blocks[i];
        if (kept[b] || !infer_kv_pool_is_kept(w->pool, b))
            continue;
        w->path[b] = l->x;
        w->path[b].n = (i + 1) * w->size < l->n_computed ? (i + 1) * w->size : l->n_computed;
    }
    w->replaced += l->n_known > known && infer_kv_pool_free(w->pool) > used;
    text whole = l->x;
    whole.n = l->n_computed;
    assert_true(naive_match(w, &whole, MAX_TEXT) >= (last ? l->n_computed : l->n_known * w->size));
}

static void end(world *w, live *l)
{
    infer_kv_seq_free(w->pool, &l->s);
    *l = w->l[--w->n_live];
}

/* Texts that begin alike often: a few tokens, three keys, parts of earlier texts. */
static text random_text(world *w, rng *r)
{
    text x = {.key = {{rng_below(r, 8) ? 0 : 1 + rng_below(r, 2), 0}}, .n = 1 + rng_below(r, MAX_TEXT)};
    const text *from = rng_below(r, 4) ? &w->path[rng_below(r, w->n_blocks)] : NULL;
    const uint32_t alike = from && from->n ? rng_below(r, from->n + 1) : 0, few = 1 + rng_below(r, 3);
    for (uint32_t i = 0; i < x.n; i++)
        x.ids[i] = i < alike ? from->ids[i] : (int32_t)rng_below(r, few);
    return x;
}

static void test_random(void **state)
{
    (void)state;
    static world w;
    uint64_t matched = 0, inside = 0, replaced = 0, evicted = 0;
    for (int seed = 0; seed < (getenv("INFER_TEST_LONG") ? 2000 : 60); seed++) {
        rng r = {(uint64_t)seed};
        world_open(&w, 8 + rng_below(&r, MAX_BLOCKS - 7), 1 + rng_below(&r, 8));
        for (int i = 0; i < 400; i++) {
            if (w.n_live < MAX_LIVE && rng_below(&r, 3) == 0) {
                text x = random_text(&w, &r);
                start(&w, &x, rng_below(&r, 3) ? x.n - 1 : rng_below(&r, x.n + 1));
            }
            live *l = w.n_live ? &w.l[rng_below(&r, w.n_live)] : NULL;
            if (l && compute(&w, l, rng_below(&r, l->x.n - l->n_computed + 1)) && rng_below(&r, 2))
                insert(&w, l, 0);
            check(&w);
            if (l && rng_below(&r, 4) == 0) {
                if (rng_below(&r, 5)) /* else it failed */
                    insert(&w, l, 1);
                end(&w, l);
                check(&w);
            }
        }
        while (w.n_live) {
            insert(&w, &w.l[0], 1);
            end(&w, &w.l[0]);
        }
        check(&w);
        assert_int_equal(infer_kv_pool_free(w.pool) + infer_kv_pool_idle(w.pool), w.n_blocks);
        assert_true(infer_prefix_reclaim(w.t, w.n_blocks, NULL, NULL)); /* all of it */
        assert_int_equal(infer_prefix_n_nodes(w.t), 0);
        check(&w);
        matched += w.matched, inside += w.inside, replaced += w.replaced, evicted += w.evicted;
        world_close(&w);
    }
    assert_true(matched > 1000 && inside > 100 && replaced > 100 && evicted > 100);
}

static text text_of(const char *s)
{
    text x = {.n = (uint32_t)strlen(s)};
    for (uint32_t i = 0; i < x.n; i++)
        x.ids[i] = s[i];
    return x;
}

static void know(world *w, const char *s)
{
    text x = text_of(s);
    live *l = start(w, &x, x.n);
    assert_int_equal(compute(w, l, x.n - l->n_computed), x.n - naive_match(w, &x, x.n));
    insert(w, l, 1);
    end(w, l);
    check(w);
}

static uint32_t known(const world *w, const char *s)
{
    text x = text_of(s);
    return naive_match(w, &x, x.n);
}

/* Least recently used first among equals; leaves only; a block far into its text is worth more than one at the start, a
 * full one more than one that is not; but none for ever. */
static void test_order(void **state)
{
    (void)state;
    static world w;
    world_open(&w, 16, 4);
    know(&w, "aaaaAAAA");
    know(&w, "bbbbBBBB");
    know(&w, "ccccCCCC");
    know(&w, "aaaaAAAA");
    assert_true(infer_prefix_reclaim(w.t, 11, NULL, NULL));
    assert_int_equal(known(&w, "bbbbBBBB"), 4); /* its leaf, not its beginning */
    assert_int_equal(known(&w, "aaaaAAAA"), 8);
    assert_true(infer_prefix_reclaim(w.t, 12, NULL, NULL));
    assert_int_equal(known(&w, "bbbb"), 0); /* a leaf now, and nearer the start than the others' */
    assert_true(infer_prefix_reclaim(w.t, 13, NULL, NULL));
    assert_int_equal(known(&w, "ccccCCCC"), 4);
    assert_true(infer_prefix_reclaim(w.t, 16, NULL, NULL));
    assert_false(infer_prefix_reclaim(w.t, 17, NULL, NULL));
    know(&w, "x");
    know(&w, "aaaaAAAAaaaa");
    know(&w, "bbbb");
    assert_true(infer_prefix_reclaim(w.t, 12, NULL, NULL)); /* the single token */
    assert_int_equal(known(&w, "x"), 0);
    assert_true(infer_prefix_reclaim(w.t, 13, NULL, NULL)); /* and the start of a text, though used last */
    assert_int_equal(known(&w, "bbbb"), 0);
    assert_int_equal(known(&w, "aaaaAAAAaaaa"), 12);
    world_close(&w);
    /* a stream of cheap ones lets the dear one go in the end: not with those of its time, but before the next */
    world_open(&w, 16, 4);
    know(&w, "aaaaAAAAaaaa");
    int rounds = 0;
    char s[5] = "0000";
    for (; known(&w, "aaaaAAAAaaaa") == 12; rounds++) {
        s[0] = (char)('0' + rounds % 64);
        know(&w, s);
    }
    assert_true(rounds > 20 && rounds < 40);
    world_close(&w);
    /* in use: never, however long ago */
    world_open(&w, 4, 4);
    text x = text_of("aaaaAAAA");
    live *l = start(&w, &x, 8);
    compute(&w, l, 8);
    insert(&w, l, 0);
    for (int i = 0; i < 100; i++) {
        s[0] = (char)('0' + i % 10);
        s[1] = (char)('0' + i / 10);
        know(&w, s);
    }
    assert_int_equal(known(&w, "aaaaAAAA"), 8);
    assert_false(infer_prefix_reclaim(w.t, 3, NULL, NULL));
    assert_int_equal(infer_prefix_n_nodes(w.t), 2);
    end(&w, l);
    assert_true(infer_prefix_reclaim(w.t, 4, NULL, NULL));
    world_close(&w);
}

/* Who computes what is known already gives his own blocks up; a leaf that is gone on from is no more. */
static void test_duplicates(void **state)
{
    (void)state;
    static world w;
    world_open(&w, 16, 4);
    text x = text_of("aaaaAAAAbb"), y = text_of("aaaaAAAAbbbc");
    live *a = start(&w, &x, 9), *b = start(&w, &y, 11);
    compute(&w, a, 10);
    compute(&w, b, 12);
    assert_int_equal(infer_kv_pool_free(w.pool), 10);
    insert(&w, a, 0);
    insert(&w, b, 0);
    assert_int_equal(infer_kv_pool_free(w.pool), 12);
    assert_int_equal(a->s.blocks[1], b->s.blocks[1]);
    check(&w);
    insert(&w, a, 1); /* its last block says no more than what is there */
    assert_int_equal(infer_prefix_n_nodes(w.t), 3);
    end(&w, a);
    end(&w, &w.l[0]);
    check(&w);
    know(&w, "aaaaAAAAbbbcdd");
    assert_int_equal(infer_prefix_n_nodes(w.t), 4);
    know(&w, "aaaaAAAAbbbcddd"); /* in place of the leaf that it goes on from */
    assert_int_equal(infer_prefix_n_nodes(w.t), 4);
    know(&w, "aaaaAAAAbbbcdddd");
    assert_int_equal(infer_prefix_n_nodes(w.t), 4);
    know(&w, "aaaaAAAAbbbcdd"); /* nothing new */
    assert_int_equal(infer_prefix_n_nodes(w.t), 4);
    know(&w, "aaaaAAAAbbbcdx");
    assert_int_equal(infer_prefix_n_nodes(w.t), 5);
    world_close(&w);
}

static void test_keys(void **state)
{
    (void)state;
    static world w;
    world_open(&w, 16, 4);
    text x = text_of("aaaaAAAA");
    for (uint64_t k = 0; k < 4; k++) {
        x.key = (infer_prefix_key){{k % 2, k / 2}};
        live *l = start(&w, &x, 8);
        assert_int_equal(l->n_computed, 0);
        compute(&w, l, 8);
        insert(&w, l, 1);
        end(&w, l);
    }
    assert_int_equal(infer_prefix_n_nodes(w.t), 8);
    live *l = start(&w, &x, 7);
    assert_int_equal(l->n_computed, 7);
    check(&w);
    end(&w, l);
    /* a sequence takes no more than it may hold */
    infer_kv_seq s;
    assert_int_equal(infer_kv_seq_init(w.pool, &s, 5, NULL), INFER_OK);
    assert_int_equal(infer_prefix_match(w.t, &x.key, x.ids, 8, &s), 5);
    infer_kv_seq_free(w.pool, &s);
    check(&w);
    world_close(&w);
}

/* What was in use when something was to be given back, and fell free without being used again, can be given back as
 * long as anything else is in use. */
static void test_in_use_before(void **state)
{
    (void)state;
    world w;
    infer_kv_seq s[4];
    const infer_prefix_key key = {{0}};
    int32_t ids[4];
    infer_kv_copy copy;
    uint32_t n_copy;
    world_open(&w, 4, 4);
    for (int32_t i = 0; i < 4; i++) {
        uint32_t known = 0;
        for (int32_t k = 0; k < 4; k++)
            ids[k] = i * 4 + k;
        assert_int_equal(infer_kv_seq_init(w.pool, &s[i], 4, NULL), INFER_OK);
        assert_int_equal(infer_kv_seq_grow(w.pool, &s[i], 4, &copy, &n_copy), INFER_OK);
        infer_prefix_insert(w.t, &key, ids, 4, &s[i], &known, 0);
    }
    infer_kv_seq_truncate(w.pool, &s[0], 0);
    infer_kv_seq_truncate(w.pool, &s[3], 0);
    assert_int_equal(infer_prefix_reclaim(w.t, 1, NULL, NULL), 1);
    assert_int_equal(infer_prefix_reclaim(w.t, 2, NULL, NULL), 1); /* past two in use */
    infer_kv_seq_truncate(w.pool, &s[2], 0);
    assert_int_equal(infer_kv_pool_idle(w.pool), 1);
    assert_int_equal(infer_prefix_reclaim(w.t, 3, NULL, NULL), 1);
    for (int i = 0; i < 4; i++)
        infer_kv_seq_free(w.pool, &s[i]);
    world_close(&w);
}

static void test_no_memory(void **state)
{
    (void)state;
    infer_kv_pool *pool;
    assert_int_equal(infer_kv_pool_create(4, 4, &pool, NULL), INFER_OK);
    for (int n = 0;; n++) {
        infer_prefix *t = NULL;
        infer_error e = {0};
        infer_alloc_fail_after(n, 0);
        infer_status s =
            infer_prefix_create(pool, &(infer_prefix_options){.even_at = 1, .n_places = 2, .n_slots = 2}, &t, &e);
        if (!infer_alloc_fail_after(-1, 0)) {
            assert_int_equal(s, INFER_OK);
            infer_prefix_destroy(t);
            break;
        }
        assert_int_equal(s, INFER_E_NO_MEMORY);
        assert_null(t);
        assert_true(e.text[0]);
    }
    infer_prefix_destroy(NULL);
    infer_kv_pool_destroy(pool);
}

/* What each kind of cache group can go on from. */
static void test_groups(void **state)
{
    (void)state;
    const struct {
        uint32_t kind;
        uint64_t serves;
    } rows[] = {{INFER_GROUP_FULL, 77},
                {INFER_GROUP_WINDOW, 77},
                {INFER_GROUP_LATENT, 77},
                {INFER_GROUP_RECURRENT, 0},
                {INFER_GROUP_ENCODER, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const infer_kv_spec spec = {.struct_size = sizeof spec, .kind = rows[i].kind, .n_layers = 1, .window = 8};
        assert_int_equal(infer_kv_group_serves(&spec, 77), rows[i].serves);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random), cmocka_unit_test(test_order),         cmocka_unit_test(test_duplicates),
        cmocka_unit_test(test_keys),   cmocka_unit_test(test_in_use_before), cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
