/*
 * The one device of the CPU backend: what it is, how much memory is left, its settings.
 * Settings (host->config_get): "threads" (default: one a core), "isa" (a name in `isas` below; default: the best that
 * runs), "bind" (none, node, core; default node), "spin_us" (how long an idle worker watches for work before it
 * sleeps). SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "cpu.h"

infer_status cpu_fail(const infer_host *host, infer_status status, const char *format, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    host->status_detail(host->ctx, status, text);
    return status;
}

/* Copies as much of a struct as the caller's is long, leaving its struct_size. */
static void copy_out(void *out, const void *in, uint32_t size)
{
    uint32_t have;
    memcpy(&have, out, sizeof have);
    if (have > sizeof have)
        memcpy((char *)out + sizeof have, (const char *)in + sizeof have, (have < size ? have : size) - sizeof have);
}

/* ---- Memory of the system and of its control groups ------------------------------------------------------------ */

static int read_number(const char *path, uint64_t *out)
{
    char line[64];
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    int ok = fgets(line, sizeof line, f) && line[0] >= '0' && line[0] <= '9';
    fclose(f);
    if (ok) {
        errno = 0;
        *out = strtoull(line, NULL, 10);
        ok = errno == 0;
    }
    return ok;
}

static void meminfo(uint64_t *total, uint64_t *available)
{
    char line[128];
    FILE *f = fopen("/proc/meminfo", "re");
    *total = *available = 0;
    if (!f)
        return;
    while (fgets(line, sizeof line, f)) {
        unsigned long long kib;
        if (sscanf(line, "MemTotal: %llu kB", &kib) == 1)
            *total = kib << 10;
        else if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            *available = kib << 10;
    }
    fclose(f);
}

/* inactive_file of a group: cache that the group gives up before it runs out. */
static uint64_t reclaimable(const char *folder, const char *key)
{
    char path[600], line[128];
    unsigned long long v = 0;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    size_t n = strlen(key);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, key, n) == 0 && line[n] == ' ' && sscanf(line + n + 1, "%llu", &v) == 1)
            break;
    fclose(f);
    return v;
}

/* Lowers *total and *left to what the control group in `folder` allows. */
static void apply_group(const char *folder, const char *limit, const char *usage, const char *cache, uint64_t *total,
                        uint64_t *left)
{
    char path[600];
    uint64_t max, used;
    snprintf(path, sizeof path, "%s/%s", folder, limit);
    if (!read_number(path, &max) || max >= *total)
        return;
    snprintf(path, sizeof path, "%s/%s", folder, usage);
    if (!read_number(path, &used))
        return;
    uint64_t spare = reclaimable(folder, cache);
    used = used > spare ? used - spare : 0;
    *total = max;
    if (max - (used < max ? used : max) < *left)
        *left = max - (used < max ? used : max);
}

uint64_t cpu_memory_free(uint64_t *total)
{
    uint64_t left;
    char line[512];
    meminfo(total, &left);
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && fgets(line, sizeof line, f)) {
        char folder[600];
        line[strcspn(line, "\n")] = 0;
        char *name = strchr(line, ':'), *path = name ? strchr(name + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        int v2 = strcmp(line, "0:") == 0 || name[1] == 0;
        if (!v2 && strcmp(name + 1, "memory") != 0)
            continue;
        do { /* the group and everything around it */
            if (v2) {
                snprintf(folder, sizeof folder, "/sys/fs/cgroup%s", path);
                apply_group(folder, "memory.max", "memory.current", "inactive_file", total, &left);
            } else {
                snprintf(folder, sizeof folder, "/sys/fs/cgroup/memory%s", path);
                apply_group(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", total,
                            &left);
            }
            char *slash = strrchr(path, '/');
            if (!slash || !path[0])
                break;
            *slash = 0;
        } while (1);
    }
    if (f)
        fclose(f);
    return left;
}

/* ---- Probe and open -------------------------------------------------------------------------------------------- */

static void cpu_name(char *out, size_t size, const char *machine)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    snprintf(out, size, "%s CPU", machine);
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon) {
            line[strcspn(line, "\n")] = 0;
            snprintf(out, size, "%s", colon + 1 + (colon[1] == ' '));
            break;
        }
    }
    if (f)
        fclose(f);
}

