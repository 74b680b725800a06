/* Plans: options to devices, layers, cache pool, graph and ledger. Loads nothing. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "model/private.h"
#include "place/place.h"
#include "quant/quant.h"

static void reason(infer_plan *p, const char *fmt, ...) INFER_PRINTF(2, 3);
static void reason(infer_plan *p, const char *fmt, ...)
{
    if (p->n_reasons == sizeof p->reasons / sizeof p->reasons[0])
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p->reasons[p->n_reasons++], sizeof p->reasons[0], fmt, ap);
    va_end(ap);
}

/* ---- Weights ------------------------------------------------------------------------------------------------ */

static void weight_desc_of(const infer_weight_src *w, infer_op_id use, infer_weight_desc *d)
{
    *d = (infer_weight_desc){.struct_size = sizeof *d, .quant = {.format = w->format}, .rank = w->rank, .use = use};
    memcpy(d->shape, w->shape, sizeof d->shape);
}

infer_status infer_plan_weight(infer_plan *p, int32_t dev, uint64_t ref, infer_op_id use, infer_weight_inst **out,
                               infer_error *err)
{
    for (uint32_t i = 0; i < p->n_insts; i++) {
        if (p->insts[i].dev == dev && p->insts[i].ref == ref && p->insts[i].use == use) {
            *out = &p->insts[i];
            return INFER_OK;
        }
    }
    const infer_weight_src *w = &p->file->weights.p[ref];
    infer_weight_inst x = {.dev = dev, .ref = (uint32_t)ref, .use = use};
    infer_weight_desc d;
    weight_desc_of(w, use, &d);
    x.plan.struct_size = sizeof x.plan;
    INFER_TRY(infer_hal_weight_plan(p->devs[dev].dev, &d, &x.plan, err));
    x.in_place = (x.plan.flags & INFER_WEIGHT_IN_PLACE) && w->tensor && x.plan.align &&
                 (uintptr_t)w->tensor->data % x.plan.align == 0;
    if (x.in_place) {
        const uint8_t *base;
        uint64_t n;
        infer_gguf_part_bytes(p->file->gguf, w->tensor->part, &base, &n);
        x.part = w->tensor->part;
        x.offset = (uint64_t)(w->tensor->data - base);
        x.in_place = w->tensor->part < INFER_MODEL_MAX_PARTS;
    }
    if (p->n_insts == p->cap_insts) {
        uint32_t cap = p->cap_insts ? p->cap_insts * 2 : 512;
        infer_weight_inst *q = infer_realloc_array(p->insts, cap, sizeof *q);
        if (!q)
            return infer_error_set(err, INFER_E_NO_MEMORY, "plan: no host memory for the weight list");
        p->insts = q;
        p->cap_insts = cap;
    }
    p->insts[p->n_insts] = x;
    *out = &p->insts[p->n_insts++];
    return INFER_OK;
}

static infer_status target_weight_desc(void *user, int32_t dev, uint64_t ref, infer_op_id use, infer_tensor_desc *desc,
                                       infer_error *err)
{
    infer_weight_inst *x;
    INFER_TRY(infer_plan_weight(user, dev, ref, use, &x, err));
    desc->format = x->plan.format;
    desc->layout = x->plan.layout;
    return INFER_OK;
}

/* Whether two instances of a weight on a device are the same image. */
static int same_image(const infer_weight_inst *a, const infer_weight_inst *b)
{
    return a->dev == b->dev && a->ref == b->ref && a->plan.layout == b->plan.layout &&
           a->plan.format == b->plan.format && a->in_place == b->in_place;
}

