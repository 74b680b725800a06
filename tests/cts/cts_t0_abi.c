/*
 * T0, the plugin as a module: descriptor, table, query function, probe, opening and closing. Uses the plugin's own
 * table; no case needs an open device of the core.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "cts.h"

#define CANARY 0xC7u

/* ---- A host that counts ---------------------------------------------------------------------------------- */

/* The core's services with the allocator and the log watched; one at a time, as a plugin may keep the pointer until
 * its last device is closed. */
static struct {
    const infer_host *real;
    infer_host host;
    atomic_llong blocks; /* allocated and not freed */
    atomic_llong lines;
    atomic_int provoked; /* what is logged now is a failure that the kit asks for */
} watch;

static void *watch_alloc(void *ctx, uint64_t bytes, uint32_t align)
{
    void *p = watch.real->alloc(ctx, bytes, align);
    if (p)
        atomic_fetch_add(&watch.blocks, 1);
    return p;
}

static void watch_free(void *ctx, void *p)
{
    if (p)
        atomic_fetch_sub(&watch.blocks, 1);
    watch.real->free(ctx, p);
}

static void watch_log(void *ctx, int32_t level, const char *text)
{
    char line[256];
    atomic_fetch_add(&watch.lines, 1);
    if (!atomic_load(&watch.provoked)) {
        watch.real->log(ctx, level, text);
        return;
    }
    snprintf(line, sizeof(line), "as it should, to a host of another version: %s", text);
    watch.real->log(ctx, INFER_LOG_DEBUG, line);
}

static const infer_host *watch_begin(const cts *c)
{
    watch.real = c->run->info.host;
    watch.host = *watch.real;
    watch.host.alloc = watch_alloc;
    watch.host.free = watch_free;
    watch.host.log = watch_log;
    atomic_store(&watch.blocks, 0);
    atomic_store(&watch.lines, 0);
    atomic_store(&watch.provoked, 0);
    return &watch.host;
}

/* ---- Descriptor and table -------------------------------------------------------------------------------- */

static int is_name(const char *s)
{
    if (!s || !*s || strlen(s) > 31)
        return 0;
    for (; *s; s++)
        if (!((*s >= 'a' && *s <= 'z') || (*s >= '0' && *s <= '9') || *s == '_'))
            return 0;
    return 1;
}

static void abi_descriptor(cts *c)
{
    infer_plugin_desc d = {0};
    const infer_plugin_desc *given = c->run->info.desc;
    NEED(given->struct_size >= offsetof(infer_plugin_desc, ops) + sizeof(given->ops),
         "struct_size %u does not reach ops", given->struct_size);
    memcpy(&d, given, given->struct_size < sizeof(d) ? given->struct_size : sizeof(d));
    NEED(d.abi_major == INFER_ABI_MAJOR, "abi_major is %u, not %u", d.abi_major, INFER_ABI_MAJOR);
    NEED(d.min_host_minor <= INFER_ABI_MINOR, "min_host_minor %u is above this host's %u", d.min_host_minor,
         INFER_ABI_MINOR);
    NEED(d.min_host_minor <= d.abi_minor, "min_host_minor %u is above abi_minor %u", d.min_host_minor, d.abi_minor);
    NEED(is_name(d.name), "name is not 1 to 31 of a-z, 0-9 and _");
    NEED(is_name(d.device_prefix), "device_prefix is not 1 to 31 of a-z, 0-9 and _");
    NEED(d.vendor && *d.vendor, "vendor is empty");
    NEED(d.version && *d.version, "version is empty");
    NEED(d.build_id && *d.build_id, "build_id is empty: results could be cached across builds");
    NEED(!d.visibility || *d.visibility, "visibility is an empty name; NULL says none");
    NEED(d.sanitizer <= INFER_SANITIZER_THREAD, "sanitizer %u is unknown", d.sanitizer);
    for (int i = 0; i < 8; i++)
        NEED(d.reserved[i] == 0, "reserved[%d] is not zero", i);
out:;
}

