/*
 * A file of blocks, the lowest tier of the prefix cache: slots of a place's size in one scratch file, which has no name
 * and goes with the process. One thread of its own does the reading and writing, reads first, each in order of posting,
 * so that nobody else waits for the disk. What is read is what was written, by a checksum that stays in memory, or it
 * counts as not read.
 *
 * One thread posts and takes. A place belongs to the store from the post of its copy until that is taken.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_KV_STORE_H
#define INFER_KV_STORE_H

#include "kv/kv.h"

typedef struct infer_kv_store infer_kv_store;

/* Places in memory: place i at base + i * bytes. A place may be of several of these, one after the other in a slot. */
typedef struct infer_kv_store_part {
    uint8_t *base;
    uint64_t bytes;
} infer_kv_store_part;

typedef struct infer_kv_store_options {
    const char *dir; /* of the user, and nobody else may write it */
    uint32_t n_slots;
    uint32_t n_jobs; /* most copies that are posted and not taken */
    const infer_kv_store_part *parts;
    uint32_t n_parts;
    int32_t trial_place;      /* copied to the file and back, to measure it */
    void (*wake)(void *user); /* on the store's thread, when a copy is done; no lock is held */
    void *user;
} infer_kv_store_options;

/* Bytes of a slot whose parts are of so many bytes together. */
uint64_t infer_kv_store_slot_bytes(uint64_t bytes);
/* Whether a file of so many bytes can be made there, as far as can be told without making it: errors as of create. */
infer_status infer_kv_store_check(const char *dir, uint64_t bytes, infer_error *err);
/* Makes the file, with all its room, and the thread. Errors: INFER_E_IO with the folder and the cause (too little room:
 * with both numbers), INFER_E_INVALID: a folder that is not the user's own, INFER_E_NO_MEMORY. */
infer_status infer_kv_store_create(const infer_kv_store_options *o, infer_kv_store **out, infer_error *err);
/* Waits for the copy under way; those posted and not begun are dropped. NULL is none. */
void infer_kv_store_destroy(infer_kv_store *s);
/* What reading or writing a slot takes, in nanoseconds, as measured at creation. */
double infer_kv_store_read_ns(const infer_kv_store *s);
/* A copy from a place to a slot, or back. Less than n_jobs are under way. Never waits for the disk. */
void infer_kv_store_post(infer_kv_store *s, const infer_kv_io *io);
/* Whether there is one to take. [any thread] */
int infer_kv_store_ready(const infer_kv_store *s);
/* Takes one that is done: ok and ns are set. 0: there is none. */
int infer_kv_store_take(infer_kv_store *s, infer_kv_io *io);

/* For tests: what befalls the reads and writes of all stores from now on. */
enum {
    INFER_KV_FAULT_WRITE = 1, /* no room */
    INFER_KV_FAULT_READ = 2,  /* an error */
    INFER_KV_FAULT_SHORT = 4, /* reads end early */
    INFER_KV_FAULT_FLIP = 8,  /* a byte of the file is another */
};
/* faults: a set of them; every: they befall one copy in so many; delay_us: each copy takes so much longer. */
void infer_kv_store_plant(uint32_t faults, uint32_t every, uint32_t delay_us);

#endif
