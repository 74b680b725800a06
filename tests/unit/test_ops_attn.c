/* core/ops: attention by hand and by its algebra: paged equals dense, grouped heads equal repeated ones, masks.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>

#include "unit/ops_util.h"

#include "quant/quant.h"

enum { H = 4, G = 2, D = 8, E = 6, M = 23, SIZE = 4, BLOCKS = 9, TABLE = 7 };

static infer_attrs_attn attrs_of(uint32_t mask)
{
    return (infer_attrs_attn){.struct_size = sizeof(infer_attrs_attn),
                              .mask = mask,
                              .scale = 0.5f,
                              .n_heads = H,
                              .kv = {0, 0, INFER_FMT_F32, INFER_FMT_F32, G, D, E, SIZE, BLOCKS}};
}

/* One sequence of M keys with n newest rows, dense and scattered over a pool. */
typedef struct fixture {
    float q[M * H * D], k[M * G * D], v[M * G * E], y[M * H * E], z[M * H * E];
    float kpool[BLOCKS * G * SIZE * D], vpool[BLOCKS * G * SIZE * E];
    int32_t table[TABLE], kv_len[1], q_start[2];
    float sinks[H];
    uint32_t tree[M];
} fixture;

static void setup(fixture *f, int n, const int32_t *order)
{
    op_fill(f->q, M * H * D, 1);
    op_fill(f->k, M * G * D, 2);
    op_fill(f->v, M * G * E, 3);
    for (int i = 0; i < BLOCKS * G * SIZE * D; i++)
        f->kpool[i] = NAN;
    for (int i = 0; i < BLOCKS * G * SIZE * E; i++)
        f->vpool[i] = NAN;
    for (int t = 0; t < M; t++)
        for (int g = 0; g < G; g++) {
            int at = (order[t / SIZE] * G + g) * SIZE + t % SIZE;
            memcpy(f->kpool + at * D, f->k + (t * G + g) * D, D * sizeof(float));
            memcpy(f->vpool + at * E, f->v + (t * G + g) * E, E * sizeof(float));
        }
    memcpy(f->table, order, sizeof f->table);
    f->kv_len[0] = M;
    f->q_start[0] = 0;
    f->q_start[1] = n;
}

static void dense(fixture *f, op_build *b, const infer_attrs_attn *a, int n, float *y)
{
    op_begin(b, INFER_OP_ATTN_DENSE, a, sizeof *a);
    OP_IN3(b, F32, f->q, n, H, D);
    OP_IN3(b, F32, f->k, M, G, D);
    OP_IN3(b, F32, f->v, M, G, E);
    OP_OUT3(b, F32, y, n, H, E);
}

static void paged(fixture *f, op_build *b, const infer_attrs_attn *a, int n, float *y)
{
    op_begin(b, INFER_OP_ATTN_PAGED, a, sizeof *a);
    OP_IN3(b, F32, f->q, n, H, D);
    OP_IN4(b, F32, f->kpool, BLOCKS, G, SIZE, D);
    OP_IN4(b, F32, f->vpool, BLOCKS, G, SIZE, E);
    OP_IN2(b, I32, f->table, 1, TABLE);
    OP_IN1(b, I32, f->kv_len, 1);
    OP_IN1(b, I32, f->q_start, 2);
    op_add(b, 0, INFER_FMT_F32, NULL, 1, H, 1, 1, 1);
    op_add(b, 0, INFER_FMT_U32, a->mask == INFER_MASK_TREE ? f->tree : NULL, 2, n, 1, 1, 1);
    OP_OUT3(b, F32, y, n, H, E);
}

static const int32_t in_order[TABLE] = {0, 1, 2, 3, 4, 5, -1}, scattered[TABLE] = {7, 2, 8, 0, 5, 3, 99};