static void abi_table(cts *c)
{
    static const struct {
        const char *name;
        size_t offset;
    } required[] = {
#define SLOT(s) {#s, offsetof(infer_backend_ops, s)}
        SLOT(probe),        SLOT(dev_open), SLOT(dev_close),  SLOT(dev_props),    SLOT(dev_heaps), SLOT(dev_heap_stats),
        SLOT(buf_alloc),    SLOT(buf_free), SLOT(queue_wait), SLOT(queue_create), SLOT(cmd_copy),  SLOT(queue_destroy),
        SLOT(queue_signal), SLOT(cmd_fill), SLOT(op_query),   SLOT(cmd_op),
#undef SLOT
    };
    const infer_backend_ops *t = c->run->raw;
    NEED(t->struct_size % sizeof(void *) == 0, "the table's struct_size %u is no multiple of a pointer",
         t->struct_size);
    NEED(t->reserved == 0, "the table's reserved word is not zero");
    for (size_t i = 0; i < sizeof(required) / sizeof(required[0]); i++)
        NEED(cts_has(c, required[i].offset), "required slot %s is absent", required[i].name);
    NEED(CTS_HAS(c, backend_init) == CTS_HAS(c, backend_fini) || !CTS_HAS(c, backend_fini),
         "backend_fini without backend_init");
    NEED(CTS_HAS(c, prof_begin) == CTS_HAS(c, prof_read), "prof_begin and prof_read go together");
    NEED(!CTS_HAS(c, prog_build) || CTS_HAS(c, prog_destroy), "prog_build without prog_destroy");
out:;
}

static void abi_query(cts *c)
{
    infer_plugin_query_fn query = c->run->info.query;
    const infer_host *host = watch_begin(c);
    infer_abi_range range = {sizeof(range), INFER_ABI_MAJOR, 1, INFER_ABI_MINOR};
    const infer_plugin_desc *first = query(host, &range);
    NEED(first != NULL, "the query function declines the range that it accepted at load");
    infer_plugin_desc copy = *first;
    for (int i = 0; i < 100; i++) {
        const infer_plugin_desc *again = query(host, &range);
        NEED(again == first, "call %d returned another descriptor", i + 2);
        NEED(!memcmp(again, &copy, first->struct_size < sizeof(copy) ? first->struct_size : sizeof(copy)),
             "call %d changed the descriptor", i + 2);
    }
    NEED(atomic_load(&watch.blocks) == 0, "the query function keeps %lld blocks of host memory: it is not pure",
         (long long)atomic_load(&watch.blocks));
    infer_abi_range future = {sizeof(future), INFER_ABI_MAJOR + 1, 0, 5};
    atomic_store(&watch.lines, 0);
    atomic_store(&watch.provoked, 1);
    NEED(!query(host, &future), "accepts ABI major %u", future.major);
    NEED(atomic_load(&watch.lines) > 0, "declines without a reason in the log");
    infer_abi_range later = {sizeof(later), INFER_ABI_MAJOR, c->run->info.desc->abi_minor + 100,
                             c->run->info.desc->abi_minor + 200};
    NEED(INFER_ABI_MAJOR > 0 || !query(host, &later), "ABI 0.x: accepts minors %u to %u, written for %u",
         later.minor_min, later.minor_max, c->run->info.desc->abi_minor);
    atomic_store(&watch.provoked, 0);
    NEED(query(host, &range) == first, "after declining, the query function no longer gives its descriptor");
out:;
}

static void *query_thread(void *arg)
{
    cts_run *r = arg;
    infer_abi_range range = {sizeof(range), INFER_ABI_MAJOR, 1, INFER_ABI_MINOR};
    uintptr_t same = 1;
    for (int i = 0; i < 200; i++)
        same &= r->info.query(r->info.host, &range) != NULL;
    return (void *)same;
}

static void abi_query_threads(cts *c)
{
    pthread_t t[4];
    int n = 0;
    while (n < 4 && !pthread_create(&t[n], NULL, query_thread, c->run))
        n++;
    for (int i = 0; i < n; i++) {
        void *same;
        pthread_join(t[i], &same);
        if (!same)
            cts_fail(c, "the query function fails when called from several threads");
    }
}

/* ---- Probe ----------------------------------------------------------------------------------------------- */

static int is_string(const char *s, size_t n)
{
    return memchr(s, 0, n) != NULL;
}

static int is_pci(const char *s)
{
    unsigned a, b, d, f;
    int n = 0;
    return sscanf(s, "%4x:%2x:%2x.%1x%n", &a, &b, &d, &f, &n) == 4 && n == 12 && !s[n];
}

static int is_uuid(const char *s)
{
    if (strlen(s) != 36)
        return 0;
    for (int i = 0; i < 36; i++) {
        int dash = i == 8 || i == 13 || i == 18 || i == 23;
        if (dash ? s[i] != '-' : !((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'f')))
            return 0;
    }
    return 1;
}

