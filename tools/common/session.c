/*
 * Opens runtime, file, plan, model and engine from the options. Renders and generates nothing.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "session.h"

static infer_status open_runtime(session *s, const opts *o, infer_error *err)
{
    infer_runtime_options ro = {.struct_size = sizeof ro, .log_level = cli_log_level, .log = cli_log_sink};
    ro.backend_path = opt_str(o, OPT_BACKEND_PATH);
    ro.validate = opt_int(o, OPT_VALIDATE) != 0;
    ro.trace_calls = opt_str(o, OPT_TRACE_CALLS);
    ro.deterministic = opt_int(o, OPT_DETERMINISTIC) != 0;
    ro.module_check = INFER_MODULE_CHECK_CACHED + (uint32_t)opt_int(o, OPT_MODULE_CHECK);
    const opt_value *list = &o->v[OPT_BACKEND_OPTION];
    if (!(s->settings = malloc((list->n + 1) * sizeof *s->settings)))
        return infer_error_set(err, INFER_E_NO_MEMORY, "reading backend options: out of memory");
    for (size_t i = 0; i < list->n; i++) {
        const char *dot = strchr(list->list[i], '.'), *eq = strchr(list->list[i], '=');
        if (!dot || !eq || dot == list->list[i] || eq <= dot + 1)
            return infer_error_set(err, INFER_E_INVALID, "--backend-option: \"%s\" is not BACKEND.KEY=VALUE",
                                   list->list[i]);
        s->settings[ro.n_settings++] = list->list[i];
    }
    if (opt_int(o, OPT_THREADS)) {
        snprintf(s->threads, sizeof s->threads, "cpu.threads=%lld", (long long)opt_int(o, OPT_THREADS));
        s->settings[ro.n_settings++] = s->threads;
    }
    ro.settings = s->settings;
    return infer_runtime_create(&ro, &s->runtime, err);
}

/* An asked device whose backend did not load is a plugin's failure, not an absent device. */
static int code_of_plan(const session *s, const char *devices, const infer_error *err)
{
    if (err->status != INFER_E_NO_DEVICE || !devices)
        return cli_exit_code(err->status);
    for (uint32_t i = 0; i < infer_runtime_n_backends(s->runtime); i++) {
        infer_backend_row row;
        if (infer_runtime_backend(s->runtime, i, &row) < 0 || row.status >= 0 || !row.name || !*row.name)
            continue;
        size_t n = strlen(row.name);
        for (const char *d = devices; *d; d += strcspn(d, ","), d += *d == ',')
            if (!strncmp(d, row.name, n) && isdigit((unsigned char)d[n]))
                return EXIT_PLUGIN;
    }
    return EXIT_NO_DEVICE;
}

static infer_status read_gpu_layers(const opts *o, infer_plan_options *po, infer_error *err)
{
    const char *text = opt_str(o, OPT_N_GPU_LAYERS);
    char *end;
    if (!text || !strcmp(text, "auto"))
        return INFER_OK;
    long n = !strcmp(text, "all") ? -1 : strtol(text, &end, 10);
    if (n != -1 && (end == text || *end || n < 0 || n > 100000))
        return infer_error_set(err, INFER_E_INVALID,
                               "--n-gpu-layers: \"%s\" is neither a number of layers, auto nor all", text);
    po->n_gpu_layers_set = 1;
    po->n_gpu_layers = (int32_t)n;
    return INFER_OK;
}

/* Rows that may sample: one a sequence, and of those that are tried besides so many as pay at most. */
static uint32_t logit_rows(const opts *o, const session_wish *w, uint32_t n_parallel)
{
    enum { MOST = 64, DEFAULT = 8 };
    const uint32_t set = (uint32_t)opt_int(o, OPT_DRAFT_TOKENS), each = set ? set : DEFAULT;
    if (opt_int(o, OPT_SPECULATIVE) != INFER_SPECULATIVE_NGRAM)
        return w->max_logit_rows;
    const uint32_t more = n_parallel > MOST / each ? MOST : n_parallel * each, n = n_parallel + more;
    return n > w->max_logit_rows ? n : w->max_logit_rows;
}

