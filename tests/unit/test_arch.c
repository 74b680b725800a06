/* core/model: a model's numbers from its metadata, what is refused, rope frequencies with every scaling rule, and which
 * weights a model must have. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "unit/unit.h"

#include <math.h>

#include "base/alloc.h"
#include "model/arch.h"
#include "unit/gguf_build.h"

/* ---- Files in memory ------------------------------------------------------------------------------------------ */

/* Keys and tensors are collected, then written out. Values that stand for "not written" are 0. */
typedef struct spec {
    const char *arch;
    uint32_t layers, embd, heads, kv_heads, head_k, head_v, ff, ctx, vocab, rope_dims;
    uint32_t experts, experts_used, ff_expert;
    float eps, base;
    int untied, no_embd;
    /* more keys, of any type: names without "ARCH." and encoded values */
    struct {
        const char *key;
        uint32_t type;
        uint8_t value[64];
        size_t n;
    } more[4];
    uint32_t n_more;
    const float *rope_freqs; /* head_k / 2 of them */
    uint32_t n_rope_freqs;
    const char *extra_tensor, *left_out, *misshapen;
} spec;

static const spec llama = {.arch = "llama",
                           .layers = 2,
                           .embd = 32,
                           .heads = 4,
                           .kv_heads = 2,
                           .ff = 64,
                           .ctx = 128,
                           .vocab = 10,
                           .eps = 1e-5f,
                           .untied = 1};

typedef struct maker {
    infer_buf keys, table;
    uint32_t n_keys, n_tensors;
    uint64_t data;
    const spec *s;
} maker;

static void u32(maker *m, const char *field, uint32_t v)
{
    char key[96];
    if (!v)
        return;
    snprintf(key, sizeof key, "%s.%s", m->s->arch, field);
    put_key_u32(&m->keys, key, v);
    m->n_keys++;
}

static void f32(maker *m, const char *field, float v)
{
    char key[96];
    if (v == 0)
        return;
    snprintf(key, sizeof key, "%s.%s", m->s->arch, field);
    put_key(&m->keys, key, INFER_GGUF_F32);
    infer_buf_append(&m->keys, &v, 4);
    m->n_keys++;
}

/* f32; dims given fastest first */
static void tensor(maker *m, const char *name, uint64_t a, uint64_t b, uint64_t c)
{
    /* sizes are kept small where a test's number is absurd: the numbers are looked at first */
    uint64_t dims[] = {a ? (a - 1) % 1024 + 1 : 1, b ? (b - 1) % 1024 + 1 : c != 0, c};
    uint32_t rank = c ? 3 : b ? 2 : 1;
    if (m->s->left_out && !strcmp(name, m->s->left_out))
        return;
    if (m->s->misshapen && !strcmp(name, m->s->misshapen))
        dims[rank - 1]++;
    put_tensor(&m->table, name, rank, dims, 0, m->data);
    m->data += dims[0] * (rank > 1 ? dims[1] : 1) * (rank > 2 ? dims[2] : 1) * 4;
    m->data = (m->data + 31) / 32 * 32;
    m->n_tensors++;
}

static void layer_tensor(maker *m, uint32_t layer, const char *field, uint64_t a, uint64_t b, uint64_t c)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%u.%s", layer, field);
    tensor(m, name, a, b, c);
}

