/*
 * A plugin's table becomes a full-size table of ours: copied as far as it reaches, absent slots filled with defaults
 * that need no device. What needs one (weight streams, programs, small updates) is chosen once by the core-side object
 * that uses it. Does not call the plugin.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <string.h>

#include "hal/internal.h"

/* ---- Defaults ---------------------------------------------------------------------------------------------- */

static infer_status default_init(const infer_host *host)
{
    (void)host;
    return INFER_OK;
}

static void default_fini(void)
{
}

static infer_status default_edge(infer_device *dev, uint32_t peer, infer_edge_info *out)
{
    (void)dev;
    (void)peer;
    *out = (infer_edge_info){.struct_size = out->struct_size, .mode = INFER_EDGE_STAGED};
    return INFER_OK;
}

/* The core adds what it knows of lost devices (infer_hal_dev_health). */
static infer_status default_health(infer_device *dev, infer_health *out)
{
    (void)dev;
    out->state = INFER_HEALTH_OK;
    out->status = INFER_OK;
    out->reason[0] = 0;
    return INFER_OK;
}

static infer_status no_map(infer_device *dev, const infer_range *range, void **out)
{
    (void)dev;
    (void)range;
    (void)out;
    return INFER_E_UNSUPPORTED;
}

static void no_unmap(infer_device *dev, const infer_range *range, void *p)
{
    (void)dev;
    (void)range;
    (void)p;
}

static infer_status no_import_host(infer_device *dev, void *p, uint64_t bytes, infer_buffer **out)
{
    (void)dev;
    (void)p;
    (void)bytes;
    (void)out;
    return INFER_E_UNSUPPORTED;
}

static infer_status no_export(infer_device *dev, infer_buffer *buf, uint32_t kind, int64_t *handle)
{
    (void)dev;
    (void)buf;
    (void)kind;
    (void)handle;
    return INFER_E_UNSUPPORTED;
}

static infer_status no_import(infer_device *dev, uint32_t kind, int64_t handle, uint64_t bytes, infer_buffer **out)
{
    (void)dev;
    (void)kind;
    (void)handle;
    (void)bytes;
    (void)out;
    return INFER_E_UNSUPPORTED;
}

static infer_status default_claim(infer_device *dev, const infer_graph_view *view, int32_t *set_of)
{
    (void)dev;
    for (uint32_t i = 0; i < view->n_nodes; i++)
        set_of[i] = -1;
    return INFER_OK;
}

static infer_status default_prog_update(infer_exec *exec, uint32_t slot, const infer_range *range)
{
    (void)exec;
    (void)slot;
    (void)range;
    return INFER_REBUILD;
}

static infer_status no_save(infer_program *prog, void **data, uint64_t *bytes)
{
    (void)prog;
    (void)data;
    (void)bytes;
    return INFER_E_UNSUPPORTED;
}

static infer_status no_load(infer_device *dev, const void *data, uint64_t bytes, infer_program **out)
{
    (void)dev;
    (void)data;
    (void)bytes;
    (void)out;
    return INFER_E_UNSUPPORTED;
}

static infer_status no_comm_id(infer_device *dev, uint8_t id[128])
{
    (void)dev;
    (void)id;
    return INFER_E_UNSUPPORTED;
}

static infer_status no_comm(infer_device *dev, const uint8_t id[128], uint32_t rank, uint32_t n, infer_comm **out)
{
    (void)dev;
    (void)id;
    (void)rank;
    (void)n;
    (void)out;
    return INFER_E_UNSUPPORTED;
}

static void no_comm_destroy(infer_comm *comm)
{
    (void)comm;
}

static infer_status no_prof_begin(infer_device *dev)
{
    (void)dev;
    return INFER_E_UNSUPPORTED;
}

static infer_status no_prof_read(infer_device *dev, infer_prof_record *out, uint32_t cap, uint32_t *n)
{
    (void)dev;
    (void)out;
    (void)cap;
    (void)n;
    return INFER_E_UNSUPPORTED;
}

/* What a table without any optional slot behaves like. NULL: chosen by a core-side object. */
static const infer_backend_ops defaults = {
    .backend_init = default_init,
    .backend_fini = default_fini,
    .dev_edge = default_edge,
    .dev_health = default_health,
    .buf_map = no_map,
    .buf_unmap = no_unmap,
    .buf_import_host = no_import_host,
    .buf_export = no_export,
    .buf_import = no_import,
    .tl_create = hal_sw_create,
    .tl_destroy = hal_sw_destroy,
    .tl_query = hal_sw_query,
    .tl_wait = hal_sw_wait,
    .tl_signal_host = hal_sw_signal,
    .kv_query = hal_default_kv_query,
    .prog_claim = default_claim,
    .prog_update = default_prog_update,
    .prog_save = no_save,
    .prog_load = no_load,
    .comm_unique_id = no_comm_id,
    .comm_create = no_comm,
    .comm_destroy = no_comm_destroy,
    .prof_begin = no_prof_begin,
    .prof_read = no_prof_read,
};

/* ---- The slots --------------------------------------------------------------------------------------------- */

enum { REQUIRED = 1, LEADER = 2 };

/* In the table's order. A slot of a group counts only when the group's leader is there, and then all others must be,
 * unless they are free to miss. */
