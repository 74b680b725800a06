/*
 * The table of results: markdown, JSON or CSV.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <string.h>

#include <jansson.h>

#include "bench.h"
#include "sbuf.h"

void bench_name(const bench_test *t, char *buf, size_t cap)
{
    size_t n = (size_t)snprintf(buf, cap, "%s%u", t->n_prompt ? "pp" : "tg", t->n_prompt ? t->n_prompt : t->n_gen);
    if (t->n_seq > 1 && n < cap)
        n += (size_t)snprintf(buf + n, cap - n, " x %u", t->n_seq);
    if (t->depth && n < cap)
        snprintf(buf + n, cap - n, " @ d%u", t->depth);
}

/* "llama 134.52 M Q4_1" */
static void model_name(const session *s, const opts *o, char *buf, size_t cap)
{
    char count[32];
    const char *q = opt_str(o, OPT_QUANTIZATION);
    snprintf(buf, cap, "%s %s %s%s%s", s->info.arch, cli_count(count, s->info.n_params), s->info.type, q ? " as " : "",
             q ? q : "");
}

/* The devices of the plan, joined by "+", and the first one's workers. */
static void devices(const session *s, char *buf, size_t cap, uint32_t *threads)
{
    char *text;
    *buf = 0;
    *threads = 0;
    if (infer_plan_json(s->plan, &text, NULL) < 0)
        return;
    json_t *plan = json_loads(text, 0, NULL), *stage;
    infer_text_free(text);
    size_t i, n = 0;
    json_array_foreach (json_object_get(plan, "stages"), i, stage) {
        const char *id = json_string_value(json_object_get(stage, "device"));
        infer_device_detail d = {0};
        if (!id || n >= cap)
            continue;
        n += (size_t)snprintf(buf + n, cap - n, "%s%s", n ? "+" : "", id);
        if (!*threads && infer_runtime_device_detail(s->runtime, id, &d, NULL) >= 0) {
            *threads = d.props.n_cores;
            if (d.refused)
                infer_text_free(d.refused);
        }
    }
    json_decref(plan);
}

void bench_get_reads(const session *s, bench_reads *out)
{
    char *text;
    *out = (bench_reads){.host = 1};
    if (infer_plan_json(s->plan, &text, NULL) < 0)
        return;
    json_t *plan = json_loads(text, 0, NULL), *stage, *p = json_object_get(plan, "predicted");
    infer_text_free(text);
    out->weights = json_number_value(json_object_get(p, "weight_bytes_per_token"));
    out->kv = json_number_value(json_object_get(p, "kv_bytes_per_token"));
    size_t i;
    json_array_foreach (json_object_get(plan, "stages"), i, stage) {
        const char *id = json_string_value(json_object_get(stage, "device"));
        infer_device_detail d = {0};
        if (!id || infer_runtime_device_detail(s->runtime, id, &d, NULL) < 0)
            continue;
        if (!(d.props.flags & INFER_PROP_HOST_MEMORY))
            out->host = 0;
        if (!out->n_threads)
            out->n_threads = d.props.n_cores;
        if (d.refused)
            infer_text_free(d.refused);
    }
    json_decref(plan);
}

void bench_print_head(enum bench_form form, FILE *f)
{
    if (form == BENCH_MD)
        fprintf(f,
                "| model                          |       size |     params | backend    | threads |            test |"
                "                  t/s |      GB/s read, share |\n"
                "| ------------------------------ | ---------: | ---------: | ---------- | ------: | --------------: |"
                " -------------------: | --------------------: |\n");
    else if (form == BENCH_CSV)
        fprintf(f,
                "model_filename,model_type,model_size,model_n_params,backends,n_threads,type_k,type_v,n_prompt,n_gen,"
                "n_depth,n_parallel,test,avg_ts,stddev_ts,read_bytes_per_s,read_limit,host_s_per_step\n");
    else
        fprintf(f, "[");
}

static const char *cache_type(const opts *o, enum opt_id own)
{
    const char *t = opt_set(o, own) ? opt_str(o, own) : opt_str(o, OPT_KV_CACHE_DTYPE);
    return t ? t : "f16";
}

