/*
 * Timelines: a 64-bit word of pinned memory that streams write and wait on by themselves, and the host by loads and
 * stores. A word says nothing of failures: whoever waits asks the signalling stream now and then, and a failure found
 * there fails the timeline; what it had reached stays reached. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#include "cuda.h"

/* The length of a step of decoding is 0.3 to 5 ms. A nap lasts 50 us longer than asked (the kernel's default slack) and
 * so costs a per cent or more of one: until then we look all the time, giving the processor to whoever wants it. What
 * takes longer is found late by at most a 32nd of its time. */
enum { SPIN_NS = 5000000, NAP_MIN_NS = 50000, NAP_MAX_NS = 500000 };
/* Satisfies every wait, also those of a stream, whose comparison is signed. */
#define RELEASED ((uint64_t)INT64_MAX)

enum { WORD_BYTES = 64, WORDS = 64 };

/* Over all devices, as a queue waits for timelines of others: the list, and in each queue its waits. */
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static infer_queue *queues;
static uint64_t last_serial;

void cuda_pause(const infer_host *host, uint64_t start_ns, uint64_t left_ns)
{
    uint64_t gone = host->clock_ns(host->ctx) - start_ns, nap = gone / 32;
    if (gone < SPIN_NS) {
        sched_yield();
        return;
    }
    nap = nap < NAP_MIN_NS ? NAP_MIN_NS : nap > NAP_MAX_NS ? NAP_MAX_NS : nap;
    nap = nap < left_ns ? nap : left_ns;
    nanosleep(&(struct timespec){.tv_nsec = (long)nap}, NULL);
}

/* ---- Words --------------------------------------------------------------------------------------------------- */

/* A page with a free word; under dev->mu. NULL: no memory, with the status in *s. */
static cuda_words *page_with_room(infer_device *dev, infer_status *s)
{
    const infer_host *host = dev->host;
    void *p = NULL;
    for (cuda_words *w = dev->words; w; w = w->next)
        if (w->used != UINT64_MAX)
            return w;
    cuda_words *w = host->alloc(host->ctx, sizeof *w, _Alignof(cuda_words));
    if (!w) {
        *s = cuda_fail(host, INFER_E_NO_MEMORY, "cuda: no host memory for a timeline");
        return NULL;
    }
    *w = (cuda_words){.next = dev->words};
    cuda_enter(dev);
    cu_result e = dev->cu->MemHostAlloc(&p, WORDS * WORD_BYTES, CU_HOST_ALLOC_PORTABLE | CU_HOST_ALLOC_DEVICEMAP);
    w->host = e ? NULL : p;
    if (!e)
        e = dev->cu->MemHostGetDevicePointer(&w->at, p, 0);
    *s = cuda_status(dev, e, INFER_E_NO_MEMORY, "make pinned memory");
    if (*s) {
        if (w->host)
            (void)dev->cu->MemFreeHost(w->host);
        host->free(host->ctx, w);
        return NULL;
    }
    dev->words = w;
    return w;
}

void cuda_words_free(infer_device *dev)
{
    while (dev->words) {
        cuda_words *w = dev->words;
        dev->words = w->next;
        (void)dev->cu->MemFreeHost(w->host);
        dev->host->free(dev->host->ctx, w);
    }
}

infer_status cuda_tl_create(infer_device *dev, infer_timeline **out)
{
    const infer_host *host = dev->host;
    infer_status s = INFER_OK;
    infer_timeline *tl = host->alloc(host->ctx, sizeof *tl, _Alignof(infer_timeline));
    if (!tl)
        return cuda_fail(host, INFER_E_NO_MEMORY, "cuda: no host memory for a timeline");
    memset(tl, 0, sizeof *tl);
    pthread_mutex_lock(&dev->mu);
    cuda_words *w = page_with_room(dev, &s);
    if (w) {
        tl->bit = (uint32_t)__builtin_ctzll(~w->used);
        w->used |= (uint64_t)1 << tl->bit;
    }
    pthread_mutex_unlock(&dev->mu);
    if (!w) {
        host->free(host->ctx, tl);
        return s;
    }
    tl->dev = dev;
    tl->page = w;
    tl->word = (_Atomic uint64_t *)(void *)(w->host + tl->bit * WORD_BYTES);
    tl->at = w->at + tl->bit * WORD_BYTES;
    atomic_store(tl->word, 0);
    *out = tl;
    return INFER_OK;
}

