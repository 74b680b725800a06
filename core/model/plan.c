/* Plans: options to devices, layers, cache pool, graph and ledger. Loads nothing. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "model/plan.h"
#include "place/place.h"
#include "quant/quant.h"

void infer_plan_reason(infer_plan *p, const char *fmt, ...)
{
    if (p->n_reasons == sizeof p->reasons / sizeof p->reasons[0])
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p->reasons[p->n_reasons++], sizeof p->reasons[0], fmt, ap);
    va_end(ap);
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
    p->target.devs[p->n_devs++] = d->dev;
    infer_heap_stats st = {.struct_size = sizeof st};
    uint64_t total = infer_hal_dev_heap(d->dev)->size, ours = 0;
    if (infer_hal_dev_heap_stats(d->dev, &st) == INFER_OK && st.budget.quality != INFER_KNOWN_NOT) {
        total = st.budget.value;
        ours = st.ours.quality == INFER_KNOWN_NOT ? 0 : st.ours.value; /* of other models of this process */
    }
    uint64_t may = (uint64_t)((double)total * p->opt.memory_utilization);
    d->budget = may > ours ? may - ours : 0;
    return INFER_OK;
}

/* Adds every usable device of a kind: the processor (one), or accelerators. Never a software device. */
static infer_status add_kind(infer_plan *p, int cpu, const char *because, char *why, size_t cap, infer_error *err)
{
    for (uint32_t i = 0; i < infer_hal_n_devices(p->rt->hal); i++) {
        const infer_hal_device_info *r = infer_hal_device(p->rt->hal, i);
        if (r->info.kind == INFER_KIND_SOFTWARE || (r->info.kind == INFER_KIND_CPU) != cpu || r->same_as >= 0)
            continue;
        if (r->info.status != INFER_OK) {
            snprintf(why, cap, " (%s: %s)", r->id, r->info.reason);
            continue;
        }
        INFER_TRY(add_device(p, r->id, err));
        infer_plan_reason(p, "%s is used: %s", r->id, cpu ? because : r->info.name);
        if (cpu)
            break;
    }
    return INFER_OK;
}

/* Accelerators where there are some, with the processor before them for the layers that they are not to have. */
static infer_status choose_devices(infer_plan *p, infer_error *err)
{
    char why[200] = "";
    int limited =
        p->opt.n_gpu_layers_set && p->opt.n_gpu_layers >= 0 && (uint32_t)p->opt.n_gpu_layers < p->file->hp.n_layers;
    INFER_TRY(infer_hal_probe(p->rt->hal, err));
    if (limited)
        INFER_TRY(
            add_kind(p, 1, "the processor, for the layers that accelerators are not to have", why, sizeof why, err));
    if (!limited || p->opt.n_gpu_layers > 0)
        INFER_TRY(add_kind(p, 0, NULL, why, sizeof why, err));
    if (!p->n_devs)
        INFER_TRY(add_kind(p, 1, "the processor, as there is no accelerator", why, sizeof why, err));
    if (!p->n_devs)
        return infer_error_set(err, INFER_E_NO_DEVICE,
                               "no usable device%s: see infer-probe; -dev ref0 runs the slow reference path", why);
    return INFER_OK;
}

/* A device that was asked for. Absent: an error, or (if allowed) left out with a reason. */
static infer_status ask_device(infer_plan *p, const char *id, infer_error *err)
{
    infer_error e = {0};
    infer_status s = add_device(p, id, &e);
    if (s == INFER_E_NO_DEVICE && p->opt.allow_cpu_fallback) {
        infer_plan_reason(p, "%s is left out, as --allow-cpu-fallback says: %.120s", id, e.text);
        infer_log_write(infer_hal_log(p->rt->hal), INFER_LOG_WARN, "plan",
                        "%s is left out, as --allow-cpu-fallback says: %s", id, e.text);
        p->opt.tensor_split = NULL; /* it was for other devices */
        return INFER_OK;
    }
    return s == INFER_OK ? s : infer_error_set(err, s, "%s", e.text);
}

