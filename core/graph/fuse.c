/* Fusion: rewrites pairs of nodes of one device into one where the device says that it takes the fused form. Runs
 * before the memory plan, so that re-use can never forbid a fusion. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "base/alloc.h"
#include "graph/compile.h"
#include "ops/ops.h"

/* uses[v]: how many operands read v's memory; maker[v]: the node that writes it. */
typedef struct fuse_maps {
    uint32_t *uses;
    int32_t *maker;
} fuse_maps;

static void map_node(const infer_graph *g, int32_t i, fuse_maps *m)
{
    const infer_gnode *n = &g->nodes[i];
    for (uint32_t k = 0; k < n->n_in; k++)
        if (n->in[k] >= 0)
            m->uses[infer_graph_root(g, n->in[k])]++;
    for (uint32_t k = 0; k < n->n_out; k++)
        m->maker[infer_graph_root(g, n->out[k])] = i;
}

/* Whether the device runs candidate `n` as one op, with all its epilogues. Keeps the answer on success. */
static int accepts(const infer_graph *g, const infer_graph_target *t, infer_gnode *n)
{
    infer_op_answer a;
    if (infer_graph_ask(g, t, n, n->dev, &a, NULL) != INFER_OK || a.level != INFER_LEVEL_NATIVE ||
        a.n_epilogue < n->n_epilogue)
        return 0;
    n->answer = a;
    return 1;
}

/* Whether a fused op says what a MATMUL's attributes say: no scale, and that x may lose nothing is not among it. */
static int joinable(const infer_gnode *n)
{
    const infer_attrs_matmul *a = &n->attrs.matmul;
    return !n->attrs_size || ((a->scale == 0 || a->scale == 1) && a->act_format != INFER_FMT_F32);
}

static infer_format act_format_of(const infer_gnode *n)
{
    return n->attrs_size ? n->attrs.matmul.act_format : INFER_FMT_NONE;
}

/* The MATMUL, without bias, scale or steps after it, that makes v for node `user` alone; NULL: something else does. */
static infer_gnode *plain_product(infer_graph *g, const fuse_maps *m, infer_val v, const infer_gnode *user)
{
    infer_val root = v < 0 ? v : infer_graph_root(g, v);
    if (v < 0 || v != root || g->vals[v].kind != INFER_VAL_ACT || g->vals[v].keep || m->uses[v] != 1 || m->maker[v] < 0)
        return NULL;
    infer_gnode *n = &g->nodes[m->maker[v]];
    int plain = n->op == INFER_OP_MATMUL && !n->removed && n->dev == user->dev && n->program == user->program &&
                !n->n_epilogue && (n->n_in < 3 || n->in[2] < 0);
    return plain && joinable(n) ? n : NULL;
}

/* MATMUL and MATMUL of one value -> GLU -> MATMUL: one op, which reads that value once. */
static int fuse_gated_mlp(infer_graph *g, const infer_graph_target *t, int32_t i, fuse_maps *m)
{
    infer_gnode *down = &g->nodes[i];
    if (down->op != INFER_OP_MATMUL || down->n_epilogue || (down->n_in > 2 && down->in[2] >= 0) || !joinable(down))
        return 0;
    infer_val h = down->in[0];
    if (h < 0 || h != infer_graph_root(g, h) || m->uses[h] != 1 || m->maker[h] < 0 || g->vals[h].keep)
        return 0;
    infer_gnode *glu = &g->nodes[m->maker[h]];
    if (glu->op != INFER_OP_GLU || glu->removed || glu->dev != down->dev || glu->program != down->program)
        return 0;
    infer_gnode *gate = plain_product(g, m, glu->in[0], down), *up = plain_product(g, m, glu->in[1], down);
    const infer_format act = act_format_of(down);
    if (!gate || !up || gate->in[0] != up->in[0] || act_format_of(gate) != act || act_format_of(up) != act)
        return 0;
    infer_gnode cand = *down;
    cand.op = INFER_OP_GATED_MLP;
    cand.attrs = glu->attrs;
    cand.attrs_size = glu->attrs_size;
    cand.attrs.act.act_format = act;
    cand.in[0] = gate->in[0];
    cand.in[1] = gate->in[1];
    cand.in[2] = up->in[1];
    cand.in[3] = down->in[1];
    cand.n_in = 4;
    if (!accepts(g, t, &cand))
        return 0;
    gate->removed = up->removed = glu->removed = 1;
    m->uses[infer_graph_root(g, cand.in[0])]--;
    m->uses[h] = m->uses[glu->in[0]] = m->uses[glu->in[1]] = 0;
    *down = cand;
    return 1;
}

