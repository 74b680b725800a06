/* Worker team (workers.h). SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#ifdef __linux__
#include <sched.h>
#endif

#include "workers.h"

/* The job's state in one word, so that taking a chunk and seeing which job it belongs to are one step: the number of
 * chunks in the upper half, how many were taken in the lower. A worker that arrives late either finds no chunk left,
 * and touches nothing, or owns a chunk, and then the job cannot end before it. */

typedef struct worker {
    cpu_team *team;
    uint32_t index;
    pthread_t thread;
} worker;

struct cpu_team {
    _Alignas(64) _Atomic uint64_t state;
    _Alignas(64) _Atomic int64_t done;
    _Alignas(64) _Atomic uint32_t sleeping; /* workers that wait on `wake` */
    _Atomic uint32_t caller_sleeps;
    _Atomic uint32_t stop;
    _Atomic uint32_t busy; /* a job runs: packing may meet a queue's work */
    cpu_chunk_fn fn;
    void *ctx;

    const infer_host *host;
    uint64_t spin_ns;
    uint32_t n_threads;
    pthread_mutex_t lock;
    pthread_cond_t wake, finished;
    worker workers[];
};

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline int64_t chunks_of(uint64_t state)
{
    return (int64_t)(state >> 32);
}

static inline int chunk_left(uint64_t state)
{
    return (int64_t)(state & UINT32_MAX) < chunks_of(state);
}

/* Takes chunks until none is left; non-zero when the last chunk to finish was one of these. */
static int take_chunks(cpu_team *t, uint32_t index)
{
    int64_t mine = 0, n = 0;
    while (chunk_left(atomic_load_explicit(&t->state, memory_order_relaxed))) {
        uint64_t s = atomic_fetch_add_explicit(&t->state, 1, memory_order_acq_rel);
        if (!chunk_left(s))
            break;
        n = chunks_of(s);
        t->fn(t->ctx, (int64_t)(s & UINT32_MAX), index);
        mine++;
    }
    return mine && atomic_fetch_add(&t->done, mine) + mine == n;
}

/* Watches for a chunk, or the end, for up to spin_ns; non-zero when there is one. */
static int watch(cpu_team *t)
{
    uint64_t until = 0;
    do {
        for (int i = 0; i < 64; i++) {
            if (chunk_left(atomic_load_explicit(&t->state, memory_order_relaxed)) || atomic_load(&t->stop))
                return 1;
            relax();
        }
        uint64_t now = t->host->clock_ns(t->host->ctx);
        if (!until)
            until = now + t->spin_ns;
        if (now >= until)
            return 0;
    } while (1);
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    cpu_team *t = w->team;
    while (!atomic_load(&t->stop)) {
        if (!watch(t)) {
            pthread_mutex_lock(&t->lock);
            atomic_fetch_add(&t->sleeping, 1);
            while (!chunk_left(atomic_load(&t->state)) && !atomic_load(&t->stop))
                pthread_cond_wait(&t->wake, &t->lock);
            atomic_fetch_sub(&t->sleeping, 1);
            pthread_mutex_unlock(&t->lock);
        }
        if (take_chunks(t, w->index) && atomic_load(&t->caller_sleeps)) {
            pthread_mutex_lock(&t->lock);
            pthread_cond_signal(&t->finished);
            pthread_mutex_unlock(&t->lock);
        }
    }
    return NULL;
}

