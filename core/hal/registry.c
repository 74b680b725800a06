/*
 * The list of backends and of the devices they show: finds modules, asks each for its descriptor, probes lazily. A
 * backend that does not load or probe stays in the list with its reason. Opens no device.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <sys/stat.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/env.h"
#include "base/module.h"
#include "hal/internal.h"
#include "hal/module_check.h"

#ifdef INFER_BUILTIN_CPU
const infer_plugin_desc *infer_plugin_query_cpu(const infer_host *host, const infer_abi_range *range);
#endif

static int listed(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = list; p && *p; p += strcspn(p, ","), p += *p == ',') {
        size_t len = strcspn(p, ",");
        if (len == n && !strncasecmp(p, name, n))
            return 1;
    }
    return 0;
}

static void step(const infer_hal *h, const char *name)
{
    if (h->on_step)
        h->on_step(h->user, name);
}

/* ---- Adding ------------------------------------------------------------------------------------------------- */

static void backend_free(hal_backend *b)
{
    if (!b)
        return;
    infer_free(b->name);
    infer_free(b->path);
    infer_free(b);
}

static hal_backend *backend_new(infer_hal *h, const char *path)
{
    hal_backend *b = infer_calloc(1, sizeof *b);
    char name[64];
    infer_module_name(path, name, sizeof name);
    hal_backend **more = infer_realloc_array(h->backends, h->n_backends + 1, sizeof *more);
    if (more)
        h->backends = more;
    if (b) {
        b->hal = h;
        b->name = infer_strdup(name);
        b->path = infer_strdup(path);
    }
    if (!b || !more || !b->name || !b->path) {
        backend_free(b);
        return NULL;
    }
    hal_host_init(b);
    h->backends[h->n_backends++] = b;
    return b;
}

/* Keeps the failure in the list. */
static infer_status backend_fail(hal_backend *b, infer_status s, const infer_error *e)
{
    b->status = s;
    snprintf(b->reason, sizeof b->reason, "%.255s", e->text);
    /* a module for a library or device that this machine does not have is no fault */
    infer_log_write(&b->hal->log, s == INFER_E_NO_DEVICE ? INFER_LOG_INFO : INFER_LOG_WARN, "hal", "backend %s: %s",
                    b->name, b->reason);
    return s;
}

static int good_word(const char *s, size_t max)
{
    size_t n = s ? strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_") : 0;
    return n && !s[n] && n <= max;
}

static uint32_t host_sanitizer(void)
{
    return strstr(INFER_SANITIZER, "address")  ? INFER_SANITIZER_ADDRESS
           : strstr(INFER_SANITIZER, "thread") ? INFER_SANITIZER_THREAD
                                               : INFER_SANITIZER_NONE;
}

/* Copies as much of the descriptor as the plugin knew of, and checks it. */
static infer_status take_descriptor(hal_backend *b, const infer_plugin_desc *desc, infer_error *err)
{
    const uint32_t least = offsetof(infer_plugin_desc, reserved);
    if (desc->struct_size < least)
        return infer_error_set(err, INFER_E_ABI, "descriptor of %u bytes, at least %u are needed", desc->struct_size,
                               least);
    memcpy(&b->desc, desc, desc->struct_size < sizeof b->desc ? desc->struct_size : sizeof b->desc);
    b->desc.struct_size = sizeof b->desc;
    const infer_plugin_desc *d = &b->desc;
    if (d->abi_major != INFER_ABI_MAJOR || d->abi_minor < HAL_ABI_MINOR_MIN || d->min_host_minor > INFER_ABI_MINOR)
        return infer_error_set(err, INFER_E_ABI,
                               "made for plugin interface %u.%u (host 0.%u or later), this is %u.%u "
                               "and loads %u.%u and later; build it anew",
                               d->abi_major, d->abi_minor, d->min_host_minor, INFER_ABI_MAJOR, INFER_ABI_MINOR,
                               INFER_ABI_MAJOR, HAL_ABI_MINOR_MIN);
    if (!good_word(d->name, 31) || !good_word(d->device_prefix, 16))
        return infer_error_set(err, INFER_E_ABI, "name and device prefix must be short words of a-z, 0-9 and _");
    if (d->sanitizer != INFER_SANITIZER_NONE && d->sanitizer != host_sanitizer())
        return infer_error_set(err, INFER_E_ABI, "built with another sanitizer than this program");
    return INFER_OK;
}

