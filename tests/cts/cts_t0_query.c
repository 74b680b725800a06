/*
 * T0, op_query and kv_query as an interface: unknown things are answered NO, arrays are walked by the stride that the
 * caller states, answers do not change. What the answers promise is T1's matter.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "cts.h"
#include "ops/ops.h"

#define CANARY 0xC7u

/* A descriptor with its parts; y = a + b, y = act(x), or y = x W^T with an epilogue, in F32. */
typedef struct sample_op {
    infer_op_desc d;
    infer_tensor_desc t[4];
    infer_attrs_act act;
    infer_attrs_matmul mm;
    infer_epilogue epi[2];
} sample_op;

static void finish(sample_op *o, infer_op_id id, uint32_t n_in)
{
    o->d = (infer_op_desc){.struct_size = sizeof(o->d),
                           .op = id,
                           .rows_from = INFER_COUNT_TOKENS,
                           .rows_mul = 1,
                           .n_in = n_in,
                           .n_out = 1,
                           .tensor_size = sizeof(o->t[0]),
                           .tensors = o->t};
}

static void make_add(sample_op *o)
{
    memset(o, 0, sizeof(*o));
    for (int i = 0; i < 3; i++)
        o->t[i] = infer_tensor_make(INFER_FMT_F32, 2, 5, 24, 1, 1);
    finish(o, INFER_OP_ADD, 2);
}

static void make_act(sample_op *o)
{
    memset(o, 0, sizeof(*o));
    for (int i = 0; i < 2; i++)
        o->t[i] = infer_tensor_make(INFER_FMT_F32, 2, 5, 24, 1, 1);
    o->act = (infer_attrs_act){.struct_size = sizeof(o->act), .act = INFER_ACT_SILU};
    finish(o, INFER_OP_ACT, 1);
    o->d.attrs = &o->act;
    o->d.attrs_size = sizeof(o->act);
}

static void make_matmul(sample_op *o)
{
    memset(o, 0, sizeof(*o));
    o->t[0] = infer_tensor_make(INFER_FMT_F32, 2, 5, 64, 1, 1);
    o->t[1] = infer_tensor_make(INFER_FMT_F32, 2, 32, 64, 1, 1);
    o->t[1].flags = INFER_TENSOR_WEIGHT;
    o->t[2] = infer_tensor_make(INFER_FMT_F32, 2, 5, 32, 1, 1);
    o->mm = (infer_attrs_matmul){.struct_size = sizeof(o->mm)};
    o->epi[0] = (infer_epilogue){.kind = INFER_EPI_SCALE, .factor = 2};
    o->epi[1] = (infer_epilogue){.kind = INFER_EPI_ACT, .arg = INFER_ACT_RELU};
    finish(o, INFER_OP_MATMUL, 2);
    o->d.attrs = &o->mm;
    o->d.attrs_size = sizeof(o->mm);
    o->d.n_epilogue = 2;
    o->d.epilogue = o->epi;
    o->d.epilogue_size = sizeof(o->epi[0]);
}

/* One descriptor's answer; 0 with the case failed. */
static int ask(cts *c, const infer_op_desc *d, infer_op_answer *a)
{
    memset(a, 0, sizeof(*a));
    a->struct_size = sizeof(*a);
    return cts_ok(c, c->ops->op_query(c->h, d, sizeof(*d), 1, a, sizeof(*a)), "op_query");
}

static int answer_sane(cts *c, const infer_op_desc *d, const infer_op_answer *a, const char *what)
{
    if (a->level > INFER_LEVEL_NATIVE)
        cts_fail(c, "%s: level %u is unknown", what, a->level);
    else if (a->level && a->n_epilogue > d->n_epilogue)
        cts_fail(c, "%s: takes %u epilogue steps of %u", what, a->n_epilogue, d->n_epilogue);
    else if (!a->level && (a->why == INFER_WHY_NONE || a->why > INFER_WHY_MEMORY))
        cts_fail(c, "%s: answered NO without a reason code", what);
    else if (a->level && a->scratch_bytes && (!a->scratch_align || (a->scratch_align & (a->scratch_align - 1))))
        cts_fail(c, "%s: scratch_align %u is no power of two", what, a->scratch_align);
    else if (a->level && !(isfinite(a->est_ns) && a->est_ns >= 0 && isfinite(a->est_bytes) && a->est_bytes >= 0))
        cts_fail(c, "%s: an estimate is negative or not finite", what);
    return !c->failed;
}

