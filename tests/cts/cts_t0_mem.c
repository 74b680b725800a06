/*
 * T0, what a device says of itself and its memory: properties, heaps, statistics, allocation, mapping and import.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "cts.h"

#define CANARY 0xC7u

static int is_power_of_two(uint64_t x)
{
    return x && !(x & (x - 1));
}

/* ---- Properties ------------------------------------------------------------------------------------------ */

static int is_rate(double x)
{
    return isfinite(x) && x >= 0;
}

static void props_sane(cts *c)
{
    infer_device_props p = {.struct_size = sizeof(p)}, again = {.struct_size = sizeof(again)};
    NEED(cts_ok(c, c->ops->dev_props(c->h, &p), "dev_props"), "dev_props");
    NEED(cts_ok(c, c->ops->dev_props(c->h, &again), "dev_props"), "dev_props");
    NEED(!memcmp(&p, &again, sizeof(p)), "two calls of dev_props differ");
    uint32_t known = INFER_PROP_ROW_INVARIANT | INFER_PROP_HOST_MEMORY | INFER_PROP_WANTS_BUCKETS | INFER_PROP_INLINE |
                     INFER_PROP_PARALLEL_LOAD;
    NEED(!(p.flags & ~known), "props.flags has unknown bits 0x%x", p.flags & ~known);
    NEED(is_power_of_two(p.buffer_align) && p.buffer_align <= 65536, "props.buffer_align is %u", p.buffer_align);
    NEED(p.n_queues >= 1, "props.n_queues is 0");
    NEED(!p.max_buffer || p.max_buffer >= 1 << 20, "props.max_buffer is %llu bytes (0 says no bound)",
         (unsigned long long)p.max_buffer);
    NEED(is_rate(p.read_bytes_per_s) && is_rate(p.f32_flops) && is_rate(p.f16_flops) && is_rate(p.i8_ops) &&
             is_rate(p.launch_ns),
         "a declared rate is negative or not finite (0 says unknown)");
    NEED(memchr(p.isa, 0, sizeof(p.isa)), "props.isa has no end");
    NEED(!(p.formats & 1), "props.formats names format 0, which is none");
out:;
}

/* Zeroes all of a caller's struct, puts its size first, and a canary behind the first `size` bytes. */
static void prepare(void *p, size_t all, uint32_t size)
{
    memset(p, 0, size);
    memset((uint8_t *)p + size, CANARY, all - size);
    memcpy(p, &size, sizeof(size));
}

/* 1 while the canary is whole. */
static int untouched(cts *c, const void *p, size_t all, uint32_t size, const char *what)
{
    for (size_t i = size; i < all; i++)
        if (((const uint8_t *)p)[i] != CANARY) {
            cts_fail(c, "%s writes byte %zu of a struct of %u bytes", what, i, size);
            return 0;
        }
    return 1;
}

/* A caller who knows fewer fields, and one who knows more: what lies behind either's struct is not the plugin's. */
static void props_struct_size(cts *c)
{
    struct {
        infer_device_props p;
        uint8_t beyond[64];
    } u;
    const uint32_t sizes[] = {offsetof(infer_device_props, f32_flops), sizeof(u.p), sizeof(u) - 8};
    for (int i = 0; i < 3; i++) {
        prepare(&u, sizeof(u), sizes[i]);
        NEED(cts_ok(c, c->ops->dev_props(c->h, &u.p), "dev_props") &&
                 untouched(c, &u, sizeof(u), sizes[i], "dev_props"),
             "dev_props");
        NEED(u.p.struct_size == sizes[i], "dev_props changed struct_size from %u to %u", sizes[i], u.p.struct_size);
    }
out:;
}

/* ---- Heaps ----------------------------------------------------------------------------------------------- */

static void heaps_sane(cts *c)
{
    struct {
        infer_heap_info h[16];
    } u;
    uint32_t n = 0, none = 0;
    NEED(cts_ok(c, c->ops->dev_heaps(c->h, NULL, 0, &none), "dev_heaps with room for none"), "dev_heaps");
    memset(&u, 0, sizeof(u));
    for (int i = 0; i < 16; i++)
        u.h[i].struct_size = sizeof(u.h[i]);
    NEED(cts_ok(c, c->ops->dev_heaps(c->h, u.h, 16, &n), "dev_heaps"), "dev_heaps");
    NEED(n == none, "dev_heaps shows %u heaps, with room for none %u", n, none);
    NEED(n >= 1, "there is no heap");
    for (uint32_t i = 0; i < n && i < 16; i++) {
        const infer_heap_info *h = &u.h[i];
        NEED(!(h->flags & ~(INFER_HEAP_HOST_VISIBLE | INFER_HEAP_COHERENT | INFER_HEAP_DEVICE_LOCAL)),
             "heap %u: unknown flags 0x%x", i, h->flags);
        NEED(h->size > 0, "heap %u: size 0", i);
        NEED(h->granularity > 0, "heap %u: granularity 0", i);
        NEED(is_power_of_two(h->align) && h->align >= c->props->buffer_align,
             "heap %u: align %u is no power of two of at least buffer_align (%u)", i, h->align, c->props->buffer_align);
        NEED(h->numa_node >= -1, "heap %u: numa_node %d", i, h->numa_node);
    }
out:;
}