/* ---- Failures -------------------------------------------------------------------------------------------------- */

/* Under mu. */
static void fail(infer_timeline *tl, infer_status s)
{
    if (atomic_load(&tl->failed))
        return;
    tl->kept = atomic_load(tl->word);
    atomic_store(&tl->failed, s);
}

static infer_status failure_of(const infer_timeline *tl)
{
    infer_status s = atomic_load(&tl->failed);
    return s ? s : atomic_load(&tl->dev->failed);
}

/* OK: value is reached; PENDING; or the failure. */
static infer_status reached(infer_timeline *tl, uint64_t value)
{
    uint64_t word = atomic_load(tl->word); /* first: one that was set to let streams go has failed before */
    infer_status s = atomic_load(&tl->failed);
    if (s)
        return tl->kept >= value ? INFER_OK : s;
    if (word >= value)
        return INFER_OK;
    s = atomic_load(&tl->dev->failed);
    return s ? s : INFER_PENDING;
}

/* Under mu. */
static infer_queue *by_serial(uint64_t serial)
{
    infer_queue *q = queues;
    while (q && q->serial != serial)
        q = q->next;
    return q;
}

static infer_status ask(infer_queue *q)
{
    cuda_enter(q->dev);
    cu_result e = q->dev->cu->StreamQuery(q->stream);
    return e == CU_E_NOT_READY ? INFER_OK : cuda_status(q->dev, e, INFER_E_QUEUE, "work on a queue");
}

/* Drops reached waits; under mu. */
static void waits_drop(infer_queue *q)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < q->n_waits; i++)
        if (reached(q->waits[i].tl, q->waits[i].value) != INFER_OK)
            q->waits[n++] = q->waits[i];
    q->n_waits = n;
}

/* Under mu. */
static infer_status state(infer_queue *q)
{
    infer_status s = atomic_load(&q->failed);
    s = s ? s : ask(q);
    waits_drop(q);
    for (uint32_t i = 0; i < q->n_waits && !s; i++) {
        const infer_timeline *tl = q->waits[i].tl;
        infer_queue *from = by_serial(atomic_load(&tl->by));
        if (failure_of(tl) || (from && from != q && ask(from))) /* what another device lost is a queue here */
            s = cuda_fail(q->dev->host, INFER_E_QUEUE, "cuda: what a queue of %s waits for has failed", q->dev->name);
    }
    if (s)
        atomic_store(&q->failed, s);
    return s;
}

infer_status cuda_queue_state(infer_queue *q)
{
    pthread_mutex_lock(&mu);
    infer_status s = state(q);
    pthread_mutex_unlock(&mu);
    return s;
}

/* Asks the queue that signals last, if it is time to. */
static void look(infer_timeline *tl)
{
    const infer_host *host = tl->dev->host;
    uint64_t now = host->clock_ns(host->ctx), last = atomic_load(&tl->looked_ns);
    if (atomic_load(&tl->failed) || now - last < CUDA_LOOK_NS ||
        !atomic_compare_exchange_strong(&tl->looked_ns, &last, now))
        return;
    pthread_mutex_lock(&mu);
    infer_queue *q = by_serial(atomic_load(&tl->by));
    infer_status s = q ? state(q) : INFER_OK;
    s = s ? s : atomic_load(&tl->dev->failed);
    if (s)
        fail(tl, s);
    pthread_mutex_unlock(&mu);
}

/* ---- Landings -------------------------------------------------------------------------------------------------- */

static _Atomic uint32_t n_landings; /* of all queues */

