/* mkmodel: writes a GGUF file of a given shape and type with random weights, for tests and measurements of speed. The
 * same arguments give the same bytes. Memory used does not depend on the model's size. It trains nothing: the text such
 * a model writes is noise. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "mkmodel.h"
#include "model/gguf_recipe.h"
#include "quant/quant.h"

enum { CHUNK = 1 << 20 }; /* elements a write, a multiple of every block */

typedef struct options {
    model_shape shape;
    const infer_gguf_recipe *recipe;
    const char *vocab_path, *out;
    uint64_t seed;
} options;

/* One tensor to be written; value NAN: random. */
typedef struct tensor {
    char name[64];
    infer_format format;
    uint64_t n;
    float value;
} tensor;

typedef struct maker {
    const options *o;
    infer_gguf_recipe_facts facts;
    infer_gguf_writer *w;
    tensor *tensors;
    uint32_t n, cap;
    infer_status status; /* of the first tensor that failed */
    infer_error *err;
} maker;

/* Adds "blk.LAYER.NAME" (layer < 0: NAME) of shape dims; zero dims end it. */
static void add(maker *m, int64_t layer, const char *name, float value, uint64_t d0, uint64_t d1, uint64_t d2)
{
    if (m->status != INFER_OK)
        return;
    if (m->n == m->cap) {
        uint32_t cap = m->cap ? m->cap * 2 : 64;
        tensor *p = infer_realloc_array(m->tensors, cap, sizeof *p);
        if (!p) {
            m->status = infer_error_set(m->err, INFER_E_NO_MEMORY, "no memory for %u tensors", cap);
            return;
        }
        m->tensors = p;
        m->cap = cap;
    }
    tensor *t = &m->tensors[m->n++];
    const uint64_t dims[3] = {d0, d1, d2};
    uint32_t rank = d2 ? 3 : d1 ? 2 : 1;
    if (layer < 0)
        snprintf(t->name, sizeof t->name, "%s", name);
    else
        snprintf(t->name, sizeof t->name, "blk.%lld.%s", (long long)layer, name);
    t->format = infer_gguf_recipe_format(m->o->recipe, &m->facts, t->name, rank, dims);
    t->n = d0 * (d1 ? d1 : 1) * (d2 ? d2 : 1);
    t->value = value;
    m->status = infer_gguf_writer_tensor(m->w, t->name, t->format, rank, dims, m->err);
}

static void add_layer(maker *m, uint32_t i)
{
    const model_shape *s = &m->o->shape;
    uint64_t q = (uint64_t)s->heads * s->head_dim, kv = (uint64_t)s->kv_heads * s->head_dim;
    int qwen2 = !strcmp(s->arch, "qwen2"), qk_norm = !strncmp(s->arch, "qwen3", 5);
    add(m, i, "attn_norm.weight", 1, s->dim, 0, 0);
    add(m, i, "attn_q.weight", NAN, s->dim, q, 0);
    add(m, i, "attn_k.weight", NAN, s->dim, kv, 0);
    add(m, i, "attn_v.weight", NAN, s->dim, kv, 0);
    if (qwen2) {
        add(m, i, "attn_q.bias", NAN, q, 0, 0);
        add(m, i, "attn_k.bias", NAN, kv, 0, 0);
        add(m, i, "attn_v.bias", NAN, kv, 0, 0);
    }
    if (qk_norm) {
        add(m, i, "attn_q_norm.weight", 1, s->head_dim, 0, 0);
        add(m, i, "attn_k_norm.weight", 1, s->head_dim, 0, 0);
    }
    add(m, i, "attn_output.weight", NAN, q, s->dim, 0);
    add(m, i, "ffn_norm.weight", 1, s->dim, 0, 0);
    if (!strcmp(s->arch, "qwen3moe")) {
        add(m, i, "ffn_gate_inp.weight", NAN, s->dim, s->experts, 0);
        add(m, i, "ffn_gate_exps.weight", NAN, s->dim, s->moe_ffn, s->experts);
        add(m, i, "ffn_up_exps.weight", NAN, s->dim, s->moe_ffn, s->experts);
        add(m, i, "ffn_down_exps.weight", NAN, s->moe_ffn, s->dim, s->experts);
    } else {
        add(m, i, "ffn_gate.weight", NAN, s->dim, s->ffn, 0);
        add(m, i, "ffn_up.weight", NAN, s->dim, s->ffn, 0);
        add(m, i, "ffn_down.weight", NAN, s->ffn, s->dim, 0);
    }
}

