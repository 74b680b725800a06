/*
 * The conformance run: loads the backend, chooses the device, runs the tiers' cases, reads exclusion lists, keeps the
 * verdict. Knows no case and prints nothing.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/hash.h"
#include "cts.h"

uint64_t cts_timeout_ns;

/* ---- One case -------------------------------------------------------------------------------------------- */

static void set_detail(cts *c, const char *fmt, va_list ap)
{
    vsnprintf(c->detail, sizeof(c->detail), fmt, ap);
    for (char *p = c->detail; *p; p++)
        if ((unsigned char)*p < ' ')
            *p = ' ';
}

void cts_fail(cts *c, const char *fmt, ...)
{
    if (c->failed)
        return;
    c->failed = 1;
    va_list ap;
    va_start(ap, fmt);
    set_detail(c, fmt, ap);
    va_end(ap);
}

void cts_skip(cts *c, const char *fmt, ...)
{
    if (c->failed || c->skipped)
        return;
    c->skipped = 1;
    va_list ap;
    va_start(ap, fmt);
    set_detail(c, fmt, ap);
    va_end(ap);
}

void cts_report(cts_run *r, uint32_t tier, uint32_t outcome, const char *name, const char *detail)
{
    uint32_t *counts[] = {&r->verdict.n_pass, &r->verdict.n_fail, &r->verdict.n_skip, &r->verdict.n_fallback};
    ++*counts[outcome];
    if (outcome == INFER_CONFORM_FAIL)
        r->failed_tier[tier] = 1;
    infer_conform_case k = {.struct_size = sizeof(k),
                            .outcome = outcome,
                            .tier = tier,
                            .seed = r->opt->seed,
                            .name = name,
                            .detail = detail};
    if (r->opt->report)
        r->opt->report(r->opt->user, &k);
}

void cts_close(cts_run *r, infer_hal_dev *dev)
{
    cts_watch_enter(r, r->opt->max_tier, "closing");
    if (!r->hung[0]) /* what may still be in use is better left alone */
        infer_hal_close(dev);
    cts_watch_leave(r);
}

void cts_hung(cts *c)
{
    cts_run *r = c->run;
    snprintf(r->dead, sizeof(r->dead), "not run: the device hung in %s", c->name);
    snprintf(r->hung, sizeof(r->hung), "%s", c->name);
}

static const cts_exclusion *excluded(const cts_run *r, const char *name)
{
    for (const cts_exclusion *e = r->exclusions; e; e = e->next)
        if (!fnmatch(e->pattern, name, 0))
            return e;
    return NULL;
}

/* After a failure: a device that was lost, or whose queue was, is opened anew for the cases to come. */
static void check_alive(cts *c)
{
    cts_run *r = c->run;
    infer_health h = {.struct_size = sizeof(h)};
    infer_error e = {0};
    if (r->dead[0] || (!infer_hal_dev_health(r->dev, &h) && infer_status_radius(h.status) < 3))
        return;
    infer_hal_close(r->dev);
    r->dev = NULL;
    if (infer_hal_open(r->hal, r->row->id, &r->dev, &e))
        snprintf(r->dead, sizeof(r->dead), "not run: %s is lost since %s", r->row->id, c->name);
}

void cts_case_run(cts_run *r, uint32_t tier, const char *name, cts_fn fn, int with_device, void *arg)
{
    if (tier > r->opt->max_tier || (r->opt->only && fnmatch(r->opt->only, name, 0)))
        return;
    const cts_exclusion *e = excluded(r, name);
    char text[400];
    if (e && !e->notyet) {
        snprintf(text, sizeof(text), "never: %s", e->reason);
        cts_report(r, tier, INFER_CONFORM_SKIP, name, text);
        return;
    }
    if (r->dead[0]) {
        cts_report(r, tier, INFER_CONFORM_FAIL, name, r->dead);
        return;
    }
    cts c = {.run = r, .name = name, .arg = arg};
    cts_watch_enter(r, tier, name);
    c.rng = infer_hash_bytes(name, strlen(name), r->opt->seed);
    if (with_device) {
        c.dev = r->dev;
        c.h = infer_hal_dev_handle(r->dev);
        c.ops = infer_hal_dev_ops(r->dev);
        c.props = infer_hal_dev_props(r->dev);
        c.heap = infer_hal_dev_heap(r->dev);
        if (cts_open_queue(&c))
            fn(&c);
        cts_close_queue(&c);
        if (c.failed)
            check_alive(&c);
    } else {
        fn(&c);
    }
    cts_watch_leave(r);
    uint32_t outcome = c.failed ? INFER_CONFORM_FAIL : c.skipped ? INFER_CONFORM_SKIP : INFER_CONFORM_PASS;
    if (e && outcome == INFER_CONFORM_FAIL) {
        snprintf(text, sizeof(text), "not yet: %s (%s)", e->reason, c.detail);
        cts_report(r, tier, INFER_CONFORM_SKIP, name, text);
        return;
    }
    if (e && outcome == INFER_CONFORM_PASS) {
        outcome = INFER_CONFORM_FAIL;
        snprintf(c.detail, sizeof(c.detail), "passes, but the list .notyet has it as failing: %s", e->reason);
    }
    cts_report(r, tier, outcome, name, c.detail);
}