/* Only the instances that remaining nodes read get memory. Lays the packed ones out in one buffer a device. */
static infer_status layout_weights(infer_plan *p, infer_error *err)
{
    uint8_t *used = infer_calloc(p->n_insts ? p->n_insts : 1, 1);
    if (!used)
        return infer_error_set(err, INFER_E_NO_MEMORY, "plan: no host memory for the weight list");
    const infer_compiled *c = &p->compiled;
    for (uint32_t i = 0; i < c->n_order; i++) {
        const infer_gnode *n = &p->graph.nodes[c->order[i]];
        for (uint32_t k = 0; k < n->n_in; k++) {
            if (n->in[k] < 0 || p->graph.vals[n->in[k]].kind != INFER_VAL_WEIGHT)
                continue;
            for (uint32_t j = 0; j < p->n_insts; j++)
                if (p->insts[j].dev == n->dev && p->insts[j].ref == p->graph.vals[n->in[k]].ref &&
                    p->insts[j].use == n->op)
                    used[j] = 1;
        }
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < p->n_insts; i++)
        if (used[i])
            p->insts[kept++] = p->insts[i];
    p->n_insts = kept;
    infer_free(used);
    for (uint32_t i = 0; i < p->n_insts; i++) {
        infer_weight_inst *x = &p->insts[i];
        infer_plan_dev *d = &p->devs[x->dev];
        uint32_t j = 0;
        while (j < i && !same_image(&p->insts[j], x))
            j++;
        if (j < i) {
            x->offset = p->insts[j].offset;
            continue;
        }
        if (x->in_place) {
            d->mapped += x->plan.packed_bytes;
            continue;
        }
        uint64_t at, align = x->plan.align > 256 ? x->plan.align : 256;
        if (!infer_round_up_u64(d->ledger[INFER_LEDGER_WEIGHTS], align, &at) ||
            !infer_add_u64(at, x->plan.packed_bytes, &d->ledger[INFER_LEDGER_WEIGHTS]))
            return infer_error_set(err, INFER_E_TOO_LARGE, "plan: weights are larger than can be addressed");
        x->offset = at;
    }
    return INFER_OK;
}

/* ---- Devices ------------------------------------------------------------------------------------------------ */

static infer_status add_device(infer_plan *p, const char *id, infer_error *err)
{
    if (p->n_devs == INFER_GRAPH_MAX_DEVS)
        return infer_error_set(err, INFER_E_INVALID, "-dev: more than %d devices", INFER_GRAPH_MAX_DEVS);
    for (uint32_t i = 0; i < p->n_devs; i++)
        if (!strcmp(infer_hal_dev_id(p->devs[i].dev), id))
            return infer_error_set(err, INFER_E_INVALID, "-dev: %s is listed twice", id);
    infer_plan_dev *d = &p->devs[p->n_devs];
    INFER_TRY(infer_hal_open(p->rt->hal, id, &d->dev, err));
    p->n_devs++;
    infer_heap_stats st = {.struct_size = sizeof st};
    if (infer_hal_dev_heap_stats(d->dev, &st) == INFER_OK && st.budget.quality != INFER_KNOWN_NOT)
        d->budget = (uint64_t)((double)st.budget.value * p->opt.memory_utilization);
    else
        d->budget = infer_hal_dev_heap(d->dev)->size;
    return INFER_OK;
}

/* Accelerators that are usable, else the CPU; never a software device. */
static infer_status choose_devices(infer_plan *p, infer_error *err)
{
    INFER_TRY(infer_hal_probe(p->rt->hal, err));
    char why[200] = "";
    for (int pass = 0; pass < 2 && !p->n_devs; pass++) {
        for (uint32_t i = 0; i < infer_hal_n_devices(p->rt->hal); i++) {
            const infer_hal_device_info *r = infer_hal_device(p->rt->hal, i);
            int cpu = r->info.kind == INFER_KIND_CPU;
            if (r->info.kind == INFER_KIND_SOFTWARE || cpu != pass || r->same_as >= 0)
                continue;
            if (r->info.status != INFER_OK) {
                snprintf(why, sizeof why, " (%s: %s)", r->id, r->info.reason);
                continue;
            }
            INFER_TRY(add_device(p, r->id, err));
            reason(p, "%s is used: %s", r->id, cpu ? "the processor, as there is no accelerator" : r->info.name);
            if (cpu)
                break;
        }
    }
    if (!p->n_devs)
        return infer_error_set(err, INFER_E_NO_DEVICE,
                               "no usable device%s: see infer-probe; -dev ref0 runs the slow reference path", why);
    return INFER_OK;
}

