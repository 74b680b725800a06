/*
 * T0, copies, fills and updates. Every case keeps a shadow of each buffer on the host, does to it what the device is
 * told to do, and compares whole buffers, so that a byte written outside a region shows as well as a wrong one inside.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "cts.h"

/* A place that copies read and write: a device buffer with its shadow, or (buf NULL) host memory with its shadow. */
typedef struct place {
    infer_buffer *buf;
    uint8_t *host;   /* NULL for a device buffer */
    uint8_t *shadow; /* what must be there when all work is done */
    uint64_t size;
} place;

static void place_free(place *p)
{
    infer_free(p->host);
    infer_free(p->shadow);
    *p = (place){0};
}

/* Makes a place full of random bytes. 1, or 0 with the case failed. */
static int place_make(cts *c, place *p, uint64_t size, int on_device)
{
    *p = (place){.size = size, .shadow = infer_malloc(size)};
    if (!p->shadow)
        goto err;
    cts_bytes(c, p->shadow, size);
    if (on_device) {
        p->buf = cts_buf(c, size);
        return p->buf && cts_write(c, p->buf, 0, p->shadow, size);
    }
    p->host = infer_malloc(size);
    if (!p->host)
        goto err;
    memcpy(p->host, p->shadow, size);
    return 1;
err:
    cts_fail(c, "no host memory");
    return 0;
}

static int place_check(cts *c, const place *p, const char *what)
{
    int64_t at;
    if (p->host) {
        at = cts_differ(p->host, p->shadow, p->size);
        if (at >= 0)
            cts_fail(c, "%s: byte %lld of %llu of the host side is 0x%02x, not 0x%02x", what, (long long)at,
                     (unsigned long long)p->size, p->host[at], p->shadow[at]);
        return at < 0;
    }
    uint8_t *back = infer_malloc(p->size);
    if (!back || !cts_read(c, p->buf, 0, back, p->size)) {
        infer_free(back);
        cts_fail(c, "no host memory");
        return 0;
    }
    at = cts_differ(back, p->shadow, p->size);
    if (at >= 0)
        cts_fail(c, "%s: byte %lld of %llu is 0x%02x, not 0x%02x", what, (long long)at, (unsigned long long)p->size,
                 back[at], p->shadow[at]);
    infer_free(back);
    return at < 0;
}

/* Submits the regions and applies them to the shadows. */
static int do_copy(cts *c, place *dst, const place *src, const infer_copy_region *r, uint32_t n)
{
    infer_copy_end d = {dst->buf, dst->host}, s = {src->buf, src->host};
    if (!cts_ok(c, cts_copy(c, c->queue, d, s, r, n), "cmd_copy"))
        return 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint64_t row = 0; row < r[i].rows; row++)
            memcpy(dst->shadow + r[i].dst_offset + row * r[i].dst_pitch,
                   src->shadow + r[i].src_offset + row * r[i].src_pitch, r[i].bytes);
    return 1;
}

/* Up to cap random regions: dst is cut into disjoint stretches in order, src is read anywhere. strided: several rows,
 * with pitches of any size at least a row. */
static uint32_t regions(cts *c, const place *dst, const place *src, int strided, infer_copy_region *r, uint32_t cap)
{
    uint64_t at = 0;
    uint32_t n = 0;
    while (n < cap) {
        uint64_t bytes = 1 + cts_below(c, cts_below(c, 4) ? 64 : 3000), rows = strided ? 1 + cts_below(c, 9) : 1;
        uint64_t dp = bytes + (strided ? cts_below(c, 40) : 0), sp = bytes + (strided ? cts_below(c, 40) : 0);
        at += cts_below(c, 70);
        if (at + rows * dp > dst->size || rows * sp > src->size)
            break;
        /* with one row the pitches mean nothing */
        r[n++] = (infer_copy_region){.src_offset = cts_below(c, src->size - rows * sp + 1),
                                     .dst_offset = at,
                                     .bytes = bytes,
                                     .rows = rows,
                                     .src_pitch = rows == 1 ? 12345678901 : sp,
                                     .dst_pitch = rows == 1 ? 98765432109 : dp};
        at += rows * dp;
    }
    return n;
}

