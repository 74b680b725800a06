/*
 * Metrics: what was observed here, and the engine's own counts, as text for Prometheus.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <dirent.h>
#include <math.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <sys/resource.h>

#include <jansson.h>

#include "conn.h"
#include "metrics.h"
#include "server.h"

/* Bucket bounds are those of vLLM's metrics of the same suffix. */
static const double ttft[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                              1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
static const double itl[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                             0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
static const double latency[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                 30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
static const double few[] = {1, 2, 5, 10, 20};
static const double tokens[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

#define BOUNDS(a) a, sizeof a / sizeof a[0]
static const struct {
    const char *name, *help;
    const double *bounds; /* NULL: 1, 2, 5, 10, … up to the longest request */
    size_t n_bounds;
} rows[METRIC_COUNT] = {
    [METRIC_TTFT] = {"time_to_first_token_seconds", "Time to first token.", BOUNDS(ttft)},
    [METRIC_ITL] = {"inter_token_latency_seconds", "Time between tokens.", BOUNDS(itl)},
    [METRIC_TPOT] = {"request_time_per_output_token_seconds", "Mean time per token after the first, by request.",
                     BOUNDS(itl)},
    [METRIC_E2E] = {"e2e_request_latency_seconds", "Time from arrival to end.", BOUNDS(latency)},
    [METRIC_QUEUE] = {"request_queue_time_seconds", "Time spent waiting.", BOUNDS(latency)},
    [METRIC_PREFILL] = {"request_prefill_time_seconds", "Time from first run to first token.", BOUNDS(latency)},
    [METRIC_DECODE] = {"request_decode_time_seconds", "Time from first token to end.", BOUNDS(latency)},
    [METRIC_INFERENCE] = {"request_inference_time_seconds", "Time from first run to end.", BOUNDS(latency)},
    [METRIC_PROMPT_TOKENS] = {"request_prompt_tokens", "Prompt tokens of a request.", NULL, 0},
    [METRIC_GENERATION_TOKENS] = {"request_generation_tokens", "Tokens made for a request.", NULL, 0},
    [METRIC_MAX_GENERATION_TOKENS] = {"request_max_num_generation_tokens", "Tokens of a request's longest choice.",
                                      NULL, 0},
    [METRIC_COMPUTED_TOKENS] = {"request_prefill_kv_computed_tokens",
                                "Prompt tokens of a request that the prefix cache did not have.", NULL, 0},
    [METRIC_PARAMS_N] = {"request_params_n", "Parameter n of requests.", BOUNDS(few)},
    [METRIC_STEP_TOKENS] = {"iteration_tokens_total", "Tokens of a step.", BOUNDS(tokens)},
    [METRIC_PARAMS_MAX_TOKENS] = {"request_params_max_tokens", "Parameter max_tokens of requests.", NULL, 0},
};

void metrics_init(metrics *m)
{
    memset(m, 0, sizeof *m);
    pthread_mutex_init(&m->lock, NULL);
}

void metrics_destroy(metrics *m)
{
    pthread_mutex_destroy(&m->lock);
}

/* The i-th of 1, 2, 5, 10, 20, 50, … */
static double bound_125(size_t i)
{
    static const double digits[] = {1, 2, 5};
    double v = digits[i % 3];
    for (size_t k = 0; k < i / 3; k++)
        v *= 10;
    return v;
}

static size_t n_bounds(const metrics *m, enum metric which)
{
    if (rows[which].bounds)
        return rows[which].n_bounds;
    size_t n = 0;
    while (n < METRIC_MAX_BUCKETS && bound_125(n) <= (double)m->max_len)
        n++;
    return n;
}

static double bound(enum metric which, size_t i)
{
    return rows[which].bounds ? rows[which].bounds[i] : bound_125(i);
}

void metrics_observe(metrics *m, enum metric which, double value)
{
    pthread_mutex_lock(&m->lock);
    histogram *h = &m->h[which];
    size_t n = n_bounds(m, which), i = 0;
    while (i < n && value > bound(which, i))
        i++;
    h->counts[i]++;
    h->n++;
    h->sum += value;
    pthread_mutex_unlock(&m->lock);
}

void metrics_finished(metrics *m, uint32_t finish)
{
    pthread_mutex_lock(&m->lock);
    m->finished[finish < 8 ? finish : 0]++;
    pthread_mutex_unlock(&m->lock);
}

void metrics_params(metrics *m, uint64_t n, int64_t max_tokens)
{
    metrics_observe(m, METRIC_PARAMS_N, (double)n);
    if (max_tokens > 0)
        metrics_observe(m, METRIC_PARAMS_MAX_TOKENS, (double)max_tokens);
}

void metrics_http(metrics *m, unsigned status)
{
    pthread_mutex_lock(&m->lock);
    m->responses[status == 499 ? 0 : status / 100 % 6]++;
    pthread_mutex_unlock(&m->lock);
}

static void add_busy(metrics *m, const char *device, uint64_t ns)
{
    size_t i = 0;
    while (i < METRIC_MAX_DEVICES && m->devices[i].name && strcmp(m->devices[i].name, device))
        i++;
    if (i < METRIC_MAX_DEVICES) {
        m->devices[i].name = device;
        m->devices[i].busy_ns += ns;
    }
}

static void add_link(metrics *m, const char *src, const char *dst, uint64_t bytes)
{
    size_t i = 0;
    while (i < METRIC_MAX_LINKS && m->links[i].src && (strcmp(m->links[i].src, src) || strcmp(m->links[i].dst, dst)))
        i++;
    if (i < METRIC_MAX_LINKS) {
        m->links[i].src = src;
        m->links[i].dst = dst;
        m->links[i].bytes += bytes;
    }
}

void metrics_step(metrics *m, const infer_step_info *step)
{
    metrics_observe(m, METRIC_STEP_TOKENS, step->n_tokens);
    if (step->status < 0)
        return;
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0; i < step->n_parts; i++)
        add_busy(m, step->parts[i].device, step->parts[i].t_end - step->parts[i].t_begin);
    for (uint32_t i = 0; i < step->n_copies; i++)
        add_link(m, step->copies[i].src, step->copies[i].dst, step->copies[i].bytes);
    pthread_mutex_unlock(&m->lock);
}

void metrics_rejected(metrics *m, enum rejected why)
{
    pthread_mutex_lock(&m->lock);
    m->rejected[why]++;
    pthread_mutex_unlock(&m->lock);
}

/* ---- Printing ---------------------------------------------------------------------------------------------- */

/* A label's value: backslash, quote and newline escaped. */
static void put_label(sbuf *b, const char *s)
{
    for (; *s; s++) {
        if (*s == '\\' || *s == '"')
            sbuf_add(b, "\\", 1);
        if (*s == '\n')
            sbuf_puts(b, "\\n");
        else
            sbuf_add(b, s, 1);
    }
}

typedef struct printer {
    sbuf *out;
    const char *prefix;
    sbuf labels; /* model_name and engine, on every line */
} printer;

static void head(const printer *p, const char *name, const char *type, const char *help)
{
    sbuf_printf(p->out, "# HELP %s%s %s\n# TYPE %s%s %s\n", p->prefix, name, help, p->prefix, name, type);
}

/* more: further labels such as `device="cpu0"`, or NULL. */
static void line(const printer *p, const char *name, const char *more, double value)
{
    sbuf_printf(p->out, "%s%s{%s%s%s} ", p->prefix, name, p->labels.p, more ? "," : "", more ? more : "");
    if (isnan(value))
        sbuf_puts(p->out, "NaN\n");
    else
        sbuf_printf(p->out, "%.17g\n", value);
}

static void single(const printer *p, const char *name, const char *type, const char *help, double value)
{
    head(p, name, type, help);
    line(p, name, NULL, value);
}

static void print_histogram(const printer *p, const metrics *m, enum metric which)
{
    const histogram *h = &m->h[which];
    char name[96], more[64];
    uint64_t sum = 0;
    head(p, rows[which].name, "histogram", rows[which].help);
    snprintf(name, sizeof name, "%s_bucket", rows[which].name);
    for (size_t i = 0, n = n_bounds(m, which); i < n; i++) {
        sum += h->counts[i];
        snprintf(more, sizeof more, "le=\"%.10g\"", bound(which, i));
        line(p, name, more, (double)sum);
    }
    line(p, name, "le=\"+Inf\"", (double)h->n);
    snprintf(name, sizeof name, "%s_sum", rows[which].name);
    line(p, name, NULL, h->sum);
    snprintf(name, sizeof name, "%s_count", rows[which].name);
    line(p, name, NULL, (double)h->n);
}

static void print_requests(const printer *p, const metrics *m)
{
    static const struct {
        uint32_t finish;
        const char *label;
    } reasons[] = {{INFER_FINISH_STOP, "finished_reason=\"stop\""},
                   {INFER_FINISH_LENGTH, "finished_reason=\"length\""},
                   {INFER_FINISH_CANCELLED, "finished_reason=\"abort\""},
                   {INFER_FINISH_ERROR, "finished_reason=\"error\""}};
    head(p, "request_success_total", "counter", "Requests ended, by reason.");
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++)
        line(p, "request_success_total", reasons[i].label, (double)m->finished[reasons[i].finish]);
    static const char *const classes[] = {"status=\"client_left\"", "status=\"1xx\"", "status=\"2xx\"",
                                          "status=\"3xx\"",         "status=\"4xx\"", "status=\"5xx\""};
    head(p, "http_requests_total", "counter", "HTTP requests answered, by class of status.");
    for (size_t i = 0; i < 6; i++)
        line(p, "http_requests_total", classes[i], (double)m->responses[i]);
    static const char *const why[REJECTED_COUNT] = {"reason=\"key\"", "reason=\"scope\"", "reason=\"limit\"",
                                                    "reason=\"state\""};
    head(p, "http_requests_rejected_total", "counter", "Requests turned away before their handler.");
    for (size_t i = 0; i < REJECTED_COUNT; i++)
        line(p, "http_requests_rejected_total", why[i], (double)m->rejected[i]);
}

/* Tiers of the prefix cache below the devices' pool. */
static void print_tiers(const printer *p, const infer_engine_stats *st)
{
    const struct {
        const char *label;
        const infer_tier_stats *t;
    } tiers[] = {{"tier=\"host\"", &st->tier_host}, {"tier=\"file\"", &st->tier_file}};
    static const struct {
        const char *name, *type, *help;
        size_t at;
    } figures[] = {
#define ROW(name, type, field, help) {name, type, help, offsetof(infer_tier_stats, field)}
        ROW("kv_tier_capacity_blocks", "gauge", capacity, "Blocks that a tier of the prefix cache can hold."),
        ROW("kv_tier_blocks", "gauge", blocks, "Blocks in a tier of the prefix cache."),
        ROW("kv_tier_stored_total", "counter", stored, "Blocks copied to a tier."),
        ROW("kv_tier_hits_total", "counter", hits, "Blocks brought back from a tier instead of being computed."),
        ROW("kv_tier_evicted_total", "counter", evicted, "Blocks that left a tier for others."),
        ROW("kv_tier_lost_total", "counter", lost, "Blocks that could not be stored or read."),
#undef ROW
    };
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        head(p, figures[i].name, figures[i].type, figures[i].help);
        for (size_t k = 0; k < sizeof tiers / sizeof tiers[0]; k++)
            line(p, figures[i].name, tiers[k].label,
                 (double)*(const uint64_t *)((const char *)tiers[k].t + figures[i].at));
    }
}

static void print_engine(const printer *p, const infer_engine_stats *st)
{
    double total = (double)st->blocks_total;
    single(p, "num_requests_running", "gauge", "Requests that run.", st->n_running);
    single(p, "num_requests_waiting", "gauge", "Requests that wait.", st->n_waiting);
    single(p, "kv_cache_usage_perc", "gauge", "Used part of the KV cache; 1 is all.",
           total > 0 ? (double)st->blocks_used / total : 0);
    char more[96];
    snprintf(more, sizeof more, "block_size=\"%u\",num_gpu_blocks=\"%llu\"", st->block_size,
             (unsigned long long)st->blocks_total);
    head(p, "cache_config_info", "gauge", "The KV cache's shape.");
    line(p, "cache_config_info", more, 1);
    single(p, "prompt_tokens_total", "counter", "Prompt tokens processed, found in the prefix cache or computed.",
           (double)(st->prompt_tokens + st->prefix_hits));
    single(p, "generation_tokens_total", "counter", "Tokens made.", (double)st->generated_tokens);
    single(p, "prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.",
           (double)st->prefix_queries);
    single(p, "prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache.",
           (double)st->prefix_hits);
    print_tiers(p, st);
    single(p, "num_preemptions_total", "counter", "Requests set back for others.", (double)st->preemptions);
    single(p, "spec_decode_num_drafts_total", "counter", "Sequences in steps for which tokens were tried.",
           (double)st->spec_drafts);
    single(p, "spec_decode_num_draft_tokens_total", "counter", "Tokens tried.", (double)st->spec_draft_tokens);
    single(p, "spec_decode_num_accepted_tokens_total", "counter", "Tokens tried that were right.",
           (double)st->spec_accepted_tokens);
    single(p, "engine_steps_total", "counter", "Steps run.", (double)st->steps);
    single(p, "engine_step_seconds_total", "counter", "Time in steps.", (double)st->step_ns / 1e9);
}

/* The devices of the model's ledger, each once, with `fn` on each. */
static void print_devices(const printer *p, server *s, const infer_engine_stats *st)
{
    infer_memory_row mem[64];
    uint32_t n = infer_model_memory(s->session.model, mem, 64), devices = 0;
    char more[128];
    if (n > 64)
        n = 64;
    head(p, "device_memory_bytes", "gauge", "Memory booked on a device, by kind.");
    for (uint32_t i = 0; i < n; i++) {
        snprintf(more, sizeof more, "device=\"%.31s\",kind=\"%.15s\"", mem[i].device, mem[i].kind);
        line(p, "device_memory_bytes", more, (double)mem[i].booked);
    }
    head(p, "device_healthy", "gauge", "1 while a device works.");
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = 0;
        while (k < i && strcmp(mem[k].device, mem[i].device))
            k++;
        if (k < i)
            continue;
        devices++;
        snprintf(more, sizeof more, "device=\"%.31s\"", mem[i].device);
        line(p, "device_healthy", more, st->fatal >= 0);
    }
    /* The engine counts these over all devices: with one device they are its own. */
    const char *device = devices == 1 ? mem[0].device : "all";
    snprintf(more, sizeof more, "op=\"all\",device=\"%s\"", device);
    head(p, "fallback_ops_total", "counter", "Ops run on the host for a device that lacks them.");
    line(p, "fallback_ops_total", more, (double)st->fallback_ops);
    char *text;
    double predicted = NAN;
    if (infer_plan_json(s->session.plan, &text, NULL) >= 0) {
        json_t *plan = json_loads(text, 0, NULL);
        json_t *rate = json_object_get(json_object_get(plan, "predicted"), "decode_tok_s");
        if (json_is_number(rate))
            predicted = json_number_value(rate);
        json_decref(plan);
        infer_text_free(text);
    }
    single(p, "plan_predicted_tokens_per_second", "gauge",
           "Decode rate of one sequence that the plan predicts; NaN: no rates are known to predict from.", predicted);
}

