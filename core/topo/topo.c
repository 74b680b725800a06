/*
 * The machine through hwloc: which processors this process may use, which memory is near them, where PCI devices hang.
 * Read once into plain arrays. Binds nothing, measures nothing, and asks no device driver: device objects of drivers
 * are filtered out, since listing them can start a driver's runtime. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "topo/topo.h"

struct infer_topo {
    hwloc_topology_t hw;
    hwloc_bitmap_t allowed; /* processors of this process */
    uint32_t n_numa, n_cores, n_pus;
    double quota;
};

/* ---- Time limits of control groups -------------------------------------------------------------------------- */

/* "max 100000" or "150000 100000": processors' worth of time; 0: no limit. */
static double parse_cpu_max(const char *text)
{
    char *end;
    double quota = strtod(text, &end);
    if (end == text)
        return 0;
    double period = strtod(end, NULL);
    return quota > 0 && period > 0 ? quota / period : 0;
}

static double read_number(const char *path)
{
    char *text = NULL;
    size_t n = 0;
    if (infer_file_read(path, 256, &text, &n, NULL))
        return 0;
    double v = strtod(text, NULL);
    infer_free(text);
    return v;
}

/* The limit of one group, in either generation of the interface. */
static double group_limit(int unified, const char *path)
{
    char file[1024];
    char *text = NULL;
    size_t n = 0;
    if (!unified) {
        snprintf(file, sizeof file, "/sys/fs/cgroup/cpu%s/cpu.cfs_quota_us", path);
        double quota = read_number(file);
        snprintf(file, sizeof file, "/sys/fs/cgroup/cpu%s/cpu.cfs_period_us", path);
        double period = read_number(file);
        return quota > 0 && period > 0 ? quota / period : 0;
    }
    snprintf(file, sizeof file, "/sys/fs/cgroup%s/cpu.max", path);
    if (infer_file_read(file, 256, &text, &n, NULL))
        return 0;
    double v = parse_cpu_max(text);
    infer_free(text);
    return v;
}

/* A group's limit binds all groups below it: the least on the way up. */
static double least_limit(int unified, char *path)
{
    double least = 0;
    for (;;) {
        double v = group_limit(unified, path);
        if (v > 0 && (least == 0 || v < least))
            least = v;
        char *slash = strrchr(path, '/');
        if (!slash)
            return least;
        *slash = 0;
    }
}

static double cpu_quota(void)
{
    char *text = NULL, *save = NULL;
    size_t n = 0;
    double least = 0;
    if (infer_file_read("/proc/self/cgroup", 1 << 16, &text, &n, NULL))
        return 0;
    /* Lines "0::/path" (unified) and "N:cpu,cpuacct:/path" */
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *names = strchr(line, ':');
        char *path = names ? strchr(names + 1, ':') : NULL;
        if (!path || strlen(path) > 700)
            continue;
        *path++ = 0;
        names++;
        int unified = !strcmp(line, "0") && !*names;
        int cpu = !strcmp(names, "cpu") || !strncmp(names, "cpu,", 4) || strstr(names, ",cpu,") ||
                  (strlen(names) > 4 && !strcmp(names + strlen(names) - 4, ",cpu"));
        if (!unified && !cpu)
            continue;
        double v = least_limit(unified, path);
        if (v > 0 && (least == 0 || v < least))
            least = v;
    }
    infer_free(text);
    return least;
}

/* ---- Reading ------------------------------------------------------------------------------------------------ */

static infer_status choose_source(infer_topo *t, const char *xml, infer_error *err)
{
    static const char synthetic[] = "synthetic:";
    if (!xml)
        return INFER_OK;
    int is_synthetic = !strncmp(xml, synthetic, sizeof synthetic - 1);
    int rc = is_synthetic ? hwloc_topology_set_synthetic(t->hw, xml + sizeof synthetic - 1)
                          : hwloc_topology_set_xml(t->hw, xml);
    if (rc)
        return infer_error_set(err, INFER_E_BAD_FILE, "machine description %s: %s", xml,
                               is_synthetic ? "not in hwloc's synthetic form" : "not readable as hwloc XML");
    return INFER_OK;
}

