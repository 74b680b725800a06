/* Which tensors a model has, by the architecture's row: names, shapes, presence. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "model/arch.h"

static infer_weight_src *add(infer_weight_list *l)
{
    if (l->n == l->cap) {
        uint32_t cap = l->cap ? l->cap * 2 : 128;
        infer_weight_src *p = infer_realloc_array(l->p, cap, sizeof *p);
        if (!p)
            return NULL;
        l->p = p;
        l->cap = cap;
    }
    infer_weight_src *w = &l->p[l->n++];
    memset(w, 0, sizeof *w);
    for (int i = 0; i < 4; i++)
        w->shape[i] = 1;
    return w;
}

void infer_weight_list_free(infer_weight_list *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        infer_free((void *)(uintptr_t)l->p[i].data);
    infer_free(l->p);
    memset(l, 0, sizeof *l);
}

int32_t infer_weights_find(const infer_weight_list *l, const char *name)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (!strcmp(l->p[i].name, name))
            return (int32_t)i;
    return -1;
}

/* A tensor of the file with a given shape (slowest axis first). */
static infer_status want(const infer_gguf *g, infer_weight_list *l, const char *name, int presence, uint32_t rank,
                         int64_t s0, int64_t s1, int64_t s2, infer_error *err)
{
    int64_t shape[4] = {s0, s1, s2, 1};
    const infer_gguf_tensor *t = infer_gguf_tensor_find(g, name);
    if (!t && presence == INFER_ALWAYS)
        return infer_error_set(err, INFER_E_BAD_FILE, "tensor %s is missing", name);
    if (!t)
        return INFER_OK;
    if (presence == INFER_NEVER)
        return infer_error_set(err, INFER_E_UNSUPPORTED, "tensor %s at byte %llu is not known for this architecture",
                               name, (unsigned long long)t->offset);
    int same = t->rank == rank;
    for (uint32_t i = 0; same && i < rank; i++)
        same = t->dims[rank - 1 - i] == (uint64_t)shape[i];
    if (!same)
        return infer_error_set(
            err, INFER_E_BAD_FILE,
            "tensor %s at byte %llu: shape [%llu,%llu,%llu] of rank %u, expected [%lld,%lld,%lld] of "
            "rank %u (slowest first)",
            name, (unsigned long long)t->offset, (unsigned long long)t->dims[t->rank - 1],
            (unsigned long long)(t->rank > 1 ? t->dims[t->rank - 2] : 1),
            (unsigned long long)(t->rank > 2 ? t->dims[t->rank - 3] : 1), t->rank, (long long)s0, (long long)s1,
            (long long)s2, rank);
    infer_weight_src *w = add(l);
    if (!w)
        return infer_error_set(err, INFER_E_NO_MEMORY, "weights: no host memory for the list");
    w->tensor = t;
    w->rank = rank;
    w->format = t->format;
    memcpy(w->shape, shape, sizeof shape);
    snprintf(w->name, sizeof w->name, "%s", name);
    return INFER_OK;
}

/* One row a tensor of a layer. Shapes are codes, so that a row reads like the paper's table. */
enum { D, Q, K, V, QO, F, X, FX, HK, ONE };

static int64_t dim(const infer_hparams *h, int code)
{
    switch (code) {
    case D:
        return h->n_embd;
    case Q:
        return (int64_t)h->n_heads * h->head_k;
    case K:
        return (int64_t)h->n_kv_heads * h->head_k;
    case V:
        return (int64_t)h->n_kv_heads * h->head_v;
    case QO:
        return (int64_t)h->n_heads * h->head_v;
    case F:
        return h->n_ff;
    case X:
        return h->n_experts;
    case FX:
        return h->n_ff_expert;
    case HK:
        return h->head_k;
    default:
        return 1;
    }
}