static infer_status open_devices(infer_plan *p, infer_error *err)
{
    if (p->opt.devices) {
        infer_buf id = {0};
        infer_status s = INFER_OK;
        for (const char *c = p->opt.devices; s == INFER_OK; c++) {
            if (*c && *c != ',') {
                infer_buf_putc(&id, *c);
                continue;
            }
            s = id.n && !id.failed ? add_device(p, id.p, err)
                                   : infer_error_set(err, INFER_E_INVALID, "-dev: an empty device id");
            infer_buf_clear(&id);
            if (!*c)
                break;
        }
        infer_buf_free(&id);
        INFER_TRY(s);
    } else {
        INFER_TRY(choose_devices(p, err));
    }
    /* The host's reference device takes what the others refuse. */
    p->target.host = -1;
    for (uint32_t i = 0; i < p->n_devs; i++)
        if (!strcmp(infer_hal_dev_id(p->devs[i].dev), "ref0"))
            p->target.host = (int32_t)i;
    if (p->target.host < 0 && p->n_devs < INFER_GRAPH_MAX_DEVS && infer_hal_find(p->rt->hal, "ref0") >= 0) {
        INFER_TRY(add_device(p, "ref0", err));
        p->target.host = (int32_t)p->n_devs - 1;
    }
    return INFER_OK;
}

/* ---- Placement ---------------------------------------------------------------------------------------------- */

static infer_status parse_split(const char *text, uint32_t n, double *share, infer_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        char *end;
        share[i] = strtod(text, &end);
        if (end == text || share[i] < 0 || share[i] > 1e9 || *end != (i + 1 < n ? ',' : 0))
            return infer_error_set(err, INFER_E_INVALID, "-ts: give %u shares, one a device, such as 3,1", n);
        text = end + 1;
    }
    return INFER_OK;
}

static infer_status place(infer_plan *p, uint32_t n_asked, infer_error *err)
{
    const infer_weight_list *w = &p->file->weights;
    uint32_t n_layers = p->file->hp.n_layers;
    infer_place_dev devs[INFER_GRAPH_MAX_DEVS] = {{0}};
    double share[INFER_GRAPH_MAX_DEVS] = {0};
    infer_place_facts f = {.n_layers = n_layers, .max_accelerated = -1};
    uint64_t *layer_bytes = infer_calloc(n_layers, sizeof *layer_bytes);
    if (!layer_bytes)
        return infer_error_set(err, INFER_E_NO_MEMORY, "plan: no host memory");
    for (uint32_t i = 0; i < w->n; i++) {
        unsigned layer;
        uint64_t bytes = w->p[i].tensor ? w->p[i].tensor->bytes : 0;
        if (sscanf(w->p[i].name, "blk.%u.", &layer) == 1 && layer < n_layers)
            layer_bytes[layer] += bytes;
        else if (!strncmp(w->p[i].name, "output", 6))
            f.last_bytes += bytes;
        else
            f.first_bytes += bytes;
    }
    infer_status s = p->opt.tensor_split ? parse_split(p->opt.tensor_split, n_asked, share, err) : INFER_OK;
    for (uint32_t i = 0; i < n_asked; i++)
        devs[i] = (infer_place_dev){.budget = p->devs[i].budget,
                                    .share = share[i],
                                    .accelerator = infer_hal_dev_row(p->devs[i].dev)->info.kind != INFER_KIND_CPU};
    f.layer_bytes = layer_bytes;
    if (p->opt.n_gpu_layers_set && p->opt.n_gpu_layers >= 0)
        f.max_accelerated = p->opt.n_gpu_layers;
    if (s == INFER_OK)
        s = infer_place_layers(&f, devs, n_asked, p->home, err);
    infer_free(layer_bytes);
    for (uint32_t l = 0; s == INFER_OK && l < n_layers; l++)
        p->kv_home[l] = p->home[l + 1];
    return s;
}