static infer_status ask_backend(hal_backend *b, infer_plugin_query_fn query, infer_error *err)
{
    infer_hal *h = b->hal;
    const infer_abi_range range = {.struct_size = sizeof range,
                                   .major = INFER_ABI_MAJOR,
                                   .minor_min = HAL_ABI_MINOR_MIN,
                                   .minor_max = INFER_ABI_MINOR};
    step(h, "query");
    const infer_plugin_desc *desc = query(&b->host, &range);
    if (!desc) {
        char said[sizeof b->reason];
        memcpy(said, b->reason, sizeof said);
        return infer_error_set(err, INFER_E_ABI, "%.200s", *said ? said : "declined without a reason");
    }
    INFER_TRY(take_descriptor(b, desc, err));
    for (uint32_t i = 0; i < h->n_backends; i++)
        if (h->backends[i]->loaded && !strcmp(h->backends[i]->name, b->desc.name))
            return infer_error_set(err, INFER_E_INVALID, "a backend of that name is already loaded from %s",
                                   h->backends[i]->path);
    char *name = infer_strdup(b->desc.name);
    if (!name)
        return infer_error_set(err, INFER_E_NO_MEMORY, "no memory");
    infer_free(b->name);
    b->name = name;
    b->desc.ops = hal_trace_table(b, desc->ops);
    INFER_TRY(hal_normalize(b->desc.ops, &b->ops, &b->has, b->name, err));
    b->query = query;
    b->reason[0] = 0;
    b->loaded = 1;
    return INFER_OK;
}

static infer_status add(infer_hal *h, infer_plugin_query_fn query, const char *path, int is_file, infer_error *err)
{
    infer_error e = {0};
    hal_backend *b = backend_new(h, path);
    if (!b)
        return infer_error_set(err, INFER_E_NO_MEMORY, "load backend %s: no memory", path);
    infer_status s = INFER_OK;
    void *symbol = NULL;
    if (is_file && !(s = hal_module_check(path, h->module_check, &e))) {
        step(h, "load");
        if (!(s = infer_module_open(path, "infer_plugin_query", &symbol, &e)))
            memcpy(&query, &symbol, sizeof query);
    }
    if (!s)
        s = ask_backend(b, query, &e);
    if (!s)
        return INFER_OK;
    backend_fail(b, s, &e);
    return infer_error_set(err, s, "load backend %s: %s", path, e.text);
}

infer_status infer_hal_add(infer_hal *h, infer_plugin_query_fn query, const char *path, infer_error *err)
{
    pthread_mutex_lock(&h->mu);
    infer_status s = add(h, query, path, 0, err);
    pthread_mutex_unlock(&h->mu);
    return s;
}

infer_status infer_hal_load(infer_hal *h, const char *file, infer_error *err)
{
    pthread_mutex_lock(&h->mu);
    infer_status s = add(h, NULL, file, 1, err);
    pthread_mutex_unlock(&h->mu);
    return s;
}

/* ---- Searching ---------------------------------------------------------------------------------------------- */

/* Whether a backend of that name is there, or this very file was tried. */
static int known(const infer_hal *h, const char *name, const char *path)
{
    for (uint32_t i = 0; i < h->n_backends; i++)
        if ((h->backends[i]->loaded && !strcmp(h->backends[i]->name, name)) || !strcmp(h->backends[i]->path, path))
            return 1;
    return 0;
}

static infer_status load_folder(infer_hal *h, const infer_hal_options *opt, const char *folder, int asked,
                                infer_error *err)
{
    struct stat st;
    char **paths = NULL;
    size_t n = 0;
    infer_error e = {0};
    infer_status s = infer_module_list(folder, &paths, &n, &e);
    if (s == INFER_E_NO_MEMORY)
        return infer_error_set(err, s, "%s", e.text);
    if (s) {
        infer_log_write(&h->log, INFER_LOG_WARN, "hal", "%s", e.text);
        return INFER_OK;
    }
    if (asked && (stat(folder, &st) || !S_ISDIR(st.st_mode)))
        infer_log_write(&h->log, INFER_LOG_WARN, "hal", "backend folder %s: there is no such folder", folder);
    for (size_t i = 0; i < n && s != INFER_E_NO_MEMORY; i++) {
        char name[64];
        infer_module_name(paths[i], name, sizeof name);
        if (known(h, name, paths[i]) || (opt->allow && !listed(opt->allow, name)) || listed(opt->deny, name)) {
            infer_log_write(&h->log, INFER_LOG_DEBUG, "hal", "%s is left out", paths[i]);
            continue;
        }
        s = infer_hal_load(h, paths[i], &e); /* listed with its reason, no error of ours */
    }
    infer_module_list_free(paths, n);
    return s == INFER_E_NO_MEMORY ? infer_error_set(err, s, "%s", e.text) : INFER_OK;
}

