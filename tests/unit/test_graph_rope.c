/* core/graph: what a device may rely on that leaves rotations and cache writes to the attention behind them: what they
 * read is still there, and a program says which results nobody else reads. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "unit/unit.h"

#include "graph/compile.h"
#include "graph/graph.h"
#include "ops/ops.h"
#include "unit/ref_like.h"

enum { N = 6, H = 4, D = 16, BLOCK = 8, BLOCKS = 4, LAYERS = 2 };

static infer_hal *hal;
static infer_hal_dev *like[2];

static int group_setup(void **state)
{
    (void)state;
    const infer_hal_options opt = {
        .backend_path = "", .allow = "ref", .topo_xml = "synthetic:numa:1 core:2 pu:1", .validate = 1};
    ref_like_reset();
    return infer_hal_create(&opt, &hal, NULL) || infer_hal_add(hal, ref_like_query, "test", NULL) ||
           infer_hal_open(hal, "like0", &like[0], NULL) || infer_hal_open(hal, "like1", &like[1], NULL);
}

static int group_teardown(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++)
        infer_hal_close(like[i]);
    infer_hal_destroy(hal);
    return 0;
}

static infer_val step(infer_graph *g, uint64_t at, infer_tensor_desc d)
{
    return infer_graph_value(g, INFER_VAL_STEP, at, &d, INFER_ROWS_STATIC, 1, "step");
}

static infer_val made(infer_graph *g, infer_op_id op, int32_t layer, const infer_val *in, uint32_t n_in,
                      const void *attrs, uint32_t size)
{
    const infer_tensor_desc d = infer_tensor_make(INFER_FMT_F32, 3, N, H, D, 1);
    infer_graph_node(g, op, layer, in, n_in, attrs, size);
    return infer_graph_out(g, &d, INFER_COUNT_TOKENS, 1, "act");
}

typedef struct attention {
    infer_graph g;
    infer_val x, q, k, v, rotated, y, last; /* x: what a product reads */
} attention;

/* Queries, keys and values by one product. */
static void build_product(attention *a)
{
    infer_graph *g = &a->g;
    const infer_attrs_scale scale = {.struct_size = sizeof scale, .scale = 2};
    const infer_tensor_desc rows = infer_tensor_make(INFER_FMT_F32, 2, N, H * D, 1, 1),
                            heads = infer_tensor_make(INFER_FMT_F32, 3, N, H, D, 1),
                            w = infer_tensor_make(INFER_FMT_F32, 2, H * D, H * D, 1, 1);
    infer_val in[4] = {step(g, 0x2000, rows)}, out[3];
    infer_graph_node(g, INFER_OP_SCALE, 0, in, 1, &scale, sizeof scale);
    in[0] = a->x = infer_graph_out(g, &rows, INFER_COUNT_TOKENS, 1, "act");
    for (uint32_t i = 1; i < 4; i++)
        in[i] = infer_graph_value(g, INFER_VAL_WEIGHT, i, &w, INFER_ROWS_STATIC, 1, "weight");
    infer_graph_node(g, INFER_OP_QKV, 0, in, 4, NULL, 0);
    for (int i = 0; i < 3; i++)
        out[i] = infer_graph_out(g, &rows, INFER_COUNT_TOKENS, 1, "act");
    a->q = infer_graph_view_of(g, out[0], &heads, INFER_COUNT_TOKENS, 1);
    a->k = infer_graph_view_of(g, out[1], &heads, INFER_COUNT_TOKENS, 1);
    a->v = infer_graph_view_of(g, out[2], &heads, INFER_COUNT_TOKENS, 1);
}