/* The divisor of each rotation's frequency (Llama 3 rope scaling, as transformers' modeling_rope_utils). */
static float rope_divisor(const model_shape *s, uint32_t i)
{
    double wavelength = 2 * 3.14159265358979323846 * pow(s->rope_theta, 2.0 * i / s->head_dim);
    if (wavelength < s->rope_original / s->rope_high)
        return 1;
    if (wavelength > s->rope_original / s->rope_low)
        return (float)s->rope_factor;
    double smooth = (s->rope_original / wavelength - s->rope_low) / (s->rope_high - s->rope_low);
    return (float)(1 / ((1 - smooth) / s->rope_factor + smooth));
}

static void add_tensors(maker *m)
{
    const model_shape *s = &m->o->shape;
    add(m, -1, "token_embd.weight", NAN, s->dim, s->vocab, 0);
    add(m, -1, "output_norm.weight", 1, s->dim, 0, 0);
    if (!s->tied)
        add(m, -1, "output.weight", NAN, s->dim, s->vocab, 0);
    if (s->rope_factor > 0)
        add(m, -1, "rope_freqs.weight", 0, s->head_dim / 2, 0, 0);
    for (uint32_t i = 0; i < s->layers; i++)
        add_layer(m, i);
}

static void put_u32(infer_gguf_writer *w, const char *arch, const char *key, uint32_t v)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", arch, key);
    infer_gguf_writer_u32(w, full, v);
}

static void put_f32(infer_gguf_writer *w, const char *arch, const char *key, double v)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", arch, key);
    infer_gguf_writer_f32(w, full, (float)v);
}

static void put_keys(infer_gguf_writer *w, const options *o)
{
    const model_shape *s = &o->shape;
    infer_gguf_writer_string(w, "general.architecture", infer_str_of(s->arch, strlen(s->arch)));
    infer_gguf_writer_string(w, "general.type", INFER_STR("model"));
    infer_gguf_writer_string(w, "general.name", infer_str_of(s->name, strlen(s->name)));
    infer_gguf_writer_u32(w, "general.file_type", infer_gguf_recipe_file_type(o->recipe));
    infer_gguf_writer_u32(w, "general.quantization_version", 2);
    put_u32(w, s->arch, "block_count", s->layers);
    put_u32(w, s->arch, "context_length", s->max_position);
    put_u32(w, s->arch, "embedding_length", s->dim);
    put_u32(w, s->arch, "feed_forward_length", s->ffn);
    put_u32(w, s->arch, "attention.head_count", s->heads);
    put_u32(w, s->arch, "attention.head_count_kv", s->kv_heads);
    put_u32(w, s->arch, "attention.key_length", s->head_dim);
    put_u32(w, s->arch, "attention.value_length", s->head_dim);
    put_f32(w, s->arch, "attention.layer_norm_rms_epsilon", s->norm_eps);
    put_f32(w, s->arch, "rope.freq_base", s->rope_theta);
    put_u32(w, s->arch, "rope.dimension_count", s->head_dim);
    put_u32(w, s->arch, "vocab_size", s->vocab);
    if (!strcmp(s->arch, "qwen3moe")) {
        put_u32(w, s->arch, "expert_count", s->experts);
        put_u32(w, s->arch, "expert_used_count", s->experts_used);
        put_u32(w, s->arch, "expert_feed_forward_length", s->moe_ffn);
    }
}