static void heaps_struct_size(cts *c)
{
    struct {
        infer_heap_info h;
        uint8_t beyond[64];
    } u;
    const uint32_t sizes[] = {offsetof(infer_heap_info, granularity), sizeof(u.h), sizeof(u) - 8};
    uint32_t n;
    for (int i = 0; i < 3; i++) {
        prepare(&u, sizeof(u), sizes[i]);
        NEED(cts_ok(c, c->ops->dev_heaps(c->h, &u.h, 1, &n), "dev_heaps") &&
                 untouched(c, &u, sizeof(u), sizes[i], "dev_heaps"),
             "dev_heaps");
    }
out:;
}

static int stats(cts *c, infer_heap_stats *st)
{
    memset(st, 0, sizeof(*st));
    st->struct_size = sizeof(*st);
    return cts_ok(c, c->ops->dev_heap_stats(c->h, 0, st), "dev_heap_stats");
}

static void heaps_stats(cts *c)
{
    const uint64_t bytes = 1 << 20;
    infer_heap_stats before, with, after;
    infer_buffer *b;
    NEED(stats(c, &before), "stats");
    const infer_known *all[] = {&before.total, &before.budget, &before.ours, &before.others, &before.largest_free};
    for (int i = 0; i < 5; i++)
        NEED(all[i]->quality <= INFER_KNOWN_NOT, "figure %d: quality %u is unknown", i, all[i]->quality);
    if (before.total.quality == INFER_KNOWN_EXACT && before.budget.quality == INFER_KNOWN_EXACT)
        NEED(before.budget.value <= before.total.value, "the budget is above the total");
    if (before.ours.quality == INFER_KNOWN_EXACT && before.total.quality == INFER_KNOWN_EXACT)
        NEED(before.ours.value <= before.total.value, "ours is above the total");
    b = cts_buf(c, bytes);
    NEED(b && stats(c, &with), "stats");
    cts_buf_free(c, b);
    NEED(stats(c, &after), "stats");
    if (before.ours.quality == INFER_KNOWN_EXACT) {
        NEED(with.ours.value >= before.ours.value + bytes, "ours grew by %lld on an allocation of %llu bytes",
             (long long)(with.ours.value - before.ours.value), (unsigned long long)bytes);
        NEED(after.ours.value == before.ours.value, "ours is %llu after alloc and free, %llu before",
             (unsigned long long)after.ours.value, (unsigned long long)before.ours.value);
    }
    infer_status s = c->ops->dev_heap_stats(c->h, 1000, &after);
    NEED(s < 0, "dev_heap_stats of heap 1000: %s", infer_status_name(s));
out:;
}

static void heaps_stats_struct_size(cts *c)
{
    struct {
        infer_heap_stats st;
        uint8_t beyond[64];
    } u;
    const uint32_t sizes[] = {offsetof(infer_heap_stats, others), sizeof(u.st), sizeof(u) - 8};
    for (int i = 0; i < 3; i++) {
        prepare(&u, sizeof(u), sizes[i]);
        NEED(cts_ok(c, c->ops->dev_heap_stats(c->h, 0, &u.st), "dev_heap_stats") &&
                 untouched(c, &u, sizeof(u), sizes[i], "dev_heap_stats"),
             "dev_heap_stats");
    }
out:;
}

/* ---- Allocation ------------------------------------------------------------------------------------------ */

/* Every byte of buffers of odd sizes holds what was written. */
static void mem_sizes(cts *c)
{
    static const uint64_t sizes[] = {1, 2, 3, 7, 64, 255, 256, 257, 4095, 4097, 65537, 1000003};
    uint8_t *data = infer_malloc(2 * 1000003), *back = data ? data + 1000003 : NULL;
    NEED(data, "no host memory");
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        infer_buffer *b = cts_buf(c, sizes[i]);
        NEED(b, "alloc");
        cts_bytes(c, data, sizes[i]);
        memset(back, 0, sizes[i]);
        NEED(cts_write(c, b, 0, data, sizes[i]) && cts_read(c, b, 0, back, sizes[i]), "transfer");
        int64_t at = cts_differ(data, back, sizes[i]);
        NEED(at < 0, "a buffer of %llu bytes: byte %lld is 0x%02x, not 0x%02x", (unsigned long long)sizes[i],
             (long long)at, back[at], data[at]);
    }