static void write_tensors(maker *m)
{
    const spec *s = m->s;
    uint32_t hk = s->head_k ? s->head_k : s->embd / (s->heads ? s->heads : 1), hv = s->head_v ? s->head_v : hk;
    uint64_t q = (uint64_t)s->heads * hk, k = (uint64_t)s->kv_heads * hk, v = (uint64_t)s->kv_heads * hv;
    int qwen2 = !strcmp(s->arch, "qwen2"), qwen3 = !strncmp(s->arch, "qwen3", 5);
    if (!s->no_embd)
        tensor(m, "token_embd.weight", s->embd, s->vocab, 0);
    for (uint32_t i = 0; i < s->layers && i < 4; i++) {
        layer_tensor(m, i, "attn_norm.weight", s->embd, 0, 0);
        layer_tensor(m, i, "attn_q.weight", s->embd, q, 0);
        layer_tensor(m, i, "attn_k.weight", s->embd, k, 0);
        layer_tensor(m, i, "attn_v.weight", s->embd, v, 0);
        if (qwen2) {
            layer_tensor(m, i, "attn_q.bias", q, 0, 0);
            layer_tensor(m, i, "attn_k.bias", k, 0, 0);
            layer_tensor(m, i, "attn_v.bias", v, 0, 0);
        }
        if (qwen3) {
            layer_tensor(m, i, "attn_q_norm.weight", hk, 0, 0);
            layer_tensor(m, i, "attn_k_norm.weight", hk, 0, 0);
        }
        layer_tensor(m, i, "attn_output.weight", (uint64_t)s->heads * hv, s->embd, 0);
        layer_tensor(m, i, "ffn_norm.weight", s->embd, 0, 0);
        if (s->experts) {
            layer_tensor(m, i, "ffn_gate_inp.weight", s->embd, s->experts, 0);
            layer_tensor(m, i, "ffn_gate_exps.weight", s->embd, s->ff_expert, s->experts);
            layer_tensor(m, i, "ffn_up_exps.weight", s->embd, s->ff_expert, s->experts);
            layer_tensor(m, i, "ffn_down_exps.weight", s->ff_expert, s->embd, s->experts);
        } else {
            layer_tensor(m, i, "ffn_gate.weight", s->embd, s->ff, 0);
            layer_tensor(m, i, "ffn_up.weight", s->embd, s->ff, 0);
            layer_tensor(m, i, "ffn_down.weight", s->ff, s->embd, 0);
        }
    }
    tensor(m, "output_norm.weight", s->embd, 0, 0);
    if (s->untied)
        tensor(m, "output.weight", s->embd, s->vocab, 0);
    if (s->extra_tensor)
        tensor(m, s->extra_tensor, 8, 0, 0);
}

typedef struct file {
    infer_buf bytes;
    infer_gguf *g;
} file;

static file open_spec(const spec *s)
{
    maker m = {.s = s};
    file f = {0};
    char key[96];
    put_key_text(&m.keys, "general.architecture", s->arch);
    m.n_keys++;
    u32(&m, "block_count", s->layers);
    u32(&m, "embedding_length", s->embd);
    u32(&m, "attention.head_count", s->heads);
    u32(&m, "attention.head_count_kv", s->kv_heads);
    u32(&m, "attention.key_length", s->head_k);
    u32(&m, "attention.value_length", s->head_v);
    u32(&m, "feed_forward_length", s->ff);
    u32(&m, "context_length", s->ctx);
    u32(&m, "rope.dimension_count", s->rope_dims);
    u32(&m, "expert_count", s->experts);
    u32(&m, "expert_used_count", s->experts_used);
    u32(&m, "expert_feed_forward_length", s->ff_expert);
    f32(&m, "attention.layer_norm_rms_epsilon", s->eps);
    f32(&m, "rope.freq_base", s->base);
    for (uint32_t i = 0; i < s->n_more; i++, m.n_keys++) {
        snprintf(key, sizeof key, "%s.%s", s->arch, s->more[i].key);
        put_key(&m.keys, key, s->more[i].type);
        infer_buf_append(&m.keys, s->more[i].value, s->more[i].n);
    }
    write_tensors(&m);
    uint64_t freqs_at = m.data;
    if (s->rope_freqs)
        tensor(&m, "rope_freqs.weight", s->n_rope_freqs, 0, 0);
    put_head(&f.bytes, 3, m.n_tensors, m.n_keys);
    infer_buf_append(&f.bytes, m.keys.p, m.keys.n);
    infer_buf_append(&f.bytes, m.table.p, m.table.n);
    put_align(&f.bytes, 32);
    put_zeros(&f.bytes, freqs_at);
    if (s->rope_freqs)
        infer_buf_append(&f.bytes, s->rope_freqs, s->n_rope_freqs * sizeof(float));
    put_align(&f.bytes, 32);
    infer_buf_free(&m.keys);
    infer_buf_free(&m.table);
    infer_gguf_bytes b = {f.bytes.p, f.bytes.n};
    infer_error e = {0};
    if (infer_gguf_open_bytes(&b, 1, &f.g, &e))
        fail_msg("%s", e.text);
    return f;
}