/* Of the engine's thread, a step; 0: not known. */
static double host_s(const bench_result *r)
{
    return r->steps ? (double)r->host_ns / (double)r->steps / 1e9 : 0;
}

static void print_json_row(const session *s, const opts *o, const bench_result *r, const char *model, const char *where,
                           uint32_t threads, int first, FILE *f)
{
    char test[64];
    bench_name(&r->test, test, sizeof test);
    json_t *samples = json_array();
    for (uint32_t i = 0; i < r->n; i++)
        json_array_append_new(samples, json_real(r->samples[i]));
    json_t *row = json_pack(
        "{s:o, s:s, s:I, s:I, s:s, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:s, s:f, s:f, s:o, s:o, s:o, s:o}",
        "model_filename", utf8_json(s->info.path), "model_type", model, "model_size", (json_int_t)s->info.tensor_bytes,
        "model_n_params", (json_int_t)s->info.n_params, "backends", where, "n_threads", (json_int_t)threads, "type_k",
        cache_type(o, OPT_CACHE_TYPE_K), "type_v", cache_type(o, OPT_CACHE_TYPE_V), "n_prompt",
        (json_int_t)r->test.n_prompt, "n_gen", (json_int_t)r->test.n_gen, "n_depth", (json_int_t)r->test.depth,
        "n_parallel", (json_int_t)r->test.n_seq, "test", test, "avg_ts", r->mean, "stddev_ts", r->sd, "samples_ts",
        samples, "read_bytes_per_s", r->read > 0 ? json_real(r->read) : json_null(), "read_limit",
        r->read_limit > 0 ? json_real(r->read_limit) : json_null(), "host_s_per_step",
        r->steps ? json_real(host_s(r)) : json_null());
    fprintf(f, "%s\n  ", first ? "" : ",");
    if (row)
        json_dumpf(row, f, JSON_REAL_PRECISION(9));
    json_decref(row);
}

static void csv_text(const char *s, FILE *f)
{
    fputc('"', f);
    for (; *s; s++)
        fprintf(f, *s == '"' ? "\"\"" : "%c", *s);
    fputs("\",", f);
}

void bench_print_row(enum bench_form form, const session *s, const opts *o, const bench_result *r, int first, FILE *f)
{
    char model[96], where[128], test[64], size[32], params[32], rate[48];
    uint32_t threads;
    model_name(s, o, model, sizeof model);
    devices(s, where, sizeof where, &threads);
    bench_name(&r->test, test, sizeof test);
    if (form == BENCH_MD) {
        char reads[48] = "";
        snprintf(rate, sizeof rate, "%.2f ± %.2f", r->mean, r->sd);
        if (r->read > 0 && r->read_limit > 0)
            snprintf(reads, sizeof reads, "%.1f, %.0f %%", r->read / 1e9, 100 * r->read / r->read_limit);
        fprintf(f, "| %-30s | %10s | %10s | %-10s | %7u | %15s | %21s | %21s |\n", model,
                cli_bytes(size, s->info.tensor_bytes), cli_count(params, s->info.n_params), where, threads, test, rate,
                reads);
    } else if (form == BENCH_CSV) {
        csv_text(s->info.path, f);
        csv_text(model, f);
        fprintf(f, "%llu,%llu,", (unsigned long long)s->info.tensor_bytes, (unsigned long long)s->info.n_params);
        csv_text(where, f);
        fprintf(f, "%u,", threads);
        csv_text(cache_type(o, OPT_CACHE_TYPE_K), f);
        csv_text(cache_type(o, OPT_CACHE_TYPE_V), f);
        fprintf(f, "%u,%u,%u,%u,", r->test.n_prompt, r->test.n_gen, r->test.depth, r->test.n_seq);
        csv_text(test, f);
        fprintf(f, "%.6f,%.6f,%.0f,%.0f,%.9f\n", r->mean, r->sd, r->read, r->read_limit, host_s(r));
    } else {
        print_json_row(s, o, r, model, where, threads, first, f);
    }
    fflush(f);
}

void bench_print_foot(enum bench_form form, FILE *f)
{
    if (form == BENCH_JSON)
        fprintf(f, "\n]\n");
}