static infer_status write_tensor(maker *m, const tensor *t, random_bits *r, uint8_t *chunk)
{
    const infer_format_info *f = infer_format_get(t->format);
    for (uint64_t done = 0; done < t->n;) {
        uint64_t n = t->n - done < CHUNK ? t->n - done : CHUNK;
        if (isnan(t->value)) {
            infer_status s = fill_random(t->format, r, chunk, n);
            if (s != INFER_OK)
                return infer_error_set(m->err, s, "no random blocks for %s (%s)", f->name, t->name);
        } else {
            for (uint64_t i = 0; i < n; i++) {
                float v = t->value != 0 ? t->value : rope_divisor(&m->o->shape, (uint32_t)(done + i));
                memcpy(chunk + 4 * i, &v, 4);
            }
        }
        INFER_TRY(infer_gguf_writer_data(m->w, chunk, (size_t)(n / f->block_elems * f->block_bytes), m->err));
        done += n;
    }
    return INFER_OK;
}

static infer_status make(const options *o, infer_error *err)
{
    const model_shape *s = &o->shape;
    maker m = {.o = o, .err = err, .facts = {s->layers, s->heads, s->kv_heads, s->experts, s->tied}};
    infer_gguf *vocab = NULL;
    uint8_t *chunk = infer_malloc(CHUNK * sizeof(float));
    infer_status st = chunk ? INFER_OK : infer_error_set(err, INFER_E_NO_MEMORY, "no memory");
    if (st == INFER_OK && o->vocab_path)
        st = infer_gguf_open(o->vocab_path, &vocab, err);
    if (st == INFER_OK)
        st = infer_gguf_writer_create(o->out, &m.w, err);
    if (st == INFER_OK) {
        put_keys(m.w, o);
        st = vocab_write(m.w, vocab, s->arch, s->vocab, err);
    }
    if (st == INFER_OK) {
        add_tensors(&m);
        st = m.status;
    }
    for (uint32_t i = 0; st == INFER_OK && i < m.n; i++) {
        random_bits r;
        random_seed(&r, o->seed * 1000003u + i);
        st = write_tensor(&m, &m.tensors[i], &r, chunk);
    }
    if (st == INFER_OK)
        st = infer_gguf_writer_finish(m.w, err);
    infer_gguf_writer_destroy(m.w);
    infer_gguf_close(vocab);
    infer_free(m.tensors);
    infer_free(chunk);
    return st;
}

/* ---- Arguments ----------------------------------------------------------------------------------------------- */

static const model_shape tiny = {
    .name = "tiny",
    .arch = "llama",
    .layers = 2,
    .dim = 64,
    .heads = 4,
    .kv_heads = 2,
    .head_dim = 16,
    .ffn = 128,
    .vocab = 320,
    .max_position = 512,
    .experts = 4,
    .experts_used = 2,
    .moe_ffn = 64,
    .rope_theta = 10000,
    .norm_eps = 1e-5,
};

static void usage(FILE *f)
{
    fputs("usage: mkmodel (--shape NAME | --tiny) [OPTION]... OUT.gguf\n"
          "Writes a model file with random weights.\n\n"
          "  --shape NAME        a published model's shape, e.g. Llama-3.2-1B\n"
          "  --data FILE         the list of shapes (default: $INFER_TEST_DATA/model-shapes.json)\n"
          "  --list              print the shapes in it\n"
          "  --tiny              a small shape to start from\n"
          "  --type T            f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k_{s,m,l} q4_k_{s,m} q5_k_{s,m} q6_k\n"
          "                      mxfp4_moe (default q8_0)\n"
          "  --vocab FILE        take the tokenizer of this GGUF file\n"
          "  --seed N            (default 1)\n"
          "Single values: --arch {llama,qwen2,qwen3,qwen3moe} --layers --dim --heads --kv-heads --head-dim --ffn\n"
          "  --vocab-size --ctx --experts --experts-used --moe-ffn --rope-theta --eps --tied {0,1}\n"
          "  --rope-llama3 FACTOR\n",
          f);
}