/* asked: somebody wrote the path, who is told of folders that are absent. */
static infer_status load_path(infer_hal *h, const infer_hal_options *opt, const char *path, int asked, infer_error *err)
{
    for (const char *p = path; p && *p;) {
        size_t n = strcspn(p, ":");
        if (n) {
            char *folder = infer_strndup(p, n);
            infer_status s = folder ? load_folder(h, opt, folder, asked, err)
                                    : infer_error_set(err, INFER_E_NO_MEMORY, "backend path: no memory");
            infer_free(folder);
            INFER_TRY(s);
        }
        p += n + (p[n] == ':');
    }
    return INFER_OK;
}

infer_status infer_hal_create(const infer_hal_options *opt, infer_hal **out, infer_error *err)
{
    infer_hal *h = infer_calloc(1, sizeof *h);
    if (!h)
        return infer_error_set(err, INFER_E_NO_MEMORY, "device registry: no memory");
    h->log = opt->log;
    h->config = opt->config;
    h->user = opt->user;
    h->validate = opt->validate;
    h->module_check = opt->module_check;
    h->on_step = opt->on_step;
    pthread_mutex_init(&h->mu, NULL);
    pthread_mutex_init(&h->open_mu, NULL);
    infer_status s = hal_trace_open(h, opt->trace, err);
    if (!s)
        s = infer_topo_create(opt->topo_xml, &h->topo, err);
    if (!s && !listed(opt->deny, "ref"))
        s = infer_hal_add(h, infer_plugin_query_ref, "builtin:ref", err);
#ifdef INFER_BUILTIN_CPU
    if (!s && (!opt->allow || listed(opt->allow, "cpu")) && !listed(opt->deny, "cpu"))
        s = infer_hal_add(h, infer_plugin_query_cpu, "builtin:cpu", err);
#endif
    if (!s)
        s = load_path(h, opt, opt->backend_path ? opt->backend_path : infer_env_get("INFER_BACKEND_PATH"), 1, err);
    char self[4096];
    if (!s && infer_module_self_folder(self, sizeof self))
        s = load_path(h, opt, self, 0, err);
    if (!s)
        s = load_path(h, opt, INFER_MODULE_DIR, 0, err);
    if (s) {
        infer_hal_destroy(h);
        return s;
    }
    *out = h;
    return INFER_OK;
}

void infer_hal_destroy(infer_hal *h)
{
    if (!h)
        return;
    for (uint32_t i = 0; i < h->n_devices; i++)
        infer_free(h->devices[i]);
    for (uint32_t i = 0; i < h->n_backends; i++) {
        hal_backend *b = h->backends[i];
        if (b->inited)
            b->ops.backend_fini();
    }
    hal_trace_close(h);
    for (uint32_t i = 0; i < h->n_backends; i++)
        backend_free(h->backends[i]);
    infer_free(h->devices);
    infer_free(h->backends);
    infer_topo_destroy(h->topo);
    pthread_mutex_destroy(&h->open_mu);
    pthread_mutex_destroy(&h->mu);
    infer_free(h);
}

/* ---- Probing ------------------------------------------------------------------------------------------------ */

infer_status hal_backend_start(hal_backend *b, infer_error *err)
{
    if (b->inited)
        return INFER_OK;
    step(b->hal, "start");
    infer_status s = b->ops.backend_init(&b->host);
    if (s) {
        const char *why = hal_detail_get(b, s, 1);
        return infer_error_set(err, s, "start backend %s: %s", b->name, *why ? why : infer_status_name(s));
    }
    b->inited = 1;
    return INFER_OK;
}

/* Whether the vendor's visibility variable hides a device: a list of indices or UUIDs, unset = all. */
static int hidden(const char *list, const infer_device_info *info)
{
    char index[16];
    snprintf(index, sizeof index, "%u", info->index);
    return list && !listed(list, index) && !(info->uuid[0] && listed(list, info->uuid));
}

static int taken(const infer_hal *h, const char *id)
{
    for (uint32_t i = 0; i < h->n_devices; i++)
        if (!strcmp(h->devices[i]->id, id))
            return 1;
    return 0;
}