out:
    infer_free(data);
}

static void mem_zero(cts *c)
{
    infer_buffer *mark = (infer_buffer *)(void *)c, *b = mark;
    infer_status s = c->ops->buf_alloc(c->h, 0, 0, &b);
    if (!s)
        c->ops->buf_free(c->h, b);
    NEED(s < 0, "buf_alloc of 0 bytes: %s", infer_status_name(s));
    NEED(b == mark, "a failing buf_alloc wrote its output");
    s = c->ops->buf_alloc(c->h, 1000, 64, &b);
    if (!s)
        c->ops->buf_free(c->h, b);
    NEED(s < 0 && b == mark, "buf_alloc from heap 1000: %s", infer_status_name(s));
out:;
}

/* Whether the device still works: a buffer, a fill, a read. */
static int usable(cts *c)
{
    uint8_t back[4096];
    infer_buffer *b = cts_buf(c, sizeof(back));
    if (!b || !cts_ok(c, cts_fill(c, c->queue, b, 0, sizeof(back), 0x5A, 1), "cmd_fill") ||
        !cts_read(c, b, 0, back, sizeof(back)))
        return 0;
    cts_buf_free(c, b);
    for (size_t i = 0; i < sizeof(back); i++)
        if (back[i] != 0x5A) {
            cts_fail(c, "byte %zu is 0x%02x after a fill", i, back[i]);
            return 0;
        }
    return 1;
}

static void mem_too_large(cts *c)
{
    const uint64_t sizes[] = {c->heap->size + 1, c->heap->size * 4, UINT64_MAX / 2, UINT64_MAX / 2 + 1,
                              UINT64_MAX - 4095, UINT64_MAX - 1,    UINT64_MAX};
    infer_buffer *mark = (infer_buffer *)(void *)c;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        infer_buffer *b = mark;
        infer_status s = c->ops->buf_alloc(c->h, 0, sizes[i], &b);
        if (!s)
            c->ops->buf_free(c->h, b);
        NEED(s == INFER_E_NO_MEMORY, "buf_alloc of %llu bytes from a heap of %llu: %s", (unsigned long long)sizes[i],
             (unsigned long long)c->heap->size, infer_status_name(s));
        NEED(b == mark, "a failing buf_alloc wrote its output");
        NEED(usable(c), "after NO_MEMORY");
    }
out:;
}

/* The heap runs out, says so, and is whole again after everything was freed. */
static void mem_exhaust(cts *c)
{
    infer_heap_stats st;
    NEED(stats(c, &st), "stats");
    if (c->props->flags & INFER_PROP_HOST_MEMORY) {
        cts_skip(c, "the heap is this machine's memory");
        return;
    }
    uint64_t chunk = c->heap->size / 16, n[2] = {0, 0};
    if (c->props->max_buffer && chunk > c->props->max_buffer)
        chunk = c->props->max_buffer;
    for (int round = 0; round < 2; round++) {
        infer_buffer *got[CTS_MAX_BUFS];
        infer_status s = INFER_OK;
        while (n[round] < CTS_MAX_BUFS && !s) {
            s = c->ops->buf_alloc(c->h, 0, chunk, &got[n[round]]);
            n[round] += s == INFER_OK;
        }
        for (uint64_t i = 0; i < n[round]; i++)
            c->ops->buf_free(c->h, got[i]);
        NEED(s == INFER_E_NO_MEMORY, "after %llu buffers of %llu bytes: %s", (unsigned long long)n[round],
             (unsigned long long)chunk, infer_status_name(s));
        NEED(n[round] * chunk <= c->heap->size, "the heap of %llu bytes gave %llu", (unsigned long long)c->heap->size,
             (unsigned long long)(n[round] * chunk));
        NEED(usable(c), "after NO_MEMORY");
    }
    NEED(n[1] + 1 >= n[0], "%llu buffers fit at first, %llu after freeing them", (unsigned long long)n[0],
         (unsigned long long)n[1]);
out:;
}

/* Many buffers live at once, freed and made again in random order; none shares a byte with another. */
static void mem_many(cts *c)
{
    enum { N = 120, SIZE = 1031 };
    uint8_t *data = infer_malloc((N + 1) * SIZE), *back = data ? data + N * SIZE : NULL;
    infer_buffer *b[N] = {0};
    NEED(data, "no host memory");
    for (int step = 0; step < 400; step++) {
        uint64_t i = cts_below(c, N);
        if (step < N)
            i = (uint64_t)step;
        uint8_t *mine = data + i * SIZE;
        if (b[i]) {
            NEED(cts_read(c, b[i], 0, back, SIZE), "read");
            int64_t at = cts_differ(mine, back, SIZE);
            NEED(at < 0, "byte %lld of a buffer changed while others were used", (long long)at);
            cts_buf_free(c, b[i]);
        }
        b[i] = cts_buf(c, SIZE);
        cts_bytes(c, mine, SIZE);
        NEED(b[i] && cts_write(c, b[i], 0, mine, SIZE), "write");
    }
out:
    infer_free(data);
}