/* Two keys with scores 0 and ln 3: weights 1/4 and 3/4. */
static void test_by_hand(void **state)
{
    (void)state;
    float q[1] = {1}, k[2] = {0, 0}, v[4] = {4, 8, 0, 4}, y[2], sink = 0;
    k[1] = logf(3) / 2;
    infer_attrs_attn a = attrs_of(INFER_MASK_CAUSAL);
    a.n_heads = 1;
    a.scale = 2;
    op_build b;
    op_begin(&b, INFER_OP_ATTN_DENSE, &a, sizeof a);
    OP_IN3(&b, F32, q, 1, 1, 1);
    OP_IN3(&b, F32, k, 2, 1, 1);
    OP_IN3(&b, F32, v, 2, 1, 2);
    OP_OUT3(&b, F32, y, 1, 1, 2);
    op_run(&b);
    assert_true(fabs(y[0] - 1) < 1e-6 && fabs(y[1] - 5) < 1e-6);

    /* the same through a pool of one block, with a sink of score 0: weights 1/5, 3/5, and 1/5 of nothing */
    int32_t table[1] = {0}, kv_len[1] = {2}, q_start[2] = {0, 1};
    a.kv = (infer_attrs_kv){0, 0, INFER_FMT_F32, INFER_FMT_F32, 1, 1, 2, 2, 1};
    op_begin(&b, INFER_OP_ATTN_PAGED, &a, sizeof a);
    OP_IN3(&b, F32, q, 1, 1, 1);
    OP_IN4(&b, F32, k, 1, 1, 2, 1);
    OP_IN4(&b, F32, v, 1, 1, 2, 2);
    OP_IN2(&b, I32, table, 1, 1);
    OP_IN1(&b, I32, kv_len, 1);
    OP_IN1(&b, I32, q_start, 2);
    OP_IN1(&b, F32, &sink, 1);
    OP_OUT3(&b, F32, y, 1, 1, 2);
    op_run(&b);
    assert_true(fabs(y[0] - 0.8) < 1e-6 && fabs(y[1] - 4) < 1e-6);
    a.soft_cap = 1; /* the second score becomes tanh(ln 3) = 0.8 */
    op_run(&b);
    assert_true(fabs(y[0] - 4 / (2 + exp(0.8))) < 1e-6);
}

/* Keys that are all alike weigh alike: the mean of the values seen. */
static void test_uniform(void **state)
{
    (void)state;
    static fixture f;
    op_build b;
    infer_attrs_attn a = attrs_of(INFER_MASK_CAUSAL);
    setup(&f, M, in_order);
    for (int i = 0; i < M * G * D; i++)
        f.k[i] = 0.25f;
    dense(&f, &b, &a, M, f.y);
    op_run(&b);
    for (int i = 0; i < M; i++)
        for (int h = 0; h < H; h++)
            for (int e = 0; e < E; e++) {
                double mean = 0;
                for (int t = 0; t <= i; t++)
                    mean += f.v[(t * G + h / (H / G)) * E + e] / (double)(i + 1);
                assert_true(fabs(f.y[(i * H + h) * E + e] - mean) < 1e-6);
            }
}

/* Where the blocks lie changes no bit; pages equal dense keys. */
static void test_paged_is_dense(void **state)
{
    (void)state;
    static fixture f;
    op_build b;
    const uint32_t masks[] = {INFER_MASK_CAUSAL, INFER_MASK_WINDOW, INFER_MASK_FULL};
    const int rows[] = {1, 5, M};
    for (int m = 0; m < 3; m++)
        for (int r = 0; r < 3; r++) {
            infer_attrs_attn a = attrs_of(masks[m]);
            a.window = 6;
            a.soft_cap = m ? 1.5f : 0;
            setup(&f, rows[r], in_order);
            dense(&f, &b, &a, rows[r], f.y);
            op_run(&b);
            paged(&f, &b, &a, rows[r], f.z);
            op_run(&b);
            assert_memory_equal(f.y, f.z, (size_t)rows[r] * H * E * sizeof(float));
            setup(&f, rows[r], scattered);
            memset(f.z, 0, sizeof f.z);
            op_run(&b);
            assert_memory_equal(f.y, f.z, (size_t)rows[r] * H * E * sizeof(float));
        }
}