/* Whether a backend of that name is loaded (1) and has a device in this plan (2), so that it has read its settings. */
static int backend_state(const infer_plan *p, const char *name, size_t n)
{
    const infer_hal *h = p->rt->hal;
    int state = 0;
    for (uint32_t i = 0; i < infer_hal_n_backends(h); i++) {
        infer_hal_backend_info b;
        infer_hal_backend(h, i, &b);
        if (strncmp(b.name, name, n) || b.name[n])
            continue;
        state = 1;
        for (uint32_t k = 0; k < p->n_devs; k++)
            if (infer_hal_device(h, (uint32_t)infer_hal_find(h, infer_hal_dev_id(p->devs[k].dev)))->backend == i)
                return 2;
    }
    return state;
}

/* A setting that nobody reads is likely misspelt: said once. */
static void check_settings(const infer_plan *p)
{
    infer_runtime *rt = p->rt;
    for (uint32_t i = 0; i < rt->n_settings; i++) {
        const char *s = rt->settings[i];
        size_t n = strcspn(s, ".");
        int state = backend_state(p, s, n);
        if (state == 1 || atomic_exchange(&rt->asked[i], 1))
            continue;
        infer_log_write(infer_hal_log(rt->hal), INFER_LOG_WARN, "plan", "setting %s: %s %.*s", s,
                        state ? "has no meaning for backend" : "there is no backend", (int)n, s);
    }
}

static infer_status open_devices(infer_plan *p, infer_error *err)
{
    infer_buf id = {0};
    infer_status s = INFER_OK;
    for (const char *c = p->opt.devices; c && s == INFER_OK; c++) {
        if (*c && *c != ',') {
            infer_buf_putc(&id, *c);
            continue;
        }
        if (id.failed)
            s = infer_error_set(err, INFER_E_NO_MEMORY, "-dev: no host memory");
        else
            s = id.n ? ask_device(p, id.p, err) : infer_error_set(err, INFER_E_INVALID, "-dev: an empty device id");
        infer_buf_clear(&id);
        if (!*c)
            break;
    }
    infer_buf_free(&id);
    if (s == INFER_OK && !p->n_devs)
        s = choose_devices(p, err);
    INFER_TRY(s);
    p->n_asked = p->n_devs;
    /* The host's reference device takes what the others refuse. */
    p->target.host = -1;
    for (uint32_t i = 0; i < p->n_devs; i++)
        if (!strcmp(infer_hal_dev_id(p->devs[i].dev), "ref0"))
            p->target.host = (int32_t)i;
    if (p->target.host < 0 && p->n_devs < INFER_GRAPH_MAX_DEVS && infer_hal_find(p->rt->hal, "ref0") >= 0) {
        INFER_TRY(add_device(p, "ref0", err));
        p->target.host = (int32_t)p->n_devs - 1;
    }
    check_settings(p);
    size_t n = (size_t)p->n_devs * p->file->weights.n;
    if (!(p->inst_of = infer_malloc(n * sizeof *p->inst_of)))
        return infer_error_set(err, INFER_E_NO_MEMORY, "plan: no host memory for the weight list");
    memset(p->inst_of, 0xFF, n * sizeof *p->inst_of);
    return INFER_OK;
}

/* ---- Placement ---------------------------------------------------------------------------------------------- */

static infer_status parse_split(const char *text, uint32_t n, double *share, infer_error *err)
{
    double all = 0;
    for (uint32_t i = 0; i < n; i++) {
        char *end;
        share[i] = strtod(text, &end);
        if (end == text || !(share[i] >= 0 && share[i] <= 1e9) || *end != (i + 1 < n ? ',' : 0))
            return infer_error_set(err, INFER_E_INVALID, "-ts: give %u shares, one a device, such as 3,1", n);
        all += share[i];
        text = end + 1;
    }
    return all > 0 ? INFER_OK : infer_error_set(err, INFER_E_INVALID, "-ts: one share at least must not be zero");
}

