/* The file tier: one scratch file, one thread. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/hash.h"
#include "kv/store.h"

enum { PAGE = 4096, MAX_PARTS = 64, TRIALS = 4 };

typedef struct ring {
    infer_kv_io *at;
    uint32_t first, n;
} ring;

struct infer_kv_store {
    int fd;
    uint32_t n_slots, n_jobs, n_parts;
    infer_kv_store_part parts[MAX_PARTS];
    uint64_t slot_bytes, *sums; /* by slot; the thread's */
    double read_ns;
    void (*wake)(void *user);
    void *user;
    pthread_t thread;
    int started;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t work;
    ring reads, writes, done;
    int stop;
    _Atomic uint32_t n_done;
};

/* ---- Faults for tests -------------------------------------------------------------------------------------------- */

static _Atomic uint32_t planted, planted_every = 1, planted_delay, planted_count;

void infer_kv_store_plant(uint32_t faults, uint32_t every, uint32_t delay_us)
{
    atomic_store(&planted, faults);
    atomic_store(&planted_every, every ? every : 1);
    atomic_store(&planted_delay, delay_us);
}

/* The faults of a copy. */
static uint32_t faults_now(void)
{
    const uint32_t us = atomic_load(&planted_delay);
    if (us)
        nanosleep(&(struct timespec){us / 1000000, (long)(us % 1000000) * 1000}, NULL);
    const uint32_t f = atomic_load(&planted);
    return f && atomic_fetch_add(&planted_count, 1) % atomic_load(&planted_every) == 0 ? f : 0;
}

/* ---- The file ---------------------------------------------------------------------------------------------------- */

uint64_t infer_kv_store_slot_bytes(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* All n bytes, or 0. */
static int write_all(int fd, const uint8_t *p, uint64_t n, uint64_t at)
{
    while (n) {
        const ssize_t k = pwrite(fd, p, n, (off_t)at);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return 0;
        p += k, n -= (uint64_t)k, at += (uint64_t)k;
    }
    return 1;
}

static int read_all(int fd, uint8_t *p, uint64_t n, uint64_t at)
{
    while (n) {
        const ssize_t k = pread(fd, p, n, (off_t)at);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0) /* an error, or the file is shorter than it was made */
            return 0;
        p += k, n -= (uint64_t)k, at += (uint64_t)k;
    }
    return 1;
}

/* Four words at a time, each in a lane of its own: as fast as memory gives them. Not against who means harm: nobody
 * else has the file. */
static uint64_t checksum(const uint8_t *p, uint64_t n, uint64_t seed)
{
    uint64_t lane[4] = {seed, ~seed, seed + 1, ~seed - 1}, x[4];
    for (; n >= sizeof x; n -= sizeof x, p += sizeof x) {
        memcpy(x, p, sizeof x);
        for (int i = 0; i < 4; i++) {
            lane[i] = (lane[i] ^ x[i]) * 0x9E3779B97F4A7C15u;
            lane[i] ^= lane[i] >> 29;
        }
    }
    uint64_t h = infer_hash_bytes(p, (size_t)n, seed);
    for (int i = 0; i < 4; i++)
        h = infer_hash_u64(h ^ lane[i]);
    return h;
}

static uint64_t sum_of(const infer_kv_store *s, const infer_kv_io *io)
{
    uint64_t h = (uint64_t)io->slot;
    for (uint32_t i = 0; i < s->n_parts; i++)
        h = checksum(s->parts[i].base + s->parts[i].bytes * (uint64_t)io->place, s->parts[i].bytes, h);
    return h;
}

static int copy(infer_kv_store *s, const infer_kv_io *io)
{
    const uint32_t faults = faults_now();
    uint64_t at = s->slot_bytes * (uint64_t)io->slot;
    if (io->is_write)
        s->sums[io->slot] = sum_of(s, io);
    if (faults & (io->is_write ? INFER_KV_FAULT_WRITE : INFER_KV_FAULT_READ))
        return 0;
    if (faults & INFER_KV_FAULT_FLIP) {
        uint8_t b;
        if (!read_all(s->fd, &b, 1, at))
            return 0;
        b ^= 1;
        if (!io->is_write && !write_all(s->fd, &b, 1, at))
            return 0;
    }
    for (uint32_t i = 0; i < s->n_parts; i++) {
        const uint64_t n = s->parts[i].bytes;
        uint8_t *p = s->parts[i].base + n * (uint64_t)io->place;
        if (!io->is_write && faults & INFER_KV_FAULT_SHORT)
            return read_all(s->fd, p, n / 2, at) && 0;
        if (!(io->is_write ? write_all(s->fd, p, n, at) : read_all(s->fd, p, n, at)))
            return 0;
        at += n;
    }
    return io->is_write || sum_of(s, io) == s->sums[io->slot];
}