static const struct slot {
    const char *name;
    size_t offset;
    uint32_t group; /* HAL_HAS_* or 0 */
    uint32_t flags;
} slots[] = {
#define SLOT(name, group, flags)                                                                                       \
    {                                                                                                                  \
#name, offsetof(infer_backend_ops, name), group, flags                                                         \
    }
    SLOT(probe, 0, REQUIRED),
    SLOT(dev_open, 0, REQUIRED),
    SLOT(dev_close, 0, REQUIRED),
    SLOT(dev_props, 0, REQUIRED),
    SLOT(dev_heaps, 0, REQUIRED),
    SLOT(dev_heap_stats, 0, REQUIRED),
    SLOT(buf_alloc, 0, REQUIRED),
    SLOT(buf_free, 0, REQUIRED),
    SLOT(queue_create, 0, REQUIRED),
    SLOT(queue_destroy, 0, REQUIRED),
    SLOT(queue_wait, 0, REQUIRED),
    SLOT(queue_signal, 0, REQUIRED),
    SLOT(cmd_copy, 0, REQUIRED),
    SLOT(cmd_fill, 0, REQUIRED),
    SLOT(op_query, 0, REQUIRED),
    SLOT(cmd_op, 0, REQUIRED),
    SLOT(backend_init, 0, 0),
    SLOT(backend_fini, 0, 0),
    SLOT(dev_edge, 0, 0),
    SLOT(dev_health, 0, 0),
    SLOT(buf_map, HAL_HAS_MAP, LEADER),
    SLOT(buf_unmap, HAL_HAS_MAP, 0),
    SLOT(buf_import_host, HAL_HAS_IMPORT, LEADER),
    SLOT(buf_export, 0, 0),
    SLOT(buf_import, 0, 0),
    SLOT(weight_plan, HAL_HAS_PLAN, LEADER),
    SLOT(weight_begin, HAL_HAS_WEIGHT, LEADER),
    SLOT(weight_append, HAL_HAS_WEIGHT, 0),
    SLOT(weight_finish, HAL_HAS_WEIGHT, 0),
    SLOT(weight_destroy, HAL_HAS_WEIGHT, 0),
    SLOT(tl_create, HAL_HAS_TIMELINE, LEADER),
    SLOT(tl_destroy, HAL_HAS_TIMELINE, 0),
    SLOT(tl_query, HAL_HAS_TIMELINE, 0),
    SLOT(tl_wait, HAL_HAS_TIMELINE, 0),
    SLOT(tl_signal_host, HAL_HAS_TIMELINE, 0),
    SLOT(cmd_update, HAL_HAS_UPDATE, LEADER),
    SLOT(kv_query, 0, 0),
    SLOT(prog_claim, 0, 0),
    SLOT(prog_build, HAL_HAS_PROGRAM, LEADER),
    SLOT(prog_instantiate, HAL_HAS_PROGRAM, 0),
    SLOT(prog_update, 0, 0),
    SLOT(prog_submit, HAL_HAS_PROGRAM, 0),
    SLOT(exec_destroy, HAL_HAS_PROGRAM, 0),
    SLOT(prog_destroy, HAL_HAS_PROGRAM, 0),
    SLOT(prog_save, 0, 0),
    SLOT(prog_load, 0, 0),
    SLOT(comm_unique_id, HAL_HAS_COMM, LEADER),
    SLOT(comm_create, HAL_HAS_COMM, 0),
    SLOT(comm_destroy, HAL_HAS_COMM, 0),
    SLOT(prof_begin, HAL_HAS_PROFILE, LEADER),
    SLOT(prof_read, HAL_HAS_PROFILE, 0),
#undef SLOT
};

#define N_SLOTS   (sizeof slots / sizeof slots[0])
#define SLOT_SIZE sizeof(void (*)(void))
_Static_assert(offsetof(infer_backend_ops, probe) + N_SLOTS * SLOT_SIZE == sizeof(infer_backend_ops),
               "every slot has its row above");

static int present(const infer_backend_ops *t, const struct slot *s)
{
    static const unsigned char zero[SLOT_SIZE];
    return memcmp((const char *)t + s->offset, zero, SLOT_SIZE) != 0;
}

static void put(infer_backend_ops *to, const infer_backend_ops *from, const struct slot *s)
{
    memcpy((char *)to + s->offset, (const char *)from + s->offset, SLOT_SIZE);
}

infer_status hal_normalize(const infer_backend_ops *in, infer_backend_ops *out, uint32_t *has, const char *name,
                           infer_error *err)
{
    if (!in)
        return infer_error_set(err, INFER_E_ABI, "backend %s: descriptor without a table", name);
    infer_backend_ops t = {.struct_size = sizeof t}, full = defaults;
    full.struct_size = sizeof full;
    for (size_t i = 0; i < N_SLOTS; i++)
        if (slots[i].offset + SLOT_SIZE <= in->struct_size)
            put(&t, in, &slots[i]);
    uint32_t groups = 0;
    for (size_t i = 0; i < N_SLOTS; i++) {
        const struct slot *s = &slots[i];
        int there = present(&t, s);
        if ((s->flags & REQUIRED) && !there)
            return infer_error_set(err, INFER_E_ABI, "backend %s: required slot %s is absent", name, s->name);
        if ((s->flags & LEADER) && there)
            groups |= s->group;
        if (s->group && !(s->flags & LEADER) && (groups & s->group) && !there)
            return infer_error_set(err, INFER_E_ABI, "backend %s: slot %s is absent, but others of its group are there",
                                   name, s->name);
        if (there && (!s->group || (groups & s->group)))
            put(&full, &t, s);
    }
    if (!(groups & HAL_HAS_PROGRAM))
        full.prog_update = default_prog_update;
    *out = full;
    *has = groups;
    return INFER_OK;
}