/* A window of w keys, the row's own included, is full attention over those keys alone. */
static void test_window(void **state)
{
    (void)state;
    static fixture f;
    op_build b;
    infer_attrs_attn a = attrs_of(INFER_MASK_WINDOW), full = attrs_of(INFER_MASK_FULL);
    setup(&f, M, in_order);
    for (int w = 1; w < M; w += 5) {
        a.window = (uint32_t)w;
        dense(&f, &b, &a, M, f.y);
        op_run(&b);
        for (int i = 0; i < M; i++) {
            int first = i - w + 1 > 0 ? i - w + 1 : 0;
            dense(&f, &b, &full, 1, f.z);
            b.data[0] = f.q + i * H * D;
            b.data[1] = f.k + first * G * D;
            b.data[2] = f.v + first * G * E;
            b.t[1].shape[0] = b.t[2].shape[0] = i + 1 - first;
            op_run(&b);
            assert_memory_equal(f.y + i * H * E, f.z, H * E * sizeof(float));
        }
    }
}

/* A chunk of a prompt gives what the whole prompt gives for those rows. */
static void test_chunks(void **state)
{
    (void)state;
    static fixture f;
    op_build b;
    infer_attrs_attn a = attrs_of(INFER_MASK_CAUSAL);
    setup(&f, M, scattered);
    paged(&f, &b, &a, M, f.y);
    op_run(&b);
    for (int first = 0, n = 1; first < M; first += n, n = n % 5 + 1) {
        int end = first + n < M ? first + n : M;
        f.kv_len[0] = end;
        f.q_start[1] = end - first;
        paged(&f, &b, &a, end - first, f.z);
        b.data[0] = f.q + first * H * D;
        op_run(&b);
        assert_memory_equal(f.y + first * H * E, f.z, (size_t)(end - first) * H * E * sizeof(float));
    }
}

static void test_grouped_heads(void **state)
{
    (void)state;
    static fixture f;
    static float k[M * H * D], v[M * H * E];
    op_build b;
    infer_attrs_attn a = attrs_of(INFER_MASK_CAUSAL);
    setup(&f, M, in_order);
    dense(&f, &b, &a, M, f.y);
    op_run(&b);
    for (int t = 0; t < M; t++)
        for (int h = 0; h < H; h++) {
            memcpy(k + (t * H + h) * D, f.k + (t * G + h / (H / G)) * D, D * sizeof(float));
            memcpy(v + (t * H + h) * E, f.v + (t * G + h / (H / G)) * E, E * sizeof(float));
        }
    op_begin(&b, INFER_OP_ATTN_DENSE, &a, sizeof a);
    OP_IN3(&b, F32, f.q, M, H, D);
    OP_IN3(&b, F32, k, M, H, D);
    OP_IN3(&b, F32, v, M, H, E);
    OP_OUT3(&b, F32, f.z, M, H, E);
    op_run(&b);
    assert_memory_equal(f.y, f.z, sizeof f.y);
}

/* A chain as a tree is the causal mask; a branch sees its path and all older keys only. */
static void test_tree(void **state)
{
    (void)state;
    static fixture f;
    op_build b;
    enum { ROWS = 5 };
    infer_attrs_attn causal = attrs_of(INFER_MASK_CAUSAL), tree = attrs_of(INFER_MASK_TREE);
    setup(&f, ROWS, scattered);
    paged(&f, &b, &causal, ROWS, f.y);
    op_run(&b);
    for (int i = 0; i < ROWS; i++)
        f.tree[i] = (2u << i) - 1;
    paged(&f, &b, &tree, ROWS, f.z);
    op_run(&b);
    assert_memory_equal(f.y, f.z, ROWS * H * E * sizeof(float));
    /* row 4 as a child of row 0: as though rows 1..3 were not there and it were the second new row */
    f.tree[4] = 1u | 1u << 4;
    op_run(&b);
    static fixture s;
    setup(&s, 2, scattered);
    int from = M - 1, to = M - ROWS + 1; /* its key and value at the place of row 1 */
    for (int g = 0; g < G; g++) {
        int src = (scattered[from / SIZE] * G + g) * SIZE + from % SIZE;
        int dst = (scattered[to / SIZE] * G + g) * SIZE + to % SIZE;
        memcpy(s.kpool + dst * D, s.kpool + src * D, D * sizeof(float));
        memcpy(s.vpool + dst * E, s.vpool + src * E, E * sizeof(float));
    }
    memcpy(s.q + H * D, s.q + 4 * H * D, H * D * sizeof(float));
    s.kv_len[0] = to + 1;
    paged(&s, &b, &causal, 2, s.y);
    op_run(&b);
    assert_memory_equal(s.y + H * E, f.z + 4 * H * E, H * E * sizeof(float));
}