enum { CAP = 64 };

static void copies(cts *c, int dst_dev, int src_dev, int strided)
{
    place dst = {0}, src = {0};
    infer_copy_region r[CAP];
    NEED(place_make(c, &dst, 40009, dst_dev) && place_make(c, &src, 30011, src_dev), "places");
    for (int i = 0; i < 12; i++) {
        uint32_t n = regions(c, &dst, &src, strided, r, i < 6 ? 1 + (uint32_t)i % 3 : CAP);
        NEED(do_copy(c, &dst, &src, r, n) && cts_sync(c), "copy");
        NEED(place_check(c, &dst, "destination") && place_check(c, &src, "source"), "check");
    }
out:
    cts_sync(c);
    place_free(&dst);
    place_free(&src);
}

static void copy_upload(cts *c)
{
    copies(c, 1, 0, 0);
}

static void copy_download(cts *c)
{
    copies(c, 0, 1, 0);
}

static void copy_device(cts *c)
{
    copies(c, 1, 1, 0);
}

static void copy_upload_strided(cts *c)
{
    copies(c, 1, 0, 1);
}

static void copy_download_strided(cts *c)
{
    copies(c, 0, 1, 1);
}

static void copy_device_strided(cts *c)
{
    copies(c, 1, 1, 1);
}

/* Every alignment of both sides and every small length. */
static void copy_odd(cts *c)
{
    place a = {0}, b = {0};
    NEED(place_make(c, &a, 4096, 1) && place_make(c, &b, 4096, 1), "places");
    for (uint64_t i = 0; i < 17; i++) {
        infer_copy_region r[17];
        for (uint64_t k = 0; k < 17; k++)
            r[k] = (infer_copy_region){.src_offset = cts_below(c, 17) + 200 * k,
                                       .dst_offset = 200 * k + i,
                                       .bytes = 1 + (i + k) % 33,
                                       .rows = 1};
        NEED(do_copy(c, &b, &a, r, 17), "copy");
    }
    NEED(place_check(c, &b, "destination"), "check");
out:
    place_free(&a);
    place_free(&b);
}

/* Within one buffer: from its lower to its upper half, rows interleaved with the rows that are read, and a source read
 * by several regions of a list. */
static void copy_within(cts *c)
{
    place a = {0};
    NEED(place_make(c, &a, 20000, 1), "place");
    for (int i = 0; i < 8; i++) {
        infer_copy_region half = {
            .src_offset = cts_below(c, 100), .dst_offset = 10000 + cts_below(c, 100), .bytes = 9000, .rows = 1};
        infer_copy_region comb = {
            .src_offset = 0, .dst_offset = 51, .bytes = 49, .rows = 150, .src_pitch = 101, .dst_pitch = 101};
        infer_copy_region twice[2] = {{.src_offset = 300, .dst_offset = 16001, .bytes = 777, .rows = 1},
                                      {.src_offset = 301, .dst_offset = 17001, .bytes = 777, .rows = 1}};
        NEED(do_copy(c, &a, &a, i & 1 ? &half : &comb, 1) && do_copy(c, &a, &a, twice, 2), "copy");
    }
    NEED(place_check(c, &a, "buffer"), "check");
out:
    place_free(&a);
}