static int apart(const void *a, uint64_t n, const void *b, uint64_t m)
{
    const uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return x + n <= y || y + m <= x;
}

/* Whether a landing's copy is done: what is reached of all, or (from) that of the ring's bytes from there on. */
static int landed(const cuda_landing *l, int all, const uint8_t *from, uint64_t bytes)
{
    return all || (from ? !apart(l->pinned, l->bytes, from, bytes) : l->tl && reached(l->tl, l->value) == INFER_OK);
}

/* A queue is in order: what comes before a landing is done when that is. Under mu. */
static void land(infer_queue *q, int all, const uint8_t *from, uint64_t bytes)
{
    uint32_t n = q->n_landings;
    while (n && !landed(&q->landings[n - 1], all, from, bytes))
        n--;
    for (uint32_t i = 0; i < n; i++)
        memcpy(q->landings[i].host, q->landings[i].pinned, (size_t)q->landings[i].bytes);
    atomic_fetch_sub(&n_landings, n);
    q->n_landings -= n;
    memmove(q->landings, q->landings + n, q->n_landings * sizeof *q->landings);
}

/* Somebody has seen a value reached. It may be another timeline's than the one behind the copy, which then is, too. */
static void land_reached(void)
{
    if (!atomic_load(&n_landings))
        return;
    pthread_mutex_lock(&mu);
    for (infer_queue *q = queues; q; q = q->next)
        land(q, 0, NULL, 0);
    pthread_mutex_unlock(&mu);
}

int cuda_land_room(infer_queue *q)
{
    pthread_mutex_lock(&mu);
    const int room = q->n_landings < CUDA_LANDINGS;
    pthread_mutex_unlock(&mu);
    return room;
}

void cuda_land_add(infer_queue *q, void *host, const uint8_t *pinned, uint64_t bytes)
{
    pthread_mutex_lock(&mu);
    q->landings[q->n_landings++] = (cuda_landing){.host = host, .pinned = pinned, .bytes = bytes};
    atomic_fetch_add(&n_landings, 1);
    pthread_mutex_unlock(&mu);
}

void cuda_land_signal(infer_queue *q, infer_timeline *tl, uint64_t value)
{
    if (!atomic_load(&n_landings))
        return;
    pthread_mutex_lock(&mu);
    for (uint32_t i = 0; i < q->n_landings; i++)
        if (!q->landings[i].tl) {
            q->landings[i].tl = tl;
            q->landings[i].value = value;
        }
    pthread_mutex_unlock(&mu);
}

int cuda_land_over(infer_queue *q, const void *host, uint64_t bytes)
{
    int over = 0;
    if (!atomic_load(&n_landings))
        return 0;
    pthread_mutex_lock(&mu);
    for (uint32_t i = 0; i < q->n_landings; i++)
        over |= !apart(q->landings[i].host, q->landings[i].bytes, host, bytes);
    pthread_mutex_unlock(&mu);
    return over;
}

void cuda_land_done(infer_queue *q, const uint8_t *pinned, uint64_t bytes)
{
    pthread_mutex_lock(&mu);
    land(q, !pinned, pinned, bytes);
    pthread_mutex_unlock(&mu);
}

/* ---- From the host's side --------------------------------------------------------------------------------------- */

infer_status cuda_tl_query(infer_timeline *tl, uint64_t *value)
{
    look(tl);
    uint64_t v = atomic_load(tl->word);
    infer_status s = failure_of(tl);
    if (s)
        return cuda_failed_before(tl->dev, s);
    land_reached();
    *value = v;
    return INFER_OK;
}

infer_status cuda_tl_wait(infer_timeline *tl, uint64_t value, uint64_t timeout_ns)
{
    const infer_host *host = tl->dev->host;
    uint64_t start = host->clock_ns(host->ctx);
    for (;;) {
        infer_status s = reached(tl, value);
        uint64_t gone = host->clock_ns(host->ctx) - start;
        if (s < 0)
            return cuda_failed_before(tl->dev, s);
        if (s == INFER_OK)
            land_reached();
        if (s == INFER_OK || gone >= timeout_ns)
            return s;
        if (gone >= CUDA_LOOK_NS)
            look(tl);
        cuda_pause(host, start, timeout_ns - gone);
    }
}

