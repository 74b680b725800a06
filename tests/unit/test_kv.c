/* core/kv: the block pool, page tables, sharing and copy-on-write, against a model that keeps every token's value; and
 * the byte layout of planes. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "unit/unit.h"

#include "base/alloc.h"
#include "kv/kv.h"
#include "quant/quant.h"
#include "unit/rng.h"

static infer_kv_pool *pool_of(uint32_t n_blocks, uint32_t block_size)
{
    infer_kv_pool *p = NULL;
    infer_error e = {0};
    if (infer_kv_pool_create(n_blocks, block_size, &p, &e))
        fail_msg("%s", e.text);
    return p;
}

static infer_kv_seq seq_of(const infer_kv_pool *p, uint64_t max_tokens)
{
    infer_kv_seq s;
    assert_int_equal(infer_kv_seq_init(p, &s, max_tokens, NULL), INFER_OK);
    return s;
}

/* Grows without expecting a copy. */
static infer_status grow(infer_kv_pool *p, infer_kv_seq *s, uint64_t n)
{
    infer_kv_copy c;
    uint32_t n_copy = 9;
    infer_status st = infer_kv_seq_grow(p, s, n, &c, &n_copy);
    assert_int_equal(n_copy, 0);
    return st;
}

static void test_pool(void **state)
{
    (void)state;
    infer_kv_pool *p = NULL;
    infer_error e = {0};
    assert_int_equal(infer_kv_pool_create(0, 4, &p, &e), INFER_E_INVALID);
    assert_non_null(strstr(e.text, "0 blocks"));
    assert_int_equal(infer_kv_pool_create(4, 0, &p, NULL), INFER_E_INVALID);
    assert_int_equal(infer_kv_pool_create(UINT32_MAX, 1, &p, NULL), INFER_E_INVALID);
    assert_int_equal(infer_kv_pool_create(1u << 20, 1u << 12, &p, NULL), INFER_E_INVALID); /* slots are int32 */
    assert_null(p);
    p = pool_of(5, 4);
    assert_int_equal(infer_kv_pool_total(p), 5);
    assert_int_equal(infer_kv_pool_free(p), 5);
    assert_int_equal(infer_kv_pool_block_size(p), 4);
    assert_int_equal(infer_kv_pool_refs(p, -1), 0);
    assert_int_equal(infer_kv_pool_refs(p, 5), 0);
    infer_kv_pool_destroy(p);
    infer_kv_pool_destroy(NULL);
}

static void test_pool_no_memory(void **state)
{
    (void)state;
    for (int n = 0;; n++) {
        infer_kv_pool *p = NULL;
        infer_error e = {0};
        infer_alloc_fail_after(n, 0);
        infer_status s = infer_kv_pool_create(3, 4, &p, &e);
        if (!infer_alloc_fail_after(-1, 0)) {
            assert_int_equal(s, INFER_OK);
            infer_kv_seq q;
            infer_alloc_fail_after(0, 0);
            assert_int_equal(infer_kv_seq_init(p, &q, 4, &e), INFER_E_NO_MEMORY);
            assert_true(infer_alloc_fail_after(-1, 0));
            assert_true(e.text[0]);
            infer_kv_pool_destroy(p);
            break;
        }
        assert_int_equal(s, INFER_E_NO_MEMORY);
        assert_null(p);
        assert_true(e.text[0]);
    }
}

