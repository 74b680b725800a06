/* core/ops: descriptors that are not right are refused, whatever is wrong with them; what is accepted runs inside its
 * operands even when every index in them is garbage (meant for a build with sanitizers).
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>

#include "unit/ops_util.h"

#include "base/alloc.h"
#include "ops/cases.h"

/* A case's descriptor, to be broken. */
typedef struct victim {
    infer_op_case c;
    op_build b;
} victim;

/* The descriptor as the case has it, once more. */
static void heal(victim *v)
{
    v->b.d = v->c.desc;
    memcpy(v->b.t, v->c.tensors, sizeof v->b.t);
    memcpy(v->b.epi, v->c.epilogue, sizeof v->b.epi);
    v->b.d.tensors = v->b.t;
    v->b.d.epilogue = v->b.epi;
}

static void take(victim *v, infer_op_id op, uint32_t index)
{
    assert_int_equal(infer_op_case_make(op, index, 3, &v->c), INFER_OK);
    heal(v);
    assert_int_equal(op_status(&v->b), INFER_OK);
}

static void drop(victim *v)
{
    infer_op_case_free(&v->c);
}

#define EACH_CASE(op, i)                                                                                               \
    for (infer_op_id op = 0; op < INFER_OP_COUNT; op++)                                                                \
        for (uint32_t i = 0; i < infer_op_case_count(op); i++)

static void test_frame(void **state)
{
    (void)state;
    victim v;
    EACH_CASE(op, i)
    {
        take(&v, op, i);
        const infer_op_info *info = infer_op_get(op);
        const infer_op_desc good = v.b.d;
#define REFUSED(field, value)                                                                                          \
    do {                                                                                                               \
        v.b.d.field = value;                                                                                           \
        assert_true(op_status(&v.b) < 0);                                                                              \
        v.b.d = good;                                                                                                  \
    } while (0)
        REFUSED(struct_size, sizeof(infer_op_desc) - 1);
        REFUSED(op, 0);
        REFUSED(op, INFER_OP_COUNT);
        REFUSED(op, UINT32_MAX);
        REFUSED(revision, 1);
        REFUSED(must_understand, 1);
        REFUSED(must_understand, 1ull << 63);
        REFUSED(n_in, INFER_OP_MAX_OPERANDS + 1);
        REFUSED(n_in, UINT32_MAX);
        REFUSED(n_in, info->n_in_min - 1u);
        REFUSED(n_out, INFER_OP_MAX_OPERANDS + 1);
        REFUSED(n_out, UINT32_MAX);
        REFUSED(n_out, info->n_out_min - 1u);
        v.b.d.n_epilogue = 1; /* inputs beyond the op's own are then thinkable, but not beyond the limit */
        v.b.d.n_in = INFER_OP_MAX_OPERANDS + 1 - v.b.d.n_out;
        assert_true(op_status(&v.b) == INFER_E_TOO_LARGE);
        v.b.d = good;
        REFUSED(tensors, NULL);
        REFUSED(tensor_size, 0);
        REFUSED(tensor_size, sizeof(infer_tensor_desc) - 8);
        REFUSED(tensor_size, sizeof(infer_tensor_desc) + 4);
        REFUSED(rows_from, INFER_COUNT_MAX);
        REFUSED(n_epilogue, 65);
        v.b.d.rows_from = 0;
        v.b.d.rows_mul = 0;
        assert_int_equal(op_status(&v.b), INFER_E_INVALID);
        v.b.d = good;
        if (good.attrs) {
            REFUSED(attrs, NULL);
            REFUSED(attrs_size, 3);
            REFUSED(attrs_size, good.attrs_size - 4); /* less than the struct says of itself */
        } else {
            REFUSED(attrs_size, 4);
        }
        if (good.n_epilogue) {
            REFUSED(epilogue, NULL);
            REFUSED(epilogue_size, sizeof(infer_epilogue) - 4);
        }
        drop(&v);
    }
    assert_int_equal(infer_op_check(NULL, NULL), INFER_E_INVALID);
}

