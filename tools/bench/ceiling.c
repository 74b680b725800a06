/*
 * How fast the host's memory can be read: a plain loop over memory that no cache holds, by as many threads as work.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

enum { MAX_THREADS = 256, MIB = 1 << 20, EACH_MIB = 64, LEAST_MIB = 256, MOST_MIB = 2048, LINE = 64, OF_CACHE = 2 };

struct bench_ceiling {
    uint32_t n_threads;
    size_t each; /* bytes of a thread */
    unsigned char *memory;
};

typedef struct reader {
    pthread_t thread;
    const uint64_t *from;
    size_t words;
    uint64_t sum; /* so that the loop stays */
} reader;

/* Bytes of the last cache before memory, 0 where the system does not say. */
static size_t last_cache(void)
{
#ifdef _SC_LEVEL3_CACHE_SIZE
    long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return bytes > 0 ? (size_t)bytes : 0;
#else
    return 0;
#endif
}

bench_ceiling *bench_ceiling_create(uint32_t n_threads)
{
    bench_ceiling *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->n_threads = n_threads < 1 ? 1 : n_threads > MAX_THREADS ? MAX_THREADS : n_threads;
    size_t mib = (size_t)c->n_threads * EACH_MIB;
    const size_t beyond = OF_CACHE * last_cache() / MIB;
    mib = mib < LEAST_MIB ? LEAST_MIB : mib > MOST_MIB ? MOST_MIB : mib;
    mib = mib < beyond ? beyond : mib;
    c->each = mib * MIB / c->n_threads / LINE * LINE;
    if (!(c->memory = aligned_alloc(LINE, c->each * c->n_threads))) {
        free(c);
        return NULL;
    }
    memset(c->memory, 1, c->each * c->n_threads);
    return c;
}

void bench_ceiling_destroy(bench_ceiling *c)
{
    if (c)
        free(c->memory);
    free(c);
}

static void *read_all(void *arg)
{
    enum { STEP = 8 };
    reader *r = arg;
    uint64_t s[STEP] = {0};
    for (size_t i = 0; i + STEP <= r->words; i += STEP)
        for (int k = 0; k < STEP; k++)
            s[k] += r->from[i + (size_t)k];
    for (int k = 0; k < STEP; k++)
        r->sum += s[k];
    return NULL;
}

double bench_ceiling_read(const bench_ceiling *c)
{
    enum { PASSES = 3 };
    double best = 0;
    reader r[MAX_THREADS];
    for (int pass = 0; pass < PASSES; pass++) {
        uint32_t made = 0;
        uint64_t from = infer_engine_now();
        for (uint32_t i = 0; i < c->n_threads; i++) {
            r[i] = (reader){.from = (const uint64_t *)(const void *)(c->memory + i * c->each), .words = c->each / 8};
            if (i && pthread_create(&r[i].thread, NULL, read_all, &r[i]) != 0)
                break;
            made = i + 1;
        }
        read_all(&r[0]);
        for (uint32_t i = 1; i < made; i++)
            pthread_join(r[i].thread, NULL);
        double seconds = (double)(infer_engine_now() - from) / 1e9, rate = (double)(c->each * made) / seconds;
        best = rate > best ? rate : best;
    }
    return best;
}
