/* Worker team (workers.h). SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#ifdef __linux__
#include <sched.h>
#endif

#include "workers.h"

/* Chunks that wait, first .. end of one worker's, in one word, so that taking one is one step. The owner takes from the
 * front, so that it reads weights in order of memory; others take from the end. Three rules make that safe.
 *
 * Who took chunks adds them to `done` once, after the last of them is finished: a job cannot end while anybody holds
 * one of its chunks, and only who holds one may look at the job (fn, ctx, n).
 *
 * done = 0, fn, ctx and n are written before the first `range` is: who takes a chunk sees them.
 *
 * `job` only wakes. A worker that arrives late finds no chunk, or one of the next job, maybe before `job` counts that,
 * and then it simply works on that. */
typedef struct worker {
    _Alignas(64) _Atomic uint64_t range; /* end << 32 | first */
    _Atomic uint32_t taken;              /* chunks that it did, since shares were last set */
    cpu_team *team;
    uint32_t index;
    pthread_t thread;
} worker;

struct cpu_team {
    _Alignas(64) _Atomic uint32_t job; /* counts them */
    _Alignas(64) _Atomic int64_t done;
    _Alignas(64) _Atomic uint32_t sleeping; /* workers that wait on `wake` */
    _Atomic uint32_t caller_sleeps;
    _Atomic uint32_t stop;
    _Atomic uint32_t busy; /* a job runs: packing may meet a queue's work */
    cpu_chunk_fn fn;
    void *ctx;
    int64_t n;