static void file_close(file *f)
{
    infer_gguf_close(f->g);
    infer_buf_free(&f->bytes);
}

static infer_hparams load(const spec *s)
{
    file f = open_spec(s);
    infer_hparams h;
    infer_error e = {0};
    if (infer_hparams_load(f.g, &h, &e))
        fail_msg("%s", e.text);
    file_close(&f);
    return h;
}

static void refused(const spec *s, infer_status want, const char *word)
{
    file f = open_spec(s);
    infer_hparams h;
    infer_weight_list l = {0};
    infer_error e = {0};
    infer_status st = infer_hparams_load(f.g, &h, &e);
    if (!st)
        st = infer_weights_list(f.g, &h, &l, &e);
    if (st != want || !strstr(e.text, word))
        fail_msg("%s: status %d, \"%s\"", word, st, e.text);
    infer_weight_list_free(&l);
    file_close(&f);
}

/* A copy of a spec with one more key. */
static spec with(const spec *s, const char *key, uint32_t type, const void *value, size_t n)
{
    spec x = *s;
    assert_true(x.n_more < 4 && n <= sizeof x.more[0].value);
    x.more[x.n_more].key = key;
    x.more[x.n_more].type = type;
    x.more[x.n_more].n = n;
    memcpy(x.more[x.n_more++].value, value, n);
    return x;
}

static spec with_u32(const spec *s, const char *key, uint32_t v)
{
    return with(s, key, INFER_GGUF_U32, &v, 4);
}

static spec with_f32(const spec *s, const char *key, float v)
{
    return with(s, key, INFER_GGUF_F32, &v, 4);
}

static spec with_bool(const spec *s, const char *key, int v)
{
    return with(s, key, INFER_GGUF_BOOL, &(uint8_t){(uint8_t)v}, 1);
}

static spec with_text(const spec *s, const char *key, const char *v)
{
    infer_buf b = {0};
    put_text(&b, v);
    spec x = with(s, key, INFER_GGUF_STRING, b.p, b.n);
    infer_buf_free(&b);
    return x;
}

static spec with_list(const spec *s, const char *key, uint64_t n, const uint32_t *v)
{
    infer_buf b = {0};
    put32(&b, INFER_GGUF_U32);
    put64(&b, n);
    infer_buf_append(&b, v, n * 4);
    spec x = with(s, key, INFER_GGUF_ARRAY, b.p, b.n);
    infer_buf_free(&b);
    return x;
}

/* ---- Numbers -------------------------------------------------------------------------------------------------- */

static void test_numbers(void **state)
{
    (void)state;
    infer_hparams h = load(&llama);
    assert_string_equal(h.arch->name, "llama");
    assert_int_equal(h.n_layers, 2);
    assert_int_equal(h.n_embd, 32);
    assert_int_equal(h.n_vocab, 10);
    assert_int_equal(h.n_heads, 4);
    assert_int_equal(h.n_kv_heads, 2);
    assert_int_equal(h.head_k, 8);
    assert_int_equal(h.head_v, 8);
    assert_int_equal(h.rope_dims, 8);
    assert_int_equal(h.n_ff, 64);
    assert_int_equal(h.n_ctx_train, 128);
    assert_int_equal(h.window, 0);
    assert_int_equal(h.tied, 0);
    assert_float_equal(h.norm_eps, 1e-5f, 0);
    assert_true(h.rope_base == 10000);
    spec s = llama;
    s.kv_heads = 0; /* absent: as many as heads */
    s.untied = 0;
    s.head_k = 12;
    s.head_v = 6;
    s.rope_dims = 10;
    s.base = 5e5f;
    h = load(&s);
    assert_int_equal(h.n_kv_heads, 4);
    assert_int_equal(h.head_k, 12);
    assert_int_equal(h.head_v, 6);
    assert_int_equal(h.rope_dims, 10);
    assert_int_equal(h.tied, 1);
    assert_true(h.rope_base == 5e5);
    s = with_u32(&llama, "attention.sliding_window", 32);
    assert_int_equal(load(&s).window, 32);
    s = llama;
    s.arch = "qwen3moe";
    s.experts = 4;
    s.experts_used = 2;
    s.ff_expert = 16;
    h = load(&s);
    assert_int_equal(h.n_experts, 4);
    assert_int_equal(h.n_experts_used, 2);
    assert_int_equal(h.n_ff_expert, 16);
}