/* A device that has not worked yet is there too, as a rate needs its 0. */
static void print_steps(const printer *p, const server *s, const metrics *m)
{
    infer_memory_row mem[64];
    uint32_t n = infer_model_memory(s->session.model, mem, 64);
    char more[160];
    head(p, "device_busy_seconds_total", "counter", "Time that a device worked on steps.");
    for (size_t i = 0; i < METRIC_MAX_DEVICES && m->devices[i].name; i++) {
        snprintf(more, sizeof more, "device=\"%.31s\"", m->devices[i].name);
        line(p, "device_busy_seconds_total", more, (double)m->devices[i].busy_ns / 1e9);
    }
    for (uint32_t i = 0; i < n && i < 64; i++) {
        size_t k = 0;
        while (k < METRIC_MAX_DEVICES && m->devices[k].name && strcmp(m->devices[k].name, mem[i].device))
            k++;
        if ((i && !strcmp(mem[i - 1].device, mem[i].device)) || k == METRIC_MAX_DEVICES || m->devices[k].name)
            continue;
        snprintf(more, sizeof more, "device=\"%.31s\"", mem[i].device);
        line(p, "device_busy_seconds_total", more, 0);
    }
    head(p, "link_bytes_total", "counter", "Bytes of steps' values copied from device to device.");
    for (size_t i = 0; i < METRIC_MAX_LINKS && m->links[i].src; i++) {
        snprintf(more, sizeof more, "src=\"%.31s\",dst=\"%.31s\"", m->links[i].src, m->links[i].dst);
        line(p, "link_bytes_total", more, (double)m->links[i].bytes);
    }
}

