/* The runtime object: devices of this process, behind the public names. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include <jansson.h>

#include "base/alloc.h"
#include "hal/module_check.h" /* the same INFER_MODULE_CHECK_* as <infer/model.h> */
#include "model/private.h"
#include "ops/cases.h"
#include "quant/quant.h"

/* "backend.key=value": the value of a setting, NULL when it was not given. The last one given wins. */
static const char *setting(void *user, const char *backend, const char *key)
{
    const infer_runtime *rt = user;
    const char *found = NULL;
    size_t nb = strlen(backend), nk = strlen(key);
    for (uint32_t i = rt->n_settings; i-- > 0;) {
        const char *s = rt->settings[i];
        if (strncmp(s, backend, nb) || s[nb] != '.' || strncmp(s + nb + 1, key, nk) || s[nb + 1 + nk] != '=')
            continue;
        atomic_store(&rt->asked[i], 1);
        if (!found)
            found = s + nb + nk + 2;
    }
    return !found && rt->deterministic && !strcmp(key, "deterministic") ? "1" : found;
}

infer_status infer_runtime_create(const infer_runtime_options *opt, infer_runtime **out, infer_error *err)
{
    infer_runtime_options o = {0};
    if (opt)
        memcpy(&o, opt, opt->struct_size < sizeof o ? opt->struct_size : sizeof o);
    infer_runtime *rt = infer_calloc(1, sizeof *rt);
    infer_status s = INFER_E_NO_MEMORY;
    if (!rt)
        return infer_error_set(err, s, "runtime: no host memory");
    rt->deterministic = o.deterministic != 0;
    rt->settings = infer_calloc(o.n_settings ? o.n_settings : 1, sizeof *rt->settings);
    rt->asked = infer_calloc(o.n_settings ? o.n_settings : 1, sizeof *rt->asked);
    if (!rt->settings || !rt->asked)
        goto no_memory;
    for (; rt->n_settings < o.n_settings; rt->n_settings++) {
        const char *text = o.settings[rt->n_settings];
        if (!strchr(text, '.') || !strchr(text, '=')) {
            s = infer_error_set(err, INFER_E_INVALID, "setting \"%s\": write BACKEND.KEY=VALUE", text);
            goto fail;
        }
        if (!(rt->settings[rt->n_settings] = infer_strdup(text)))
            goto no_memory;
    }
    infer_hal_options h = {.log = {.fn = o.log, .user = o.user, .level = o.log_level},
                           .backend_path = o.backend_path,
                           .allow = o.allow_backends,
                           .deny = o.deny_backends,
                           .topo_xml = o.machine,
                           .config = setting,
                           .user = rt,
                           .validate = (int)o.validate,
                           .trace = o.trace_calls,
                           .module_check = o.module_check};
    s = infer_hal_create(&h, &rt->hal, err);
    if (s != INFER_OK)
        goto fail;
    *out = rt;
    return INFER_OK;
no_memory:
    s = infer_error_set(err, INFER_E_NO_MEMORY, "runtime: no host memory");
fail:
    infer_runtime_destroy(rt);
    return s;
}

void infer_runtime_destroy(infer_runtime *rt)
{
    if (!rt)
        return;
    if (rt->hal)
        infer_hal_destroy(rt->hal);
    for (uint32_t i = 0; i < rt->n_settings; i++)
        infer_free(rt->settings[i]);
    infer_free(rt->settings);
    infer_free((void *)rt->asked);
    infer_free(rt);
}

uint32_t infer_runtime_n_backends(const infer_runtime *rt)
{
    return infer_hal_n_backends(rt->hal);
}

infer_status infer_runtime_backend(const infer_runtime *rt, uint32_t i, infer_backend_row *out)
{
    if (i >= infer_hal_n_backends(rt->hal))
        return INFER_E_INVALID;
    infer_hal_backend_info b;
    infer_hal_backend(rt->hal, i, &b);
    *out = (infer_backend_row){.name = b.name,
                               .path = b.path,
                               .version = b.desc ? b.desc->version : "",
                               .vendor = b.desc ? b.desc->vendor : "",
                               .abi_major = b.desc ? b.desc->abi_major : 0,
                               .abi_minor = b.desc ? b.desc->abi_minor : 0,
                               .status = b.status,
                               .reason = b.reason};
    return INFER_OK;
}