#define MAX_DEVICES 64u

static infer_status probe(const cts *c, infer_device_info *d, uint32_t cap, uint32_t *n)
{
    for (uint32_t i = 0; i < cap; i++) {
        memset(&d[i], 0, sizeof(d[i]));
        d[i].struct_size = sizeof(d[i]);
    }
    return c->run->raw->probe(c->run->info.host, d, cap, n);
}

static void probe_devices(cts *c)
{
    infer_device_info *a = infer_calloc(MAX_DEVICES, sizeof(*a));
    uint32_t n = 0;
    NEED(a != NULL, "no host memory");
    infer_status s = probe(c, a, MAX_DEVICES, &n);
    NEED(s == INFER_OK, "probe: %s", infer_status_name(s));
    NEED(n > 0, "probe shows no device now, though it did at load");
    for (uint32_t i = 0; i < n && i < MAX_DEVICES; i++) {
        const infer_device_info *d = &a[i];
        NEED(d->kind >= INFER_KIND_CPU && d->kind <= INFER_KIND_SOFTWARE, "device %u: kind %u is unknown", i, d->kind);
        NEED(is_string(d->name, sizeof(d->name)) && is_string(d->pci, sizeof(d->pci)) &&
                 is_string(d->uuid, sizeof(d->uuid)) && is_string(d->driver, sizeof(d->driver)) &&
                 is_string(d->arch, sizeof(d->arch)) && is_string(d->reason, sizeof(d->reason)),
             "device %u: a string has no end", i);
        NEED(d->name[0], "device %u: no name", i);
        NEED(!d->pci[0] || is_pci(d->pci), "device %u: pci \"%s\" is not dddd:bb:dd.f", i, d->pci);
        NEED(!d->uuid[0] || is_uuid(d->uuid), "device %u: uuid \"%s\" is not lower-case 8-4-4-4-12", i, d->uuid);
        NEED(d->numa_node >= -1, "device %u: numa_node %d", i, d->numa_node);
        NEED(!d->status || d->reason[0], "device %u: status %s without a reason", i, infer_status_name(d->status));
        for (uint32_t k = 0; k < i; k++) {
            NEED(a[k].index != d->index, "devices %u and %u have the same index %u", k, i, d->index);
            NEED(!d->uuid[0] || strcmp(a[k].uuid, d->uuid), "devices %u and %u have the same uuid", k, i);
        }
    }
out:
    infer_free(a);
}

static void probe_twice(cts *c)
{
    infer_device_info *a = infer_calloc(2 * MAX_DEVICES, sizeof(*a)), *b = a + MAX_DEVICES;
    uint32_t n = 0, m = 0, none = 0;
    NEED(a != NULL, "no host memory");
    infer_status s = probe(c, a, MAX_DEVICES, &n);
    NEED(s == INFER_OK, "probe: %s", infer_status_name(s));
    s = probe(c, b, MAX_DEVICES, &m);
    NEED(s == INFER_OK, "second probe: %s", infer_status_name(s));
    NEED(n == m, "probe shows %u devices, then %u", n, m);
    NEED(!memcmp(a, b, (n < MAX_DEVICES ? n : MAX_DEVICES) * sizeof(*a)), "two probes differ");
    s = probe(c, NULL, 0, &none);
    NEED(s == INFER_OK && none == n, "probe with room for none: %s, %u devices instead of %u", infer_status_name(s),
         none, n);
    memset(b, 0, sizeof(*b));
    memset(b + 1, CANARY, sizeof(*b));
    b->struct_size = sizeof(*b);
    s = c->run->raw->probe(c->run->info.host, b, 1, &none);
    NEED(s == INFER_OK && none == n, "probe with room for one: %s, %u devices instead of %u", infer_status_name(s),
         none, n);
    for (size_t i = 0; i < sizeof(*b); i++)
        NEED(((const uint8_t *)(b + 1))[i] == CANARY, "probe with room for one wrote a second element");
out:
    infer_free(a);
}

/* A caller from before the later fields were added: what lies behind its struct is not the plugin's. */
static void probe_struct_size(cts *c)
{
    union {
        infer_device_info d;
        uint8_t bytes[sizeof(infer_device_info)];
    } u;
    uint32_t n, size = offsetof(infer_device_info, driver);
    memset(&u, CANARY, sizeof(u));
    memset(&u, 0, size);
    u.d.struct_size = size;
    infer_status s = c->run->raw->probe(c->run->info.host, &u.d, 1, &n);
    NEED(s == INFER_OK, "probe with a shorter struct: %s", infer_status_name(s));
    for (uint32_t i = size; i < sizeof(u); i++)
        NEED(u.bytes[i] == CANARY, "probe writes byte %u of a struct of %u bytes", i, size);
out:;
}