/* ---- The thread -------------------------------------------------------------------------------------------------- */

static void push(const infer_kv_store *s, ring *r, const infer_kv_io *io)
{
    r->at[(r->first + r->n++) % s->n_jobs] = *io;
}

static infer_kv_io pop(const infer_kv_store *s, ring *r)
{
    const infer_kv_io io = r->at[r->first];
    r->first = (r->first + 1) % s->n_jobs;
    r->n--;
    return io;
}

static void *store_main(void *arg)
{
    infer_kv_store *s = arg;
    pthread_setname_np(pthread_self(), "kv-file");
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->stop && !s->reads.n && !s->writes.n)
            pthread_cond_wait(&s->work, &s->lock);
        if (s->stop)
            break;
        infer_kv_io io = pop(s, s->reads.n ? &s->reads : &s->writes); /* somebody waits for what is read */
        pthread_mutex_unlock(&s->lock);
        const uint64_t t0 = infer_clock_ns();
        io.ok = copy(s, &io);
        io.ns = infer_clock_ns() - t0;
        pthread_mutex_lock(&s->lock);
        push(s, &s->done, &io);
        atomic_store(&s->n_done, s->done.n);
        pthread_mutex_unlock(&s->lock);
        s->wake(s->user);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

void infer_kv_store_post(infer_kv_store *s, const infer_kv_io *io)
{
    pthread_mutex_lock(&s->lock);
    push(s, io->is_write ? &s->writes : &s->reads, io);
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
}

int infer_kv_store_ready(const infer_kv_store *s)
{
    return atomic_load(&s->n_done) != 0;
}

int infer_kv_store_take(infer_kv_store *s, infer_kv_io *io)
{
    pthread_mutex_lock(&s->lock);
    const int any = s->done.n != 0;
    if (any)
        *io = pop(s, &s->done);
    atomic_store(&s->n_done, s->done.n);
    pthread_mutex_unlock(&s->lock);
    return any;
}

double infer_kv_store_read_ns(const infer_kv_store *s)
{
    return s->read_ns;
}

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

/* The folder, where a file of so many bytes can be made. */
static infer_status open_folder(const char *dir, uint64_t bytes, int *out, infer_error *err)
{
    struct stat st;
    struct statvfs fs;
    const int d = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    infer_status status = INFER_OK;
    if (d < 0)
        return infer_error_set(err, errno == ENOENT ? INFER_E_NOT_FOUND : INFER_E_IO, "prefix cache: folder %s: %s",
                               dir, strerror(errno));
    if (fstat(d, &st) || st.st_uid != geteuid() || st.st_mode & (S_IWGRP | S_IWOTH))
        status = infer_error_set(err, INFER_E_INVALID,
                                 "prefix cache: folder %s: it must be this user's, and nobody else may write it: "
                                 "chmod go-w it, or make another",
                                 dir);
    else if (!fstatvfs(d, &fs) && (uint64_t)fs.f_bavail * fs.f_frsize < bytes)
        status =
            infer_error_set(err, INFER_E_IO, "prefix cache: folder %s: %llu bytes are free, the file takes %llu", dir,
                            (unsigned long long)((uint64_t)fs.f_bavail * fs.f_frsize), (unsigned long long)bytes);
    if (status != INFER_OK)
        close(d);
    *out = d;
    return status;
}

infer_status infer_kv_store_check(const char *dir, uint64_t bytes, infer_error *err)
{
    int d;
    INFER_TRY(open_folder(dir, bytes, &d, err));
    close(d);
    return INFER_OK;
}