/* ---- Cache -------------------------------------------------------------------------------------------------- */

static infer_status kv_format(const char *name, const char *flag, infer_format *out, infer_error *err)
{
    static const infer_format allowed[] = {INFER_FMT_F32,     INFER_FMT_F16,  INFER_FMT_BF16,
                                           INFER_FMT_F8_E4M3, INFER_FMT_Q8_0, INFER_FMT_Q4_0};
    const infer_format_info *f = infer_format_by_name(name ? name : "f16");
    for (size_t i = 0; f && i < sizeof allowed / sizeof allowed[0]; i++) {
        if (f->id == allowed[i]) {
            *out = f->id;
            return INFER_OK;
        }
    }
    return infer_error_set(err, INFER_E_INVALID, "%s %s: give f32, f16, bf16, f8_e4m3, q8_0 or q4_0", flag, name);
}

static void kv_spec_of(const infer_plan *p, int32_t dev, infer_kv_spec *s)
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

/* Asks every device that would hold cache; a refusal moves its layers' cache to the host. Settles the block size: the
 * least common multiple of what the devices need, near what they prefer or what was asked. */
static infer_status negotiate_cache(infer_plan *p, infer_error *err)
{
    const infer_hparams *h = &p->file->hp;
    uint64_t lcm = 1, best = 0, max = 0;
    for (int pass = 0; pass < 2; pass++) {
        lcm = 1, best = 0, max = 0;
        for (uint32_t i = 0; i < p->n_devs; i++) {
            infer_plan_dev *d = &p->devs[i];
            infer_kv_spec s;
            kv_spec_of(p, (int32_t)i, &s);
            if (!s.n_layers)
                continue;
            d->kv_answer = (infer_kv_answer){.struct_size = sizeof d->kv_answer};
            INFER_TRY(infer_hal_kv_query(d->dev, &s, &d->kv_answer, err));
            d->kv_ok = d->kv_answer.level != INFER_LEVEL_NO && d->kv_answer.block_multiple;
            if (!d->kv_ok) {
                if ((int32_t)i == p->target.host || p->target.host < 0)
                    return infer_error_set(err, INFER_E_UNSUPPORTED, "%s cannot hold a cache of these types",
                                           infer_hal_dev_id(d->dev));
                for (uint32_t l = 0; l < h->n_layers; l++)
                    if (p->kv_home[l] == (int32_t)i)
                        p->kv_home[l] = p->target.host;
                reason(p, "the cache of %s lies on the host: it cannot hold these types", infer_hal_dev_id(d->dev));
                continue;
            }
            lcm = lcm / gcd(lcm, d->kv_answer.block_multiple) * d->kv_answer.block_multiple;
            if (d->kv_answer.block_best > best)
                best = d->kv_answer.block_best;
            if (d->kv_answer.block_max && (!max || d->kv_answer.block_max < max))
                max = d->kv_answer.block_max;
        }
    }
    if (lcm > 65536)
        return infer_error_set(err, INFER_E_UNSUPPORTED, "plan: the devices' cache blocks have no common size");
    if (p->opt.block_size) {
        if (p->opt.block_size % lcm || (max && p->opt.block_size > max))
            return infer_error_set(err, INFER_E_INVALID, "--block-size %u: the devices need a multiple of %llu%s",
                                   p->opt.block_size, (unsigned long long)lcm, max ? " within their largest" : "");
        p->block_size = p->opt.block_size;
        return INFER_OK;
    }
    if (!best)
        best = lcm;
    p->block_size = (uint32_t)((best + lcm - 1) / lcm * lcm);
    if (max && p->block_size > max)
        p->block_size = (uint32_t)(max / lcm * lcm);
    return p->block_size
               ? INFER_OK
               : infer_error_set(err, INFER_E_UNSUPPORTED, "plan: the devices' cache blocks have no common size");
}