static void test_grow(void **state)
{
    (void)state;
    infer_kv_pool *p = pool_of(3, 4);
    infer_kv_seq a = seq_of(p, 10), b = seq_of(p, 100);
    assert_int_equal(infer_kv_seq_need(p, &a, 0), 0);
    assert_int_equal(infer_kv_seq_need(p, &a, 1), 1);
    assert_int_equal(infer_kv_seq_need(p, &a, 4), 1);
    assert_int_equal(infer_kv_seq_need(p, &a, 5), 2);
    assert_int_equal(infer_kv_seq_need(p, &a, UINT64_MAX), UINT32_MAX);
    assert_int_equal(grow(p, &a, 0), INFER_OK);
    assert_int_equal(infer_kv_pool_free(p), 3);
    assert_int_equal(grow(p, &a, 3), INFER_OK);
    assert_int_equal(grow(p, &a, 1), INFER_OK); /* fits the same block */
    assert_int_equal(infer_kv_pool_free(p), 2);
    assert_int_equal(infer_kv_seq_need(p, &a, 1), 1);
    /* over its own limit, to the token, though the table's last block has room */
    assert_int_equal(grow(p, &a, 7), INFER_E_TOO_LARGE);
    assert_int_equal(grow(p, &a, UINT64_MAX), INFER_E_TOO_LARGE);
    assert_int_equal(grow(p, &a, 6), INFER_OK);
    assert_int_equal(a.n_tokens, 10);
    assert_int_equal(a.n_blocks, 3);
    /* nothing is left, and nothing changes */
    assert_int_equal(grow(p, &b, 1), INFER_E_NO_MEMORY);
    assert_int_equal(b.n_tokens, 0);
    assert_int_equal(b.n_blocks, 0);
    for (uint64_t t = 0; t < 10; t++)
        assert_int_equal(infer_kv_seq_slot(p, &a, t), a.blocks[t / 4] * 4 + (int32_t)(t % 4));
    infer_kv_seq_truncate(p, &a, 12); /* longer than it is */
    assert_int_equal(a.n_tokens, 10);
    infer_kv_seq_truncate(p, &a, 5);
    assert_int_equal(a.n_blocks, 2);
    infer_kv_seq_truncate(p, &a, 4);
    assert_int_equal(a.n_blocks, 1);
    assert_int_equal(grow(p, &b, 8), INFER_OK);
    infer_kv_seq_truncate(p, &a, 0);
    assert_int_equal(a.n_blocks, 0);
    assert_int_equal(infer_kv_pool_free(p), 1);
    infer_kv_seq_free(p, &b);
    infer_kv_seq_free(p, &a);
    infer_kv_seq_free(p, &a); /* safe on a zeroed struct */
    assert_int_equal(infer_kv_pool_free(p), 3);
    infer_kv_pool_destroy(p);
}

static void test_fork(void **state)
{
    (void)state;
    infer_kv_pool *p = pool_of(8, 4);
    infer_kv_seq a = seq_of(p, 32), b = seq_of(p, 32), tight = seq_of(p, 6), full = seq_of(p, 32);
    assert_int_equal(grow(p, &a, 6), INFER_OK);
    assert_int_equal(infer_kv_seq_fork(p, &a, &b), INFER_OK);
    assert_int_equal(infer_kv_pool_free(p), 6);
    assert_int_equal(infer_kv_pool_refs(p, a.blocks[0]), 2);
    assert_int_equal(infer_kv_seq_fork(p, &a, &b), INFER_E_INVALID); /* not empty */
    assert_int_equal(infer_kv_seq_fork(p, &a, &tight), INFER_OK);    /* exactly as long */
    infer_kv_seq_truncate(p, &tight, 0);
    /* the second block is shared and half full: growing copies it */
    assert_int_equal(infer_kv_seq_need(p, &b, 1), 1);
    assert_int_equal(infer_kv_seq_need(p, &b, 3), 2);
    infer_kv_copy c;
    uint32_t n = 0;
    int32_t shared = a.blocks[1];
    assert_int_equal(infer_kv_seq_grow(p, &b, 3, &c, &n), INFER_OK);
    assert_int_equal(n, 1);
    assert_int_equal(c.src, shared);
    assert_int_equal(c.dst, b.blocks[1]);
    assert_int_not_equal(c.dst, shared);
    assert_int_equal(a.blocks[1], shared);
    assert_int_equal(infer_kv_pool_refs(p, shared), 1);
    assert_int_equal(a.blocks[0], b.blocks[0]);
    /* it is a's alone now: no copy */
    assert_int_equal(grow(p, &a, 1), INFER_OK);
    /* a full shared block is never written again: no copy */
    infer_kv_seq_truncate(p, &b, 4);
    assert_int_equal(infer_kv_seq_need(p, &b, 1), 1);
    assert_int_equal(grow(p, &b, 1), INFER_OK);
    /* without a free block for the copy nothing changes */
    infer_kv_seq_free(p, &b);
    b = seq_of(p, 32);
    assert_int_equal(infer_kv_seq_fork(p, &a, &b), INFER_OK);
    assert_int_equal(grow(p, &full, 6 * 4), INFER_OK);
    assert_int_equal(infer_kv_pool_free(p), 0);
    assert_int_equal(infer_kv_seq_grow(p, &b, 1, &c, &n), INFER_E_NO_MEMORY);
    assert_int_equal(n, 0);
    assert_int_equal(b.n_tokens, 7);
    assert_int_equal(infer_kv_pool_refs(p, b.blocks[1]), 2);
    infer_kv_seq_free(p, &tight);
    tight = seq_of(p, 6);
    assert_int_equal(infer_kv_seq_fork(p, &a, &tight), INFER_E_INVALID); /* too short for 7 */
    infer_kv_seq_free(p, &tight);
    infer_kv_seq_free(p, &full);
    infer_kv_seq_free(p, &a);
    infer_kv_seq_free(p, &b);
    assert_int_equal(infer_kv_pool_free(p), 8);
    infer_kv_pool_destroy(p);
}