static infer_status layer_weights(const infer_gguf *g, const infer_hparams *h, uint32_t layer, infer_weight_list *l,
                                  infer_error *err)
{
    const infer_arch *a = h->arch;
    int dense = a->moe ? INFER_NEVER : INFER_ALWAYS, moe = a->moe ? INFER_ALWAYS : INFER_NEVER;
    const struct {
        const char *name;
        int presence;
        uint32_t rank;
        int s0, s1, s2;
    } rows[] = {
        {"attn_norm.weight", INFER_ALWAYS, 1, D, ONE, ONE},
        {"attn_q.weight", INFER_ALWAYS, 2, Q, D, ONE},
        {"attn_k.weight", INFER_ALWAYS, 2, K, D, ONE},
        {"attn_v.weight", INFER_ALWAYS, 2, V, D, ONE},
        {"attn_q.bias", a->qkv_bias, 1, Q, ONE, ONE},
        {"attn_k.bias", a->qkv_bias, 1, K, ONE, ONE},
        {"attn_v.bias", a->qkv_bias, 1, V, ONE, ONE},
        {"attn_q_norm.weight", a->qk_norm, 1, HK, ONE, ONE},
        {"attn_k_norm.weight", a->qk_norm, 1, HK, ONE, ONE},
        {"attn_output.weight", INFER_ALWAYS, 2, D, QO, ONE},
        {"attn_output.bias", a->out_bias, 1, D, ONE, ONE},
        {"ffn_norm.weight", INFER_ALWAYS, 1, D, ONE, ONE},
        {"ffn_gate.weight", dense, 2, F, D, ONE},
        {"ffn_up.weight", dense, 2, F, D, ONE},
        {"ffn_down.weight", dense, 2, D, F, ONE},
        {"ffn_gate_inp.weight", moe, 2, X, D, ONE},
        {"ffn_gate_exps.weight", moe, 3, X, FX, D},
        {"ffn_up_exps.weight", moe, 3, X, FX, D},
        {"ffn_down_exps.weight", moe, 3, X, D, FX},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.%s", layer, rows[i].name);
        INFER_TRY(want(g, l, name, rows[i].presence, rows[i].rank, dim(h, rows[i].s0), dim(h, rows[i].s1),
                       dim(h, rows[i].s2), err));
        infer_weight_src *w = &l->p[l->n - 1]; /* a router is small and decides much */
        if (!strcmp(w->name, name))
            w->recodes = w->rank > 1 && strcmp(rows[i].name, "ffn_gate_inp.weight") != 0;
    }
    return INFER_OK;
}

/* Every tensor of the file must have been asked for, but for rope_freqs (read by the table) and per-layer copies of it.
 */
static infer_status check_all_used(const infer_gguf *g, const infer_weight_list *l, infer_error *err)
{
    uint32_t used = infer_gguf_tensor_find(g, "rope_freqs.weight") ? 1 : 0;
    for (uint32_t i = 0; i < l->n; i++)
        used += l->p[i].tensor != NULL;
    if (used == infer_gguf_n_tensors(g))
        return INFER_OK;
    for (uint32_t i = 0; i < infer_gguf_n_tensors(g); i++) {
        const infer_gguf_tensor *t = infer_gguf_tensor_at(g, i);
        int found = infer_str_eq(t->name, INFER_STR("rope_freqs.weight"));
        for (uint32_t j = 0; j < l->n && !found; j++)
            found = l->p[j].tensor == t;
        if (!found)
            return infer_error_set(err, INFER_E_UNSUPPORTED,
                                   "tensor %.*s at byte %llu is not known for this architecture",
                                   (int)(t->name.n > 64 ? 64 : t->name.n), t->name.p, (unsigned long long)t->offset);
    }
    return INFER_OK;
}

infer_status infer_weights_list(const infer_gguf *g, infer_hparams *hp, infer_weight_list *out, infer_error *err)
{
    infer_weight_list l = {0};
    infer_status s = want(g, &l, "token_embd.weight", INFER_ALWAYS, 2, hp->n_vocab, hp->n_embd, 1, err);
    for (uint32_t i = 0; i < hp->n_layers && s == INFER_OK; i++)
        s = layer_weights(g, hp, i, &l, err);
    if (s == INFER_OK)
        s = want(g, &l, "output_norm.weight", INFER_ALWAYS, 1, hp->n_embd, 1, 1, err);
    if (s == INFER_OK)
        s = want(g, &l, "output.weight", INFER_OPTIONAL, 2, hp->n_vocab, hp->n_embd, 1, err);
    if (s == INFER_OK)
        s = check_all_used(g, &l, err);
    if (s == INFER_OK) {
        infer_weight_src *w = add(&l);
        float *table = infer_calloc(hp->rope_dims / 2, sizeof *table);

        if (!w || !table) {
            infer_free(table);
            s = infer_error_set(err, INFER_E_NO_MEMORY, "weights: no host memory for the rope table");
        } else {
            w->data = table;
            w->rank = 1;
            w->format = INFER_FMT_F32;
            w->shape[0] = hp->rope_dims / 2;
            snprintf(w->name, sizeof w->name, "rope.inv_freq");
            s = infer_rope_table(g, hp, table, &hp->rope_magnitude, err);
        }
    }
    if (s != INFER_OK) {
        infer_weight_list_free(&l);
        return s;
    }
    *out = l;
    return INFER_OK;
}