    const infer_host *host;
    uint64_t spin_ns;
    uint32_t n_threads;
    uint32_t jobs;                     /* since shares were last set */
    double share[CPU_MAX_THREADS + 1]; /* of chunks, from 0 to 1: worker w's are share[w] .. share[w + 1] */
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

/* A chunk of that worker's, or -1. */
static inline int64_t take_one(worker *w, int own)
{
    uint64_t r = atomic_load_explicit(&w->range, memory_order_relaxed);
    while ((uint32_t)r < r >> 32) {
        uint64_t left = own ? r + 1 : r - (UINT64_C(1) << 32);
        if (atomic_compare_exchange_weak_explicit(&w->range, &r, left, memory_order_acq_rel, memory_order_relaxed))
            return own ? (int64_t)(uint32_t)r : (int64_t)(r >> 32) - 1;
    }
    return -1;
}

/* Takes chunks, its own and then others', until none is left; non-zero when the last one to finish was one of these. */
static int take_chunks(cpu_team *t, uint32_t index)
{
    int64_t mine = 0, n = 0;
    for (uint32_t i = 0; i < t->n_threads; i++) {
        worker *w = &t->workers[index + i < t->n_threads ? index + i : index + i - t->n_threads];
        for (int64_t chunk; (chunk = take_one(w, i == 0)) >= 0; mine++) {
            n = t->n;
            t->fn(t->ctx, chunk, index);
        }
    }
    if (!mine)
        return 0;
    atomic_fetch_add_explicit(&t->workers[index].taken, (uint32_t)mine, memory_order_relaxed);
    return atomic_fetch_add(&t->done, mine) + mine == n;
}

/* Watches for another job than `seen`, or the end, for up to spin_ns; non-zero when there is one. */
static int watch(cpu_team *t, uint32_t seen)
{
    uint64_t until = 0;
    do {
        for (int i = 0; i < 64; i++) {
            if (atomic_load_explicit(&t->job, memory_order_acquire) != seen || atomic_load(&t->stop))
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
    uint32_t seen = 0;
    while (!atomic_load(&t->stop)) {
        if (!watch(t, seen)) {
            pthread_mutex_lock(&t->lock);
            atomic_fetch_add(&t->sleeping, 1);
            while (atomic_load(&t->job) == seen && !atomic_load(&t->stop))
                pthread_cond_wait(&t->wake, &t->lock);
            atomic_fetch_sub(&t->sleeping, 1);
            pthread_mutex_unlock(&t->lock);
        }
        seen = atomic_load(&t->job);
        if (take_chunks(t, w->index) && atomic_load(&t->caller_sleeps)) {
            pthread_mutex_lock(&t->lock);
            pthread_cond_signal(&t->finished);
            pthread_mutex_unlock(&t->lock);
        }
    }
    return NULL;
}

/* A worker's share follows what it got done: one on a slow core, or on one that another program uses, has less to start
 * with, and the others need not fetch it from there. */
static void set_shares(cpu_team *t)
{
    enum { JOBS = 64, KEEP = 3 /* of old shares, against one of new */ };
    uint32_t taken[CPU_MAX_THREADS];
    double all = 0, old = 0, least = 0.25 / t->n_threads;
    if (++t->jobs < JOBS)
        return;
    t->jobs = 0;
    for (uint32_t w = 0; w < t->n_threads; w++)
        all += taken[w] = atomic_exchange_explicit(&t->workers[w].taken, 0, memory_order_relaxed);
    for (uint32_t w = 0; w < t->n_threads && all > 0; w++) {
        double is = t->share[w + 1] - old, want = (KEEP * is + taken[w] / all) / (KEEP + 1);
        old = t->share[w + 1];
        t->share[w + 1] = t->share[w] + (want > least ? want : least);
    }
    for (uint32_t w = 1; w <= t->n_threads; w++)
        t->share[w] /= t->share[t->n_threads];
}

static void run_shared(cpu_team *t, int64_t n, cpu_chunk_fn fn, void *ctx)
{
    t->fn = fn;
    t->ctx = ctx;
    t->n = n;
    set_shares(t);
    atomic_store_explicit(&t->done, 0, memory_order_relaxed);
    uint64_t first = 0;
    for (uint32_t w = 0; w < t->n_threads; w++) {
        double up_to = t->share[w + 1] * (double)n;
        uint64_t end = w + 1 == t->n_threads ? (uint64_t)n : (uint64_t)up_to + (up_to > (double)(uint64_t)up_to);
        end = end < first ? first : end > (uint64_t)n ? (uint64_t)n : end;
        if (end > first)
            atomic_store_explicit(&t->workers[w].range, end << 32 | first, memory_order_release);
        first = end;
    }
    atomic_fetch_add(&t->job, 1);
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
    assert(n <= CPU_MAX_CHUNKS);
    if (n <= 1 || t->n_threads == 1 || atomic_exchange_explicit(&t->busy, 1, memory_order_acquire)) {
        for (int64_t i = 0; i < n; i++)
            fn(ctx, i, 0);
        return;
    }
    run_shared(t, n, fn, ctx);
    atomic_store_explicit(&t->busy, 0, memory_order_release);
}

/* Processors of the node that `cpu` is of; all of them where that is not known. */
static uint32_t node_of(const infer_host *host, uint32_t cpu, uint32_t *cpus, uint32_t cap)
{
    enum { MAX_NODES = 64 };
    uint32_t cores, n;
    for (int32_t node = 0; node < MAX_NODES; node++) {
        n = host->cpu_list(host->ctx, node, cpus, cap, &cores);
        for (uint32_t i = 0; i < n && i < cap; i++)
            if (cpus[i] == cpu)
                return n < cap ? n : cap;
    }
    n = host->cpu_list(host->ctx, -1, cpus, cap, &cores);
    return n < cap ? n : cap;
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

uint32_t cpu_worker_place(uint32_t i, uint32_t n_threads, uint32_t n_cpus, uint32_t n_cores)
{
    if (n_cores > n_cpus) /* the list was cut */
        n_cores = n_cpus;
    if (n_cores >= n_threads)
        return (uint32_t)((uint64_t)i * n_cores / n_threads);
    return n_cpus ? i % n_cpus : 0;
}

infer_status cpu_team_create(const infer_host *host, uint32_t n_threads, uint32_t bind, uint64_t spin_ns,
                             cpu_team **out)
{
    enum { MAX_CPUS = 1024 };
    uint32_t cpus[MAX_CPUS] = {0}, near[MAX_CPUS], n_cores = 0;
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
        else if (bind != CPU_BIND_NONE && n_cpus)
            bind_thread(w->thread, near,
                        node_of(host, cpus[cpu_worker_place(i, n_threads, n_cpus, n_cores)], near, MAX_CPUS));
        t->n_threads++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    for (uint32_t i = 0; i <= t->n_threads; i++)
        t->share[i] = (double)i / t->n_threads;
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