/* Several sequences of one op are each what they are alone; rows of none, and rows with no key, are zeros. */
static void test_sequences(void **state)
{
    (void)state;
    static fixture f;
    op_build b;
    infer_attrs_attn a = attrs_of(INFER_MASK_CAUSAL);
    enum { N = 8, S = 4 };
    int32_t table[S * TABLE], kv_len[S] = {M, 7, 0, 0}, q_start[S + 1] = {0, 3, 5, 6, 6};
    setup(&f, 3, scattered);
    paged(&f, &b, &a, 3, f.z);
    op_run(&b);
    f.kv_len[0] = 7;
    f.q_start[1] = 2;
    paged(&f, &b, &a, 2, f.z + 3 * H * E);
    b.data[0] = f.q + 3 * H * D;
    op_run(&b);
    for (int s = 0; s < S; s++)
        memcpy(table + s * TABLE, scattered, sizeof scattered);
    memset(f.y, 0x55, sizeof f.y);
    paged(&f, &b, &a, N, f.y);
    b.t[3].shape[0] = b.t[4].shape[0] = S;
    b.t[5].shape[0] = S + 1;
    b.data[3] = table;
    b.data[4] = kv_len;
    b.data[5] = q_start;
    op_run(&b);
    assert_memory_equal(f.y, f.z, 5 * H * E * sizeof(float));
    for (int i = 5 * H * E; i < N * H * E; i++)
        assert_true(f.y[i] == 0);
    /* numbers that make no sense: nothing outside the operands is touched (run under a sanitizer) */
    const int32_t bad[] = {INT32_MIN, -1, 1, 1000, INT32_MAX};
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 5; j++) {
            kv_len[1] = bad[i] == INT32_MAX ? 28 : bad[i];
            q_start[1] = bad[j];
            q_start[2] = bad[(i + j) % 5];
            table[TABLE + 1] = bad[i];
            op_run(&b);
        }
    kv_len[0] = INT32_MAX; /* more than the table holds */
    op_run(&b);
}

/* A key whose block is out of range is not seen: as though its weight were nothing. */
static void test_holes(void **state)
{
    (void)state;
    static fixture f;
    op_build b;
    infer_attrs_attn full = attrs_of(INFER_MASK_FULL);
    setup(&f, 1, scattered);
    f.table[2] = BLOCKS;
    paged(&f, &b, &full, 1, f.z);
    op_run(&b);
    /* without block 2: the last block moves up, order does not matter in full attention but for rounding */
    f.table[2] = scattered[5];
    for (int i = 0; i < 2; i++)
        f.table[3 + i] = scattered[3 + i];
    f.table[5] = -1;
    int32_t order[TABLE] = {7, 2, 0, 5, 3, -1, -1};
    memcpy(f.table, order, sizeof order);
    f.kv_len[0] = M - SIZE;
    paged(&f, &b, &full, 1, f.y);
    op_run(&b);
    for (int i = 0; i < H * E; i++)
        assert_true(fabs(f.y[i] - f.z[i]) < 1e-6);
    for (int i = 0; i < TABLE; i++)
        f.table[i] = -5;
    op_run(&b);
    for (int i = 0; i < H * E; i++)
        assert_true(f.y[i] == 0);
}

