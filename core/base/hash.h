/* Byte-string hashing and a read-mostly map from byte strings to 32-bit values. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_BASE_HASH_H
#define INFER_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#include <infer/status.h>

#include "base/buf.h"

/* 64-bit FNV-1a with a final mix; not for adversarial keys. */
uint64_t infer_hash_bytes(const void *p, size_t n, uint64_t seed);
/* SipHash-2-4 of 128 bits (Aumasson and Bernstein, 2012): who does not know the secret cannot find two that collide. */
void infer_hash_secret(const void *p, size_t n, const uint64_t secret[2], uint64_t out[2]);
/* A good mix of one 64-bit value (the finaliser of splitmix64, Steele et al. 2014). */
uint64_t infer_hash_u64(uint64_t x);

/* Open addressing, linear probing, load at most one half. Keys are borrowed: they must outlive the map.
 * Zero-initialise; one writer, then any number of readers. */
typedef struct infer_strmap {
    infer_str *keys;
    uint32_t *values;
    size_t cap, count;
} infer_strmap;

/* Sizes the table for n keys in advance. INFER_E_NO_MEMORY. */
infer_status infer_strmap_reserve(infer_strmap *m, size_t n);
/* Inserts or overwrites. INFER_E_NO_MEMORY leaves the map as it was. */
infer_status infer_strmap_put(infer_strmap *m, infer_str key, uint32_t value);
/* 1 and *value where the key is present, else 0. */
int infer_strmap_get(const infer_strmap *m, infer_str key, uint32_t *value);
void infer_strmap_free(infer_strmap *m);

#endif
