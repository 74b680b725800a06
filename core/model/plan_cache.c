/* The cache of a plan: formats, what the devices need of blocks, how many there are, and where planes lie.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <strings.h>

#include "base/checked.h"
#include "model/plan.h"
#include "quant/quant.h"

/* Types of cached numbers by every name that people give them: this runtime's and llama.cpp's, then vLLM's, and what
 * either is known as. */
static const struct {
    const char *name;
    infer_format format;
} cache_types[] = {
    {"f16", INFER_FMT_F16},          {"f32", INFER_FMT_F32},     {"bf16", INFER_FMT_BF16},
    {"f8_e4m3", INFER_FMT_F8_E4M3},  {"q8_0", INFER_FMT_Q8_0},   {"q4_0", INFER_FMT_Q4_0},
    {"auto", INFER_FMT_F16},         {"fp16", INFER_FMT_F16},    {"float16", INFER_FMT_F16},
    {"fp32", INFER_FMT_F32},         {"float32", INFER_FMT_F32}, {"bfloat16", INFER_FMT_BF16},
    {"fp8_e4m3", INFER_FMT_F8_E4M3}, {"fp8", INFER_FMT_F8_E4M3}, {"int8", INFER_FMT_Q8_0},
    {"int4", INFER_FMT_Q4_0},
};

/* width: of the heads whose numbers are cached so. */
static infer_status kv_format(const char *name, const char *flag, const char *what, uint32_t width, infer_format *out,
                              infer_error *err)
{
    size_t i = 0, n = sizeof cache_types / sizeof cache_types[0];
    while (name && i < n && strcasecmp(cache_types[i].name, name))
        i++;
    if (i == n)
        return infer_error_set(err, INFER_E_INVALID,
                               "%s %s: give f32, f16 (auto), bf16, f8_e4m3 (fp8), q8_0 (int8) or q4_0 (int4)", flag,
                               name);
    const infer_format_info *f = infer_format_get(cache_types[i].format);
    if (width % f->block_elems)
        return infer_error_set(err, INFER_E_INVALID,
                               "%s %s: the model's %s have %u values a head, %s goes by blocks of %u: f8_e4m3 is the "
                               "smallest type that fits",
                               flag, name, what, width, f->name, f->block_elems);
    *out = f->id;
    return INFER_OK;
}

infer_status infer_plan_cache_formats(infer_plan *p, infer_error *err)
{
    const infer_hparams *h = &p->file->hp;
    INFER_TRY(kv_format(p->opt.cache_type_k, "-ctk", "keys", h->head_k, &p->dec.k_format, err));
    return kv_format(p->opt.cache_type_v, "-ctv", "values", h->head_v, &p->dec.v_format, err);
}

static void spec_of(const infer_plan *p, int32_t dev, infer_kv_spec *s)
{
    const infer_hparams *h = &p->file->hp;
    *s = (infer_kv_spec){.struct_size = sizeof *s,
                         .kind = h->window ? INFER_GROUP_WINDOW : INFER_GROUP_FULL,
                         .n_heads = h->n_kv_heads,
                         .n_planes = 2,
                         .window = h->window,
                         .planes = {{p->dec.k_format, h->head_k, 1, 0}, {p->dec.v_format, h->head_v, 1, 0}}};
    for (uint32_t l = 0; l < h->n_layers; l++)
        s->n_layers += p->kv_home[l] == dev;
}

static uint64_t gcd(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t t = a % b;
        a = b;
        b = t;
    }
    return a;
}

/* What the devices that hold cache ask of blocks, together. */
typedef struct needs {
    uint64_t lcm, best, max; /* max 0: no bound */
} needs;

/* Asks each device once; *moved: a refusal sent layers to the host, so that it must be asked again. */
static infer_status ask_devices(infer_plan *p, needs *n, int *moved, infer_error *err)
{
    *n = (needs){.lcm = 1};
    *moved = 0;
    for (uint32_t i = 0; i < p->n_devs; i++) {
        infer_plan_dev *d = &p->devs[i];
        infer_kv_answer *a = &d->kv_answer;
        infer_kv_spec s;
        spec_of(p, (int32_t)i, &s);
        *a = (infer_kv_answer){.struct_size = sizeof *a};
        if (!s.n_layers)
            continue;
        INFER_TRY(infer_hal_kv_query(d->dev, &s, a, err));
        if (a->level == INFER_LEVEL_NO) {
            infer_op_answer why = {.why = a->why, .which = a->which};
            char text[80];
            infer_answer_reason(&why, text, sizeof text);
            if ((int32_t)i == p->target.host || p->target.host < 0)
                return infer_error_set(err, INFER_E_UNSUPPORTED, "%s cannot hold a cache of these types (%s)",
                                       infer_hal_dev_id(d->dev), text);
            for (uint32_t l = 0; l < p->file->hp.n_layers; l++)
                if (p->kv_home[l] == (int32_t)i)
                    p->kv_home[l] = p->target.host;
            infer_plan_reason(p, "the cache of %s lies on the host: it cannot hold these types (%s)",
                              infer_hal_dev_id(d->dev), text);
            *moved = 1;
            continue;
        }
        n->lcm = n->lcm / gcd(n->lcm, a->block_multiple) * a->block_multiple;
        if (n->lcm > 65536)
            return infer_error_set(err, INFER_E_UNSUPPORTED, "plan: the devices' cache blocks have no common size");
        n->best = a->block_best > n->best ? a->block_best : n->best;
        if (a->block_max && (!n->max || a->block_max < n->max))
            n->max = a->block_max;
    }
    return INFER_OK;
}