/* A whole number in [1, INT32_MAX] (lo: the least). */
static int parse_u32(const char *text, uint32_t lo, uint32_t *v)
{
    char *end;
    errno = 0;
    long long x = strtoll(text, &end, 10);
    if (errno || end == text || *end || x < lo || x > INT32_MAX)
        return 0;
    *v = (uint32_t)x;
    return 1;
}

static int parse_double(const char *text, double *v)
{
    char *end;
    double x = strtod(text, &end);
    if (end == text || *end || !(x > 0) || !isfinite(x))
        return 0;
    *v = x;
    return 1;
}

static infer_status check(const model_shape *s, infer_error *err)
{
    static const char *const archs[] = {"llama", "qwen2", "qwen3", "qwen3moe"};
    int known = 0, moe = !strcmp(s->arch, "qwen3moe");
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++)
        known |= !strcmp(s->arch, archs[i]);
    if (!known)
        return infer_error_set(err, INFER_E_UNSUPPORTED,
                               "architecture '%s' is not one of llama, qwen2, qwen3, qwen3moe", s->arch);
    if (!s->layers || !s->dim || !s->heads || !s->kv_heads || !s->ffn || !s->vocab || !s->max_position ||
        s->heads % s->kv_heads || s->head_dim % 2 || !s->head_dim || !(s->rope_theta > 0) || !(s->norm_eps > 0))
        return infer_error_set(
            err, INFER_E_INVALID,
            "the shape is incomplete or odd: %u layers, dim %u, %u heads of %u, %u kv heads, ffn %u, "
            "vocab %u, context %u",
            s->layers, s->dim, s->heads, s->head_dim, s->kv_heads, s->ffn, s->vocab, s->max_position);
    if (moe && (!s->experts || !s->experts_used || !s->moe_ffn || s->experts_used > s->experts))
        return infer_error_set(err, INFER_E_INVALID, "%u experts of ffn %u with %u used make no sense", s->experts,
                               s->moe_ffn, s->experts_used);
    return INFER_OK;
}

enum { OPT_U32 = 256 };