/* Latent attention is paged attention with one head whose values are the first elements of its keys. */
static void test_latent(void **state)
{
    (void)state;
    enum { L = 6, W = 4, N = 3 };
    float q[N * H * L], pool[BLOCKS * SIZE * L], vpool[BLOCKS * SIZE * W], y[N * H * W], z[N * H * W];
    int32_t table[TABLE], kv_len[1] = {M}, q_start[2] = {0, N};
    infer_attrs_attn a = attrs_of(INFER_MASK_CAUSAL);
    op_build b;
    op_fill(q, N * H * L, 4);
    op_fill(pool, BLOCKS * SIZE * L, 5);
    for (int i = 0; i < BLOCKS * SIZE; i++)
        memcpy(vpool + i * W, pool + i * L, W * sizeof(float));
    memcpy(table, scattered, sizeof table);
    a.kv = (infer_attrs_kv){0, 0, INFER_FMT_F32, INFER_FMT_F32, 1, L, W, SIZE, BLOCKS};
    op_begin(&b, INFER_OP_ATTN_PAGED, &a, sizeof a);
    OP_IN3(&b, F32, q, N, H, L);
    OP_IN4(&b, F32, pool, BLOCKS, 1, SIZE, L);
    OP_IN4(&b, F32, vpool, BLOCKS, 1, SIZE, W);
    OP_IN2(&b, I32, table, 1, TABLE);
    OP_IN1(&b, I32, kv_len, 1);
    OP_IN1(&b, I32, q_start, 2);
    OP_OUT3(&b, F32, y, N, H, W);
    op_run(&b);
    a.kv.v_format = INFER_FMT_NONE;
    op_begin(&b, INFER_OP_MLA_PAGED, &a, sizeof a);
    OP_IN3(&b, F32, q, N, H, L);
    OP_IN4(&b, F32, pool, BLOCKS, 1, SIZE, L);
    OP_IN2(&b, I32, table, 1, TABLE);
    OP_IN1(&b, I32, kv_len, 1);
    OP_IN1(&b, I32, q_start, 2);
    OP_OUT3(&b, F32, z, N, H, W);
    op_run(&b);
    assert_memory_equal(y, z, sizeof y);
}

/* A quantised cache is attention over its unpacked floats, to the bit. */
static void test_cache_formats(void **state)
{
    (void)state;
    enum { W = 32, N = 2 };
    static float k[BLOCKS * G * SIZE * W], v[BLOCKS * G * SIZE * W], q[N * H * W], y[N * H * W], z[N * H * W];
    static _Alignas(64) uint8_t kp[sizeof k], vp[sizeof v];
    const infer_format formats[] = {INFER_FMT_F16, INFER_FMT_BF16, INFER_FMT_F8_E4M3, INFER_FMT_Q8_0, INFER_FMT_Q4_0};
    int32_t table[TABLE], kv_len[1] = {M}, q_start[2] = {0, N};
    memcpy(table, scattered, sizeof table);
    op_fill(q, N * H * W, 1);
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        const infer_format_info *info = infer_format_get(formats[f]);
        infer_attrs_attn a = attrs_of(INFER_MASK_CAUSAL);
        op_build b;
        op_fill(k, BLOCKS * G * SIZE * W, 2);
        op_fill(v, BLOCKS * G * SIZE * W, 3);
        info->pack(k, kp, BLOCKS * G * SIZE * W);
        info->pack(v, vp, BLOCKS * G * SIZE * W);
        info->unpack(kp, k, BLOCKS * G * SIZE * W);
        info->unpack(vp, v, BLOCKS * G * SIZE * W);
        for (int pass = 0; pass < 2; pass++) {
            infer_format kv = pass ? formats[f] : INFER_FMT_F32;
            a.kv = (infer_attrs_kv){0, 0, kv, kv, G, W, W, SIZE, BLOCKS};
            op_begin(&b, INFER_OP_ATTN_PAGED, &a, sizeof a);
            OP_IN3(&b, F32, q, N, H, W);
            op_add(&b, 0, kv, pass ? (void *)kp : (void *)k, 4, BLOCKS, G, SIZE, W);
            op_add(&b, 0, kv, pass ? (void *)vp : (void *)v, 4, BLOCKS, G, SIZE, W);
            OP_IN2(&b, I32, table, 1, TABLE);
            OP_IN1(&b, I32, kv_len, 1);
            OP_IN1(&b, I32, q_start, 2);
            OP_OUT3(&b, F32, pass ? z : y, N, H, W);
            op_run(&b);
        }
        assert_memory_equal(y, z, sizeof y);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand), cmocka_unit_test(test_uniform),       cmocka_unit_test(test_paged_is_dense),
        cmocka_unit_test(test_window),  cmocka_unit_test(test_chunks),        cmocka_unit_test(test_grouped_heads),
        cmocka_unit_test(test_tree),    cmocka_unit_test(test_sequences),     cmocka_unit_test(test_holes),
        cmocka_unit_test(test_latent),  cmocka_unit_test(test_cache_formats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