/* The same answer: everything but the estimates, which may learn. */
static int same(const infer_op_answer *a, const infer_op_answer *b)
{
    return a->level == b->level && a->why == b->why && a->which == b->which && a->n_epilogue == b->n_epilogue &&
           a->row_invariant == b->row_invariant && a->scratch_bytes == b->scratch_bytes &&
           a->scratch_align == b->scratch_align;
}

static void must_be_no(cts *c, const infer_op_desc *d, const char *what)
{
    infer_op_answer a;
    if (!ask(c, d, &a))
        return;
    if (a.level != INFER_LEVEL_NO)
        cts_fail(c, "%s is answered with level %u instead of NO", what, a.level);
    else
        answer_sane(c, d, &a, what);
}

static void query_unknown_op(cts *c)
{
    static const infer_op_id ids[] = {INFER_OP_NONE,         15,          INFER_OP_COUNT,
                                      INFER_OP_COUNT + 1000, 0x80000000u, UINT32_MAX};
    sample_op o;
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]) && !c->failed; i++) {
        make_add(&o);
        o.d.op = ids[i];
        must_be_no(c, &o.d, "an unknown op id");
    }
}

static void query_unknown_bits(cts *c)
{
    sample_op o;
    for (int bit = 0; bit < 64 && !c->failed; bit += 7) {
        make_add(&o);
        o.d.must_understand = (uint64_t)1 << bit;
        must_be_no(c, &o.d, "a must-understand bit that nobody has defined");
    }
    make_add(&o);
    o.d.revision = 7;
    must_be_no(c, &o.d, "revision 7 of an op");
    make_matmul(&o);
    o.d.must_understand = (uint64_t)1 << 63;
    must_be_no(c, &o.d, "a must-understand bit that nobody has defined");
}

static void query_unknown_values(cts *c)
{
    sample_op o;
    infer_op_answer a;
    make_add(&o);
    o.t[1].format = INFER_FMT_COUNT + 3;
    must_be_no(c, &o.d, "an unknown format");
    make_add(&o);
    o.t[0].layout = 0x7FFF0001;
    must_be_no(c, &o.d, "an unknown layout");
    make_act(&o);
    o.act.act = 77;
    must_be_no(c, &o.d, "activation 77");
    make_matmul(&o);
    o.epi[1].kind = 99;
    if (ask(c, &o.d, &a) && a.level && a.n_epilogue > 1)
        cts_fail(c, "an unknown epilogue step is taken");
}

/* An extension record nobody knows is no reason for another answer. */
static void query_extension(cts *c)
{
    infer_ext ext = {.id = 0x7FFFFFF0, .size = sizeof(ext)};
    infer_op_answer a, b;
    sample_op o;
    make_add(&o);
    if (!ask(c, &o.d, &a))
        return;
    o.d.next = &ext;
    if (ask(c, &o.d, &b) && !same(&a, &b))
        cts_fail(c, "an unknown extension record changes the answer");
}