/* ---- Exclusion lists ------------------------------------------------------------------------------------- */

static infer_status add_exclusion(cts_run *r, infer_str line, int notyet, const char *path, uint32_t number,
                                  infer_error *err)
{
    size_t n = 0, m;
    while (n < line.n && line.p[n] != ' ' && line.p[n] != '\t')
        n++;
    for (m = n; m < line.n && (line.p[m] == ' ' || line.p[m] == '\t');)
        m++;
    if (m == line.n)
        return infer_error_set(err, INFER_E_BAD_FILE, "%s:%u: a pattern without a reason", path, number);
    cts_exclusion *e = infer_calloc(1, sizeof(*e));
    if (!e)
        return infer_error_set(err, INFER_E_NO_MEMORY, "%s: no memory", path);
    e->next = r->exclusions;
    r->exclusions = e;
    e->notyet = notyet;
    e->pattern = infer_strndup(line.p, n);
    e->reason = infer_strndup(line.p + m, line.n - m);
    if (!e->pattern || !e->reason)
        return infer_error_set(err, INFER_E_NO_MEMORY, "%s: no memory", path);
    return INFER_OK;
}

static infer_status read_list(cts_run *r, const char *suffix, int notyet, infer_error *err)
{
    char path[1024];
    char *text;
    size_t size;
    snprintf(path, sizeof(path), "%s/%s.%s", r->opt->lists, r->verdict.backend, suffix);
    infer_status s = infer_file_read(path, 1 << 20, &text, &size, err);
    if (s == INFER_E_NOT_FOUND)
        return INFER_OK; /* nothing is excluded */
    if (s)
        return s;
    uint32_t number = 0;
    for (size_t i = 0; i < size && !s;) {
        size_t n = 0;
        while (i + n < size && text[i + n] != '\n')
            n++;
        number++;
        if (n > 0 && text[i] != '#')
            s = add_exclusion(r, infer_str_of(text + i, n), notyet, path, number, err);
        i += n + 1;
    }
    infer_free(text);
    return s;
}

static void free_exclusions(cts_run *r)
{
    while (r->exclusions) {
        cts_exclusion *e = r->exclusions;
        r->exclusions = e->next;
        infer_free(e->pattern);
        infer_free(e->reason);
        infer_free(e);
    }
}

/* ---- The backend and its device -------------------------------------------------------------------------- */

static const char *setting(void *user, const char *backend, const char *key)
{
    const infer_conform_options *opt = user;
    return opt->setting ? opt->setting(opt->user, backend, key) : NULL;
}

static infer_status load(cts_run *r, infer_error *err)
{
    const infer_conform_options *opt = r->opt;
    infer_hal_options o = {.log = {.fn = opt->log, .user = opt->user, .level = INFER_LOG_DEBUG},
                           .backend_path = opt->backend_path,
                           .allow = opt->backend ? opt->backend : "ref",
                           .config = setting,
                           .trace = opt->trace_calls,
                           .user = (void *)(uintptr_t)opt};
    INFER_TRY(infer_hal_create(&o, &r->hal, err));
    infer_error e = {0};
    if (!opt->backend &&
        (opt->plugin ? infer_hal_load(r->hal, opt->plugin, &e) : infer_hal_add(r->hal, opt->query, "in process", &e)))
        return infer_error_set(err, e.status == INFER_E_NO_MEMORY ? e.status : INFER_E_ABI, "%s", e.text);
    uint32_t n = infer_hal_n_backends(r->hal);
    const char *why = "no such backend is installed";
    for (uint32_t i = n; i-- > 0;) {
        infer_hal_backend(r->hal, i, &r->info);
        r->backend = i;
        if (!opt->backend || !strcmp(r->info.name, opt->backend)) {
            if (!r->info.status && r->info.desc)
                goto found;
            why = r->info.reason && r->info.reason[0] ? r->info.reason : infer_status_name(r->info.status);
            break;
        }
    }
    return infer_error_set(err, INFER_E_ABI, "backend %s: %s", opt->backend ? opt->backend : r->info.name, why);
found:
    snprintf(r->verdict.backend, sizeof(r->verdict.backend), "%s", r->info.desc->name);
    snprintf(r->verdict.version, sizeof(r->verdict.version), "%s", r->info.desc->version);
    return INFER_OK;
}