static uint32_t count_cores(const infer_topo *t)
{
    uint32_t n = 0;
    int cores = hwloc_get_nbobjs_by_type(t->hw, HWLOC_OBJ_CORE);
    for (int i = 0; i < cores; i++) {
        hwloc_obj_t core = hwloc_get_obj_by_type(t->hw, HWLOC_OBJ_CORE, (unsigned)i);
        n += hwloc_bitmap_intersects(core->cpuset, t->allowed) != 0;
    }
    return n;
}

/* Whether the kernel describes its processors. Without (a container that hides them, a root without /sys) hwloc's
 * reader of it would write to standard error and find nothing. */
static int has_sysfs(void)
{
    return getenv("HWLOC_FSROOT") || access("/sys/bus/cpu/devices/cpu0/topology", R_OK) == 0 ||
           access("/sys/devices/system/cpu/cpu0/topology", R_OK) == 0;
}

infer_status infer_topo_create(const char *xml, infer_topo **out, infer_error *err)
{
    infer_topo *t = infer_calloc(1, sizeof *t);
    infer_status s = INFER_E_NO_MEMORY;
    if (!t || hwloc_topology_init(&t->hw)) {
        infer_free(t);
        return infer_error_set(err, s, "machine topology: no memory");
    }
    hwloc_topology_set_type_filter(t->hw, HWLOC_OBJ_PCI_DEVICE, HWLOC_TYPE_FILTER_KEEP_ALL);
    hwloc_topology_set_type_filter(t->hw, HWLOC_OBJ_OS_DEVICE, HWLOC_TYPE_FILTER_KEEP_NONE);
    /* On Linux the kernel's own listing serves as well as libpciaccess, which keeps memory for good. */
    hwloc_topology_set_components(t->hw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "pci");
#ifdef __linux__
    if (!xml && !has_sysfs()) { /* what is left counts processors; alone, the x86 component fails on some of them */
        hwloc_topology_set_components(t->hw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "linux");
        hwloc_topology_set_components(t->hw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
    }
#endif
    if ((s = choose_source(t, xml, err)))
        goto fail;
    if (hwloc_topology_load(t->hw)) {
        s = infer_error_set(err, xml ? INFER_E_BAD_FILE : INFER_E_IO, "machine topology: hwloc cannot read %s",
                            xml ? xml : "this machine");
        goto fail;
    }
    t->allowed = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(t->hw));
    hwloc_bitmap_t bound = hwloc_bitmap_alloc();
    if (!t->allowed || !bound) {
        hwloc_bitmap_free(bound);
        s = infer_error_set(err, INFER_E_NO_MEMORY, "machine topology: no memory");
        goto fail;
    }
    if (!xml && !hwloc_get_cpubind(t->hw, bound, HWLOC_CPUBIND_PROCESS) && hwloc_bitmap_intersects(bound, t->allowed))
        hwloc_bitmap_and(t->allowed, t->allowed, bound);
    hwloc_bitmap_free(bound);
    int numa = hwloc_get_nbobjs_by_type(t->hw, HWLOC_OBJ_NUMANODE), pus = hwloc_bitmap_weight(t->allowed);
    t->n_numa = numa > 0 ? (uint32_t)numa : 1;
    t->n_pus = pus > 0 ? (uint32_t)pus : 1;
    t->n_cores = count_cores(t);
    if (!t->n_cores) /* a machine described without cores */
        t->n_cores = t->n_pus;
    t->quota = xml ? 0 : cpu_quota();
    *out = t;
    return INFER_OK;
fail:
    infer_topo_destroy(t);
    return s;
}

void infer_topo_destroy(infer_topo *t)
{
    if (!t)
        return;
    hwloc_bitmap_free(t->allowed);
    hwloc_topology_destroy(t->hw);
    infer_free(t);
}

/* ---- Facts -------------------------------------------------------------------------------------------------- */

uint32_t infer_topo_n_numa(const infer_topo *t)
{
    return t->n_numa;
}

