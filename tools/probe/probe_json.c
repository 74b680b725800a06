/*
 * Devices, links, backends and topology as one JSON object.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <string.h>

#include "probe.h"
#include "sbuf.h"

static json_t *text_or_null(const char *s)
{
    return s && *s ? utf8_json(s) : json_null();
}

/* A figure that may be unknown: null then. */
static json_t *known(uint64_t value, int is_known)
{
    return is_known ? json_integer((json_int_t)value) : json_null();
}

static json_t *rate(double v)
{
    return v > 0 ? json_real(v) : json_null();
}

static json_t *words(const char *list)
{
    json_t *a = json_array();
    for (const char *p = list; p && *p;) {
        size_t n = strcspn(p, ",");
        if (n)
            json_array_append_new(a, json_stringn(p, n));
        p += n + (p[n] == ',');
    }
    return a;
}

static json_t *formats(uint64_t bits)
{
    json_t *a = json_array();
    for (uint32_t i = 0; i < INFER_FMT_COUNT; i++) {
        const char *name = bits >> i & 1 ? infer_format_name(i) : NULL;
        if (name)
            json_array_append_new(a, json_string(name));
    }
    return a;
}

static json_t *device_json(infer_runtime *rt, const infer_device_row *r)
{
    static const char *const kinds[] = {NULL, "cpu", "gpu", "igpu", "npu", "software"};
    const infer_device_info *in = r->info;
    infer_device_detail d = {0};
    infer_error err = {0};
    infer_status st = in->status;
    if (st >= 0)
        st = infer_runtime_device_detail(rt, r->id, &d, &err);
    int open = st >= 0;
    uint64_t total = in->memory_total;
    if (open && d.stats.total.quality != INFER_KNOWN_NOT)
        total = d.stats.total.value;
    json_t *o =
        json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "id", text_or_null(r->id), "backend", text_or_null(r->backend),
                  "name", text_or_null(in->name), "kind", text_or_null(in->kind <= 5 ? kinds[in->kind] : NULL), "pci",
                  text_or_null(in->pci), "uuid", text_or_null(in->uuid));
    json_object_set_new(o, "numa_node", in->numa_node >= 0 ? json_integer(in->numa_node) : json_null());
    json_object_set_new(o, "memory_total", known(total, total > 0));
    json_object_set_new(o, "memory_free",
                        known(d.stats.budget.value, open && d.stats.budget.quality != INFER_KNOWN_NOT));
    json_object_set_new(o, "driver", text_or_null(in->driver));
    json_object_set_new(o, "arch", text_or_null(in->arch));
    json_object_set_new(o, "dtypes", formats(d.props.formats));
    json_object_set_new(o, "ops_fallback", words(d.refused));
    json_object_set_new(o, "measured", json_object());
    json_object_set_new(o, "declared",
                        json_pack("{s:o, s:o, s:o, s:o}", "read_bytes_per_s", rate(d.props.read_bytes_per_s),
                                  "f32_flops", rate(d.props.f32_flops), "f16_flops", rate(d.props.f16_flops), "i8_ops",
                                  rate(d.props.i8_ops)));
    json_object_set_new(o, "isa", text_or_null(d.props.isa));
    json_object_set_new(o, "cores", known(d.props.n_cores, d.props.n_cores > 0));
    json_object_set_new(o, "same_as", text_or_null(r->same_as));
    json_object_set_new(o, "status", json_string(st >= 0 ? "ok" : infer_status_name(st)));
    json_object_set_new(o, "reason", text_or_null(in->status < 0 ? in->reason : st < 0 ? err.text : NULL));
    if (d.refused)
        infer_text_free(d.refused);
    return o;
}

static int usable(const json_t *device)
{
    const char *status = json_string_value(json_object_get(device, "status"));
    return status && !strcmp(status, "ok") && json_is_null(json_object_get(device, "same_as"));
}

static double declared_rate(const json_t *device)
{
    return json_number_value(json_object_get(json_object_get(device, "declared"), "read_bytes_per_s"));
}

/* Every ordered pair through host memory. A copy reads one side and writes the other; with both rates declared that is
 * an estimate of its speed, and nothing here is measured. */
static json_t *links_json(const json_t *devices)
{
    json_t *links = json_array(), *a, *b;
    size_t i, j;
    json_array_foreach (devices, i, a) {
        json_array_foreach (devices, j, b) {
            if (i == j || !usable(a) || !usable(b))
                continue;
            double ra = declared_rate(a), rb = declared_rate(b);
            json_array_append_new(links, json_pack("{s:O, s:O, s:o, s:n, s:s, s:b}", "from", json_object_get(a, "id"),
                                                   "to", json_object_get(b, "id"), "bytes_per_s",
                                                   rate(ra > 0 && rb > 0 ? 1 / (1 / ra + 1 / rb) : 0), "latency_us",
                                                   "path", "staged", "measured", 0));
        }
    }
    return links;
}

static json_t *backends_json(const infer_runtime *rt)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < infer_runtime_n_backends(rt); i++) {
        infer_backend_row b;
        if (infer_runtime_backend(rt, i, &b) < 0)
            continue;
        json_array_append_new(
            list, json_pack("{s:o, s:o, s:o, s:o, s:[i,i], s:s, s:o}", "name", text_or_null(b.name), "path",
                            text_or_null(b.path), "version", text_or_null(b.version), "vendor", text_or_null(b.vendor),
                            "abi", (int)b.abi_major, (int)b.abi_minor, "status",
                            b.status >= 0 ? "ok" : infer_status_name(b.status), "reason", text_or_null(b.reason)));
    }
    return list;
}

json_t *probe_json(infer_runtime *rt)
{
    json_t *devices = json_array(), *topology = NULL;
    for (uint32_t i = 0; i < infer_runtime_n_devices(rt); i++) {
        infer_device_row r;
        if (infer_runtime_device(rt, i, &r) >= 0)
            json_array_append_new(devices, device_json(rt, &r));
    }
    char *text;
    if (infer_runtime_topology_json(rt, &text, NULL) >= 0) {
        topology = json_loads(text, 0, NULL);
        infer_text_free(text);
    }
    json_t *links = links_json(devices);
    return json_pack("{s:o, s:o, s:o, s:o}", "devices", devices, "links", links, "backends", backends_json(rt),
                     "topology", topology ? topology : json_null());
}