/* A long list, as moving cache blocks makes them, and a list of none. */
static void copy_list(cts *c)
{
    enum { N = 3000, BLOCK = 37 };
    place a = {0}, b = {0};
    infer_copy_region *r = infer_malloc(N * sizeof(*r));
    NEED(r && place_make(c, &a, (uint64_t)N * BLOCK, 1) && place_make(c, &b, (uint64_t)N * BLOCK, 1), "places");
    for (uint64_t i = 0; i < N; i++)
        r[i] = (infer_copy_region){
            .src_offset = cts_below(c, N) * BLOCK, .dst_offset = i * BLOCK, .bytes = BLOCK - i % 5, .rows = 1};
    NEED(do_copy(c, &b, &a, r, N), "copy");
    NEED(do_copy(c, &b, &a, r, 0), "an empty list");
    NEED(place_check(c, &b, "destination") && place_check(c, &a, "source"), "check");
out:
    cts_sync(c);
    infer_free(r);
    place_free(&a);
    place_free(&b);
}

static void copy_big(cts *c)
{
    enum { N = (8 << 20) + 13 };
    place a = {0}, b = {0}, h = {0};
    NEED(place_make(c, &h, N, 0) && place_make(c, &a, N, 1) && place_make(c, &b, N, 1), "places");
    infer_copy_region r = {.src_offset = 5, .dst_offset = 3, .bytes = N - 5, .rows = 1};
    NEED(do_copy(c, &a, &h, &r, 1) && do_copy(c, &b, &a, &r, 1) && do_copy(c, &h, &b, &r, 1), "copy");
    NEED(cts_sync(c), "sync");
    NEED(place_check(c, &h, "after a round trip") && place_check(c, &a, "first") && place_check(c, &b, "second"),
         "check");
out:
    cts_sync(c);
    place_free(&a);
    place_free(&b);
    place_free(&h);
}

/* What is submitted later sees what was submitted before, without any waiting in between: copies between three buffers
 * and to the host, fills, all at random. */
static void copy_order(cts *c)
{
    place p[4] = {{0}};
    infer_copy_region r[4];
    for (int i = 0; i < 4; i++)
        NEED(place_make(c, &p[i], 9001, i < 3), "places");
    for (int i = 0; i < 300; i++) {
        uint64_t d = cts_below(c, 4), s = (d + 1 + cts_below(c, 2)) % 3; /* the host side is only written */
        uint32_t n = regions(c, &p[d], &p[s], (int)cts_below(c, 2), r, 1 + (uint32_t)cts_below(c, 4));
        NEED(do_copy(c, &p[d], &p[s], r, n), "copy");
        if (p[d].buf && i % 5 == 0) {
            uint64_t at = cts_below(c, 4000), bytes = 1 + cts_below(c, 2000);
            NEED(cts_ok(c, cts_fill(c, c->queue, p[d].buf, at, bytes, (uint32_t)i, 1), "cmd_fill"), "fill");
            memset(p[d].shadow + at, i & 0xFF, bytes);
        }
    }
    NEED(cts_sync(c), "sync");
    for (int i = 0; i < 4; i++)
        NEED(place_check(c, &p[i], "place"), "check");
out:
    cts_sync(c);
    for (int i = 0; i < 4; i++)
        place_free(&p[i]);
}

/* Patterns of 1, 2 and 4 bytes; only their low bytes count. */
static void fill_patterns(cts *c)
{
    static const uint32_t patterns[] = {0, 0xFFFFFFFF, 0x12345678, 0x80000001, 0xDEADBEEF};
    place a = {0};
    char what[64];
    for (uint32_t w = 1; w <= 4; w *= 2)
        for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
            NEED(place_make(c, &a, 5003, 1), "place");
            for (int k = 0; k < 6; k++) {
                uint64_t at = cts_below(c, 1000) * w, bytes = (1 + cts_below(c, k < 3 ? 5 : 250)) * w;
                uint32_t p = patterns[i] + (uint32_t)k;
                NEED(cts_ok(c, cts_fill(c, c->queue, a.buf, at, bytes, p, w), "cmd_fill"), "fill");
                for (uint64_t b = 0; b < bytes; b++)
                    a.shadow[at + b] = (uint8_t)(p >> 8 * (b % w));
            }
            snprintf(what, sizeof(what), "pattern 0x%08x of %u bytes", patterns[i], w);
            NEED(place_check(c, &a, what), "check");
            cts_buf_free(c, a.buf);
            place_free(&a);
        }