static void test_arrays(void **state)
{
    (void)state;
    const uint32_t same[] = {2, 2}, other[] = {2, 4}, three[] = {2, 2, 2};
    spec base = llama, s;
    base.kv_heads = 0;
    s = with_list(&base, "attention.head_count_kv", 2, same);
    assert_int_equal(load(&s).n_kv_heads, 2);
    s = with_list(&base, "attention.head_count_kv", 2, other);
    refused(&s, INFER_E_UNSUPPORTED, "head_count_kv differs between layers");
    s = with_list(&base, "attention.head_count_kv", 3, three);
    refused(&s, INFER_E_BAD_FILE, "head_count_kv");
    s = with_list(&base, "attention.head_count_kv", 0, three);
    refused(&s, INFER_E_BAD_FILE, "head_count_kv");
}

static void test_wrong_numbers(void **state)
{
    (void)state;
    const struct {
        size_t at;
        uint32_t value;
        infer_status status;
        const char *word;
    } rows[] = {
        {offsetof(spec, layers), 0, INFER_E_BAD_FILE, "no key 'llama.block_count"},
        {offsetof(spec, layers), 5000, INFER_E_BAD_FILE, "llama.block_count"},
        {offsetof(spec, embd), 0, INFER_E_BAD_FILE, "no key 'llama.embedding_length"},
        {offsetof(spec, heads), 0, INFER_E_BAD_FILE, "no key 'llama.attention.head_count"},
        {offsetof(spec, heads), 5, INFER_E_BAD_FILE, "head_count_kv"}, /* 2 does not divide it */
        {offsetof(spec, kv_heads), 3, INFER_E_BAD_FILE, "llama.attention.head_count_kv"},
        {offsetof(spec, head_k), 70000, INFER_E_BAD_FILE, "llama.attention.key_length"},
        {offsetof(spec, head_k), 7, INFER_E_BAD_FILE, "llama.rope.dimension_count"}, /* odd */
        {offsetof(spec, rope_dims), 10, INFER_E_BAD_FILE, "llama.rope.dimension_count"},
        {offsetof(spec, rope_dims), 3, INFER_E_BAD_FILE, "llama.rope.dimension_count"},
        {offsetof(spec, ff), 0, INFER_E_BAD_FILE, "llama.feed_forward_length"},
        {offsetof(spec, ff), 1u << 30, INFER_E_BAD_FILE, "llama.feed_forward_length"},
        {offsetof(spec, ctx), 0, INFER_E_BAD_FILE, "no key 'llama.context_length"},
        {offsetof(spec, no_embd), 1, INFER_E_BAD_FILE, "token_embd.weight"},
        {offsetof(spec, experts), 4, INFER_E_UNSUPPORTED, "llama.expert_count"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        spec s = llama;
        memcpy((char *)&s + rows[i].at, &rows[i].value, 4);
        refused(&s, rows[i].status, rows[i].word);
    }
    spec s = llama;
    s.embd = 30;
    refused(&s, INFER_E_BAD_FILE, "llama.embedding_length");
    s = llama;
    s.eps = 0;
    refused(&s, INFER_E_BAD_FILE, "layer_norm_rms_epsilon");
    const float bad_eps[] = {-1, 2, NAN, INFINITY};
    for (size_t i = 0; i < 4; i++) {
        s.eps = bad_eps[i];
        refused(&s, INFER_E_BAD_FILE, "layer_norm_rms_epsilon");
    }
    s = llama;
    const float bad_base[] = {-1, NAN, INFINITY};
    for (size_t i = 0; i < 3; i++) {
        s.base = bad_base[i];
        refused(&s, INFER_E_BAD_FILE, "rope.freq_base");
    }
    s = llama;
    s.arch = "qwen3moe";
    refused(&s, INFER_E_UNSUPPORTED, "qwen3moe.expert_count = 0");
    s.experts = 4;
    s.experts_used = 5;
    s.ff_expert = 16;
    refused(&s, INFER_E_BAD_FILE, "expert_used_count");
    s.experts_used = 0;
    refused(&s, INFER_E_BAD_FILE, "expert_used_count");
    s.experts_used = 2;
    s.ff_expert = 0;
    refused(&s, INFER_E_BAD_FILE, "feed_forward_length");
    s = llama;
    s.arch = "gpt-x";
    refused(&s, INFER_E_UNSUPPORTED, "architecture \"gpt-x\" is not known (known: llama, qwen2, qwen3, qwen3moe)");
}

/* A key that would change the result is refused by name, unless its value says that it does not. */
static void test_refused_keys(void **state)
{
    (void)state;
    const struct {
        const char *key;
        float good, bad;
    } floats[] = {
        {"attention.scale", 0, 1},          {"attn_logit_softcapping", 0, 30},
        {"final_logit_softcapping", 0, 1},  {"logit_scale", 1, 0.25f},
        {"residual_scale", 1, 0.5f},        {"embedding_scale", 1, 12},
        {"attention.clamp_kqv", 0, 8},      {"expert_weights_scale", 1, 2.5f},
        {"attention.max_alibi_bias", 0, 8}, {"rope.scaling.yarn_ext_factor", 1, 0},
    };
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++) {
        spec s = with_f32(&llama, floats[i].key, floats[i].good);
        load(&s);
        s = with_f32(&llama, floats[i].key, floats[i].bad);
        refused(&s, INFER_E_UNSUPPORTED, floats[i].key);
        s = with_f32(&llama, floats[i].key, NAN);
        refused(&s, INFER_E_UNSUPPORTED, floats[i].key);
    }
    const struct {
        const char *key;
        uint32_t good, bad;
    } numbers[] = {
        {"expert_shared_count", 0, 1},
        {"expert_gating_func", 1, 2},
        {"leading_dense_block_count", 0, 1},
        {"attention.kv_lora_rank", 0, 512},
        {"interleave_moe_layer_step", 1, 2},
        {"pooling_type", 0, 2},
        {"attention.sliding_window_pattern", 0, 6},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        spec s = with_u32(&llama, numbers[i].key, numbers[i].good);
        load(&s);
        s = with_u32(&llama, numbers[i].key, numbers[i].bad);
        refused(&s, INFER_E_UNSUPPORTED, numbers[i].key);
    }
    spec s = with_bool(&llama, "attention.causal", 1);
    load(&s);
    s = with_bool(&llama, "attention.causal", 0);
    refused(&s, INFER_E_UNSUPPORTED, "attention.causal");
    s = with_bool(&llama, "expert_weights_norm", 0);
    refused(&s, INFER_E_UNSUPPORTED, "expert_weights_norm");
    const uint32_t sections[] = {16, 24, 24, 0};
    s = with_list(&llama, "rope.dimension_sections", 4, sections);
    refused(&s, INFER_E_UNSUPPORTED, "rope.dimension_sections");
    s = with_text(&llama, "logit_scale", "much");
    refused(&s, INFER_E_UNSUPPORTED, "logit_scale");
}