static infer_status open_plan(session *s, const opts *o, const session_wish *w, infer_error *err)
{
    infer_plan_options po = {.struct_size = sizeof po};
    if (opt_int(o, OPT_SPLIT_MODE) == 1)
        return infer_error_set(err, INFER_E_INVALID, "--split-mode tensor: not built yet");
    infer_status st = read_gpu_layers(o, &po, err);
    if (st < 0)
        return st;
    const char *both = opt_str(o, OPT_KV_CACHE_DTYPE);
    po.ctx_size = w->ctx_size ? w->ctx_size : (uint32_t)opt_int(o, OPT_CTX_SIZE);
    po.n_parallel = w->n_parallel ? w->n_parallel : (uint32_t)opt_int(o, OPT_PARALLEL);
    po.max_batched_tokens =
        w->max_batched_tokens ? w->max_batched_tokens : (uint32_t)opt_int(o, OPT_MAX_BATCHED_TOKENS);
    po.max_logit_rows = logit_rows(o, w, po.n_parallel);
    po.measure = w->measure;
    po.block_size = (uint32_t)opt_int(o, OPT_BLOCK_SIZE);
    po.devices = w->devices ? w->devices : opt_str(o, OPT_DEVICE);
    po.tensor_split = opt_str(o, OPT_TENSOR_SPLIT);
    po.cache_type_k = opt_set(o, OPT_CACHE_TYPE_K) ? opt_str(o, OPT_CACHE_TYPE_K) : both;
    po.cache_type_v = opt_set(o, OPT_CACHE_TYPE_V) ? opt_str(o, OPT_CACHE_TYPE_V) : both;
    po.quantization = opt_str(o, OPT_QUANTIZATION);
    po.kv_cache_memory = (uint64_t)opt_int(o, OPT_KV_CACHE_MEMORY);
    po.memory_utilization = opt_num(o, OPT_MEMORY_UTILIZATION);
    po.allow_cpu_fallback = opt_int(o, OPT_ALLOW_CPU_FALLBACK) != 0;
    return infer_plan_create(s->runtime, s->file, &po, &s->plan, err);
}

/* Logs each ledger row and reason of the plan. */
static void log_plan(const session *s)
{
    char *text, a[32], b[32], c[32], d[32];
    if (cli_log_level < 2 || infer_plan_json(s->plan, &text, NULL) < 0)
        return;
    json_t *plan = json_loads(text, 0, NULL), *row;
    size_t i;
    json_array_foreach (json_object_get(plan, "ledger"), i, row) {
        json_int_t weights = 0, mapped = 0, kv = 0, activations = 0;
        const char *device = "?";
        json_unpack(row, "{s?s,s?I,s?I,s?I,s?I}", "device", &device, "weights", &weights, "mapped", &mapped, "kv", &kv,
                    "activations", &activations);
        cli_log(2, "plan", "device=%s weights=%s mapped=%s kv=%s activations=%s", device,
                cli_bytes(a, (uint64_t)weights), cli_bytes(d, (uint64_t)mapped), cli_bytes(b, (uint64_t)kv),
                cli_bytes(c, (uint64_t)activations));
    }
    json_array_foreach (json_object_get(plan, "reasons"), i, row)
        if (json_is_string(row))
            cli_log(2, "plan", "%s", json_string_value(row));
    json_decref(plan);
    infer_text_free(text);
}