infer_status cpu_probe(const infer_host *host, infer_device_info *out, uint32_t cap, uint32_t *n)
{
    (void)host;
    if (cap > 0) {
        struct utsname u;
        infer_device_info d = {.struct_size = sizeof d, .kind = INFER_KIND_CPU, .numa_node = -1};
        if (uname(&u) != 0)
            snprintf(u.machine, sizeof u.machine, "unknown");
        cpu_name(d.name, sizeof d.name, u.machine);
        snprintf(d.arch, sizeof d.arch, "%.47s", u.machine);
        cpu_memory_free(&d.memory_total);
        copy_out(out, &d, sizeof d);
    }
    *n = 1;
    return INFER_OK;
}

static const char *setting(const infer_host *host, const char *key)
{
    const char *v = host->config_get ? host->config_get(host->ctx, key) : NULL;
    return v && v[0] ? v : NULL;
}

/* A whole number of the settings within [low, high]; absent: fallback. */
static infer_status number_setting(const infer_host *host, const char *key, long low, long high, long fallback,
                                   long *out)
{
    const char *v = setting(host, key);
    char *end;
    *out = fallback;
    if (!v)
        return INFER_OK;
    errno = 0;
    long n = strtol(v, &end, 10);
    if (errno || *end || end == v || n < low || n > high)
        return cpu_fail(host, INFER_E_INVALID, "cpu: setting %s is \"%s\", not a number from %ld to %ld", key, v, low,
                        high);
    *out = n;
    return INFER_OK;
}

static infer_status choose_binding(const infer_host *host, uint32_t *out)
{
    static const char *const names[] = {"none", "node", "core"};
    const char *v = setting(host, "bind");
    *out = CPU_BIND_NODE;
    for (uint32_t i = 0; v && i < 3; i++)
        if (strcmp(v, names[i]) == 0) {
            *out = i;
            return INFER_OK;
        }
    return v ? cpu_fail(host, INFER_E_INVALID, "cpu: unknown bind \"%s\"; known: none, node, core", v) : INFER_OK;
}

/* The one with the widest vectors is the best, of equally wide ones the last: a wider one of SVE's may come before. */
static const struct {
    const char *name;
    const kern_table *(*table)(void); /* NULL where it does not run */
} isas[] = {
    {"generic", kern_generic}, {"neon", kern_neon},     {"sve", kern_sve},
    {"svei8mm", kern_svei8mm}, {"i8mm", kern_i8mm},     {"avx2", kern_avx2},
    {"avxvnni", kern_avxvnni}, {"avx512", kern_avx512}, {"amx", kern_amx},
};

static infer_status choose_kernels(const infer_host *host, const kern_table **out)
{
    const char *isa = setting(host, "isa");
    const int automatic = !isa || strcmp(isa, "auto") == 0;
    const kern_table *best = NULL;
    char names[128] = "";
    for (size_t i = sizeof isas / sizeof *isas; i-- > 0;) {
        const kern_table *t = isas[i].table();
        if (!automatic && strcmp(isa, isas[i].name) == 0 && !t)
            return cpu_fail(host, INFER_E_UNSUPPORTED,
                            "cpu: isa %s is not available on this processor or in this build", isa);
        if (t && (automatic ? !best || t->simd_bytes > best->simd_bytes : strcmp(isa, isas[i].name) == 0))
            best = t;
        snprintf(names + strlen(names), sizeof names - strlen(names), ", %s", isas[i].name);
    }
    if (!best)
        return cpu_fail(host, INFER_E_INVALID, "cpu: unknown isa \"%s\"; known: auto%s", isa, names);
    *out = best;
    return INFER_OK;
}