infer_status infer_runtime_probe(infer_runtime *rt, infer_error *err)
{
    return infer_hal_probe(rt->hal, err);
}

uint32_t infer_runtime_n_devices(const infer_runtime *rt)
{
    return infer_hal_n_devices(rt->hal);
}

infer_status infer_runtime_device(const infer_runtime *rt, uint32_t i, infer_device_row *out)
{
    if (i >= infer_hal_n_devices(rt->hal))
        return INFER_E_INVALID;
    const infer_hal_device_info *d = infer_hal_device(rt->hal, i);
    infer_hal_backend_info b;
    infer_hal_backend(rt->hal, d->backend, &b);
    *out = (infer_device_row){.id = d->id,
                              .backend = b.name,
                              .info = &d->info,
                              .same_as = d->same_as >= 0 ? infer_hal_device(rt->hal, (uint32_t)d->same_as)->id : NULL};
    return INFER_OK;
}

/* Names of the ops that the device has no code for, asked with the first test case of each. */
static char *refused_ops(infer_hal_dev *d)
{
    infer_buf b = {0};
    infer_op_case *c = infer_malloc(sizeof *c);
    for (infer_op_id id = 1; c && id < INFER_OP_COUNT; id++) {
        if (!infer_op_case_count(id) || infer_op_case_make(id, 0, 1, c) != INFER_OK)
            continue;
        const infer_op_desc *p = &c->desc;
        infer_op_answer a = {.struct_size = sizeof a};
        infer_hal_op_query(d, &p, 1, &a);
        if (a.level == INFER_LEVEL_NO && a.why == INFER_WHY_OP)
            infer_buf_printf(&b, "%s%s", b.n ? "," : "", infer_op_get(id)->name);
        infer_op_case_free(c);
    }
    infer_free(c);
    return infer_buf_detach(&b);
}

infer_status infer_runtime_device_detail(infer_runtime *rt, const char *id, infer_device_detail *out, infer_error *err)
{
    infer_hal_dev *d;
    INFER_TRY(infer_hal_open(rt->hal, id, &d, err));
    infer_device_detail x = {.props = *infer_hal_dev_props(d), .heap = *infer_hal_dev_heap(d)};
    x.stats.struct_size = sizeof x.stats;
    infer_status s = infer_hal_dev_heap_stats(d, &x.stats);
    if (s == INFER_OK) {
        x.refused = refused_ops(d);
        *out = x;
    } else {
        infer_hal_fail(d, s, err, "heap statistics");
    }
    infer_hal_close(d);
    return s;
}

const char *infer_format_name(infer_format format)
{
    const infer_format_info *info = infer_format_get(format);
    return info ? info->name : NULL;
}

infer_status infer_runtime_topology_json(const infer_runtime *rt, char **json, infer_error *err)
{
    const infer_topo *t = infer_hal_topo(rt->hal);
    json_t *nodes = json_array();
    for (uint32_t i = 0; i < infer_topo_n_numa(t); i++) {
        uint32_t n_cores = 0, n = infer_topo_cpus(t, (int32_t)i, NULL, 0, &n_cores);
        json_array_append_new(nodes, json_pack("{s:i,s:I,s:i,s:i}", "node", (int)i, "memory",
                                               (json_int_t)infer_topo_memory(t, (int32_t)i), "cores", (int)n_cores,
                                               "threads", (int)n));
    }
    json_t *o = json_pack("{s:o,s:i,s:i,s:f,s:I,s:o}", "cpu", infer_json_text(infer_topo_cpu_name(t)), "cores",
                          (int)infer_topo_n_cores(t), "threads", (int)infer_topo_n_pus(t), "cpu_quota",
                          infer_topo_cpu_quota(t), "memory", (json_int_t)infer_topo_memory(t, -1), "numa_nodes", nodes);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (!text)
        return infer_error_set(err, INFER_E_NO_MEMORY, "topology: no host memory");
    *json = text;
    return INFER_OK;
}