/* Host memory that the plan does not have, as it is no device's: for blocks that have no room on theirs. */
static void log_host_blocks(const session *s)
{
    char a[32];
    infer_engine_stats st = {.struct_size = sizeof st};
    infer_engine_get_stats(s->engine, &st);
    if (st.host_blocks_bytes)
        cli_log(2, "plan",
                "host kv_blocks=%s at most, for requests that give way and the prefix cache (%llu blocks of "
                "it, %llu more in a file)",
                cli_bytes(a, st.host_blocks_bytes), (unsigned long long)st.tier_host.capacity,
                (unsigned long long)st.tier_file.capacity);
}

static infer_status open_engine(session *s, const opts *o, const session_wish *w, infer_error *err)
{
    cli_progress progress;
    cli_progress_begin(&progress, "loading", 1);
    infer_status st = infer_model_load(s->plan, cli_progress_load, &progress, &s->model, err);
    cli_progress_end(&progress);
    if (st < 0)
        return st;
    infer_engine_options eo = {.struct_size = sizeof eo};
    eo.prefill_chunk = (uint32_t)opt_int(o, OPT_PREFILL_CHUNK);
    eo.max_queue = (uint32_t)opt_int(o, OPT_MAX_QUEUE);
    eo.policy = (uint32_t)opt_int(o, OPT_POLICY); /* the words are in the order of INFER_POLICY_* */
    eo.target_itl_ns = (uint64_t)(opt_num(o, OPT_TARGET_ITL) * 1e6);
    eo.swap_bytes = (uint64_t)opt_int(o, OPT_SWAP_SPACE);
    eo.preemption = (uint32_t)opt_int(o, OPT_PREEMPTION);
    eo.speculative = (uint32_t)opt_int(o, OPT_SPECULATIVE); /* as INFER_SPECULATIVE_* */
    eo.max_draft_tokens = (uint32_t)opt_int(o, OPT_DRAFT_TOKENS);
    eo.prefix_host_bytes = (uint64_t)opt_int(o, OPT_PREFIX_HOST);
    eo.prefix_file_dir = opt_str(o, OPT_PREFIX_FILE);
    eo.prefix_file_bytes = (uint64_t)opt_int(o, OPT_PREFIX_FILE_SIZE);
    eo.no_prefix_cache = !opt_int(o, OPT_PREFIX_CACHING);
    eo.on_step = w->on_step;
    eo.step_user = w->step_user;
    if ((st = infer_engine_create(s->model, &eo, &s->engine, err)) >= 0)
        log_host_blocks(s);
    return st;
}

infer_status session_open(session *s, const opts *o, const session_wish *wish, enum session_stage stage,
                          const session *share, int *code, infer_error *err)
{
    static const session_wish nothing;
    const session_wish *w = wish ? wish : &nothing;
    uint64_t start = infer_engine_now();
    memset(s, 0, sizeof *s);
    *code = EXIT_DONE;
    infer_status st = INFER_OK;
    s->shared_runtime = share != NULL;
    if (share)
        s->runtime = share->runtime;
    else
        st = open_runtime(s, o, err);
    if (st < 0 || stage == SESSION_RUNTIME)
        goto done;

    const char *path = w->model ? w->model : opt_str(o, OPT_MODEL);
    s->shared_file = share && share->file && !w->model;
    if (s->shared_file)
        s->file = share->file;
    else if ((st = infer_file_open(path, &s->file, err)) < 0) {
        *code = st == INFER_E_UNSUPPORTED ? EXIT_BAD_MODEL : cli_exit_code(st);
        goto done;
    }
    infer_file_get_info(s->file, &s->info);
    if ((st = infer_file_tokenizer(s->file, &s->tokenizer, err)) < 0) {
        *code = st == INFER_E_UNSUPPORTED || st == INFER_E_NOT_FOUND ? EXIT_BAD_MODEL : cli_exit_code(st);
        goto done;
    }
    if (stage == SESSION_FILE)
        goto done;

    if ((st = open_plan(s, o, w, err)) < 0) {
        *code = code_of_plan(s, w->devices ? w->devices : opt_str(o, OPT_DEVICE), err);
        goto done;
    }
    log_plan(s);
    if (stage == SESSION_ENGINE)
        st = open_engine(s, o, w, err);
done:
    s->load_ns = infer_engine_now() - start;
    if (st < 0) {
        if (!*code)
            *code = cli_exit_code(st);
        session_close(s);
    }
    return st;
}