infer_status cpu_dev_open(const infer_host *host, uint32_t index, infer_device **out)
{
    uint32_t cpu, n_cores = 0, bind;
    long threads, spin_us;
    const kern_table *kern = NULL;
    if (index != 0)
        return cpu_fail(host, INFER_E_NO_DEVICE, "cpu: there is no device %u", index);
    host->cpu_list(host->ctx, -1, &cpu, 1, &n_cores);
    long cores = n_cores < 1 ? 1 : n_cores > CPU_MAX_THREADS ? (long)CPU_MAX_THREADS : (long)n_cores;
    infer_status s = number_setting(host, "threads", 1, CPU_MAX_THREADS, cores, &threads);
    if (s == INFER_OK)
        s = choose_binding(host, &bind);
    if (s == INFER_OK)
        s = number_setting(host, "spin_us", 0, 1000000, 50, &spin_us);
    if (s == INFER_OK)
        s = choose_kernels(host, &kern);
    if (s != INFER_OK)
        return s;
    infer_device *d = host->alloc(host->ctx, sizeof *d, 64);
    if (!d)
        return cpu_fail(host, INFER_E_NO_MEMORY, "cpu: no memory for the device");
    d->host = host;
    d->kern = kern;
    atomic_init(&d->bytes, 0);
    s = cpu_team_create(host, (uint32_t)threads, bind, (uint64_t)spin_us * 1000, &d->team);
    if (s != INFER_OK) {
        host->free(host->ctx, d);
        return cpu_fail(host, s, "cpu: no memory for a team of %ld threads", threads);
    }
    *out = d;
    return INFER_OK;
}

void cpu_dev_close(infer_device *dev)
{
    cpu_team_destroy(dev->team);
    dev->host->free(dev->host->ctx, dev);
}

/* ---- Properties ------------------------------------------------------------------------------------------------ */

infer_status cpu_dev_props(infer_device *dev, infer_device_props *out)
{
    infer_device_props p = {.struct_size = sizeof p};
    p.flags = INFER_PROP_ROW_INVARIANT | INFER_PROP_HOST_MEMORY | INFER_PROP_INLINE;
    p.buffer_align = 32;
    p.n_queues = 1;
    for (uint32_t f = 0; f < INFER_FMT_COUNT; f++)
        if (dev->kern->format[f].unpack)
            p.formats |= UINT64_C(1) << f;
    cpu_memory_free(&p.max_buffer);
    p.launch_ns = 200;
    p.n_cores = cpu_team_size(dev->team);
    p.simd_width = dev->kern->simd_bytes;
    snprintf(p.isa, sizeof p.isa, "%s", dev->kern->isa);
    copy_out(out, &p, sizeof p);
    return INFER_OK;
}

infer_status cpu_dev_heaps(infer_device *dev, infer_heap_info *out, uint32_t cap, uint32_t *n)
{
    (void)dev;
    if (cap > 0) {
        infer_heap_info h = {.struct_size = sizeof h, .granularity = 64, .align = 64, .numa_node = -1};
        h.flags = INFER_HEAP_HOST_VISIBLE | INFER_HEAP_COHERENT | INFER_HEAP_DEVICE_LOCAL;
        cpu_memory_free(&h.size);
        copy_out(out, &h, sizeof h);
    }
    *n = 1;
    return INFER_OK;
}

infer_status cpu_dev_heap_stats(infer_device *dev, uint32_t heap, infer_heap_stats *out)
{
    if (heap != 0)
        return cpu_fail(dev->host, INFER_E_INVALID, "cpu: there is no heap %u", heap);
    infer_heap_stats s = {.struct_size = sizeof s};
    uint64_t left = cpu_memory_free(&s.total.value);
    s.ours.value = atomic_load(&dev->bytes);
    s.others.value = s.total.value > left + s.ours.value ? s.total.value - left - s.ours.value : 0;
    s.budget.value = left + s.ours.value < s.total.value ? left + s.ours.value : s.total.value;
    s.largest_free.value = left;
    /* What is allocated but not yet touched still counts as free to the system. */
    s.others.quality = s.budget.quality = s.largest_free.quality = INFER_KNOWN_ESTIMATE;
    if (!s.total.value)
        s.total.quality = s.others.quality = s.budget.quality = s.largest_free.quality = INFER_KNOWN_NOT;
    copy_out(out, &s, sizeof s);
    return INFER_OK;
}