/* A file in the folder, without a name, readable by nobody else; with all its room. */
static infer_status make_file(infer_kv_store *s, const char *dir, uint64_t bytes, infer_error *err)
{
    static _Atomic unsigned number;
    infer_status status = INFER_OK;
    char name[64];
    int d;
    INFER_TRY(open_folder(dir, bytes, &d, err));
    snprintf(name, sizeof name, ".infer-kv-%ld-%u-%llx", (long)getpid(), atomic_fetch_add(&number, 1),
             (unsigned long long)infer_clock_ns());
    s->fd = openat(d, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (s->fd < 0 || unlinkat(d, name, 0))
        status = infer_error_set(err, INFER_E_IO, "prefix cache: a file in %s: %s", dir, strerror(errno));
    const int e = status == INFER_OK ? posix_fallocate(s->fd, 0, (off_t)bytes) : 0;
    if (e)
        status = infer_error_set(err, INFER_E_IO, "prefix cache: a file of %llu bytes in %s: %s",
                                 (unsigned long long)bytes, dir, strerror(e));
    close(d);
    return status;
}

/* A write and a read from the disk itself; a mean of few, which real ones soon correct. */
static infer_status measure(infer_kv_store *s, int32_t place, const char *dir, infer_error *err)
{
    uint64_t t0 = 0;
    int ok = 1;
    for (uint32_t i = 0; i < 2 * TRIALS; i++) {
        const infer_kv_io io = {.is_write = i < TRIALS, .place = place, .slot = (int32_t)(i % TRIALS % s->n_slots)};
        if (i == TRIALS) {
            (void)fdatasync(s->fd);
            (void)posix_fadvise(s->fd, 0, 0, POSIX_FADV_DONTNEED);
            t0 = infer_clock_ns();
        }
        ok = ok && copy(s, &io);
    }
    s->read_ns = (double)(infer_clock_ns() - t0) / TRIALS;
    if (ok)
        return INFER_OK;
    return infer_error_set(err, INFER_E_IO, "prefix cache: a block written to a file in %s does not come back", dir);
}

infer_status infer_kv_store_create(const infer_kv_store_options *o, infer_kv_store **out, infer_error *err)
{
    uint64_t bytes = 0;
    infer_kv_store *s = infer_calloc(1, sizeof *s);
    if (!s)
        return infer_error_set(err, INFER_E_NO_MEMORY, "prefix cache: no host memory");
    *s = (infer_kv_store){
        .fd = -1, .n_slots = o->n_slots, .n_jobs = o->n_jobs, .n_parts = o->n_parts, .wake = o->wake, .user = o->user};
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    infer_status st = INFER_OK;
    if (!o->n_slots || !o->n_jobs || !o->n_parts || o->n_parts > MAX_PARTS) {
        st = infer_error_set(err, INFER_E_INVALID, "prefix cache: a file of %u blocks in %u parts", o->n_slots,
                             o->n_parts);
        goto fail;
    }
    for (uint32_t i = 0; i < o->n_parts; i++) {
        s->parts[i] = o->parts[i];
        s->slot_bytes += o->parts[i].bytes;
    }
    s->slot_bytes = infer_kv_store_slot_bytes(s->slot_bytes);
    if (!infer_mul_u64(s->slot_bytes, o->n_slots, &bytes) || bytes > INT64_MAX) {
        st = infer_error_set(err, INFER_E_TOO_LARGE, "prefix cache: a file of %u blocks of %llu bytes", o->n_slots,
                             (unsigned long long)s->slot_bytes);
        goto fail;
    }
    s->sums = infer_calloc(o->n_slots, sizeof *s->sums);
    s->reads.at = infer_calloc(o->n_jobs, sizeof *s->reads.at);
    s->writes.at = infer_calloc(o->n_jobs, sizeof *s->writes.at);
    s->done.at = infer_calloc(o->n_jobs, sizeof *s->done.at);
    if (!s->sums || !s->reads.at || !s->writes.at || !s->done.at) {
        st = infer_error_set(err, INFER_E_NO_MEMORY, "prefix cache: no host memory for %u records", o->n_slots);
        goto fail;
    }
    if ((st = make_file(s, o->dir, bytes, err)) != INFER_OK ||
        (st = measure(s, o->trial_place, o->dir, err)) != INFER_OK)
        goto fail;
    if (pthread_create(&s->thread, NULL, store_main, s) != 0) {
        st = infer_error_set(err, INFER_E_NO_MEMORY, "prefix cache: no thread");
        goto fail;
    }
    s->started = 1;
    *out = s;
    return INFER_OK;
fail:
    infer_kv_store_destroy(s);
    return st;
}

void infer_kv_store_destroy(infer_kv_store *s)
{
    if (!s)
        return;
    if (s->started) {
        pthread_mutex_lock(&s->lock);
        s->stop = 1;
        pthread_cond_signal(&s->work);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    if (s->fd >= 0)
        close(s->fd);
    infer_free(s->sums);
    infer_free(s->reads.at);
    infer_free(s->writes.at);
    infer_free(s->done.at);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    infer_free(s);
}