/* ---- Optional slots -------------------------------------------------------------------------------------- */

static void mem_map(cts *c)
{
    enum { N = 5000 };
    uint8_t data[N], back[N];
    void *p = NULL;
    if (!CTS_HAS(c, buf_map) || !(c->heap->flags & INFER_HEAP_HOST_VISIBLE)) {
        cts_skip(c, "%s", CTS_HAS(c, buf_map) ? "heap 0 is not host-visible" : "buf_map is absent");
        return;
    }
    infer_buffer *b = cts_buf(c, N);
    infer_range r = {b, 256, N - 256};
    cts_bytes(c, data, N);
    NEED(b && cts_write(c, b, 0, data, N), "write");
    NEED(cts_ok(c, c->ops->buf_map(c->h, &r, &p), "buf_map") && p, "buf_map");
    int64_t at = cts_differ(p, data + 256, N - 256);
    if (at < 0)
        memset((uint8_t *)p + 100, 0x33, 1000);
    c->ops->buf_unmap(c->h, &r, p);
    NEED(at < 0, "a mapped range differs from what was copied there, at byte %lld", (long long)at);
    memset(data + 356, 0x33, 1000);
    NEED(cts_read(c, b, 0, back, N), "read");
    at = cts_differ(data, back, N);
    NEED(at < 0, "after unmap byte %lld is 0x%02x, not 0x%02x", (long long)at, back[at], data[at]);
out:;
}

static void mem_import_host(cts *c)
{
    enum { N = 3 * 65536 };
    if (!CTS_HAS(c, buf_import_host)) {
        cts_skip(c, "buf_import_host is absent");
        return;
    }
    infer_buffer *b = NULL, *own = NULL;
    uint8_t *p = infer_alloc_aligned(N, 65536), *back = infer_malloc(N);
    NEED(p && back, "no host memory");
    cts_bytes(c, p, N);
    infer_status s = c->ops->buf_import_host(c->h, p, N, &b);
    if (s == INFER_E_UNSUPPORTED) {
        cts_skip(c, "buf_import_host answers UNSUPPORTED");
        b = NULL;
        goto out;
    }
    NEED(cts_ok(c, s, "buf_import_host"), "buf_import_host");
    own = cts_buf(c, N);
    infer_copy_region r = {.bytes = N, .rows = 1};
    NEED(own && cts_ok(c, cts_copy(c, c->queue, (infer_copy_end){own, NULL}, (infer_copy_end){b, NULL}, &r, 1),
                       "cmd_copy from an imported buffer"),
         "copy");
    NEED(cts_read(c, own, 0, back, N), "read");
    int64_t at = cts_differ(p, back, N);
    NEED(at < 0, "an imported buffer reads differently at byte %lld", (long long)at);
out:
    if (b) {
        cts_sync(c);
        c->ops->buf_free(c->h, b);
    }
    infer_free(back);
    infer_free_aligned(p);
}

static void mem_health(cts *c)
{
    infer_health h = {.struct_size = sizeof(h)};
    NEED(cts_ok(c, infer_hal_dev_health(c->dev, &h), "dev_health"), "dev_health");
    NEED(h.state <= INFER_HEALTH_LOST, "health %u is unknown", h.state);
    NEED(h.state != INFER_HEALTH_LOST, "the device calls itself lost: %s", h.reason);
    NEED(h.state == INFER_HEALTH_OK || h.reason[0], "health %u without a reason", h.state);
out:;
}

void cts_t0_mem(cts_run *r)
{
    static const cts_case cases[] = {
        {"t0.props.sane", props_sane},
        {"t0.props.struct_size", props_struct_size},
        {"t0.heaps.sane", heaps_sane},
        {"t0.heaps.struct_size", heaps_struct_size},
        {"t0.heaps.stats", heaps_stats},
        {"t0.heaps.stats_struct_size", heaps_stats_struct_size},
        {"t0.mem.sizes", mem_sizes},
        {"t0.mem.zero", mem_zero},
        {"t0.mem.too_large", mem_too_large},
        {"t0.mem.exhaust", mem_exhaust},
        {"t0.mem.many", mem_many},
        {"t0.mem.map", mem_map},
        {"t0.mem.import_host", mem_import_host},
        {"t0.mem.health", mem_health},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        cts_case_run(r, 0, cases[i].name, cases[i].fn, 1, NULL);
}