/* Bytes of one block over all layers of one device. */
static infer_status device_block_bytes(const infer_plan *p, int32_t dev, uint64_t *bytes)
{
    infer_kv_spec s;
    uint64_t planes[4], layer;
    kv_spec_of(p, dev, &s);
    INFER_TRY(infer_kv_block_bytes(&s, p->block_size, planes, &layer));
    return infer_mul_u64(layer, s.n_layers, bytes) ? INFER_OK : INFER_E_TOO_LARGE;
}

/* Blocks: context x sequences, or as asked in bytes; never less than one context. */
static infer_status size_cache(infer_plan *p, infer_error *err)
{
    uint64_t per_seq = ((uint64_t)p->opt.ctx_size + p->block_size - 1) / p->block_size, all = 0;
    uint64_t want = per_seq * p->opt.n_parallel;
    for (uint32_t i = 0; i < p->n_devs; i++) {
        uint64_t b;
        if (device_block_bytes(p, (int32_t)i, &b) != INFER_OK || !infer_add_u64(all, b, &all))
            return infer_error_set(err, INFER_E_INVALID, "cache: a head's width is no multiple of the type's block");
    }
    if (p->opt.kv_cache_memory && all) {
        want = p->opt.kv_cache_memory / all;
        reason(p, "%llu cache blocks by --kv-cache-memory", (unsigned long long)want);
    }
    if (want < per_seq) {
        unsigned long long tokens = (unsigned long long)want * p->block_size;
        return infer_error_set(
            err, INFER_E_NO_FIT,
            "cache: %llu bytes hold %llu tokens, one request of %u does not fit: use -c %llu or give "
            "%llu bytes",
            (unsigned long long)p->opt.kv_cache_memory, tokens, p->opt.ctx_size, tokens,
            (unsigned long long)(per_seq * all));
    }
    if (want > INT32_MAX / p->block_size)
        return infer_error_set(err, INFER_E_TOO_LARGE, "cache: %u tokens x %u sequences are too many", p->opt.ctx_size,
                               p->opt.n_parallel);
    p->n_blocks = (uint32_t)want;
    return INFER_OK;
}

static infer_status lay_cache_out(infer_plan *p, infer_error *err)
{
    uint32_t count[INFER_GRAPH_MAX_DEVS] = {0};
    for (uint32_t l = 0; l < p->file->hp.n_layers; l++)
        p->kv_index[l] = (int32_t)count[p->kv_home[l]]++;
    for (uint32_t i = 0; i < p->n_devs; i++) {
        infer_plan_dev *d = &p->devs[i];
        infer_kv_spec s;
        kv_spec_of(p, (int32_t)i, &s);
        uint32_t align = d->kv_answer.align > 256 ? d->kv_answer.align : 256;
        if (infer_kv_layout_make(&s, p->block_size, p->n_blocks, align, &d->kv) != INFER_OK)
            return infer_error_set(err, INFER_E_TOO_LARGE, "cache: larger than can be addressed");
        d->ledger[INFER_LEDGER_KV] = d->kv.total_bytes;
    }
    return INFER_OK;
}

/* ---- The whole ---------------------------------------------------------------------------------------------- */