/* Bytes of weights by layer, with one context's cache where `with_cache`. */
static void count_bytes(const infer_plan *p, int with_cache, infer_place_facts *f, uint64_t *layer_bytes)
{
    const infer_weight_list *w = &p->file->weights;
    const infer_hparams *h = &p->file->hp;
    uint64_t cache = 0, embd = 0, k, v;
    if (infer_format_bytes(p->dec.k_format, h->head_k, &k) == INFER_OK &&
        infer_format_bytes(p->dec.v_format, h->head_v, &v) == INFER_OK)
        cache = (k + v) * h->n_kv_heads * p->opt.ctx_size;
    for (uint32_t i = 0; i < f->n_layers; i++)
        layer_bytes[i] = with_cache ? cache : 0;
    f->first_bytes = f->last_bytes = 0;
    for (uint32_t i = 0; i < w->n; i++) {
        unsigned layer;
        uint64_t bytes = w->p[i].tensor ? infer_plan_source_bytes(p, i) : 0;
        if (sscanf(w->p[i].name, "blk.%u.", &layer) == 1 && layer < f->n_layers)
            layer_bytes[layer] += bytes;
        else if (!strncmp(w->p[i].name, "output", 6))
            f->last_bytes += bytes;
        else
            f->first_bytes += bytes;
        if (!strcmp(w->p[i].name, "token_embd.weight"))
            embd = bytes;
    }
    if (h->tied && p->n_asked > 1) /* read at both ends */
        f->last_bytes += embd;
}

static infer_status place(infer_plan *p, infer_error *err)
{
    uint32_t n_layers = p->file->hp.n_layers;
    infer_place_dev devs[INFER_GRAPH_MAX_DEVS] = {{0}};
    double share[INFER_GRAPH_MAX_DEVS] = {0};
    infer_place_facts f = {.n_layers = n_layers, .max_accelerated = -1};
    if (p->opt.tensor_split)
        INFER_TRY(parse_split(p->opt.tensor_split, p->n_asked, share, err));
    uint64_t *layer_bytes = infer_calloc(n_layers, sizeof *layer_bytes);
    if (!layer_bytes)
        return infer_error_set(err, INFER_E_NO_MEMORY, "plan: no host memory");
    for (uint32_t i = 0; i < p->n_asked; i++)
        devs[i] = (infer_place_dev){.id = infer_hal_dev_id(p->devs[i].dev),
                                    .budget = p->devs[i].budget,
                                    .share = share[i],
                                    .accelerator = infer_hal_dev_row(p->devs[i].dev)->info.kind != INFER_KIND_CPU};
    f.layer_bytes = layer_bytes;
    if (p->opt.n_gpu_layers_set && p->opt.n_gpu_layers >= 0)
        f.max_accelerated = p->opt.n_gpu_layers;
    count_bytes(p, 1, &f, layer_bytes);
    infer_status s = infer_place_layers(&f, devs, p->n_asked, p->home, NULL);
    if (s == INFER_E_NO_FIT) { /* by weights alone: then what is said of the context below is exact */
        count_bytes(p, 0, &f, layer_bytes);
        s = infer_place_layers(&f, devs, p->n_asked, p->home, err);
    }
    infer_free(layer_bytes);
    for (uint32_t l = 0; s == INFER_OK && l < n_layers; l++)
        p->kv_home[l] = p->home[l + 1];
    return s;
}

/* ---- The whole ---------------------------------------------------------------------------------------------- */

static infer_status build(infer_plan *p, infer_error *err)
{
    infer_plan_options *o = &p->opt;
    p->dec.step = (infer_step_layout){.max_tokens = o->max_batched_tokens,
                                      .max_seqs = o->n_parallel,
                                      .max_logits = o->max_logit_rows,
                                      .max_blocks = (uint32_t)infer_plan_cache_per_seq(p),
                                      .max_bias = o->n_parallel * INFER_ROW_BIAS};
    INFER_TRY(infer_step_layout_make(&p->dec.step, err));
    p->dec.block_size = p->block_size;
    p->dec.n_blocks = p->n_blocks;
    p->dec.kv_layout = p->kv_layout;
    p->dec.n_top = 20;
    p->dec.act_format = p->recode.format == INFER_FMT_F8_E4M3 ? INFER_FMT_F8_E4M3 : INFER_FMT_NONE;
    infer_graph_free(&p->graph);
    return infer_decoder_build(&p->file->hp, &p->file->weights, &p->dec, &p->graph, &p->out, err);
}