/* A batch, with elements longer than this plugin knows, answers like its members alone. */
static void query_stride(cts *c)
{
    enum { N = 7 };
    struct longer {
        infer_op_desc d;
        uint8_t beyond[40];
    } ops[N];
    struct longer_tensor {
        infer_tensor_desc t;
        uint8_t beyond[24];
    } tensors[N][3];
    struct longer_epilogue {
        infer_epilogue e;
        uint32_t beyond[3];
    } epi[2];
    struct longer_answer {
        infer_op_answer a;
        uint8_t beyond[56];
    } got[N];
    sample_op alone[N];
    infer_op_answer want[N];
    memset(ops, CANARY, sizeof(ops));
    memset(tensors, CANARY, sizeof(tensors));
    memset(epi, CANARY, sizeof(epi));
    memset(got, 0, sizeof(got));
    for (int i = 0; i < N; i++) {
        (i % 3 == 0 ? make_add : i % 3 == 1 ? make_act : make_matmul)(&alone[i]);
        if (i == 4)
            alone[i].d.op = INFER_OP_COUNT + 9; /* one NO in the middle */
        NEED(ask(c, &alone[i].d, &want[i]) && answer_sane(c, &alone[i].d, &want[i], "op_query"), "query");
        ops[i].d = alone[i].d;
        ops[i].d.struct_size = sizeof(ops[i]);
        for (uint32_t k = 0; k < alone[i].d.n_in + 1; k++)
            tensors[i][k].t = alone[i].t[k];
        ops[i].d.tensors = &tensors[i][0].t;
        ops[i].d.tensor_size = sizeof(tensors[i][0]);
        if (alone[i].d.n_epilogue) {
            epi[0].e = alone[i].epi[0];
            epi[1].e = alone[i].epi[1];
            ops[i].d.epilogue = &epi[0].e;
            ops[i].d.epilogue_size = sizeof(epi[0]);
        }
        got[i].a.struct_size = sizeof(got[i]);
    }
    NEED(cts_ok(c, c->ops->op_query(c->h, &ops[0].d, sizeof(ops[0]), N, &got[0].a, sizeof(got[0])), "op_query"),
         "query");
    for (int i = 0; i < N; i++)
        NEED(same(&got[i].a, &want[i]),
             "descriptor %d of a batch with longer elements is answered level %u, why %u; alone level %u, why %u", i,
             got[i].a.level, got[i].a.why, want[i].level, want[i].why);
out:;
}

/* Shorter answers, from a host that does not know the later fields. */
static void query_struct_size(cts *c)
{
    enum { N = 3, SIZE = offsetof(infer_op_answer, scratch_bytes) };
    union {
        infer_op_answer first;
        uint8_t bytes[N * SIZE + 64];
    } u;
    sample_op o[N];
    infer_op_desc d[N];
    infer_op_answer want[N];
    memset(&u, 0, N * SIZE);
    memset(u.bytes + N * SIZE, CANARY, sizeof(u) - N * SIZE);
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t size = SIZE;
        (i == 1 ? make_act : make_add)(&o[i]);
        NEED(ask(c, &o[i].d, &want[i]), "query");
        d[i] = o[i].d;
        memcpy(u.bytes + i * SIZE, &size, 4);
    }
    NEED(cts_ok(c, c->ops->op_query(c->h, d, sizeof(d[0]), N, &u.first, SIZE), "op_query with shorter answers"),
         "query");
    for (uint32_t i = 0; i < N; i++) {
        uint32_t level;
        memcpy(&level, u.bytes + i * SIZE + offsetof(infer_op_answer, level), 4);
        NEED(level == want[i].level, "a shorter answer has level %u, a full one %u", level, want[i].level);
    }
    for (size_t i = N * SIZE; i < sizeof(u); i++)
        NEED(u.bytes[i] == CANARY, "op_query writes beyond %d answers of %d bytes", N, SIZE);
out:;
}

typedef struct asker {
    cts *c;
    sample_op o;
    infer_op_answer want;
    int wrong;
    pthread_t thread;
} asker;

static void *asker_main(void *arg)
{
    asker *k = arg;
    for (int i = 0; i < 200; i++) {
        infer_op_answer a = {.struct_size = sizeof(a)};
        infer_status s = k->c->ops->op_query(k->c->h, &k->o.d, sizeof(k->o.d), 1, &a, sizeof(a));
        k->wrong |= s != INFER_OK || !same(&a, &k->want);
    }
    return NULL;
}