/* ---- Random operations against a model that knows what every token's slot must hold --------------------------- */

enum { SEQS = 7, MAX_TOKENS = 60, BLOCKS = 24, BLOCK = 5 };

typedef struct model {
    infer_kv_pool *p;
    infer_kv_seq seq[SEQS];
    uint32_t n[SEQS];                /* tokens by the model */
    uint64_t want[SEQS][MAX_TOKENS]; /* their values */
    uint64_t memory[BLOCKS * BLOCK]; /* what the device's cache holds */
    uint64_t next;
    /* Copies of the tables, which are brought up to date by editions. */
    uint64_t edition[SEQS];
    uint32_t n_copied[SEQS];
    int32_t copied[SEQS][(MAX_TOKENS + BLOCK - 1) / BLOCK];
} model;

static void check_copy(model *m, int s)
{
    const infer_kv_seq *seq = &m->seq[s];
    for (int o = 0; o < SEQS; o++)
        assert_true(o == s || !seq->n_blocks || !m->seq[o].n_blocks || m->seq[o].edition != seq->edition);
    if (m->edition[s] != seq->edition)
        m->n_copied[s] = 0;
    m->edition[s] = seq->edition;
    assert_in_range(m->n_copied[s], 0, seq->n_blocks);
    for (; m->n_copied[s] < seq->n_blocks; m->n_copied[s]++)
        m->copied[s][m->n_copied[s]] = seq->blocks[m->n_copied[s]];
    assert_memory_equal(m->copied[s], seq->blocks, seq->n_blocks * sizeof *seq->blocks);
}

static void check(model *m)
{
    uint32_t refs[BLOCKS] = {0}, used = 0;
    uint64_t slack = 0;
    for (int s = 0; s < SEQS; s++) {
        check_copy(m, s);
        slack += m->seq[s].n_blocks * BLOCK - m->n[s];
        assert_int_equal(m->seq[s].n_tokens, m->n[s]);
        assert_int_equal(m->seq[s].n_blocks, (m->n[s] + BLOCK - 1) / BLOCK);
        for (uint32_t i = 0; i < m->seq[s].n_blocks; i++)
            refs[m->seq[s].blocks[i]]++;
        for (uint32_t t = 0; t < m->n[s]; t++)
            assert_int_equal(m->memory[infer_kv_seq_slot(m->p, &m->seq[s], t)], m->want[s][t]);
    }
    for (int32_t b = 0; b < BLOCKS; b++) {
        assert_int_equal(infer_kv_pool_refs(m->p, b), refs[b]);
        used += refs[b] != 0;
    }
    assert_int_equal(infer_kv_pool_free(m->p) + used, BLOCKS);
    assert_int_equal(infer_kv_pool_slack(m->p), slack);
}

static void grow_model(model *m, uint32_t s, uint32_t n)
{
    infer_kv_copy c = {-1, -1};
    uint32_t n_copy = 0, before = infer_kv_pool_free(m->p), need = infer_kv_seq_need(m->p, &m->seq[s], n);
    infer_status st = infer_kv_seq_grow(m->p, &m->seq[s], n, &c, &n_copy);
    infer_status want = m->n[s] + n > MAX_TOKENS ? INFER_E_TOO_LARGE : need > before ? INFER_E_NO_MEMORY : INFER_OK;
    assert_int_equal(st, want);
    if (st)
        return;
    assert_int_equal(before - infer_kv_pool_free(m->p), need);
    if (n_copy)
        memcpy(&m->memory[c.dst * BLOCK], &m->memory[c.src * BLOCK], BLOCK * sizeof m->memory[0]);
    for (uint32_t i = 0; i < n; i++, m->n[s]++) {
        m->want[s][m->n[s]] = ++m->next;
        m->memory[infer_kv_seq_slot(m->p, &m->seq[s], m->n[s])] = m->next;
    }
}