/* Compiles; a device that refuses cache ops gives its cache, and so those ops, to the host. */
static infer_status compile(infer_plan *p, infer_error *err)
{
    for (;;) { /* each turn but the last empties a device */
        infer_error e = {0};
        infer_compiled_free(&p->compiled);
        INFER_TRY(infer_plan_cache_negotiate(p, err));
        INFER_TRY(infer_plan_cache_size(p, err));
        INFER_TRY(build(p, err));
        infer_status s = infer_graph_compile(&p->graph, &p->target, &p->compiled, &e);
        int32_t dev = p->compiled.kv_refused_dev;
        if (s == INFER_OK)
            return s;
        if (s != INFER_E_UNSUPPORTED || dev < 0 || dev == p->target.host || p->target.host < 0)
            return infer_error_set(err, s, "%s", e.text);
        for (uint32_t l = 0; l < p->file->hp.n_layers; l++)
            if (p->kv_home[l] == dev)
                p->kv_home[l] = p->target.host;
        infer_plan_reason(p, "the cache of %s lies on the host: %.120s", infer_hal_dev_id(p->devs[dev].dev), e.text);
    }
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* Fills the ledger with what will be allocated, rounded as the heaps round. INFER_E_NO_FIT with the numbers. */
static infer_status account(infer_plan *p, infer_error *err)
{
    const infer_compiled *c = &p->compiled;
    INFER_TRY(infer_plan_weights_lay_out(p, err));
    INFER_TRY(infer_plan_cache_lay_out(p, err));
    p->sampler = p->graph.nodes[c->order[c->n_order - 1]].dev;
    p->stage_bytes = c->stage_bytes;
    for (uint32_t i = 0; i < p->n_devs; i++) {
        infer_plan_dev *d = &p->devs[i];
        uint64_t total = infer_hal_dev_props(d->dev)->flags & INFER_PROP_HOST_MEMORY ? d->mapped : 0;
        d->step_bytes = 0;
        for (uint32_t k = 0; k < c->n_parts; k++)
            if (c->parts[k].dev == (int32_t)i)
                d->step_bytes = p->dec.step.bytes;
        d->state_bytes = (int32_t)i == p->sampler ? 2ull * p->opt.n_parallel * p->file->hp.n_vocab : 0;
        uint64_t *l = d->ledger;
        l[INFER_LEDGER_WEIGHTS] = infer_hal_buf_bytes(d->dev, l[INFER_LEDGER_WEIGHTS]);
        l[INFER_LEDGER_KV] = infer_hal_buf_bytes(d->dev, l[INFER_LEDGER_KV]);
        l[INFER_LEDGER_ACTIVATIONS] = infer_hal_buf_bytes(d->dev, c->arena_bytes[i]);
        l[INFER_LEDGER_WORKSPACE] =
            infer_hal_buf_bytes(d->dev, d->step_bytes) + infer_hal_buf_bytes(d->dev, d->state_bytes);
        for (int k = 0; k < INFER_LEDGER_KINDS; k++)
            if (!infer_add_u64(total, l[k], &total))
                return infer_error_set(err, INFER_E_TOO_LARGE, "%s: the plan is larger than can be addressed",
                                       infer_hal_dev_id(d->dev));
        if (total > d->budget)
            return infer_error_set(
                err, INFER_E_NO_FIT,
                "%s: %.1f MiB planned (weights %.1f, cache %.1f, activations and workspace %.1f), %.1f MiB may be used",
                infer_hal_dev_id(d->dev), mib(total), mib(l[INFER_LEDGER_WEIGHTS] + d->mapped), mib(l[INFER_LEDGER_KV]),
                mib(l[INFER_LEDGER_ACTIVATIONS] + l[INFER_LEDGER_WORKSPACE]), mib(d->budget));
    }
    return INFER_OK;
}

static infer_status settle(infer_plan *p, uint32_t ctx, uint64_t block_limit, infer_error *err)
{
    p->opt.ctx_size = ctx;
    p->block_limit = block_limit;
    INFER_TRY(compile(p, err));
    return account(p, err);
}

/* A size of a plan that can be made smaller: the number of blocks for a context, or the context itself. */
typedef infer_status (*attempt_fn)(infer_plan *p, uint64_t n, infer_error *err);

static infer_status attempt_blocks(infer_plan *p, uint64_t n, infer_error *err)
{
    return settle(p, p->opt.ctx_size, n, err);
}

/* A context of n blocks, with the cache that one request needs. */
static infer_status attempt_context(infer_plan *p, uint64_t n, infer_error *err)
{
    return settle(p, (uint32_t)n * p->block_size, n, err);
}

/* The largest n in [low, high) that fits, found by trying; 0: not even `low`. Leaves the plan as last tried. */
static infer_status largest(infer_plan *p, attempt_fn attempt, uint64_t low, uint64_t high, uint64_t *n,
                            infer_error *err)
{
    *n = 0;
    while (low < high) {
        uint64_t mid = *n ? low + (high - low) / 2 : low;
        infer_error e = {0};
        infer_status s = attempt(p, mid, &e);
        if (s == INFER_OK) {
            *n = mid;
            low = mid + 1;
        } else if (s == INFER_E_NO_FIT) {
            high = mid;
        } else {
            return infer_error_set(err, s, "%s", e.text);
        }
    }
    return INFER_OK;
}

/* The pool is the smaller of what was asked and what fits; where not even one context fits, the text says which does.
 */
static infer_status fit(infer_plan *p, infer_error *err)
{
    infer_error e = {0};
    uint64_t n, all;
    uint32_t ctx = p->opt.ctx_size;
    infer_status s = settle(p, ctx, 0, &e);
    if (s == INFER_OK)
        return s;
    if (s != INFER_E_NO_FIT || !p->compiled.n_order) /* the last: the cache's own limit, with its own advice */
        return infer_error_set(err, s, "%s", e.text);
    uint64_t want = p->n_blocks, per_seq = infer_plan_cache_per_seq(p);
    INFER_TRY(largest(p, attempt_blocks, per_seq, want, &n, err));
    if (n && p->opt.kv_cache_memory) {
        INFER_TRY(infer_plan_cache_block_bytes(p, &all));
        return infer_error_set(err, INFER_E_NO_FIT, "%s: --kv-cache-memory %llu fits", e.text,
                               (unsigned long long)(n * all));
    }
    if (n) {
        infer_plan_reason(p, "the cache holds %llu tokens, not %llu: what fits", (unsigned long long)n * p->block_size,
                          (unsigned long long)want * p->block_size);
        return settle(p, ctx, n, err);
    }
    INFER_TRY(largest(p, attempt_context, 1, per_seq, &n, err));
    if (n)
        return infer_error_set(err, INFER_E_NO_FIT, "%s: -c %llu fits", e.text, (unsigned long long)n * p->block_size);
    return infer_error_set(err, INFER_E_NO_FIT, "%s: no context is small enough; use a smaller model or more devices",
                           e.text);
}

static infer_status defaults(infer_plan *p, infer_error *err)
{
    infer_plan_options *o = &p->opt;
    const infer_hparams *h = &p->file->hp;
    if (!o->ctx_size)
        o->ctx_size = h->n_ctx_train < 4096 ? h->n_ctx_train : 4096;
    if (o->ctx_size > h->n_ctx_train)
        infer_plan_reason(p, "context %u is beyond the %u that the model was trained for", o->ctx_size, h->n_ctx_train);
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
                               "plan: an option is out of range (context %u of at most 2^30, sequences %u and logit "
                               "rows %u of 65536, rows of a step %u of 2^20, memory share %g of 1)",
                               o->ctx_size, o->n_parallel, o->max_logit_rows, o->max_batched_tokens,
                               o->memory_utilization);
    INFER_TRY(infer_plan_recode(p, err));
    return infer_plan_cache_formats(p, err);
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
    p->kv_layout = infer_calloc(n_layers, sizeof *p->kv_layout);
    if (!p->home || !p->kv_home || !p->kv_index || !p->kv_layout) {
        s = infer_error_set(err, INFER_E_NO_MEMORY, "plan: no host memory");
        goto fail;
    }
    if ((s = defaults(p, err)) != INFER_OK || (s = open_devices(p, err)) != INFER_OK || (s = place(p, err)) != INFER_OK)
        goto fail;
    p->target.n_devs = p->n_devs;
    p->target.home = p->home;
    p->target.kv_home = p->kv_home;
    p->target.n_layers = n_layers;
    p->target.weight_desc = infer_plan_weight_desc;
    p->target.user = p;
    p->target.deterministic = p->rt->deterministic;
    if ((s = fit(p, err)) != INFER_OK)
        goto fail;
    if (p->compiled.n_fallback)
        infer_plan_reason(p, "%u ops run on the host's reference path for devices that refuse them",
                          p->compiled.n_fallback);
    p->opt.devices = p->opt.tensor_split = p->opt.cache_type_k = p->opt.cache_type_v = p->opt.quantization = NULL;
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
    infer_free(p->inst_of);
    infer_free(p->home);
    infer_free(p->kv_home);
    infer_free(p->kv_index);
    infer_free(p->kv_layout);
    infer_free(p);
}