/* 0: go on; else an exit code plus one. */
static int parse(int argc, char **argv, options *o, infer_error *err)
{
    enum { SHAPE = 'a', DATA, LIST, TINY, TYPE, VOCAB, SEED, ARCH, THETA, EPS, TIED, ROPE, HELP };
    model_shape *s = &o->shape, set = {0};
    const struct {
        const char *name;
        uint32_t *from, *to;
    } numbers[] = {
        {"layers", &set.layers, &s->layers},       {"dim", &set.dim, &s->dim},
        {"heads", &set.heads, &s->heads},          {"kv-heads", &set.kv_heads, &s->kv_heads},
        {"head-dim", &set.head_dim, &s->head_dim}, {"ffn", &set.ffn, &s->ffn},
        {"vocab-size", &set.vocab, &s->vocab},     {"ctx", &set.max_position, &s->max_position},
        {"experts", &set.experts, &s->experts},    {"experts-used", &set.experts_used, &s->experts_used},
        {"moe-ffn", &set.moe_ffn, &s->moe_ffn},
    };
    enum { N_NUMBERS = sizeof numbers / sizeof numbers[0] };
    struct option longs[32] = {
        {"shape", 1, NULL, SHAPE}, {"data", 1, NULL, DATA}, {"list", 0, NULL, LIST},
        {"tiny", 0, NULL, TINY},   {"type", 1, NULL, TYPE}, {"vocab", 1, NULL, VOCAB},
        {"seed", 1, NULL, SEED},   {"arch", 1, NULL, ARCH}, {"rope-theta", 1, NULL, THETA},
        {"eps", 1, NULL, EPS},     {"tied", 1, NULL, TIED}, {"rope-llama3", 1, NULL, ROPE},
        {"help", 0, NULL, HELP},
    };
    for (int i = 0; i < N_NUMBERS; i++)
        longs[13 + i] = (struct option){numbers[i].name, 1, NULL, OPT_U32 + i};
    const char *shape = NULL, *data = NULL, *type = "q8_0", *arch = NULL;
    int list = 0, is_tiny = 0, c, ok = 1, at = 0;
    uint32_t seed = 1, tied = 2;
    double theta = 0, eps = 0, rope = 0;
    while ((c = getopt_long(argc, argv, "", longs, &at)) != -1) {
        switch (c) {
        case SHAPE:
            shape = optarg;
            break;
        case DATA:
            data = optarg;
            break;
        case LIST:
            list = 1;
            break;
        case TINY:
            is_tiny = 1;
            break;
        case TYPE:
            type = optarg;
            break;
        case VOCAB:
            o->vocab_path = optarg;
            break;
        case SEED:
            ok = parse_u32(optarg, 0, &seed);
            break;
        case ARCH:
            arch = optarg;
            break;
        case THETA:
            ok = parse_double(optarg, &theta);
            break;
        case EPS:
            ok = parse_double(optarg, &eps);
            break;
        case TIED:
            ok = parse_u32(optarg, 0, &tied) && tied < 2;
            break;
        case ROPE:
            ok = parse_double(optarg, &rope);
            break;
        case HELP:
            usage(stdout);
            return 1;
        default:
            if (c < OPT_U32) {
                usage(stderr);
                return 3;
            }
            ok = parse_u32(optarg, 1, numbers[c - OPT_U32].from);
        }
        if (!ok) {
            fprintf(stderr, "mkmodel: --%s: '%s' is out of range\n", longs[at].name, optarg);
            return 3;
        }
    }
    char path[4096];
    const char *root = getenv("INFER_TEST_DATA");
    snprintf(path, sizeof path, "%s/model-shapes.json", root ? root : ".");
    if (!root && !data && (list || shape)) {
        infer_error_set(err, INFER_E_NOT_FOUND, "no list of shapes: set INFER_TEST_DATA or give --data FILE");
        return 2;
    }
    if (list)
        return shape_find(data ? data : path, NULL, s, err) == INFER_OK ? 1 : 2;
    if (optind + 1 != argc || !shape == !is_tiny) {
        usage(stderr);
        return 3;
    }
    o->out = argv[optind];
    o->seed = seed;
    if (is_tiny)
        *s = tiny;
    else if (shape_find(data ? data : path, shape, s, err) != INFER_OK)
        return 2;
    for (int i = 0; i < N_NUMBERS; i++)
        if (*numbers[i].from)
            *numbers[i].to = *numbers[i].from;
    if (arch)
        snprintf(s->arch, sizeof s->arch, "%s", arch);
    if (strcmp(s->arch, "qwen3moe"))
        s->experts = s->experts_used = s->moe_ffn = 0;
    if (!set.head_dim && (set.dim || set.heads))
        s->head_dim = s->dim / s->heads;
    s->rope_theta = theta > 0 ? theta : s->rope_theta;
    s->norm_eps = eps > 0 ? eps : s->norm_eps;
    s->tied = tied < 2 ? (int)tied : s->tied;
    if (rope > 0) {
        s->rope_factor = rope;
        s->rope_low = 1;
        s->rope_high = 4;
        s->rope_original = 8192;
    }
    o->recipe = infer_gguf_recipe_by_name(type);
    if (!o->recipe) {
        infer_error_set(err, INFER_E_INVALID, "unknown type '%s'", type);
        return 2;
    }
    return check(s, err) == INFER_OK ? 0 : 2;
}

int main(int argc, char **argv)
{
    options o = {.seed = 1};
    infer_error err = {0};
    uint64_t start = infer_clock_ns();
    int code = parse(argc, argv, &o, &err);
    if (code == 0 && make(&o, &err) == INFER_OK) {
        printf("%s: %s, %s, %.1f s\n", o.out, o.shape.name, infer_gguf_recipe_name(o.recipe),
               (double)(infer_clock_ns() - start) * 1e-9);
        return 0;
    }
    if (err.text[0])
        fprintf(stderr, "mkmodel: %s\n", err.text);
    return code ? code - 1 : 1;
}