/* Attention in layer 0 and a sum of its result in layer 1, the graph's output. between: another node before it. */
static void build(attention *a, int between, int product)
{
    infer_graph *g = &a->g;
    const infer_attrs_scale scale = {.struct_size = sizeof scale, .scale = 2};
    const infer_attrs_rope rope = {.struct_size = sizeof rope, .n_dims = D, .n_pos = 1};
    infer_attrs_attn attn = {.struct_size = sizeof attn, .scale = 1, .n_heads = H};
    attn.kv = (infer_attrs_kv){.struct_size = sizeof attn.kv,
                               .k_format = INFER_FMT_F16,
                               .v_format = INFER_FMT_F16,
                               .n_kv_heads = H,
                               .k_width = D,
                               .v_width = D,
                               .block_size = BLOCK,
                               .n_blocks = BLOCKS};
    const infer_tensor_desc pool = infer_tensor_make(INFER_FMT_F16, 4, BLOCKS, H, BLOCK, D);
    *a = (attention){.x = -1, .last = -1};
    infer_val x = step(g, 0x1000, infer_tensor_make(INFER_FMT_F32, 3, N, H, D, 1));
    infer_val pos = step(g, 0x100, infer_tensor_make(INFER_FMT_I32, 2, N, 1, 1, 1));
    infer_val freq = step(g, 0x200, infer_tensor_make(INFER_FMT_F32, 1, D / 2, 1, 1, 1));
    infer_val slots = step(g, 0x300, infer_tensor_make(INFER_FMT_I32, 1, N, 1, 1, 1));
    infer_val table = step(g, 0x400, infer_tensor_make(INFER_FMT_I32, 2, 2, 2, 1, 1));
    infer_val lens = step(g, 0x500, infer_tensor_make(INFER_FMT_I32, 1, 2, 1, 1, 1));
    infer_val starts = step(g, 0x600, infer_tensor_make(INFER_FMT_I32, 1, 3, 1, 1, 1));
    if (product) {
        build_product(a);
    } else {
        a->q = made(g, INFER_OP_SCALE, 0, &x, 1, &scale, sizeof scale);
        a->k = made(g, INFER_OP_SCALE, 0, &x, 1, &scale, sizeof scale);
        a->v = made(g, INFER_OP_SCALE, 0, &x, 1, &scale, sizeof scale);
    }
    a->rotated = made(g, INFER_OP_ROPE, 0, (infer_val[]){a->q, pos, freq}, 3, &rope, sizeof rope);
    infer_val k = made(g, INFER_OP_ROPE, 0, (infer_val[]){a->k, pos, freq}, 3, &rope, sizeof rope);
    infer_graph_node(g, INFER_OP_KV_WRITE, 0, (infer_val[]){k, a->v, slots}, 3, &attn.kv, sizeof attn.kv);
    infer_val kp = infer_graph_value(g, INFER_VAL_KV, 0, &pool, INFER_ROWS_STATIC, 1, "k_pool");
    infer_val vp = infer_graph_value(g, INFER_VAL_KV, 1, &pool, INFER_ROWS_STATIC, 1, "v_pool");
    infer_graph_out_value(g, kp);
    infer_graph_out_value(g, vp);
    g->nodes[g->n_nodes - 1].rows_from = INFER_COUNT_TOKENS;
    g->nodes[g->n_nodes - 1].rows_mul = 1;
    infer_val other = between ? made(g, INFER_OP_SCALE, 0, &x, 1, &scale, sizeof scale) : -1;
    a->y =
        made(g, INFER_OP_ATTN_PAGED, 0, (infer_val[]){a->rotated, kp, vp, table, lens, starts}, 6, &attn, sizeof attn);
    a->last = made(g, INFER_OP_ADD, 1, (infer_val[]){a->y, between ? other : a->y}, 2, NULL, 0);
    g->vals[a->last].keep = 1;
}

static infer_status weight_desc(void *user, int32_t dev, uint64_t ref, infer_op_id use, infer_tensor_desc *desc,
                                infer_error *err)
{
    (void)user, (void)dev, (void)ref, (void)use, (void)desc, (void)err;
    return INFER_OK;
}