/* ---- Opening and closing --------------------------------------------------------------------------------- */

static void open_bad_index(cts *c)
{
    infer_device *mark = (infer_device *)(void *)&watch, *d = mark;
    infer_status s = c->run->raw->dev_open(c->run->info.host, 100000, &d);
    if (!s)
        c->run->raw->dev_close(d);
    NEED(s < 0, "dev_open of index 100000: %s", infer_status_name(s));
    NEED(d == mark, "a failing dev_open wrote its output");
out:;
}

static void open_many(cts *c)
{
    const infer_host *host = watch_begin(c);
    const infer_backend_ops *t = c->run->raw;
    long long first = 0;
    for (int i = 0; i < 8; i++) {
        infer_device *d = NULL;
        infer_device_props p = {.struct_size = sizeof(p)};
        infer_status s = t->dev_open(host, c->run->row->info.index, &d);
        NEED(s == INFER_OK && d, "dev_open number %d: %s", i + 1, infer_status_name(s));
        s = t->dev_props(d, &p);
        t->dev_close(d);
        NEED(s == INFER_OK, "dev_props after dev_open number %d: %s", i + 1, infer_status_name(s));
        long long left = atomic_load(&watch.blocks);
        if (i == 0)
            first = left; /* what a first opening keeps for the life of the process */
        NEED(left <= first, "host memory is lost: %lld blocks after one opening, %lld after %d", first, left, i + 1);
    }
out:;
}

/* Objects left to the last moment, made and destroyed in both orders, all memory given back. */
static void open_objects(cts *c)
{
    const infer_host *host = watch_begin(c);
    const infer_backend_ops *t = c->run->raw;
    for (int i = 0; i < 2; i++) {
        infer_device *d = NULL;
        infer_buffer *b = NULL;
        infer_queue *q = NULL;
        infer_status s = t->dev_open(host, c->run->row->info.index, &d);
        NEED(s == INFER_OK, "dev_open: %s", infer_status_name(s));
        s = t->buf_alloc(d, 0, 12345, &b);
        infer_status s2 = t->queue_create(d, INFER_QUEUE_COMPUTE, &q);
        if (i && !s)
            t->buf_free(d, b);
        if (!s2)
            t->queue_destroy(d, q);
        if (!i && !s)
            t->buf_free(d, b);
        t->dev_close(d);
        NEED(s == INFER_OK, "buf_alloc: %s", infer_status_name(s));
        NEED(s2 == INFER_OK, "queue_create: %s", infer_status_name(s2));
        if (i == 0)
            atomic_store(&watch.blocks, 0);
        else
            NEED(atomic_load(&watch.blocks) <= 0, "a device's life loses %lld blocks of host memory",
                 (long long)atomic_load(&watch.blocks));
    }
out:;
}

/* The core's own opening: shared by count, with its submit thread. */
static void open_core(cts *c)
{
    infer_hal_dev *a = NULL, *b = NULL;
    infer_error e = {0};
    for (int i = 0; i < 3; i++) {
        NEED(!infer_hal_open(c->run->hal, c->run->row->id, &a, &e), "open number %d: %s", i + 1, e.text);
        if (infer_hal_open(c->run->hal, c->run->row->id, &b, &e)) {
            infer_hal_close(a);
            NEED(0, "second handle: %s", e.text);
        }
        infer_hal_close(b);
        infer_hal_close(a);
    }
out:;
}

void cts_t0_abi(cts_run *r)
{
    static const cts_case cases[] = {
        {"t0.abi.descriptor", abi_descriptor},
        {"t0.abi.table", abi_table},
        {"t0.abi.query", abi_query},
        {"t0.abi.query_threads", abi_query_threads},
        {"t0.probe.devices", probe_devices},
        {"t0.probe.twice", probe_twice},
        {"t0.probe.struct_size", probe_struct_size},
        {"t0.open.bad_index", open_bad_index},
        {"t0.open.many", open_many},
        {"t0.open.objects", open_objects},
        {"t0.open.core", open_core},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        cts_case_run(r, 0, cases[i].name, cases[i].fn, 0, NULL);
}