static void test_random(void **state)
{
    (void)state;
    rng r = {12345};
    model *m = calloc(1, sizeof *m);
    m->p = pool_of(BLOCKS, BLOCK);
    for (int s = 0; s < SEQS; s++)
        m->seq[s] = seq_of(m->p, MAX_TOKENS);
    uint32_t forks = 0, refused = 0;
    for (int step = 0; step < 20000; step++) {
        uint32_t s = rng_below(&r, SEQS), o = rng_below(&r, SEQS);
        switch (rng_below(&r, 8)) {
        case 0: /* ends */
            infer_kv_seq_free(m->p, &m->seq[s]);
            m->seq[s] = seq_of(m->p, MAX_TOKENS);
            m->n[s] = 0;
            break;
        case 1: /* goes back */
            m->n[s] = m->n[s] ? rng_below(&r, m->n[s] + 1) : 0;
            infer_kv_seq_truncate(m->p, &m->seq[s], m->n[s]);
            break;
        case 2:
        case 3:
            if (m->n[s] || s == o)
                break;
            assert_int_equal(infer_kv_seq_fork(m->p, &m->seq[o], &m->seq[s]), INFER_OK);
            m->n[s] = m->n[o];
            memcpy(m->want[s], m->want[o], sizeof m->want[s]);
            forks += m->n[s] != 0;
            break;
        default: {
            uint32_t before = m->n[s];
            grow_model(m, s, rng_below(&r, 12));
            refused += m->n[s] == before;
        }
        }
        check(m);
    }
    assert_true(forks > 100 && refused > 100);
    for (int s = 0; s < SEQS; s++)
        infer_kv_seq_free(m->p, &m->seq[s]);
    assert_int_equal(infer_kv_pool_free(m->p), BLOCKS);
    infer_kv_pool_destroy(m->p);
    free(m);
}

/* ---- Layout --------------------------------------------------------------------------------------------------- */

static infer_kv_spec spec_of(infer_format k, uint32_t kw, infer_format v, uint32_t vw, uint32_t layers)
{
    return (infer_kv_spec){.struct_size = sizeof(infer_kv_spec),
                           .kind = INFER_GROUP_FULL,
                           .n_layers = layers,
                           .n_heads = 3,
                           .n_planes = 2,
                           .planes = {{k, kw, 1, 0}, {v, vw, 1, 0}}};
}

static void test_layout(void **state)
{
    (void)state;
    infer_kv_spec s = spec_of(INFER_FMT_F16, 64, INFER_FMT_Q8_0, 32, 5);
    uint64_t planes[4], total;
    assert_int_equal(infer_kv_block_bytes(&s, 16, planes, &total), INFER_OK);
    assert_int_equal(planes[0], 3 * 16 * 64 * 2);
    assert_int_equal(planes[1], 3 * 16 * 34);
    assert_int_equal(total, planes[0] + planes[1]);
    infer_kv_layout l;
    assert_int_equal(infer_kv_layout_make(&s, 16, 7, 256, NULL, &l), INFER_OK);
    /* every plane of every layer lies aligned, apart from the others and inside the whole */
    uint64_t end = 0;
    for (uint32_t layer = 0; layer < 5; layer++) {
        for (uint32_t plane = 0; plane < 2; plane++) {
            uint64_t at, bytes;
            infer_kv_layout_plane(&l, layer, plane, &at, &bytes);
            assert_int_equal(at % 256, 0);
            assert_true(at >= end);
            assert_int_equal(bytes, 7 * planes[plane]);
            end = at + bytes;
        }
    }
    assert_true(end <= l.total_bytes);
    assert_true(l.total_bytes - end < 256);
    /* a device's own block sizes */
    const uint64_t own[4] = {5000, 300};
    infer_kv_layout m;
    assert_int_equal(infer_kv_layout_make(&s, 16, 7, 64, own, &m), INFER_OK);
    assert_int_equal(m.plane_bytes[0], 7 * 5000);
    assert_int_equal(m.plane_bytes[1], 7 * 300);
    s.planes[0].width = 63; /* fine for f16 */
    assert_int_equal(infer_kv_block_bytes(&s, 16, planes, &total), INFER_OK);
    s.planes[1].width = 33; /* no whole number of blocks */
    assert_int_not_equal(infer_kv_block_bytes(&s, 16, planes, &total), INFER_OK);
    s = spec_of(INFER_FMT_F16, 64, INFER_FMT_F16, 64, 0);
    assert_int_equal(infer_kv_layout_make(&s, 16, 7, 256, NULL, &l), INFER_OK);
    assert_int_equal(l.total_bytes, 0);
    s = spec_of(INFER_FMT_F32, UINT32_MAX, INFER_FMT_F32, 64, 2);
    assert_int_equal(infer_kv_layout_make(&s, UINT32_MAX, UINT64_MAX, 256, NULL, &l), INFER_E_TOO_LARGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool), cmocka_unit_test(test_pool_no_memory), cmocka_unit_test(test_grow),
        cmocka_unit_test(test_fork), cmocka_unit_test(test_random),         cmocka_unit_test(test_layout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
