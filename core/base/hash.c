/* Hashing and the string map. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "base/alloc.h"
#include "base/hash.h"

uint64_t infer_hash_u64(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

uint64_t infer_hash_bytes(const void *p, size_t n, uint64_t seed)
{
    const uint8_t *b = p;
    uint64_t h = 0xCBF29CE484222325u ^ seed;
    for (size_t i = 0; i < n; i++)
        h = (h ^ b[i]) * 0x100000001B3u;
    return infer_hash_u64(h);
}

static size_t find_slot(const infer_strmap *m, infer_str key)
{
    size_t i = (size_t)infer_hash_bytes(key.p, key.n, 0) & (m->cap - 1);
    while (m->keys[i].p && !infer_str_eq(m->keys[i], key))
        i = (i + 1) & (m->cap - 1);
    return i;
}

infer_status infer_strmap_reserve(infer_strmap *m, size_t n)
{
    size_t cap = 16;
    while (cap / 2 < n) {
        if (cap > SIZE_MAX / 2 / sizeof(infer_str))
            return INFER_E_NO_MEMORY;
        cap *= 2;
    }
    if (cap <= m->cap)
        return INFER_OK;
    infer_strmap bigger = {.cap = cap, .count = m->count};
    bigger.keys = infer_calloc(cap, sizeof *bigger.keys);
    bigger.values = infer_calloc(cap, sizeof *bigger.values);
    if (!bigger.keys || !bigger.values) {
        infer_strmap_free(&bigger);
        return INFER_E_NO_MEMORY;
    }
    for (size_t i = 0; i < m->cap; i++) {
        if (!m->keys[i].p)
            continue;
        size_t j = find_slot(&bigger, m->keys[i]);
        bigger.keys[j] = m->keys[i];
        bigger.values[j] = m->values[i];
    }
    infer_strmap_free(m);
    *m = bigger;
    return INFER_OK;
}

infer_status infer_strmap_put(infer_strmap *m, infer_str key, uint32_t value)
{
    if (!key.p)
        key.p = "";
    if ((m->count + 1) * 2 > m->cap) {
        infer_status s = infer_strmap_reserve(m, (m->count + 1) * 2);
        if (s != INFER_OK)
            return s;
    }
    size_t i = find_slot(m, key);
    if (!m->keys[i].p) {
        m->keys[i] = key;
        m->count++;
    }
    m->values[i] = value;
    return INFER_OK;
}

int infer_strmap_get(const infer_strmap *m, infer_str key, uint32_t *value)
{
    if (!m->cap)
        return 0;
    size_t i = find_slot(m, key);
    if (!m->keys[i].p)
        return 0;
    *value = m->values[i];
    return 1;
}

void infer_strmap_free(infer_strmap *m)
{
    infer_free(m->keys);
    infer_free(m->values);
    *m = (infer_strmap){0};
}