infer_status cuda_tl_signal_host(infer_timeline *tl, uint64_t value)
{
    infer_status s = failure_of(tl);
    uint64_t now = atomic_load(tl->word);
    if (s)
        return cuda_failed_before(tl->dev, s);
    if (value < now)
        return cuda_fail(tl->dev->host, INFER_E_INVALID, "cuda: a timeline does not go back");
    atomic_store(tl->word, value);
    return INFER_OK;
}

/* ---- From the queues' side -------------------------------------------------------------------------------------- */

void cuda_queue_list(infer_queue *q)
{
    pthread_mutex_lock(&mu);
    q->serial = ++last_serial;
    q->next = queues;
    queues = q;
    pthread_mutex_unlock(&mu);
}

void cuda_queue_unlist(infer_queue *q)
{
    pthread_mutex_lock(&mu);
    infer_queue **at = &queues;
    while (*at != q)
        at = &(*at)->next;
    *at = q->next;
    atomic_fetch_sub(&n_landings, q->n_landings); /* nobody waited for these */
    q->n_landings = 0;
    pthread_mutex_unlock(&mu);
}

infer_status cuda_wait_note(infer_queue *q, infer_timeline *tl, uint64_t value)
{
    pthread_mutex_lock(&mu);
    infer_status s = reached(tl, value);
    if (s == INFER_PENDING) {
        waits_drop(q);
        if (q->n_waits < CUDA_MAX_WAITS)
            q->waits[q->n_waits++] = (cuda_wait){tl, value};
        else
            s = INFER_E_UNSUPPORTED; /* the core waits instead */
    }
    pthread_mutex_unlock(&mu);
    return s < 0 && s != INFER_E_UNSUPPORTED ? cuda_failed_before(tl->dev, s) : s;
}

/* Lets streams go that wait for tl, which will not come; under mu. */
static void release(infer_timeline *tl, infer_status s)
{
    fail(tl, s);
    atomic_store(tl->word, RELEASED);
}

int cuda_queue_release(infer_queue *q)
{
    if (q->dev->cu->StreamQuery(q->stream) != CU_E_NOT_READY)
        return 1;
    pthread_mutex_lock(&mu);
    waits_drop(q);
    for (uint32_t i = 0; i < q->n_waits; i++) {
        infer_timeline *tl = q->waits[i].tl;
        infer_status s = failure_of(tl);
        if (s || q->waits[i].value > atomic_load(&tl->submitted)) /* else a queue brings it */
            release(tl, s ? s : INFER_E_QUEUE);
    }
    pthread_mutex_unlock(&mu);
    return 0;
}

void cuda_tl_destroy(infer_device *dev, infer_timeline *tl)
{
    pthread_mutex_lock(&mu);
    for (infer_queue *q = queues; q; q = q->next) {
        uint32_t n = 0;
        land(q, 0, NULL, 0);
        for (uint32_t i = 0; i < q->n_landings; i++)
            if (q->landings[i].tl == tl)
                q->landings[i].tl = NULL; /* the next signal is behind it, too */
        for (uint32_t i = 0; i < q->n_waits; i++) {
            if (q->waits[i].tl != tl)
                q->waits[n++] = q->waits[i];
            else if (reached(tl, q->waits[i].value) != INFER_OK) { /* after its device's failure */
                atomic_store(&q->failed, INFER_E_QUEUE);
                release(tl, INFER_E_QUEUE);
            }
        }
        q->n_waits = n;
    }
    pthread_mutex_unlock(&mu);
    pthread_mutex_lock(&dev->mu);
    tl->page->used &= ~((uint64_t)1 << tl->bit);
    pthread_mutex_unlock(&dev->mu);
    dev->host->free(dev->host->ctx, tl);
}