out:
    place_free(&a);
}

typedef struct update_job {
    infer_hal_job job;
    cts *c;
    infer_buffer *buf;
    uint8_t *shadow;
    infer_status s;
} update_job;

/* The bytes are taken during the call: the source changes right after it. */
static void run_updates(infer_hal_job *job)
{
    update_job *u = (update_job *)(void *)job;
    uint8_t data[4096];
    for (int i = 0; i < 60 && !u->s; i++) {
        uint64_t bytes = 1 + cts_below(u->c, i % 4 ? 200 : sizeof(data)), at = cts_below(u->c, 8000 - bytes);
        infer_range r = {u->buf, at, bytes};
        cts_bytes(u->c, data, bytes);
        memcpy(u->shadow + at, data, bytes);
        u->s = CTS_HAS(u->c, cmd_update) ? u->c->ops->cmd_update(u->c->queue, &r, data, bytes)
                                         : infer_hal_update(u->c->dev, &r, data, bytes);
        if (u->s == INFER_AGAIN) {
            cts_sleep_ms(1);
            u->s = INFER_OK;
            i--; /* the range is simply written again, with other bytes */
        }
        memset(data, 0xEE, sizeof(data));
    }
    if (!CTS_HAS(u->c, cmd_update) && !u->s)
        u->s = infer_hal_drain(u->c->dev);
}

/* With the plugin's slot on the case's queue; else the core's default, which is built from the plugin's copies. */
static void update_captured(cts *c)
{
    enum { N = 8000 };
    infer_hal_buf core = {0};
    infer_error e = {0};
    update_job u = {.job.run = run_updates, .c = c, .shadow = infer_malloc(N)};
    uint8_t *back = infer_malloc(N);
    NEED(back && u.shadow, "no host memory");
    cts_bytes(c, u.shadow, N);
    if (CTS_HAS(c, cmd_update)) {
        u.buf = cts_buf(c, N);
        NEED(u.buf && cts_write(c, u.buf, 0, u.shadow, N), "buffer");
        run_updates(&u.job);
        NEED(cts_ok(c, u.s, "cmd_update") && cts_read(c, u.buf, 0, back, N), "update");
    } else {
        infer_status s = infer_hal_buf_alloc(c->dev, N, INFER_LEDGER_WORKSPACE, &core, &e);
        NEED(!s, "%s", e.text);
        u.buf = core.h;
        infer_range all = {core.h, 0, N};
        NEED(!infer_hal_write(c->dev, &all, u.shadow, N, &e), "%s", e.text);
        infer_hal_run(c->dev, &u.job);
        NEED(cts_ok(c, u.s, "infer_hal_update"), "update");
        NEED(!infer_hal_read(c->dev, &all, back, N, &e), "%s", e.text);
    }
    int64_t at = cts_differ(back, u.shadow, N);
    NEED(at < 0, "byte %lld is 0x%02x, not 0x%02x: an update did not capture its bytes, or went elsewhere",
         (long long)at, back[at], u.shadow[at]);
out:
    infer_hal_buf_free(&core);
    infer_free(back);
    infer_free(u.shadow);
}

void cts_t0_copy(cts_run *r)
{
    static const cts_case cases[] = {
        {"t0.copy.upload", copy_upload},
        {"t0.copy.download", copy_download},
        {"t0.copy.device", copy_device},
        {"t0.copy.upload_strided", copy_upload_strided},
        {"t0.copy.download_strided", copy_download_strided},
        {"t0.copy.device_strided", copy_device_strided},
        {"t0.copy.odd", copy_odd},
        {"t0.copy.within", copy_within},
        {"t0.copy.list", copy_list},
        {"t0.copy.big", copy_big},
        {"t0.copy.order", copy_order},
        {"t0.fill.patterns", fill_patterns},
        {"t0.update.captured", update_captured},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        cts_case_run(r, 0, cases[i].name, cases[i].fn, 1, NULL);
}
