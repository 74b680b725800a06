/* A plan in words and numbers. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include <jansson.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "graph/compile.h"
#include "model/plan.h"
#include "ops/ops.h"
#include "quant/quant.h"
#include "text/utf8.h"

json_t *infer_json_text(const char *s)
{
    infer_buf b = {0};
    infer_utf8_append_lossy(&b, s, strlen(s));
    json_t *v = b.failed ? NULL : json_stringn(b.p ? b.p : "", b.n);
    infer_buf_free(&b);
    return v;
}

static json_t *stages(const infer_plan *p)
{
    json_t *a = json_array();
    int32_t n = (int32_t)p->file->hp.n_layers;
    for (int32_t l = 0; l < n;) {
        int32_t dev = p->home[l + 1], end = l;
        while (end < n && p->home[end + 1] == dev)
            end++;
        json_array_append_new(a,
                              json_pack("{s:s,s:i,s:i,s:b,s:b}", "device", infer_hal_dev_id(p->devs[dev].dev),
                                        "layer_first", l, "n_layers", end - l, "embedding", l == 0, "head", end == n));
        l = end;
    }
    return a;
}

static json_t *ledger(const infer_plan *p)
{
    json_t *a = json_array();
    for (uint32_t i = 0; i < p->n_devs; i++) {
        const infer_plan_dev *d = &p->devs[i];
        uint64_t total = d->mapped;
        json_t *row =
            json_pack("{s:s,s:o}", "device", infer_hal_dev_id(d->dev), "owner", infer_json_text(p->file->name));
        for (infer_ledger_kind k = 0; k < INFER_LEDGER_KINDS; k++) {
            json_object_set_new(row, infer_ledger_kind_name(k), json_integer((json_int_t)d->ledger[k]));
            total += d->ledger[k];
        }
        json_object_set_new(row, "mapped", json_integer((json_int_t)d->mapped));
        json_object_set_new(row, "budget", json_integer((json_int_t)d->budget));
        if (total)
            json_array_append(a, row);
        json_decref(row);
    }
    return a;
}

static json_t *copies(const infer_plan *p)
{
    json_t *a = json_array();
    for (uint32_t i = 0; i < p->compiled.n_xfers; i++) {
        const infer_transfer *x = &p->compiled.xfers[i];
        const char *name = p->graph.vals[x->val].name;
        json_array_append_new(
            a, json_pack("{s:s,s:s,s:s,s:I,s:I,s:s}", "from", infer_hal_dev_id(p->devs[x->src_dev].dev), "to",
                         infer_hal_dev_id(p->devs[x->dst_dev].dev), "value", name ? name : "", "row_bytes",
                         (json_int_t)x->row_bytes, "max_bytes", (json_int_t)x->max_bytes, "path", "staged"));
    }
    return a;
}

/* What one token of one sequence reads, and a rough figure from that over each device's declared read rate: null
 * without rates. */
static json_t *predicted(const infer_plan *p)
{
    double seconds = 0, weights = 0, kv = 0;
    int known = 1;
    for (uint32_t i = 0; i < p->n_devs; i++) {
        const infer_plan_dev *d = &p->devs[i];
        double bytes = infer_plan_token_bytes(p, i), rate = infer_hal_dev_props(d->dev)->read_bytes_per_s;
        weights += bytes;
        if (p->n_blocks && p->block_size)
            kv += (double)d->ledger[INFER_LEDGER_KV] / ((double)p->n_blocks * p->block_size);
        if (bytes > 0 && rate <= 0)
            known = 0;
        else if (bytes > 0)
            seconds += bytes / rate;
    }
    const char *basis = weights <= 0 ? "nothing is read"
                        : known      ? "declared read rates, not measured"
                                     : "not measured, and no declared rate";
    known = known && weights > 0;
    return json_pack("{s:n,s:o,s:s,s:I,s:I}", "ttft_ms", "decode_tok_s", known ? json_real(1 / seconds) : json_null(),
                     "basis", basis, "weight_bytes_per_token", (json_int_t)weights, "kv_bytes_per_token",
                     (json_int_t)kv);
}

infer_status infer_plan_json(const infer_plan *p, char **json, infer_error *err)
{
    json_t *reasons = json_array();
    for (uint32_t i = 0; i < p->n_reasons; i++)
        json_array_append_new(reasons, infer_json_text(p->reasons[i]));
    const infer_format_info *k = infer_format_get(p->dec.k_format), *v = infer_format_get(p->dec.v_format);
    json_t *kv = json_pack("{s:i,s:i,s:I,s:s,s:s,s:i,s:i}", "block_size", (int)p->block_size, "blocks",
                           (int)p->n_blocks, "tokens", (json_int_t)p->n_blocks * p->block_size, "k", k->name, "v",
                           v->name, "ctx_size", (int)p->opt.ctx_size, "parallel", (int)p->opt.n_parallel);
    json_t *o =
        json_pack("{s:o,s:[],s:o,s:o,s:o,s:o,s:o,s:o,s:I}", "stages", stages(p), "alternatives", "ledger", ledger(p),
                  "predicted", predicted(p), "reasons", reasons, "fallbacks", infer_plan_fallbacks(p), "copies",
                  copies(p), "kv", kv, "host_staging", (json_int_t)p->stage_bytes);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (!text)
        return infer_error_set(err, INFER_E_NO_MEMORY, "plan: no host memory for its text");
    *json = text;
    return INFER_OK;
}