static infer_status build(infer_plan *p, infer_error *err)
{
    infer_plan_options *o = &p->opt;
    p->dec.step = (infer_step_layout){.max_tokens = o->max_batched_tokens,
                                      .max_seqs = o->n_parallel,
                                      .max_logits = o->max_logit_rows,
                                      .max_blocks = (o->ctx_size + p->block_size - 1) / p->block_size,
                                      .max_bias = o->n_parallel * INFER_ROW_BIAS};
    INFER_TRY(infer_step_layout_make(&p->dec.step, err));
    p->dec.block_size = p->block_size;
    p->dec.n_blocks = p->n_blocks;
    p->dec.n_top = 20;
    infer_graph_free(&p->graph);
    return infer_decoder_build(&p->file->hp, &p->file->weights, &p->dec, &p->graph, &p->out, err);
}

/* Compiles; a device that refuses cache ops gives its cache, and so those ops, to the host. */
static infer_status compile(infer_plan *p, infer_error *err)
{
    for (uint32_t tries = 0;; tries++) {
        INFER_TRY(negotiate_cache(p, err));
        INFER_TRY(size_cache(p, err));
        INFER_TRY(build(p, err));
        infer_status s = infer_graph_compile(&p->graph, &p->target, &p->compiled, err);
        int32_t dev = p->compiled.kv_refused_dev;
        if (s != INFER_E_UNSUPPORTED || dev < 0 || dev == p->target.host || p->target.host < 0 || tries > p->n_devs)
            return s;
        for (uint32_t l = 0; l < p->file->hp.n_layers; l++)
            if (p->kv_home[l] == dev)
                p->kv_home[l] = p->target.host;
        reason(p, "the cache of %s lies on the host: it refuses a cache op", infer_hal_dev_id(p->devs[dev].dev));
    }
}

static infer_status account(infer_plan *p, infer_error *err)
{
    INFER_TRY(layout_weights(p, err));
    INFER_TRY(lay_cache_out(p, err));
    int32_t sampler = p->graph.nodes[p->compiled.order[p->compiled.n_order - 1]].dev;
    uint8_t used[INFER_GRAPH_MAX_DEVS] = {0};
    for (uint32_t i = 0; i < p->compiled.n_parts; i++)
        used[p->compiled.parts[i].dev] = 1;
    p->stage_bytes = p->compiled.stage_bytes;
    for (uint32_t i = 0; i < p->n_devs; i++) {
        infer_plan_dev *d = &p->devs[i];
        d->ledger[INFER_LEDGER_ACTIVATIONS] = p->compiled.arena_bytes[i];
        if (used[i])
            d->ledger[INFER_LEDGER_WORKSPACE] = p->dec.step.bytes;
        if ((int32_t)i == sampler)
            d->ledger[INFER_LEDGER_WORKSPACE] += 2ull * p->opt.n_parallel * p->file->hp.n_vocab;
        uint64_t total = 0;
        for (int k = 0; k < INFER_LEDGER_KINDS; k++)
            total += d->ledger[k];
        if (total > d->budget)
            return infer_error_set(err, INFER_E_NO_FIT,
                                   "%s: %llu MiB planned (weights %llu, cache %llu, activations %llu), %llu MiB may be "
                                   "used: lower -c or -np",
                                   infer_hal_dev_id(d->dev), (unsigned long long)(total >> 20),
                                   (unsigned long long)(d->ledger[INFER_LEDGER_WEIGHTS] >> 20),
                                   (unsigned long long)(d->ledger[INFER_LEDGER_KV] >> 20),
                                   (unsigned long long)(d->ledger[INFER_LEDGER_ACTIVATIONS] >> 20),
                                   (unsigned long long)(d->budget >> 20));
    }
    if (p->compiled.n_fallback)
        reason(p, "%u ops run on the host's reference path for devices that refuse them", p->compiled.n_fallback);
    return INFER_OK;
}