static void run_shared(cpu_team *t, int64_t n, cpu_chunk_fn fn, void *ctx)
{
    t->fn = fn;
    t->ctx = ctx;
    atomic_store_explicit(&t->done, 0, memory_order_relaxed);
    atomic_store(&t->state, (uint64_t)n << 32);
    if (atomic_load(&t->sleeping)) {
        pthread_mutex_lock(&t->lock);
        pthread_cond_broadcast(&t->wake);
        pthread_mutex_unlock(&t->lock);
    }
    if (take_chunks(t, 0))
        return;
    /* Others still work on their last chunk. One of them may have lost its processor: do not burn this one for long. */
    uint64_t until = 0;
    while (atomic_load(&t->done) != n) {
        for (int i = 0; i < 64 && atomic_load_explicit(&t->done, memory_order_relaxed) != n; i++)
            relax();
        uint64_t now = t->host->clock_ns(t->host->ctx);
        if (!until)
            until = now + t->spin_ns;
        if (now < until)
            continue;
        pthread_mutex_lock(&t->lock);
        atomic_store(&t->caller_sleeps, 1);
        while (atomic_load(&t->done) != n)
            pthread_cond_wait(&t->finished, &t->lock);
        atomic_store(&t->caller_sleeps, 0);
        pthread_mutex_unlock(&t->lock);
    }
}

void cpu_team_run(cpu_team *t, int64_t n, cpu_chunk_fn fn, void *ctx)
{
    if (n <= 1 || t->n_threads == 1 || atomic_exchange_explicit(&t->busy, 1, memory_order_acquire)) {
        for (int64_t i = 0; i < n; i++)
            fn(ctx, i, 0);
        return;
    }
    run_shared(t, n, fn, ctx);
    atomic_store_explicit(&t->busy, 0, memory_order_release);
}

static void bind_thread(pthread_t thread, const uint32_t *cpus, uint32_t n)
{
#ifdef __linux__
    cpu_set_t set;
    CPU_ZERO(&set);
    for (uint32_t i = 0; i < n; i++)
        if (cpus[i] < CPU_SETSIZE)
            CPU_SET(cpus[i], &set);
    if (CPU_COUNT(&set) > 0)
        pthread_setaffinity_np(thread, sizeof set, &set); /* a refusal only costs speed */
#else
    (void)thread;
    (void)cpus;
    (void)n;
#endif
}

infer_status cpu_team_create(const infer_host *host, uint32_t n_threads, uint32_t bind, uint64_t spin_ns,
                             cpu_team **out)
{
    enum { MAX_CPUS = 1024 };
    uint32_t cpus[MAX_CPUS] = {0}, n_cores = 0;
    uint32_t n_cpus = host->cpu_list(host->ctx, -1, cpus, MAX_CPUS, &n_cores);
    if (n_cpus > MAX_CPUS)
        n_cpus = MAX_CPUS;
    cpu_team *t = host->alloc(host->ctx, sizeof *t + n_threads * sizeof *t->workers, 64);
    if (!t)
        return INFER_E_NO_MEMORY;
    memset(t, 0, sizeof *t + n_threads * sizeof *t->workers);
    t->host = host;
    t->spin_ns = spin_ns;
    t->n_threads = 1;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, NULL);
    pthread_cond_init(&t->finished, NULL);
    /* Signals belong to the program's own threads. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (uint32_t i = 1; i < n_threads; i++) {
        worker *w = &t->workers[i];
        w->team = t;
        w->index = i;
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0)
            break;
        if (bind == CPU_BIND_CORE && n_cpus >= n_threads)
            bind_thread(w->thread, &cpus[i], 1);
        else if (bind != CPU_BIND_NONE)
            bind_thread(w->thread, cpus, n_cpus);
        t->n_threads++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    *out = t;
    return INFER_OK;
}

void cpu_team_destroy(cpu_team *t)
{
    if (!t)
        return;
    pthread_mutex_lock(&t->lock);
    atomic_store(&t->stop, 1);
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
    for (uint32_t i = 1; i < t->n_threads; i++)
        pthread_join(t->workers[i].thread, NULL);
    pthread_cond_destroy(&t->finished);
    pthread_cond_destroy(&t->wake);
    pthread_mutex_destroy(&t->lock);
    t->host->free(t->host->ctx, t);
}

uint32_t cpu_team_size(const cpu_team *t)
{
    return t->n_threads;
}