/* A block's bytes in proportion to those that the device named. */
static infer_status scale_blocks(infer_plan *p, infer_error *err)
{
    for (uint32_t i = 0; i < p->n_devs; i++) {
        infer_plan_dev *d = &p->devs[i];
        for (int k = 0; k < 4; k++) {
            uint64_t all;
            d->block_bytes[k] = 0;
            if (!d->kv_answer.block_best)
                continue;
            if (!infer_mul_u64(d->kv_answer.block_bytes[k], p->block_size, &all) || all % d->kv_answer.block_best)
                return infer_error_set(err, INFER_E_UNSUPPORTED, "%s: blocks of %u tokens have no whole size",
                                       infer_hal_dev_id(d->dev), p->block_size);
            d->block_bytes[k] = all / d->kv_answer.block_best;
        }
    }
    for (uint32_t l = 0; l < p->file->hp.n_layers; l++)
        p->kv_layout[l] = p->devs[p->kv_home[l]].kv_answer.layout;
    return INFER_OK;
}

infer_status infer_plan_cache_negotiate(infer_plan *p, infer_error *err)
{
    needs n;
    int moved = 1;
    while (moved) /* each turn but the last empties a device */
        INFER_TRY(ask_devices(p, &n, &moved, err));
    if (p->opt.block_size) {
        if (p->opt.block_size % n.lcm || (n.max && p->opt.block_size > n.max))
            return infer_error_set(err, INFER_E_INVALID, "--block-size %u: the devices need a multiple of %llu%s",
                                   p->opt.block_size, (unsigned long long)n.lcm, n.max ? " within their largest" : "");
        p->block_size = p->opt.block_size;
    } else {
        uint64_t size = n.best > n.lcm ? n.best : n.lcm;
        size = (size + n.lcm - 1) / n.lcm * n.lcm;
        if (n.max && size > n.max)
            size = n.max / n.lcm * n.lcm;
        if (!size)
            return infer_error_set(err, INFER_E_UNSUPPORTED, "plan: the devices' cache blocks have no common size");
        p->block_size = (uint32_t)size;
    }
    return scale_blocks(p, err);
}

uint64_t infer_plan_cache_per_seq(const infer_plan *p)
{
    return ((uint64_t)p->opt.ctx_size + p->block_size - 1) / p->block_size;
}

infer_status infer_plan_cache_block_bytes(const infer_plan *p, uint64_t *bytes)
{
    *bytes = 0;
    for (uint32_t l = 0; l < p->file->hp.n_layers; l++)
        for (int k = 0; k < 4; k++)
            if (!infer_add_u64(*bytes, p->devs[p->kv_home[l]].block_bytes[k], bytes))
                return INFER_E_TOO_LARGE;
    return INFER_OK;
}

infer_status infer_plan_cache_size(infer_plan *p, infer_error *err)
{
    uint64_t per_seq = infer_plan_cache_per_seq(p), want = per_seq * p->opt.n_parallel, all;
    if (infer_plan_cache_block_bytes(p, &all) != INFER_OK || !all)
        return infer_error_set(err, INFER_E_TOO_LARGE, "cache: a block of %u tokens is larger than can be addressed",
                               p->block_size);
    if (p->opt.kv_cache_memory)
        want = p->opt.kv_cache_memory / all;
    if (want < per_seq) {
        unsigned long long tokens = (unsigned long long)want * p->block_size;
        char smaller[64] = "";
        if (tokens)
            snprintf(smaller, sizeof smaller, "use -c %llu or ", tokens);
        return infer_error_set(err, INFER_E_NO_FIT,
                               "cache: %llu bytes hold %llu tokens, one request of %u does not fit: %sgive %llu bytes",
                               (unsigned long long)p->opt.kv_cache_memory, tokens, p->opt.ctx_size, smaller,
                               (unsigned long long)(per_seq * all));
    }
    if (p->block_limit && want > p->block_limit)
        want = p->block_limit;
    if (want > INT32_MAX / p->block_size)
        return infer_error_set(err, INFER_E_TOO_LARGE, "cache: %llu tokens are too many, at most %d are possible",
                               (unsigned long long)want * p->block_size, INT32_MAX);
    p->n_blocks = (uint32_t)want;
    return INFER_OK;
}

infer_status infer_plan_cache_lay_out(infer_plan *p, infer_error *err)
{
    uint32_t count[INFER_GRAPH_MAX_DEVS] = {0};
    for (uint32_t l = 0; l < p->file->hp.n_layers; l++)
        p->kv_index[l] = (int32_t)count[p->kv_home[l]]++;
    for (uint32_t i = 0; i < p->n_devs; i++) {
        infer_plan_dev *d = &p->devs[i];
        infer_kv_spec s;
        spec_of(p, (int32_t)i, &s);
        uint32_t align = d->kv_answer.align > 256 ? d->kv_answer.align : 256;
        if (infer_kv_layout_make(&s, p->block_size, p->n_blocks, align, d->block_bytes, &d->kv) != INFER_OK)
            return infer_error_set(err, INFER_E_TOO_LARGE, "cache: larger than can be addressed");
        d->ledger[INFER_LEDGER_KV] = d->kv.total_bytes;
    }
    return INFER_OK;
}