static infer_status defaults(infer_plan *p, infer_error *err)
{
    infer_plan_options *o = &p->opt;
    const infer_hparams *h = &p->file->hp;
    if (!o->ctx_size)
        o->ctx_size = h->n_ctx_train < 4096 ? h->n_ctx_train : 4096;
    if (o->ctx_size > h->n_ctx_train)
        reason(p, "context %u is beyond the %u that the model was trained for", o->ctx_size, h->n_ctx_train);
    if (!o->n_parallel)
        o->n_parallel = 8;
    if (!o->max_batched_tokens)
        o->max_batched_tokens = 512;
    if (o->max_batched_tokens < o->n_parallel)
        o->max_batched_tokens = o->n_parallel;
    if (o->max_logit_rows < o->n_parallel) /* every running request must be able to sample */
        o->max_logit_rows = o->n_parallel;
    if (o->memory_utilization == 0)
        o->memory_utilization = 0.9;
    if (o->ctx_size > 1u << 30 || o->n_parallel > 65536 || o->max_batched_tokens > 1u << 20 ||
        o->max_logit_rows > 1u << 16 || !(o->memory_utilization > 0 && o->memory_utilization <= 1))
        return infer_error_set(err, INFER_E_INVALID,
                               "plan: an option is out of range (context %u, sequences %u, rows %u)", o->ctx_size,
                               o->n_parallel, o->max_batched_tokens);
    INFER_TRY(kv_format(o->cache_type_k, "-ctk", &p->dec.k_format, err));
    return kv_format(o->cache_type_v, "-ctv", &p->dec.v_format, err);
}

infer_status infer_plan_create(infer_runtime *rt, infer_file *f, const infer_plan_options *opt, infer_plan **out,
                               infer_error *err)
{
    infer_plan *p = infer_calloc(1, sizeof *p);
    uint32_t n_layers = f->hp.n_layers;
    infer_status s;
    if (!p)
        return infer_error_set(err, INFER_E_NO_MEMORY, "plan: no host memory");
    p->rt = rt;
    p->file = f;
    p->compiled.kv_refused_dev = -1;
    if (opt)
        memcpy(&p->opt, opt, opt->struct_size < sizeof p->opt ? opt->struct_size : sizeof p->opt);
    p->home = infer_calloc((size_t)n_layers + 2, sizeof *p->home);
    p->kv_home = infer_calloc(n_layers, sizeof *p->kv_home);
    p->kv_index = infer_calloc(n_layers, sizeof *p->kv_index);
    if (!p->home || !p->kv_home || !p->kv_index) {
        s = infer_error_set(err, INFER_E_NO_MEMORY, "plan: no host memory");
        goto fail;
    }
    if ((s = defaults(p, err)) != INFER_OK || (s = open_devices(p, err)) != INFER_OK)
        goto fail;
    uint32_t n_asked = p->n_devs;
    if (p->target.host == (int32_t)p->n_devs - 1 && p->n_devs > 1 &&
        !(p->opt.devices && strstr(p->opt.devices, "ref0")))
        n_asked--;
    if ((s = place(p, n_asked, err)) != INFER_OK)
        goto fail;
    for (uint32_t i = 0; i < p->n_devs; i++)
        p->target.devs[i] = p->devs[i].dev;
    p->target.n_devs = p->n_devs;
    p->target.home = p->home;
    p->target.kv_home = p->kv_home;
    p->target.n_layers = n_layers;
    p->target.weight_desc = target_weight_desc;
    p->target.user = p;
    if ((s = compile(p, err)) != INFER_OK || (s = account(p, err)) != INFER_OK)
        goto fail;
    p->opt.devices = p->opt.tensor_split = p->opt.cache_type_k = p->opt.cache_type_v = NULL;
    *out = p;
    return INFER_OK;
fail:
    infer_plan_destroy(p);
    return s;
}

void infer_plan_destroy(infer_plan *p)
{
    if (!p)
        return;
    infer_compiled_free(&p->compiled);
    infer_graph_free(&p->graph);
    for (uint32_t i = 0; i < p->n_devs; i++)
        infer_hal_close(p->devs[i].dev);
    infer_free(p->insts);
    infer_free(p->home);
    infer_free(p->kv_home);
    infer_free(p->kv_index);
    infer_free(p);
}