/* A newer producer's longer elements are walked by their size. */
static void test_longer_elements(void **state)
{
    (void)state;
    victim v;
    struct {
        infer_tensor_desc t;
        uint64_t more[3];
    } wide[INFER_OP_MAX_OPERANDS];
    struct {
        infer_attrs_norm a;
        uint32_t more[2];
    } attrs;
    take(&v, INFER_OP_RMS_NORM, 2);
    void *want[INFER_OP_MAX_OPERANDS] = {0}, *got[INFER_OP_MAX_OPERANDS] = {0};
    assert_int_equal(infer_op_case_expect(&v.c, want), INFER_OK);
    memset(wide, 0xFF, sizeof wide);
    memset(&attrs, 0xFF, sizeof attrs);
    for (int i = 0; i < 3; i++)
        wide[i].t = v.c.tensors[i];
    attrs.a = v.c.attrs.norm;
    attrs.a.struct_size = sizeof attrs;
    v.c.desc.tensors = &wide[0].t;
    v.c.desc.tensor_size = sizeof wide[0];
    v.c.desc.attrs = &attrs;
    v.c.desc.attrs_size = sizeof attrs;
    assert_int_equal(infer_op_check(&v.c.desc, NULL), INFER_OK);
    assert_int_equal(infer_op_case_expect(&v.c, got), INFER_OK);
    assert_memory_equal(want[2], got[2], v.c.bytes[2]);
    infer_free(want[2]);
    infer_free(got[2]);
    drop(&v);
}

/* The axis letters of each operand that is given, from the signature: those that stand twice must agree. */
static int letters(const infer_op_desc *d, const char *sig, uint32_t operand, char out[8])
{
    uint32_t i = 0, outputs = 0;
    int seen = 0;
    for (const char *c = sig; *c; c++) {
        if (*c == '-' && c[1] == '>') {
            outputs = 1;
            i = 0;
        }
        if (*c != '[')
            continue;
        uint32_t index = outputs ? d->n_in + i : i;
        i++;
        if (index != operand)
            continue;
        if (!(outputs ? infer_op_out(d, i - 1) : infer_op_in(d, i - 1)))
            return 0;
        for (c++; *c != ']' && *c != '|' && seen < 7; c++)
            out[seen++] = *c;
    }
    out[seen] = 0;
    return seen > 0;
}

static int uses(const infer_op_desc *d, const char *sig, char letter)
{
    int n = 0;
    char axes[8];
    for (uint32_t i = 0; i < d->n_in + d->n_out; i++)
        if (letters(d, sig, i, axes))
            n += strchr(axes, letter) != NULL;
    return n;
}