static void test_names(void **state)
{
    (void)state;
    char names[160], tight[12];
    infer_arch_names(names, sizeof names);
    assert_string_equal(names, "llama, qwen2, qwen3, qwen3moe");
    infer_arch_names(tight, sizeof tight);
    assert_int_equal(strlen(tight), sizeof tight - 1);
    assert_null(infer_arch_find(INFER_STR("llam")));
    assert_null(infer_arch_find(INFER_STR("llama2")));
    assert_string_equal(infer_arch_find(INFER_STR("qwen2"))->name, "qwen2");
}

/* ---- Weights -------------------------------------------------------------------------------------------------- */

static void test_weights(void **state)
{
    (void)state;
    static const char *const archs[] = {"llama", "qwen2", "qwen3", "qwen3moe"};
    static const uint32_t per_layer[] = {9, 12, 11, 12};
    for (int i = 0; i < 4; i++) {
        spec s = llama;
        s.arch = archs[i];
        if (i == 3) {
            s.experts = 4;
            s.experts_used = 2;
            s.ff_expert = 16;
        }
        file f = open_spec(&s);
        infer_hparams h;
        infer_weight_list l;
        infer_error e = {0};
        assert_int_equal(infer_hparams_load(f.g, &h, &e), INFER_OK);
        if (infer_weights_list(f.g, &h, &l, &e))
            fail_msg("%s: %s", archs[i], e.text);
        assert_int_equal(l.n, 3 + 2 * per_layer[i] + 1); /* and the rope table */
        int32_t k = infer_weights_find(&l, "blk.1.attn_k.weight");
        assert_true(k >= 0);
        assert_int_equal(l.p[k].shape[0], 16);
        assert_int_equal(l.p[k].shape[1], 32);
        k = infer_weights_find(&l, "rope.inv_freq");
        assert_non_null(l.p[k].data);
        assert_null(l.p[k].tensor);
        assert_int_equal(infer_weights_find(&l, "blk.2.attn_k.weight"), -1);
        infer_weight_list_free(&l);
        file_close(&f);
    }
    spec s = llama;
    s.left_out = "blk.1.ffn_down.weight";
    refused(&s, INFER_E_BAD_FILE, "tensor blk.1.ffn_down.weight is missing");
    s = llama;
    s.misshapen = "blk.0.attn_q.weight";
    refused(&s, INFER_E_BAD_FILE, "tensor blk.0.attn_q.weight");
    s = llama;
    s.arch = "qwen2"; /* which must have biases */
    s.left_out = "blk.0.attn_k.bias";
    refused(&s, INFER_E_BAD_FILE, "blk.0.attn_k.bias is missing");
    static const char *const unknown[] = {"blk.0.attn_q_norm.weight", "blk.0.attn_sinks.weight", "blk.7.attn_q.weight",
                                          "rope_factors_long.weight", "output_norm.bias"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        s = llama;
        s.extra_tensor = unknown[i];
        refused(&s, INFER_E_UNSUPPORTED, unknown[i]);
    }
    s = llama;
    s.misshapen = "token_embd.weight"; /* more rows: that is the vocabulary; the output has fewer */
    refused(&s, INFER_E_BAD_FILE, "output.weight");
}