static infer_status choose(cts_run *r, infer_error *err)
{
    const char *why = "probe shows none";
    INFER_TRY(infer_hal_probe(r->hal, err));
    int32_t wanted = r->opt->device ? infer_hal_find(r->hal, r->opt->device) : -1;
    for (uint32_t i = 0; i < infer_hal_n_devices(r->hal); i++) {
        const infer_hal_device_info *d = infer_hal_device(r->hal, i);
        if (d->backend != r->backend || (r->opt->device && wanted != (int32_t)i))
            continue;
        if (d->info.status) {
            why = d->info.reason;
            continue;
        }
        r->row = d;
        snprintf(r->verdict.device, sizeof(r->verdict.device), "%s", d->id);
        snprintf(r->verdict.device_name, sizeof(r->verdict.device_name), "%s", d->info.name);
        return INFER_OK;
    }
    infer_hal_backend_info info;
    infer_hal_backend(r->hal, r->backend, &info);
    if (info.status && info.reason && info.reason[0])
        why = info.reason;
    return infer_error_set(err, INFER_E_NO_DEVICE, "backend %s: no usable device%s%s: %s", r->verdict.backend,
                           r->opt->device ? " " : "", r->opt->device ? r->opt->device : "", why);
}

int32_t cts_level(const cts_run *r)
{
    int32_t l = -1;
    for (uint32_t t = 0; t <= r->opt->max_tier && !r->failed_tier[t]; t++)
        l = (int32_t)t;
    return l;
}

infer_status infer_conform_run(const infer_conform_options *given, infer_conform_verdict *out, infer_error *err)
{
    infer_conform_options opt = {0};
    memcpy(&opt, given, given->struct_size < sizeof(opt) ? given->struct_size : sizeof(opt));
    if (opt.max_tier > INFER_CONFORM_MAX_TIER)
        return infer_error_set(err, INFER_E_INVALID, "conformance: tier T%u is unknown, the highest is T%d",
                               opt.max_tier, INFER_CONFORM_MAX_TIER);
    if (!opt.backend && !opt.plugin && !opt.query)
        return infer_error_set(err, INFER_E_INVALID, "conformance: no backend is named");
    cts_run r = {.opt = &opt};
    cts_timeout_ns = 60000000000u;
    if (opt.case_timeout_s && opt.case_timeout_s < 240)
        cts_timeout_ns = opt.case_timeout_s * (uint64_t)250000000;
    INFER_TRY(cts_watch_start(&r, err));
    cts_watch_enter(&r, 0, "loading");
    infer_status s = load(&r, err);
    if (!s && opt.lists)
        s = read_list(&r, "never", 0, err);
    if (!s && opt.lists)
        s = read_list(&r, "notyet", 1, err);
    if (!s)
        s = choose(&r, err);
    if (s)
        goto out_hal;
    r.raw = r.info.desc->ops;
    cts_t0_abi(&r);
    cts_watch_enter(&r, 0, "opening");
    s = infer_hal_open(r.hal, r.row->id, &r.dev, err);
    cts_watch_leave(&r);
    if (s)
        goto out_hal;
    cts_t0_mem(&r);
    cts_t0_copy(&r);
    cts_t0_queue(&r);
    cts_t0_query(&r);
    cts_t1_ops(&r);
    cts_t2(&r);
    cts_t3(&r);
    cts_t4(&r);
    cts_t5(&r);
    cts_t6(&r);
    cts_close(&r, r.dev); /* NULL where it could not be opened again */
    r.dev = NULL;
    cts_t6_closed(&r);
    if (opt.max_tier >= 7 && !r.hung[0] && !infer_hal_open(r.hal, r.row->id, &r.dev, err)) {
        cts_t7(&r);
        cts_close(&r, r.dev);
    }
    r.verdict.level = cts_level(&r);
    memcpy(r.verdict.hung, r.hung, sizeof(r.hung));
    uint32_t n = out->struct_size;
    r.verdict.struct_size = n;
    memcpy(out, &r.verdict, n < sizeof(r.verdict) ? n : sizeof(r.verdict));
out_hal:
    cts_watch_enter(&r, opt.max_tier, "closing");
    if (r.hal && !r.hung[0])
        infer_hal_destroy(r.hal);
    cts_watch_stop(&r);
    free_exclusions(&r);
    return s;
}