/* Layer 1 on device `second`. */
static void compile(attention *a, int32_t second, infer_graph_target *t, infer_compiled *c)
{
    static int32_t home[LAYERS + 2], kv_home[LAYERS];
    infer_error e = {0};
    home[2] = home[3] = second;
    *t = (infer_graph_target){.devs = {like[0], like[1]},
                              .n_devs = 2,
                              .host = -1,
                              .home = home,
                              .kv_home = kv_home,
                              .n_layers = LAYERS,
                              .weight_desc = weight_desc};
    if (infer_graph_compile(&a->g, t, c, &e))
        fail_msg("%s", e.text);
}

static int overlap(const attention *a, const infer_compiled *c, infer_val x, uint64_t at, uint64_t size)
{
    uint64_t place = c->place[x], bytes;
    assert_int_equal(infer_tensor_bytes(&a->g.vals[x].desc, &bytes), INFER_OK);
    return place < at + size && at < place + bytes;
}

/* Result and scratch of an attention right behind them are not where rotation and write read; behind something else
 * memory is used again as ever. */
static void test_read_until(void **state)
{
    (void)state;
    for (int between = 0; between < 2; between++) {
        attention a;
        infer_graph_target t;
        infer_compiled c;
        int again = 0;
        ref_like[0].scratch[INFER_OP_ATTN_PAGED] = 1 << 10;
        build(&a, between, 0);
        compile(&a, 0, &t, &c);
        const infer_val read[] = {a.q, a.k, a.v};
        for (uint32_t i = 0; i < c.n_order; i++)
            for (int k = 0; k < 3 && a.g.nodes[c.order[i]].op == INFER_OP_ATTN_PAGED; k++)
                again += overlap(&a, &c, read[k], c.place[a.y], N * H * D * 4) +
                         overlap(&a, &c, read[k], c.scratch[i], 1 << 10);
        assert_true(between ? again > 0 : again == 0);
        infer_compiled_free(&c);
        infer_graph_free(&a.g);
        ref_like_reset();
    }
}

/* Nor are rotated queries where a product right before them reads. */
static void test_product(void **state)
{
    (void)state;
    attention a;
    infer_graph_target t;
    infer_compiled c;
    build(&a, 0, 1);
    compile(&a, 0, &t, &c);
    assert_false(overlap(&a, &c, a.x, c.place[a.rotated], N * H * D * 4));
    infer_compiled_free(&c);
    infer_graph_free(&a.g);
}

static infer_status nowhere(void *user, const infer_gnode *n, infer_val v, const infer_tensor_desc *desc,
                            infer_operand *out)
{
    (void)user, (void)n, (void)v, (void)desc;
    *out = (infer_operand){0};
    return INFER_OK;
}

/* Marked are results that no other part reads and that are no output; caches never are. */
static void test_inner(void **state)
{
    (void)state;
    for (int32_t second = 0; second < 2; second++) {
        attention a;
        infer_graph_target t;
        infer_compiled c;
        infer_view_store st;
        infer_error e = {0};
        uint32_t seen = 0;
        build(&a, 0, 0);
        compile(&a, second, &t, &c);
        assert_int_equal(c.n_parts, 1 + second);
        assert_int_equal(infer_graph_view_build(&c, &t, 0, 2, nowhere, NULL, &st, &e), INFER_OK);
        for (uint32_t i = 0; i < c.parts[0].count; i++) {
            const infer_gnode *n = &a.g.nodes[c.order[i]];
            for (uint32_t k = 0; k < (uint32_t)n->n_in + n->n_out; k++) {
                infer_val v = k < n->n_in ? -1 : n->out[k - n->n_in];
                int inner = v == a.q || v == a.k || v == a.v || v == a.rotated || (v == a.y && !second);
                assert_int_equal(st.nodes[i].operands[k].flags, v >= 0 && inner ? INFER_OPERAND_INNER : 0);
                seen += (uint32_t)(v >= 0 && inner);
            }
        }
        assert_int_equal(seen, second ? 4 : 5);
        infer_view_free(&st);
        infer_compiled_free(&c);
        infer_graph_free(&a.g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_read_until), cmocka_unit_test(test_product),
                                       cmocka_unit_test(test_inner)};
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
