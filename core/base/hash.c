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

static uint64_t rotate(uint64_t x, int n)
{
    return x << n | x >> (64 - n);
}

static void sip_rounds(uint64_t v[4], int n)
{
    while (n--) {
        v[0] += v[1], v[2] += v[3];
        v[1] = rotate(v[1], 13) ^ v[0], v[3] = rotate(v[3], 16) ^ v[2];
        v[0] = rotate(v[0], 32);
        v[2] += v[1], v[0] += v[3];
        v[1] = rotate(v[1], 17) ^ v[2], v[3] = rotate(v[3], 21) ^ v[0];
        v[2] = rotate(v[2], 32);
    }
}

void infer_hash_secret(const void *p, size_t n, const uint64_t secret[2], uint64_t out[2])
{
    const uint8_t *b = p;
    uint64_t v[4] = {secret[0] ^ 0x736F6D6570736575u, secret[1] ^ 0x646F72616E646F6Du ^ 0xEE,
                     secret[0] ^ 0x6C7967656E657261u, secret[1] ^ 0x7465646279746573u};
    for (size_t i = 0;; i += 8) {
        const size_t k = n - i < 8 ? n - i : 8;
        uint64_t m = k < 8 ? (uint64_t)n << 56 : 0;
        for (size_t j = 0; j < k; j++)
            m |= (uint64_t)b[i + j] << 8 * j;
        v[3] ^= m;
        sip_rounds(v, 2);
        v[0] ^= m;
        if (k < 8)
            break;
    }
    v[2] ^= 0xEE;
    sip_rounds(v, 4);
    out[0] = v[0] ^ v[1] ^ v[2] ^ v[3];
    v[1] ^= 0xDD;
    sip_rounds(v, 4);
    out[1] = v[0] ^ v[1] ^ v[2] ^ v[3];
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