static void test_weights_no_memory(void **state)
{
    (void)state;
    file f = open_spec(&llama);
    infer_hparams h;
    infer_weight_list l;
    assert_int_equal(infer_hparams_load(f.g, &h, NULL), INFER_OK);
    int n = 0;
    for (;; n++) {
        infer_error e = {0};
        infer_alloc_fail_after(n, 0);
        infer_status s = infer_weights_list(f.g, &h, &l, &e);
        if (!infer_alloc_fail_after(-1, 0)) {
            assert_int_equal(s, INFER_OK);
            infer_weight_list_free(&l);
            break;
        }
        assert_int_equal(s, INFER_E_NO_MEMORY);
        assert_non_null(strstr(e.text, "memory"));
    }
    assert_true(n >= 2);
    file_close(&f);
}

/* ---- Rope ----------------------------------------------------------------------------------------------------- */

static void rope(const spec *s, float *freq, float *magnitude)
{
    file f = open_spec(s);
    infer_hparams h;
    infer_error e = {0};
    assert_int_equal(infer_hparams_load(f.g, &h, NULL), INFER_OK);
    if (infer_rope_table(f.g, &h, freq, magnitude, &e))
        fail_msg("%s", e.text);
    file_close(&f);
}

static void rope_refused(const spec *s, infer_status want, const char *word)
{
    file f = open_spec(s);
    infer_hparams h;
    infer_error e = {0};
    float freq[64], magnitude;
    assert_int_equal(infer_hparams_load(f.g, &h, NULL), INFER_OK);
    infer_status st = infer_rope_table(f.g, &h, freq, &magnitude, &e);
    if (st != want || !strstr(e.text, word))
        fail_msg("%s: status %d, \"%s\"", word, st, e.text);
    file_close(&f);
}

static void near(float got, double want)
{
    if (!(fabs((double)got - want) <= 2e-7 * fabs(want))) /* a rounding of float and one of the table's digits */
        fail_msg("%.9g, wanted %.9g", (double)got, want);
}

/* Heads of 64, like the golden values below. */
static spec wide(uint32_t dims, float base)
{
    spec s = llama;
    s.embd = 4 * dims;
    s.base = base;
    return s;
}