static void query_threads(cts *c)
{
    asker k[3];
    int n = 0;
    for (int i = 0; i < 3; i++) {
        k[i] = (asker){.c = c};
        (i == 0 ? make_add : i == 1 ? make_act : make_matmul)(&k[i].o);
        if (!ask(c, &k[i].o.d, &k[i].want))
            return;
    }
    while (n < 3 && !pthread_create(&k[n].thread, NULL, asker_main, &k[n]))
        n++;
    for (int i = 0; i < n; i++) {
        pthread_join(k[i].thread, NULL);
        if (k[i].wrong)
            cts_fail(c, "op_query from several threads changes its answer or fails");
    }
}

/* ---- Cache groups ---------------------------------------------------------------------------------------- */

static void kv_sane(cts *c)
{
    infer_kv_spec s = {.struct_size = sizeof(s),
                       .kind = INFER_GROUP_FULL,
                       .n_layers = 3,
                       .n_heads = 4,
                       .n_planes = 2,
                       .planes = {{.format = INFER_FMT_F16, .width = 64, .per_head = 1},
                                  {.format = INFER_FMT_F16, .width = 32, .per_head = 1}}};
    infer_kv_answer a = {.struct_size = sizeof(a)}, b = a;
    NEED(cts_ok(c, c->ops->kv_query(c->h, &s, &a), "kv_query") && cts_ok(c, c->ops->kv_query(c->h, &s, &b), "kv_query"),
         "query");
    NEED(!memcmp(&a, &b, sizeof(a)), "two calls of kv_query differ");
    if (a.level == INFER_LEVEL_NO) {
        NEED(a.why, "kv_query answers NO without a reason code");
        cts_skip(c, "the device holds no f16 cache group (why %u)", a.why);
        goto out;
    }
    NEED(a.block_multiple >= 1 && a.block_best >= 1 && a.block_best % a.block_multiple == 0,
         "block_best %u is no multiple of block_multiple %u", a.block_best, a.block_multiple);
    NEED(!a.block_max || a.block_max >= a.block_best, "block_max %u is below block_best %u", a.block_max, a.block_best);
    NEED(a.align && !(a.align & (a.align - 1)), "align %u is no power of two", a.align);
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t least = (uint64_t)s.n_heads * a.block_best * s.planes[i].width * 2;
        NEED(a.block_bytes[i] >= least, "plane %u: %llu bytes a block cannot hold %llu of data", i,
             (unsigned long long)a.block_bytes[i], (unsigned long long)least);
        NEED(a.layout || a.block_bytes[i] == least, "plane %u: a canonical block has %llu bytes, not %llu", i,
             (unsigned long long)least, (unsigned long long)a.block_bytes[i]);
    }
    s.kind = 77;
    NEED(cts_ok(c, c->ops->kv_query(c->h, &s, &a), "kv_query"), "query");
    NEED(a.level == INFER_LEVEL_NO, "a cache group of unknown kind is not answered NO");
    s.kind = INFER_GROUP_FULL;
    s.planes[1].format = INFER_FMT_COUNT + 3;
    NEED(cts_ok(c, c->ops->kv_query(c->h, &s, &a), "kv_query"), "query");
    NEED(a.level == INFER_LEVEL_NO, "a cache plane of unknown format is not answered NO");
out:;
}

void cts_t0_query(cts_run *r)
{
    static const cts_case cases[] = {
        {"t0.query.unknown_op", query_unknown_op},
        {"t0.query.unknown_bits", query_unknown_bits},
        {"t0.query.unknown_values", query_unknown_values},
        {"t0.query.extension", query_extension},
        {"t0.query.stride", query_stride},
        {"t0.query.struct_size", query_struct_size},
        {"t0.query.threads", query_threads},
        {"t0.kv.sane", kv_sane},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        cts_case_run(r, 0, cases[i].name, cases[i].fn, 1, NULL);
}