void session_close(session *s)
{
    if (s->engine)
        infer_engine_destroy(s->engine);
    if (s->model)
        infer_model_destroy(s->model);
    if (s->plan)
        infer_plan_destroy(s->plan);
    if (s->file && !s->shared_file)
        infer_file_destroy(s->file);
    if (s->runtime && !s->shared_runtime)
        infer_runtime_destroy(s->runtime);
    free(s->settings);
    memset(s, 0, sizeof *s);
}

infer_status session_print_devices(infer_runtime *rt, FILE *f, infer_error *err)
{
    static const char *const kinds[] = {"?", "cpu", "gpu", "igpu", "npu", "software"};
    infer_status st = infer_runtime_probe(rt, err);
    if (st < 0)
        return st;
    fprintf(f, "%-10s %-8s %-8s %-4s %10s %10s  %-16s %s\n", "device", "backend", "kind", "numa", "memory", "free",
            "stable id", "name");
    for (uint32_t i = 0; i < infer_runtime_n_devices(rt); i++) {
        infer_device_row r;
        infer_device_detail d = {0};
        char total[32] = "?", free_[32] = "?", node[16] = "-";
        if (infer_runtime_device(rt, i, &r) < 0)
            continue;
        const infer_device_info *in = r.info;
        uint64_t memory = in->memory_total;
        if (in->status >= 0 && infer_runtime_device_detail(rt, r.id, &d, NULL) >= 0) {
            if (d.stats.total.quality != INFER_KNOWN_NOT)
                memory = d.stats.total.value;
            if (d.stats.budget.quality != INFER_KNOWN_NOT)
                cli_bytes(free_, d.stats.budget.value);
            infer_text_free(d.refused);
        }
        if (memory)
            cli_bytes(total, memory);
        if (in->numa_node >= 0)
            snprintf(node, sizeof node, "%d", in->numa_node);
        fprintf(f, "%-10s %-8s %-8s %-4s %10s %10s  %-16s %s\n", r.id, r.backend, kinds[in->kind <= 5 ? in->kind : 0],
                node, total, free_,
                *in->pci    ? in->pci
                : *in->uuid ? in->uuid
                            : "-",
                in->name);
        if (in->driver[0] || in->arch[0] || d.props.isa[0])
            fprintf(f, "%11s%s%s%s%s%s%s%s", "", *in->driver ? "driver " : "", in->driver, *in->arch ? "  arch " : "",
                    in->arch, *d.props.isa ? "  kernels " : "", d.props.isa, "");
        if (d.props.n_cores)
            fprintf(f, "  workers %u", d.props.n_cores);
        if (in->driver[0] || in->arch[0] || d.props.isa[0] || d.props.n_cores)
            fputc('\n', f);
        if (in->status < 0)
            fprintf(f, "%11snot usable: %s (%s)\n", "", in->reason, infer_status_name(in->status));
        if (r.same_as)
            fprintf(f, "%11sthe same device as %s, which is preferred\n", "", r.same_as);
    }
    return INFER_OK;
}

int session_preflight(const opts *o)
{
    infer_error err = {0};
    if (opt_int(o, OPT_LIST_DEVICES)) {
        session s;
        int code;
        if (session_open(&s, o, NULL, SESSION_RUNTIME, NULL, &code, &err) < 0 ||
            session_print_devices(s.runtime, stdout, &err) < 0)
            return cli_fail_err(&err);
        session_close(&s);
        return cli_finish(EXIT_DONE);
    }
    if (!opt_str(o, OPT_MODEL))
        return cli_fail(EXIT_USAGE, "which model? give -m FILE (see --help)");
    return -1;
}