static void test_rope_plain(void **state)
{
    (void)state;
    float freq[64], m = 0;
    spec s = wide(64, 0);
    rope(&s, freq, &m);
    assert_float_equal(m, 1, 0);
    for (int i = 0; i < 32; i++) /* each is the one before, divided by base^(2/R) */
        near(freq[i], exp(-i / 32.0 * log(10000)));
    /* fewer dimensions rotate: their own spacing */
    s.rope_dims = 16;
    rope(&s, freq, &m);
    for (int i = 0; i < 8; i++)
        near(freq[i], exp(-i / 8.0 * log(10000)));
}

static void test_rope_linear(void **state)
{
    (void)state;
    /* transformers' "linear", factor 4 */
    static const double want[][2] = {{0, 0.25},
                                     {1, 0.18747355043888092},
                                     {10, 0.014058532193303108},
                                     {21, 0.0005928434547968209},
                                     {31, 3.333803761051968e-05}};
    static const char *const keys[] = {"rope.scaling.factor", "rope.scale_linear"};
    float freq[64], m;
    for (int k = 0; k < 2; k++) {
        spec base = wide(64, 0), s = with_f32(&base, keys[k], 4);
        rope(&s, freq, &m);
        assert_float_equal(m, 1, 0);
        for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
            near(freq[(int)want[i][0]], want[i][1]);
    }
    spec base = wide(64, 0), s;
    const float bad[] = {-1, NAN, INFINITY};
    for (int i = 0; i < 3; i++) {
        s = with_f32(&base, "rope.scaling.factor", bad[i]);
        rope_refused(&s, INFER_E_BAD_FILE, "rope.scaling.factor");
    }
    s = with_f32(&base, "rope.scaling.factor", 0); /* not given */
    rope(&s, freq, &m);
    near(freq[0], 1);
    s = with_text(&base, "rope.scaling.type", "longrope");
    rope_refused(&s, INFER_E_UNSUPPORTED, "longrope");
    s = with_text(&base, "rope.scaling.type", "linear"); /* without a factor */
    rope(&s, freq, &m);
    near(freq[0], 1);
}

static spec yarn(uint32_t dims, float base, float factor, uint32_t orig)
{
    spec s = wide(dims, base), t = with_text(&s, "rope.scaling.type", "yarn");
    s = with_f32(&t, "rope.scaling.factor", factor);
    return with_u32(&s, "rope.scaling.original_context_length", orig);
}