static int plain_matmul(const infer_gnode *n)
{
    return n->op == INFER_OP_MATMUL && !n->removed && !n->n_epilogue && n->n_in <= 3 && joinable(n);
}

/* Three MATMULs of one value, not far apart -> one op in the first one's place. */
static int fuse_qkv(infer_graph *g, const infer_graph_target *t, int32_t i, fuse_maps *m)
{
    enum { LOOK = 12 /* nodes */ };
    infer_gnode *of[3] = {&g->nodes[i]};
    int n = 1;
    if (!plain_matmul(of[0]))
        return 0;
    for (uint32_t j = (uint32_t)i + 1; j < g->n_nodes && j < (uint32_t)i + LOOK && n < 3; j++) {
        infer_gnode *next = &g->nodes[j];
        if (plain_matmul(next) && next->in[0] == of[0]->in[0] && next->dev == of[0]->dev &&
            next->program == of[0]->program && act_format_of(next) == act_format_of(of[0]))
            of[n++] = next;
    }
    if (n < 3)
        return 0;
    infer_gnode cand = *of[0];
    cand.op = INFER_OP_QKV;
    cand.attrs_size = act_format_of(of[0]) ? cand.attrs_size : 0;
    cand.n_in = 7;
    cand.n_out = 3;
    for (int k = 0; k < 3; k++) {
        cand.in[1 + k] = of[k]->in[1];
        cand.in[4 + k] = of[k]->n_in > 2 ? of[k]->in[2] : -1;
        cand.out[k] = of[k]->out[0];
    }
    if (!accepts(g, t, &cand))
        return 0;
    of[1]->removed = of[2]->removed = 1;
    m->uses[infer_graph_root(g, cand.in[0])] -= 2;
    for (int k = 0; k < 3; k++)
        m->maker[infer_graph_root(g, cand.out[k])] = i;
    *of[0] = cand;
    return 1;
}

/* MATMUL or GATED_MLP -> ADD with a value that is older than the product: the product adds it while storing. */
static int fuse_residual(infer_graph *g, const infer_graph_target *t, int32_t i, fuse_maps *m)
{
    infer_gnode *add = &g->nodes[i];
    if (add->op != INFER_OP_ADD)
        return 0;
    for (uint32_t side = 0; side < 2; side++) {
        infer_val prod = add->in[side], other = add->in[1 - side];
        if (prod < 0 || other < 0 || g->vals[prod].kind != INFER_VAL_ACT || g->vals[prod].keep ||
            g->vals[other].kind != INFER_VAL_ACT || g->vals[other].desc.rank != g->vals[prod].desc.rank)
            continue;
        infer_val root = infer_graph_root(g, prod);
        int32_t mi = m->maker[root];
        if (mi < 0 || m->uses[root] != 1 || prod != root || m->maker[infer_graph_root(g, other)] > mi)
            continue;
        infer_gnode *mat = &g->nodes[mi];
        if ((mat->op != INFER_OP_MATMUL && mat->op != INFER_OP_GATED_MLP) || mat->dev != add->dev ||
            mat->program != add->program || mat->n_epilogue || mat->removed || mat->n_in >= INFER_OP_MAX_OPERANDS)
            continue;
        infer_gnode cand = *mat;
        while (cand.n_in < infer_op_get(mat->op)->n_in_max) /* operands of steps stand after all of the op's own */
            cand.in[cand.n_in++] = -1;
        cand.in[cand.n_in] = other;
        cand.epilogue[0] = (infer_epilogue){.kind = INFER_EPI_RESIDUAL, .operand = cand.n_in};
        cand.n_in++;
        cand.n_epilogue = 1;
        cand.out[0] = add->out[0];
        if (!accepts(g, t, &cand))
            continue;
        *mat = cand;
        add->removed = 1;
        m->maker[infer_graph_root(g, add->out[0])] = mi;
        m->uses[root] = 0;
        return 1;
    }
    return 0;
}