uint32_t infer_topo_n_cores(const infer_topo *t)
{
    return t->n_cores;
}

uint32_t infer_topo_n_pus(const infer_topo *t)
{
    return t->n_pus;
}

double infer_topo_cpu_quota(const infer_topo *t)
{
    return t->quota;
}

static hwloc_obj_t numa_node(const infer_topo *t, int32_t node)
{
    return node < 0 ? NULL : hwloc_get_obj_by_type(t->hw, HWLOC_OBJ_NUMANODE, (unsigned)node);
}

uint64_t infer_topo_memory(const infer_topo *t, int32_t node)
{
    if (node < 0) {
        uint64_t known = hwloc_get_root_obj(t->hw)->total_memory;
        long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
        return known || pages <= 0 || bytes <= 0 ? known : (uint64_t)pages * (uint64_t)bytes;
    }
    hwloc_obj_t o = numa_node(t, node);
    return o ? o->attr->numanode.local_memory : 0;
}

/* Appends the k-th allowed processor of every core that has one; returns how many there were. */
static uint32_t put_kth(const infer_topo *t, hwloc_const_bitmap_t near, int k, uint32_t *cpus, uint32_t cap, uint32_t n)
{
    uint32_t found = 0;
    int cores = hwloc_get_nbobjs_by_type(t->hw, HWLOC_OBJ_CORE);
    hwloc_obj_type_t type = cores > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    int count = cores > 0 ? cores : hwloc_get_nbobjs_by_type(t->hw, HWLOC_OBJ_PU);
    for (int i = 0; i < count; i++) {
        hwloc_obj_t core = hwloc_get_obj_by_type(t->hw, type, (unsigned)i);
        int at = 0, cpu;
        hwloc_bitmap_foreach_begin(cpu, core->cpuset)
        {
            if (!hwloc_bitmap_isset(t->allowed, (unsigned)cpu) || !hwloc_bitmap_isset(near, (unsigned)cpu))
                continue;
            if (at++ != k)
                continue;
            if (n + found < cap)
                cpus[n + found] = (uint32_t)cpu;
            found++;
            break;
        }
        hwloc_bitmap_foreach_end();
    }
    return found;
}

uint32_t infer_topo_cpus(const infer_topo *t, int32_t node, uint32_t *cpus, uint32_t cap, uint32_t *n_cores)
{
    hwloc_const_bitmap_t near = t->allowed;
    uint32_t n = 0;
    if (node >= 0) {
        hwloc_obj_t o = numa_node(t, node);
        near = o ? o->cpuset : NULL;
    }
    for (int k = 0; near; k++) {
        uint32_t found = put_kth(t, near, k, cpus, cap, n);
        if (!k && n_cores)
            *n_cores = found;
        if (!found)
            break;
        n += found;
    }
    if (!near && n_cores)
        *n_cores = 0;
    return n;
}

int32_t infer_topo_pci_node(const infer_topo *t, const char *pci)
{
    hwloc_obj_t dev = hwloc_get_pcidev_by_busidstring(t->hw, pci);
    hwloc_obj_t near = dev ? hwloc_get_non_io_ancestor_obj(t->hw, dev) : NULL;
    if (!near || !near->nodeset)
        return -1;
    /* Under the root of a machine with several nodes the place is not known. */
    int os = hwloc_bitmap_first(near->nodeset);
    if (os < 0 || (hwloc_bitmap_weight(near->nodeset) > 1 && !near->parent))
        return -1;
    hwloc_obj_t o = hwloc_get_numanode_obj_by_os_index(t->hw, (unsigned)os);
    return o ? (int32_t)o->logical_index : -1;
}

const char *infer_topo_cpu_name(const infer_topo *t)
{
    hwloc_obj_t o = hwloc_get_obj_by_type(t->hw, HWLOC_OBJ_PACKAGE, 0);
    const char *name = o ? hwloc_obj_get_info_by_name(o, "CPUModel") : NULL;
    if (!name)
        name = hwloc_obj_get_info_by_name(hwloc_get_root_obj(t->hw), "CPUModel");
    return name ? name : "";
}