/* What transformers 5.24 computes for these settings, in float32. */
static void test_rope_yarn(void **state)
{
    (void)state;
    static const struct {
        uint32_t dims;
        float base, factor;
        uint32_t orig;
        double magnitude;
        double want[8][2];
    } rows[] = {
        {128,
         1e6f,
         4,
         32768,
         1.138629436111989,
         {{0, 1.0},
          {1, 0.8058422207832336},
          {16, 0.03162277862429619},
          {21, 0.010746078565716743},
          {32, 0.0006029411451891065},
          {42, 2.8869548259535804e-05},
          {48, 7.905693564680405e-06},
          {63, 3.102344408034696e-07}}},
        {64,
         1e4f,
         16,
         4096,
         1.2772588722239782,
         {{0, 1.0},
          {1, 0.7498942017555237},
          {8, 0.10000000149011612},
          {10, 0.05623412877321243},
          {16, 0.005673076957464218},
          {21, 0.0004902359214611351},
          {24, 6.25000029685907e-05},
          {31, 8.33450940262992e-06}}},
        {80,
         5e5f,
         2.5f,
         1000,
         1.0916290731874154,
         {{0, 1.0},
          {1, 0.720320463180542},
          {10, 0.02632422186434269},
          {13, 0.00773032009601593},
          {20, 0.0005656853900291026},
          {26, 7.901865319581702e-05},
          {30, 2.127318293787539e-05},
          {39, 1.1106163810836733e-06}}},
    };
    float freq[64], m;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        spec s = yarn(rows[r].dims, rows[r].base, rows[r].factor, rows[r].orig);
        rope(&s, freq, &m);
        near(m, rows[r].magnitude);
        for (int i = 0; i < 8; i++)
            /* float32 powers there: two more roundings */
            assert_true(fabs((double)freq[(int)rows[r].want[i][0]] / rows[r].want[i][1] - 1) < 5e-7);
        /* its own factor on the magnitude */
        s = with_f32(&s, "rope.scaling.attn_factor", 0.5f);
        rope(&s, freq, &m);
        near(m, rows[r].magnitude / 2);
    }
    /* no original context: the training context; and a factor of one changes nothing */
    spec s = wide(64, 0);
    s.ctx = 4096;
    spec t = with_text(&s, "rope.scaling.type", "yarn");
    s = with_f32(&t, "rope.scaling.factor", 16);
    rope(&s, freq, &m);
    assert_true(fabs((double)freq[16] / 0.005673076957464218 - 1) < 5e-7);
    s = yarn(64, 1e4f, 1, 4096);
    rope(&s, freq, &m);
    assert_float_equal(m, 1, 0);
    for (int i = 0; i < 32; i++)
        near(freq[i], exp(-i / 32.0 * log(10000)));
    s = yarn(64, 1e4f, 4, 4096);
    t = with_f32(&s, "rope.scaling.yarn_beta_fast", -1);
    rope_refused(&t, INFER_E_BAD_FILE, "YaRN");
    t = with_f32(&s, "rope.scaling.attn_factor", NAN);
    rope_refused(&t, INFER_E_BAD_FILE, "YaRN");
    s = yarn(64, 1e4f, 4, 0);
    rope_refused(&s, INFER_E_BAD_FILE, "YaRN");
    /* with the type "none" a factor is not used */
    s = wide(64, 0);
    t = with_text(&s, "rope.scaling.type", "none");
    s = with_f32(&t, "rope.scaling.factor", 4);
    rope(&s, freq, &m);
    near(freq[0], 1);
}

/* Llama 3's rule comes as divisors of the frequencies. The file's are made by wavelength (low_freq_factor 1,
 * high_freq_factor 4, old context 8192, factor 32); transformers interpolates frequencies instead. */
static void test_rope_llama3(void **state)
{
    (void)state;
    static const double want[][2] = {{0, 1.0},
                                     {1, 0.8146172165870667},
                                     {16, 0.03760603070259094},
                                     {21, 0.013490419834852219},
                                     {32, 0.000429556705057621},
                                     {42, 5.687232260243036e-06},
                                     {48, 1.6619674170215148e-06},
                                     {63, 7.672314694673332e-08}};
    const double pi = 3.14159265358979323846;
    float divisors[64], freq[64], m;
    for (int i = 0; i < 64; i++) {
        double length = 2 * pi * pow(5e5, 2 * i / 128.0);
        if (length < 8192 / 4.0)
            divisors[i] = 1;
        else if (length > 8192)
            divisors[i] = 32;
        else {
            double smooth = (8192 / length - 1) / (4 - 1);
            divisors[i] = (float)(1 / ((1 - smooth) / 32 + smooth));
        }
    }
    spec s = wide(128, 5e5f);
    s.rope_freqs = divisors;
    s.n_rope_freqs = 64;
    rope(&s, freq, &m);
    assert_float_equal(m, 1, 0);
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
        assert_true(fabs((double)freq[(int)want[i][0]] / want[i][1] - 1) < 5e-7);
    /* with linear scaling besides */
    spec t = with_f32(&s, "rope.scaling.factor", 2);
    rope(&t, freq, &m);
    assert_true(fabs((double)freq[21] / (0.013490419834852219 / 2) - 1) < 5e-7);
    s.n_rope_freqs = 63;
    rope_refused(&s, INFER_E_BAD_FILE, "must be f32[64]");
    s.n_rope_freqs = 64;
    const float bad[] = {0, -1, NAN, INFINITY};
    for (int i = 0; i < 4; i++) {
        divisors[5] = bad[i];
        rope_refused(&s, INFER_E_BAD_FILE, "entry 5");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_wrong_numbers),
        cmocka_unit_test(test_refused_keys),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_weights_no_memory),
        cmocka_unit_test(test_rope_plain),
        cmocka_unit_test(test_rope_linear),
        cmocka_unit_test(test_rope_yarn),
        cmocka_unit_test(test_rope_llama3),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