/* ADD -> RMS_NORM of the sum. */
static int fuse_add_norm(infer_graph *g, const infer_graph_target *t, int32_t i, fuse_maps *m)
{
    infer_gnode *norm = &g->nodes[i];
    if (norm->op != INFER_OP_RMS_NORM || norm->in[1] < 0)
        return 0;
    infer_val sum = norm->in[0];
    infer_val root = infer_graph_root(g, sum);
    int32_t ai = m->maker[root];
    if (sum != root || ai < 0)
        return 0;
    infer_gnode *add = &g->nodes[ai];
    if (add->op != INFER_OP_ADD || add->dev != norm->dev || add->removed || add->program != norm->program)
        return 0;
    infer_gnode cand = *norm;
    cand.op = INFER_OP_ADD_RMS_NORM;
    cand.in[0] = add->in[0];
    cand.in[1] = add->in[1];
    cand.in[2] = norm->in[1];
    cand.n_in = 3;
    cand.out[1] = add->out[0];
    cand.n_out = 2;
    if (!accepts(g, t, &cand))
        return 0;
    /* It takes the sum's place: everything it reads is made by then. */
    cand.layer = add->layer;
    *add = cand;
    norm->removed = 1;
    m->uses[root]--;
    m->maker[infer_graph_root(g, cand.out[0])] = ai;
    return 1;
}

/* ROPE -> KV_WRITE of the rotated keys, which nothing else reads and which are not rounded in between. */
static int fuse_rope_kv(infer_graph *g, const infer_graph_target *t, int32_t i, fuse_maps *m)
{
    infer_gnode *write = &g->nodes[i];
    if (write->op != INFER_OP_KV_WRITE)
        return 0;
    infer_val root = infer_graph_root(g, write->in[0]);
    if (m->uses[root] != 1 || m->maker[root] < 0 || g->vals[root].kind != INFER_VAL_ACT || g->vals[root].keep)
        return 0;
    infer_gnode *rope = &g->nodes[m->maker[root]];
    if (rope->op != INFER_OP_ROPE || rope->removed || rope->dev != write->dev || rope->program != write->program ||
        g->vals[root].desc.format != INFER_FMT_F32)
        return 0;
    infer_gnode cand = *write;
    infer_attrs_rope_kv both = {.struct_size = sizeof both, .rope = rope->attrs.rope, .kv = write->attrs.kv};
    cand.op = INFER_OP_ROPE_KV_WRITE;
    cand.attrs.rope_kv = both;
    cand.attrs_size = sizeof both;
    cand.in[0] = rope->in[0];
    cand.in[2] = rope->in[1];
    cand.in[3] = rope->in[2];
    cand.in[4] = write->in[2];
    cand.n_in = 5;
    if (!accepts(g, t, &cand))
        return 0;
    rope->removed = 1;
    m->uses[root] = 0;
    *write = cand;
    return 1;
}

static int (*const patterns[])(infer_graph *, const infer_graph_target *, int32_t, fuse_maps *) = {
    fuse_gated_mlp, fuse_qkv, fuse_residual, fuse_add_norm, fuse_rope_kv,
};

infer_status infer_graph_fuse(infer_graph *g, const infer_graph_target *t, infer_error *err)
{
    infer_status s = INFER_OK;
    fuse_maps m = {infer_calloc(g->n_vals, sizeof *m.uses), infer_malloc(g->n_vals * sizeof *m.maker)};
    if (!m.uses || !m.maker) {
        s = infer_error_set(err, INFER_E_NO_MEMORY, "fuse: no host memory for %u values", g->n_vals);
        goto out;
    }
    for (uint32_t i = 0; i < g->n_vals; i++)
        m.maker[i] = -1;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        map_node(g, (int32_t)i, &m);
    for (size_t p = 0; p < sizeof patterns / sizeof patterns[0]; p++)
        for (uint32_t i = 0; i < g->n_nodes; i++)
            if (!g->nodes[i].removed)
                patterns[p](g, t, (int32_t)i, &m);
out:
    infer_free(m.uses);
    infer_free(m.maker);
    return s;
}
