/* Fuzzes the GGUF reader: what opens must be readable to its last byte. A second "GGUF" in the input begins the next
 * part of a split model. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "model/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile unsigned sink;

static void read_bytes(const uint8_t *p, uint64_t n)
{
    unsigned sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += p[i];
    sink = sum;
}

static void use(const infer_gguf *g)
{
    infer_error err;
    infer_gguf_vocab v;
    if (infer_gguf_vocab_load(g, &v, &err) == INFER_OK) {
        for (uint32_t i = 0; i < v.v.n_tokens; i++)
            read_bytes((const uint8_t *)v.v.tokens[i].p, v.v.tokens[i].n);
        for (uint32_t i = 0; i < v.v.n_merges; i++)
            read_bytes((const uint8_t *)v.v.merges[i].p, v.v.merges[i].n);
        if (v.v.eos < -1 || v.v.eos >= (int32_t)v.v.n_tokens)
            abort();
        infer_gguf_vocab_free(&v);
    }
    for (uint32_t i = 0; i < infer_gguf_n_kv(g); i++) {
        const infer_gguf_kv *kv = infer_gguf_kv_at(g, i);
        char key[300];
        uint32_t u, list[4], n;
        float f;
        int b;
        infer_str s;
        infer_text *texts;
        double d;
        read_bytes(kv->value, kv->value_bytes);
        if (kv->key.n >= sizeof key || memchr(kv->key.p, 0, kv->key.n))
            continue;
        memcpy(key, kv->key.p, kv->key.n);
        key[kv->key.n] = 0;
        if (infer_gguf_find(g, key) != kv)
            abort();
        infer_gguf_u32(g, key, &u, &err);
        infer_gguf_f32(g, key, &f, &err);
        infer_gguf_bool(g, key, &b, &err);
        infer_gguf_string(g, key, &s, &err);
        infer_gguf_u32_list(g, key, 4, list, &err);
        if (infer_gguf_strings(g, key, &texts, &n, &err) == INFER_OK) {
            for (uint32_t j = 0; j < n; j++)
                read_bytes((const uint8_t *)texts[j].p, texts[j].n);
            infer_free(texts);
        }
        for (uint64_t j = 0; j < kv->n && infer_gguf_array_f64(kv, j, &d); j++)
            sink = (unsigned)(d > 0);
    }
    for (uint32_t i = 0; i < infer_gguf_n_tensors(g); i++) {
        const infer_gguf_tensor *t = infer_gguf_tensor_at(g, i);
        read_bytes(t->data, t->bytes);
        if (t->name.n < 256 && !memchr(t->name.p, 0, t->name.n)) {
            char name[256];
            memcpy(name, t->name.p, t->name.n);
            name[t->name.n] = 0;
            if (infer_gguf_tensor_find(g, name) != t)
                abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { MAX_PARTS = 4 };
    infer_gguf_bytes parts[MAX_PARTS];
    uint32_t n = 0;
    size_t start = 0;
    for (size_t i = 4; n + 1 < MAX_PARTS && i + 4 <= size; i++)
        if (!memcmp(data + i, "GGUF", 4)) {
            parts[n++] = (infer_gguf_bytes){data + start, i - start};
            start = i;
        }
    parts[n++] = (infer_gguf_bytes){data + start, size - start};
    infer_gguf *g = NULL;
    infer_error err = {0};
    infer_status s = infer_gguf_open_bytes(parts, n, &g, &err);
    if (s == INFER_OK) {
        use(g);
        infer_gguf_close(g);
    } else if (g || err.status != s || !err.text[0]) {
        abort();
    }
    return 0;
}