static void print_process(sbuf *out)
{
    unsigned long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f) {
        if (fscanf(f, "%lu %lu", &size, &resident) == 2)
            sbuf_printf(out,
                        "# HELP process_resident_memory_bytes Resident memory.\n"
                        "# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes %lld\n",
                        (long long)resident * sysconf(_SC_PAGESIZE));
        fclose(f);
    }
    struct rusage u;
    if (!getrusage(RUSAGE_SELF, &u))
        sbuf_printf(out,
                    "# HELP process_cpu_seconds_total Processor time.\n# TYPE process_cpu_seconds_total counter\n"
                    "process_cpu_seconds_total %.6f\n",
                    (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                        (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6);
    DIR *d = opendir("/proc/self/fd");
    if (d) {
        long n = -3; /* ".", ".." and the folder itself */
        while (readdir(d))
            n++;
        closedir(d);
        sbuf_printf(out,
                    "# HELP process_open_fds Open descriptors.\n# TYPE process_open_fds gauge\n"
                    "process_open_fds %ld\n",
                    n);
    }
}

static void print_connections(const printer *p, server *s)
{
    uint64_t n_open, n_late;
    conn_counts(s, &n_open, &n_late);
    single(p, "http_connections", "gauge", "Open connections.", (double)n_open);
    single(p, "http_slow_clients_total", "counter", "Connections cut off as the client was too slow.", (double)n_late);
}

void metrics_print(struct server *s, const char *prefix, sbuf *out)
{
    printer p = {.out = out, .prefix = prefix};
    sbuf_puts(&p.labels, "model_name=\"");
    put_label(&p.labels, s->model ? s->model : "");
    sbuf_puts(&p.labels, "\",engine=\"0\"");
    infer_engine_stats st = {.struct_size = sizeof st};
    if (p.labels.failed) {
        out->failed = 1;
        return;
    }
    infer_engine_get_stats(s->session.engine, &st);
    print_engine(&p, &st);
    metrics m; /* printed from a copy: a step that ends meanwhile does not wait */
    pthread_mutex_lock(&s->metrics.lock);
    memcpy(&m, &s->metrics, sizeof m);
    pthread_mutex_unlock(&s->metrics.lock);
    for (int i = 0; i < METRIC_COUNT; i++)
        print_histogram(&p, &m, (enum metric)i);
    print_requests(&p, &m);
    print_steps(&p, s, &m);
    print_connections(&p, s);
    head(&p, "build_info", "gauge", "The program's version.");
    line(&p, "build_info", "version=\"" INFER_VERSION_STRING "\"", 1);
    single(&p, "ready", "gauge", "1 while /ready says so.",
           atomic_load(&s->state) == SERVER_READY && !atomic_load(&s->stall));
    single(&p, "engine_stalled", "gauge", "1 while a step takes longer than a minute, 2 beyond --step-timeout.",
           atomic_load(&s->stall));
    print_devices(&p, s, &st);
    if (strcmp(prefix, "vllm:"))
        print_process(out);
    sbuf_free(&p.labels);
}