static infer_status keep_row(infer_hal *h, uint32_t backend, const infer_device_info *info)
{
    const hal_backend *b = h->backends[backend];
    infer_hal_device_info **more = infer_realloc_array(h->devices, h->n_devices + 1, sizeof *more);
    if (more)
        h->devices = more;
    infer_hal_device_info *row = more ? infer_calloc(1, sizeof *row) : NULL;
    if (!row)
        return INFER_E_NO_MEMORY;
    row->backend = backend;
    row->same_as = -1;
    row->info = *info;
    infer_device_info *i = &row->info;
    i->name[sizeof i->name - 1] = i->pci[sizeof i->pci - 1] = i->uuid[sizeof i->uuid - 1] = 0;
    i->driver[sizeof i->driver - 1] = i->arch[sizeof i->arch - 1] = i->reason[sizeof i->reason - 1] = 0;
    snprintf(row->id, sizeof row->id, "%s%u", b->desc.device_prefix, i->index);
    if (taken(h, row->id)) {
        infer_log_write(&h->log, INFER_LOG_WARN, "hal", "backend %s shows a second %s: left out", b->name, row->id);
        infer_free(row);
        return INFER_OK;
    }
    const char *var = b->desc.visibility;
    if (var && !i->status && hidden(infer_env_get(var), i)) {
        i->status = INFER_E_NO_DEVICE;
        snprintf(i->reason, sizeof i->reason, "hidden by %.100s", var);
    }
    if (i->status && !i->reason[0])
        snprintf(i->reason, sizeof i->reason, "%s", infer_status_name(i->status));
    if (i->numa_node < 0 && i->pci[0])
        i->numa_node = infer_topo_pci_node(h->topo, i->pci);
    h->devices[h->n_devices++] = row;
    return INFER_OK;
}

static infer_status probe_backend(infer_hal *h, uint32_t at, infer_error *err)
{
    hal_backend *b = h->backends[at];
    INFER_TRY(hal_backend_start(b, err));
    infer_device_info *list = NULL;
    uint32_t cap = 8, n = 0;
    for (;;) {
        infer_device_info *more = infer_realloc_array(list, cap, sizeof *list);
        if (!more) {
            infer_free(list);
            return infer_error_set(err, INFER_E_NO_MEMORY, "probe backend %s: no memory", b->name);
        }
        list = more;
        memset(list, 0, cap * sizeof *list);
        for (uint32_t i = 0; i < cap; i++) {
            list[i].struct_size = sizeof *list;
            list[i].numa_node = -1;
        }
        n = 0;
        step(h, "probe");
        infer_status s = b->ops.probe(&b->host, list, cap, &n);
        if (s) {
            const char *why = hal_detail_get(b, s, 1);
            infer_free(list);
            return infer_error_set(err, s, "probe backend %s: %s", b->name, *why ? why : infer_status_name(s));
        }
        if (n <= cap)
            break;
        cap = n;
        if (cap > 4096) {
            infer_free(list);
            return infer_error_set(err, INFER_E_ABI, "probe backend %s: claims %u devices", b->name, n);
        }
    }
    infer_status s = INFER_OK;
    for (uint32_t i = 0; i < n && !s; i++)
        s = keep_row(h, at, &list[i]);
    infer_free(list);
    return s ? infer_error_set(err, s, "probe backend %s: no memory", b->name) : INFER_OK;
}

infer_status infer_hal_probe(infer_hal *h, infer_error *err)
{
    infer_status s = INFER_OK;
    pthread_mutex_lock(&h->mu);
    for (uint32_t i = 0; i < h->n_backends; i++) {
        hal_backend *b = h->backends[i];
        if (!b->loaded || b->probed)
            continue;
        infer_error e = {0};
        uint32_t before = h->n_devices;
        s = probe_backend(h, i, &e);
        if (s == INFER_E_NO_MEMORY) { /* nothing is kept: the next call tries again */
            while (h->n_devices > before)
                infer_free(h->devices[--h->n_devices]);
            infer_error_set(err, s, "%s", e.text);
            break;
        }
        b->probed = 1;
        if (s)
            backend_fail(b, s, &e);
        s = INFER_OK;
    }
    hal_identity_merge(h);
    pthread_mutex_unlock(&h->mu);
    return s;
}

/* ---- Lists -------------------------------------------------------------------------------------------------- */

const infer_topo *infer_hal_topo(const infer_hal *h)
{
    return h->topo;
}

const infer_log *infer_hal_log(const infer_hal *h)
{
    return &h->log;
}

uint32_t infer_hal_n_backends(const infer_hal *h)
{
    return h->n_backends;
}

void infer_hal_backend(const infer_hal *h, uint32_t i, infer_hal_backend_info *out)
{
    const hal_backend *b = h->backends[i];
    *out = (infer_hal_backend_info){
        .name = b->name,
        .path = b->path,
        .desc = b->loaded ? &b->desc : NULL,
        .status = b->status,
        .reason = b->reason,
        .query = b->query,
        .host = b->loaded ? &b->host : NULL,
    };
}

uint32_t infer_hal_n_devices(const infer_hal *h)
{
    return h->n_devices;
}

const infer_hal_device_info *infer_hal_device(const infer_hal *h, uint32_t i)
{
    return h->devices[i];
}