static void test_operands(void **state)
{
    (void)state;
    victim v;
    int shapes = 0;
    EACH_CASE(op, i)
    {
        take(&v, op, i);
        const infer_op_info *info = infer_op_get(op);
        for (uint32_t k = 0; k < v.b.d.n_in + v.b.d.n_out; k++) {
            infer_tensor_desc *t = &v.b.t[k], good = *t;
            if (t->flags & INFER_TENSOR_ABSENT)
                continue;
#define BAD(change)                                                                                                    \
    do {                                                                                                               \
        change;                                                                                                        \
        if (op_status(&v.b) >= 0)                                                                                      \
            fail_msg("%s operand %u: %s", v.c.label, k, #change);                                                      \
        *t = good;                                                                                                     \
    } while (0)
            BAD(t->format = INFER_FMT_NONE);
            BAD(t->format = INFER_FMT_I64);
            BAD(t->format = INFER_FMT_COUNT);
            BAD(t->format = UINT32_MAX);
            BAD(t->rank = 0);
            BAD(t->rank = 5);
            BAD(t->rank = UINT32_MAX);
            BAD(t->layout = 1);
            BAD(t->shape[0] = 0);
            BAD(t->shape[0] = -1);
            BAD(t->shape[0] = INT64_MIN);
            BAD(t->shape[0] = INT64_MAX);
            BAD(t->shape[t->rank - 1] = INT64_MAX);
            if (t->rank < 4)
                BAD(t->shape[3] = 2);
            if (t->rank > 1)
                BAD(t->stride[0] = -256);
            if (t->rank > 1 && t->shape[0] > 1)
                BAD(t->stride[0] = INT64_MAX - 255);
            char axes[8];
            if (k >= info->n_in_max && k < v.b.d.n_in) { /* of an epilogue */
                BAD(t->shape[0]++);
                BAD(t->rank--);
                continue;
            }
            if (!letters(&v.b.d, info->sig, k, axes))
                continue;
            if (!strchr(axes, '.') && !strchr(info->sig, '|') && t->rank > 1)
                BAD((t->rank--, t->shape[t->rank] = 1));
            for (uint32_t a = 0; a < t->rank; a++) {
                char letter = strchr(axes, '.')
                                  ? (a == 0                                                     ? axes[0]
                                     : a + 1 == t->rank && !strchr(".", axes[strlen(axes) - 1]) ? axes[strlen(axes) - 1]
                                                                                                : '.')
                                  : axes[a];
                if (strchr(info->sig, '|') && letter != 'n')
                    continue;
                if (uses(&v.b.d, info->sig, letter) < 2)
                    continue;
                shapes++;
                BAD(t->shape[a]++);
                if (t->shape[a] > 1)
                    BAD(t->shape[a]--);
            }
        }
        drop(&v);
    }
    assert_true(shapes > 1000);
}

/* Attribute by attribute; `change` breaks the first case of an op, or a later one. */
static void test_attributes(void **state)
{
    (void)state;
    victim v;
#define ATTR(OP, index, change)                                                                                        \
    do {                                                                                                               \
        take(&v, INFER_OP_##OP, index);                                                                                \
        assert_non_null(v.b.d.attrs);                                                                                  \
        change;                                                                                                        \
        if (op_status(&v.b) >= 0)                                                                                      \
            fail_msg("%s: %s", #OP, #change);                                                                          \
        drop(&v);                                                                                                      \
    } while (0)
    ATTR(SCALE, 0, v.c.attrs.scale.scale = NAN);
    ATTR(SCALE, 0, v.c.attrs.scale.bias = INFINITY);
    ATTR(SOFTMAX, 2, v.c.attrs.scale.scale = INFINITY);
    ATTR(ACT, 0, v.c.attrs.act.act = 5);
    ATTR(GLU, 0, v.c.attrs.act.limit = -1);
    ATTR(GATED_MLP, 0, v.c.attrs.act.limit = NAN);
    ATTR(GATED_MLP, 0, v.c.attrs.act.act_format = INFER_FMT_F32);
    ATTR(GATED_MLP, 0, v.c.attrs.act.act_format = INFER_FMT_I64);
    ATTR(RMS_NORM, 0, v.c.attrs.norm.eps = -1e-6f);
    ATTR(LAYER_NORM, 0, v.c.attrs.norm.eps = NAN);
    ATTR(ADD_RMS_NORM, 0, v.c.attrs.norm.weight_offset = INFINITY);
    ATTR(MATMUL, 2, v.c.attrs.matmul.scale = NAN);
    ATTR(MATMUL, 2, v.c.attrs.matmul.act_format = INFER_FMT_I64);
    ATTR(MOE_ROUTE, 1, v.c.attrs.route.k = 2);
    ATTR(MOE_ROUTE, 1, v.c.attrs.route.k = 0);
    ATTR(MOE_ROUTE, 1, v.c.attrs.route.scoring = 3);
    ATTR(MOE_ROUTE, 1, v.c.attrs.route.normalise = 2);
    ATTR(MOE_ROUTE, 1, v.c.attrs.route.scale = NAN);
    ATTR(ROPE, 1, v.c.attrs.rope.kind = 2);
    ATTR(ROPE, 1, v.c.attrs.rope.n_dims = 0);
    ATTR(ROPE, 1, v.c.attrs.rope.n_dims = 63);
    ATTR(ROPE, 1, v.c.attrs.rope.n_dims = 66);
    ATTR(ROPE, 1, v.c.attrs.rope.n_dims = 62);
    ATTR(ROPE, 1, v.c.attrs.rope.n_dims = UINT32_MAX - 1);
    ATTR(ROPE, 1, v.c.attrs.rope.n_pos = 0);
    ATTR(ROPE, 1, v.c.attrs.rope.n_pos = 2);
    ATTR(ROPE, 1, v.c.attrs.rope.magnitude = NAN);
    ATTR(ROPE, 6, v.c.attrs.rope.section[0]++);
    ATTR(ROPE, 6, (v.c.attrs.rope.section[0] += 0x80000000u, v.c.attrs.rope.section[1] += 0x80000000u));
    ATTR(KV_WRITE, 1, v.c.attrs.kv.layout = 1);
    ATTR(KV_WRITE, 1, v.c.attrs.kv.k_format = INFER_FMT_F16);
    ATTR(KV_WRITE, 1, v.c.attrs.kv.v_format = INFER_FMT_F16);
    ATTR(KV_WRITE, 1, v.c.attrs.kv.n_kv_heads++);
    ATTR(KV_WRITE, 1, v.c.attrs.kv.k_width++);
    ATTR(KV_WRITE, 1, v.c.attrs.kv.v_width++);
    ATTR(KV_WRITE, 1, v.c.attrs.kv.block_size++);
    ATTR(KV_WRITE, 1, v.c.attrs.kv.n_blocks = UINT64_MAX);
    ATTR(ROPE_KV_WRITE, 1, v.c.attrs.rope_kv.kv.n_blocks++);
    ATTR(ROPE_KV_WRITE, 1, v.c.attrs.rope_kv.rope.n_dims += 2);
    ATTR(KV_PACK, 1, v.c.attrs.kv.v_width = 1);
    ATTR(KV_UNPACK, 1, v.c.attrs.kv.n_blocks++);
    ATTR(KV_MOVE, 1, v.c.attrs.kv.block_size++);
    ATTR(ATTN_PAGED, 2, v.c.attrs.attn.mask = INFER_MASK_SPANS);
    ATTR(ATTN_PAGED, 2, v.c.attrs.attn.mask = 5);
    ATTR(ATTN_PAGED, 2, v.c.attrs.attn.mask = INFER_MASK_TREE);   /* without a tree */
    ATTR(ATTN_PAGED, 8, v.c.attrs.attn.mask = INFER_MASK_CAUSAL); /* with one */
    ATTR(ATTN_PAGED, 2, v.c.attrs.attn.mask = INFER_MASK_WINDOW); /* without a window */
    ATTR(ATTN_PAGED, 2, v.c.attrs.attn.kind = 3);
    ATTR(ATTN_PAGED, 2, v.c.attrs.attn.scale = 0);
    ATTR(ATTN_PAGED, 2, v.c.attrs.attn.scale = NAN);
    ATTR(ATTN_PAGED, 2, v.c.attrs.attn.soft_cap = -1);
    ATTR(ATTN_PAGED, 2, v.c.attrs.attn.n_heads++);
    ATTR(ATTN_PAGED, 2, v.c.attrs.attn.kv.n_kv_heads = 0);
    ATTR(ATTN_PAGED, 2, v.b.t[5].shape[0]--); /* q_start against kv_len */
    ATTR(ATTN_DENSE, 1, v.c.attrs.attn.n_heads--);
    ATTR(MLA_PAGED, 1, v.c.attrs.attn.kv.v_width++);
    ATTR(MLA_PAGED, 1, v.c.attrs.attn.kv.v_format = INFER_FMT_F32);
    ATTR(SAMPLE, 2, v.c.attrs.sample.n_top = 0);
    ATTR(SAMPLE, 2, v.c.attrs.sample.n_top = 4);
    ATTR(SAMPLE, 2, v.c.attrs.sample.n_top = 65);
    ATTR(SAMPLE, 2, v.b.t[v.b.d.n_in + 2].flags = INFER_TENSOR_ABSENT);
    ATTR(SAMPLE, 3, v.b.t[4].shape[1]++);
    ATTR(SAMPLE, 3, v.b.t[3].shape[1] = 4);
    ATTR(SAMPLE, 3, v.b.t[1].shape[1] = 63);
    ATTR(SAMPLE, 3, v.b.t[1].stride[0] = 68);
    /* heads that do not divide */
    take(&v, INFER_OP_ATTN_DENSE, 1);
    v.c.attrs.attn.n_heads = 8;
    v.b.t[0].shape[1] = v.b.t[3].shape[1] = 8;
    assert_int_equal(op_status(&v.b), INFER_E_INVALID);
    drop(&v);
}

/* Collectives are checked, and have no reference. */
static void test_collectives(void **state)
{
    (void)state;
    float x[12], y[12];
    op_build b;
    op_begin(&b, INFER_OP_ALL_GATHER, NULL, 0);
    OP_IN2(&b, F32, x, 2, 3);
    OP_OUT2(&b, F32, y, 2, 6);
    assert_int_equal(op_status(&b), INFER_OK);
    assert_int_equal(infer_op_ref(&b.d, b.data, NULL), INFER_E_UNSUPPORTED);
    b.t[1].shape[1] = 5;
    assert_int_equal(op_status(&b), INFER_E_INVALID);
    b.d.op = INFER_OP_REDUCE_SCATTER;
    b.t[0].shape[1] = 6;
    b.t[1].shape[1] = 3;
    assert_int_equal(op_status(&b), INFER_OK);
    b.d.op = INFER_OP_ALL_REDUCE;
    assert_int_equal(op_status(&b), INFER_E_INVALID);
    b.t[1].shape[1] = 6;
    assert_int_equal(op_status(&b), INFER_OK);
}

/* ---- Random descriptors ----------------------------------------------------------------------------------- */

static uint64_t rng = 20240229;

static uint64_t next(void)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return rng >> 16;
}

/* A number that is likely to matter. */
static uint64_t odd_number(void)
{
    const uint64_t list[] = {0,         1,          2,         3,          4,          16,         31,
                             32,        33,         64,        255,        256,        UINT32_MAX, INT32_MAX,
                             INT64_MAX, UINT64_MAX, INT64_MIN, 1ull << 32, 1ull << 40, 1ull << 61, next()};
    return list[next() % (sizeof list / sizeof list[0])];
}

static void mutate(victim *v)
{
    infer_op_desc *d = &v->b.d;
    infer_tensor_desc *t = &v->b.t[next() % INFER_OP_MAX_OPERANDS];
    switch (next() % 12) {
    case 0:
        t->format = (uint32_t)(next() % 3 ? next() % 50 : odd_number());
        break;
    case 1:
        t->rank = (uint32_t)(next() % 6);
        break;
    case 2:
    case 3:
        t->shape[next() % 4] = (int64_t)odd_number();
        break;
    case 4: {
        int64_t *size = &t->shape[next() % 4];
        *size = (int64_t)((uint64_t)*size + next() % 3 - 1);
        break;
    }
    case 5:
        t->stride[next() % 4] = (int64_t)(odd_number() * (next() % 2 ? 4 : 1));
        break;
    case 6:
        t->flags ^= INFER_TENSOR_ABSENT;
        break;
    case 7:
        ((uint8_t *)&t->quant)[next() % sizeof t->quant] = (uint8_t)(next() % 40);
        break;
    case 8:
        d->rows_from = (uint32_t)(next() % 20);
        d->rows_mul = (uint32_t)odd_number();
        break;
    case 9:
        if (d->attrs_size)
            ((uint8_t *)&v->c.attrs)[4 + next() % (d->attrs_size - 4)] = (uint8_t)(next() % 4 ? next() % 5 : next());
        break;
    case 10:
        d->n_in = (uint32_t)(next() % 3 ? next() % 10 : odd_number());
        break;
    default:
        d->n_epilogue = (uint32_t)(next() % 5);
        v->b.epi[next() % 4] =
            (infer_epilogue){(uint32_t)(next() % 8), (uint32_t)(next() % 6), 1.5f, (uint32_t)(next() % 14)};
        break;
    }
}

/* Operands of exactly their bytes, full of random ones. 1: small enough and allocated. */
static int bind(victim *v, void **data)
{
    uint64_t total = 0;
    infer_op_desc *d = &v->b.d;
    memset(data, 0, INFER_OP_MAX_OPERANDS * sizeof *data);
    for (uint32_t i = 0; i < d->n_in + d->n_out; i++) {
        uint64_t bytes;
        if (v->b.t[i].flags & INFER_TENSOR_ABSENT)
            continue;
        assert_int_equal(infer_tensor_bytes(&v->b.t[i], &bytes), INFER_OK);
        if (bytes > 1 << 17 || (total += bytes) > 1 << 18)
            return 0;
    }
    for (uint32_t i = 0; i < d->n_in + d->n_out; i++) {
        uint64_t bytes;
        if (v->b.t[i].flags & INFER_TENSOR_ABSENT)
            continue;
        if (infer_tensor_bytes(&v->b.t[i], &bytes) != INFER_OK)
            return 0;
        data[i] = malloc(bytes);
        assert_non_null(data[i]);
        for (uint64_t k = 0; k < bytes; k++)
            ((uint8_t *)data[i])[k] = (uint8_t)next();
        /* small whole numbers half of the time, so that some indices are good */
        for (uint64_t k = 0; k + 4 <= bytes && v->b.t[i].format == INFER_FMT_I32; k += 4)
            if (next() % 2) {
                int32_t small = (int32_t)(next() % 40);
                memcpy((uint8_t *)data[i] + k, &small, sizeof small);
            }
    }
    return 1;
}

static void run_bound(victim *v)
{
    void *data[INFER_OP_MAX_OPERANDS];
    int32_t counts[INFER_COUNT_MAX];
    infer_op_desc *d = &v->b.d;
    for (int i = 0; i < (int)INFER_COUNT_MAX; i++)
        counts[i] = (int32_t)(next() % 3 ? next() % 30 : odd_number());
    if (bind(v, data)) {
        void *bound[INFER_OP_MAX_OPERANDS];
        memcpy(bound, data, sizeof bound);
        if (d->op == INFER_OP_KV_MOVE || d->op == INFER_OP_STATE_COPY)
            bound[d->n_in] = bound[0]; /* described alike, so as long */
        infer_status st = infer_op_ref(d, bound, counts);
        assert_true(st == INFER_OK || st == INFER_E_NO_MEMORY);
    }
    for (int i = 0; i < (int)INFER_OP_MAX_OPERANDS; i++)
        free(data[i]);
}

static void test_random(void **state)
{
    (void)state;
    int accepted = 0, refused = 0;
    for (infer_op_id op = 0; op < INFER_OP_COUNT; op++)
        for (uint32_t i = 0; i < infer_op_case_count(op); i++) {
            victim v;
            take(&v, op, i);
            const infer_op_case keep = v.c;
            /* as many for each op, whatever its number of cases */
            for (uint32_t round = 0; round < 600 / infer_op_case_count(op); round++) {
                v.c.attrs = keep.attrs;
                heal(&v);
                for (uint64_t n = next() % 4; n-- > 0;)
                    mutate(&v);
                infer_status st = op_status(&v.b);
                assert_true(st == INFER_OK || st == INFER_E_INVALID || st == INFER_E_UNSUPPORTED ||
                            st == INFER_E_TOO_LARGE);
                accepted += st == INFER_OK;
                refused += st != INFER_OK;
                if (st == INFER_OK)
                    run_bound(&v);
            }
            drop(&v);
        }
    assert_true(accepted > 5000 && refused > 5000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frame),      cmocka_unit_test(test_longer_elements), cmocka_unit_test(test_operands),
        cmocka_unit_test(test_attributes), cmocka_unit_test(test_collectives),     cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
