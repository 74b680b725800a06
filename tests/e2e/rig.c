/* The rig of rig.h. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <dlfcn.h>
#include <ftw.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "e2e/rig.h"
#include "plugins/fault/fault.h"

const char *rig_golden(const char *name)
{
    static char path[4][512];
    static unsigned next;
    char *p = path[next++ % 4];
    const char *src = getenv("INFER_SRCDIR");
    snprintf(p, sizeof path[0], "%s/tests/golden/tiny-%s.gguf", src ? src : ".", name);
    return p;
}

static char folder[] = "/tmp/infer-rig-XXXXXX";
static int have_folder;

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *f)
{
    (void)st;
    (void)flag;
    (void)f;
    return remove(path);
}

static void remove_folder(void)
{
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

const char *rig_made(const char *args)
{
    enum { MAX = 16 };
    static struct {
        char args[256], path[64];
    } made[MAX];
    static int n;
    for (int i = 0; i < n; i++)
        if (!strcmp(made[i].args, args))
            return made[i].path;
    if (!have_folder) {
        assert_non_null(mkdtemp(folder));
        have_folder = 1;
        atexit(remove_folder);
    }
    assert_true(n < MAX && strlen(args) < sizeof made[0].args);
    const char *build = getenv("INFER_BUILDDIR");
    char command[1024];
    strcpy(made[n].args, args);
    snprintf(made[n].path, sizeof made[n].path, "%s/%d.gguf", folder, n);
    snprintf(command, sizeof command, "'%s/tools/mkmodel' %s %s >&2", build ? build : ".", args, made[n].path);
    int rc = system(command);
    if (!WIFEXITED(rc) || WEXITSTATUS(rc))
        fail_msg("%s: %d", command, rc);
    return made[n++].path;
}

infer_status rig_try(rig *r, const rig_options *o)
{
    memset(r, 0, sizeof *r);
    infer_runtime_options ro = {.struct_size = sizeof ro,
                                .settings = o->settings,
                                .validate = o->validate,
                                .deterministic = o->deterministic,
                                .trace_calls = o->trace,
                                .backend_path = o->modules};
    while (o->settings && o->settings[ro.n_settings])
        ro.n_settings++;
    infer_plan_options po = {.struct_size = sizeof po,
                             .ctx_size = o->ctx,
                             .n_parallel = o->parallel,
                             .max_batched_tokens = o->batched,
                             .max_logit_rows = o->logit_rows,
                             .block_size = o->block,
                             .devices = o->devices,
                             .tensor_split = o->split,
                             .cache_type_k = o->cache_type,
                             .cache_type_v = o->cache_type_v ? o->cache_type_v : o->cache_type,
                             .kv_cache_memory = o->kv_memory,
                             .quantization = o->quantization};
    infer_engine_options eo = {.struct_size = sizeof eo,
                               .max_queue = o->queue,
                               .prefill_chunk = o->chunk,
                               .max_step_tokens = o->step_tokens,
                               .no_prefix_cache = o->no_prefix_cache,
                               .swap_bytes = o->swap,
                               .preemption = o->preemption,
                               .speculative = o->speculative,
                               .max_draft_tokens = o->drafts,
                               .prefix_host_bytes = o->prefix_host,
                               .prefix_file_dir = o->prefix_dir,
                               .prefix_file_bytes = o->prefix_file,
                               .prefix_fetch = o->prefix_fetch,
                               .on_step = o->on_step,
                               .step_user = o->step_user};
    infer_status s = INFER_OK;
    r->rt = o->runtime;
    r->borrowed = r->rt != NULL;
    if (!r->rt)
        s = infer_runtime_create(&ro, &r->rt, &r->err);
    if (!s)
        s = infer_file_open(o->model, &r->file, &r->err);
    if (!s)
        s = infer_plan_create(r->rt, r->file, &po, &r->plan, &r->err);
    if (!s)
        s = infer_model_load(r->plan, NULL, NULL, &r->model, &r->err);
    if (!s)
        s = infer_engine_create(r->model, &eo, &r->engine, &r->err);
    return s;
}

void rig_open(rig *r, const rig_options *o)
{
    if (rig_try(r, o))
        fail_msg("%s on %s: %s", o->model, o->devices ? o->devices : "the best device", r->err.text);
    if (r->err.status)
        fail_msg("success left an error: %s", r->err.text);
}

void rig_close(rig *r)
{
    infer_engine_destroy(r->engine);
    infer_model_destroy(r->model);
    infer_plan_destroy(r->plan);
    infer_file_destroy(r->file);
    if (!r->borrowed)
        infer_runtime_destroy(r->rt);
    memset(r, 0, sizeof *r);
}

int rig_has(const char *device)
{
    infer_runtime *rt;
    infer_device_row row;
    int found = 0;
    assert_int_equal(infer_runtime_create(NULL, &rt, NULL), INFER_OK);
    assert_int_equal(infer_runtime_probe(rt, NULL), INFER_OK);
    for (uint32_t i = 0; i < infer_runtime_n_devices(rt); i++)
        found |= infer_runtime_device(rt, i, &row) == INFER_OK && !strcmp(row.id, device);
    infer_runtime_destroy(rt);
    return found;
}

void rig_submit(rig *r, infer_request *q, answer *a)
{
    infer_error e = {0};
    memset(a, 0, sizeof *a);
    q->struct_size = sizeof *q;
    q->user = a;
    if (infer_engine_submit(r->engine, q, &a->id, &e))
        fail_msg("submit: %s", e.text);
    assert_int_equal(e.status, 0);
}

/* Whether n bytes are whole characters of UTF-8. */
static int is_utf8(const char *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)p[i];
        size_t len = c < 0x80 ? 1 : c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC2 ? 2 : 0;
        if (!len || len > n - i)
            return 0;
        for (size_t k = 1; k < len; k++)
            if (((unsigned char)p[i + k] & 0xC0) != 0x80)
                return 0;
        i += len;
    }
    return 1;
}

/* A token after the end, an end that was told twice, figures that disagree: all fail the test. */
static void take(const infer_event *e)
{
    answer *a = e->user;
    assert_int_equal(a->done, 0);
    assert_int_equal(e->id, a->id);
    if (!is_utf8(e->text, e->n_text))
        fail_msg("text of %u bytes that is no UTF-8", (unsigned)e->n_text);
    if (e->type == INFER_EVENT_HYPOTHESIS) {
        hypothesis *h = &a->hyps[a->n_hyps++];
        assert_true(a->n_hyps <= INFER_MAX_BEAMS && e->status == INFER_OK);
        *h = (hypothesis){
            malloc((e->n_ids + 1) * sizeof *h->ids), e->n_ids, e->sum, e->score, malloc(e->n_text + 1), e->finish};
        memcpy(h->ids, e->ids, e->n_ids * sizeof *h->ids);
        memcpy(h->text, e->text, e->n_text);
        h->text[e->n_text] = 0;
        return;
    }
    a->text = realloc(a->text, a->n_text + e->n_text + 1);
    if (e->n_text)
        memcpy(a->text + a->n_text, e->text, e->n_text);
    a->n_text += e->n_text;
    a->text[a->n_text] = 0;
    if (e->type == INFER_EVENT_TOKEN) {
        assert_int_equal(e->finish, 0);
        assert_int_equal(e->status, 0);
        a->ids = realloc(a->ids, (a->n + 1) * sizeof *a->ids);
        a->logprobs = realloc(a->logprobs, (a->n + 1) * sizeof *a->logprobs);
        a->ids[a->n] = e->token;
        a->logprobs[a->n++] = e->logprob;
        a->n_top = e->n_top;
        assert_true(e->n_top <= 20);
        if (e->n_top)
            memcpy(a->top, e->top, e->n_top * sizeof *e->top);
        return;
    }
    assert_int_equal(e->type, INFER_EVENT_DONE);
    a->done = 1;
    a->finish = e->finish;
    a->status = e->status;
    snprintf(a->error, sizeof a->error, "%s", e->error ? e->error : "");
    a->n_prompt = e->n_prompt;
    a->n_cached = e->n_cached;
    a->n_generated = e->n_generated;
    assert_true(a->n_cached < a->n_prompt);
    a->t_submit = e->t_submit;
    a->t_first_run = e->t_first_run;
    a->t_first_token = e->t_first_token;
    a->t_end = e->t_end;
    uint64_t told = a->n;
    for (uint32_t i = 0; i < a->n_hyps; i++)
        told += a->hyps[i].n;
    assert_true(a->n_generated == told || (a->n_generated > told && !a->n_hyps && e->finish >= INFER_FINISH_CANCELLED));
    if (e->finish == INFER_FINISH_ERROR) {
        assert_true(e->status < 0);
        if (!a->error[0])
            fail_msg("status %d has no text", e->status);
    } else {
        assert_int_equal(e->status, e->finish == INFER_FINISH_CANCELLED ? INFER_E_CANCELLED : INFER_OK);
    }
}

infer_status rig_poll(rig *r, int32_t timeout_ms)
{
    const infer_event *ev;
    uint32_t n;
    infer_status s = infer_engine_poll(r->engine, timeout_ms, &ev, &n);
    for (uint32_t i = 0; i < n; i++)
        take(&ev[i]);
    return s;
}

infer_status rig_collect(rig *r, answer *const *a, uint32_t n)
{
    for (;;) {
        uint32_t done = 0;
        while (done < n && a[done]->done)
            done++;
        if (done == n)
            return INFER_OK;
        infer_status s = rig_poll(r, -1);
        if (s)
            return s;
    }
}

void answer_free(answer *a)
{
    free(a->ids);
    free(a->logprobs);
    for (uint32_t i = 0; i < a->n_hyps; i++) {
        free(a->hyps[i].ids);
        free(a->hyps[i].text);
    }
    free(a->text);
    memset(a, 0, sizeof *a);
}

infer_engine_stats rig_stats(const rig *r)
{
    infer_engine_stats st = {.struct_size = sizeof st};
    infer_engine_get_stats(r->engine, &st);
    return st;
}

void rig_idle(rig *r)
{
    for (int i = 0; i < 10000; i++) {
        infer_engine_stats st = rig_stats(r);
        if (!st.n_running && !st.n_waiting && !st.under_way && !st.blocks_used && !st.kv_tokens_used)
            return;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    fail_msg("the engine does not come to rest");
}

static const char *module_path(const char *folder_name, const char *backend, char *out, size_t cap)
{
    const char *build = getenv("INFER_BUILDDIR");
    snprintf(out, cap, "%s/%s/infer-%s.so", build ? build : ".", folder_name, backend);
    return out;
}

const struct infer_fault_api *rig_fault(void)
{
    char path[512];
    const infer_fault_api *(*control)(void) = NULL;
    void *h = dlopen(module_path("tests/plugins/.libs", "fault", path, sizeof path), RTLD_NOW | RTLD_LOCAL);
    void *symbol = h ? dlsym(h, "infer_fault_control") : NULL;
    if (!symbol)
        fail_msg("%s", dlerror());
    memcpy(&control, &symbol, sizeof control);
    control()->reset();
    return control();
}

const char *rig_wrap(const char *backend)
{
    static char text[600];
    char path[512];
    snprintf(text, sizeof text, "fault.wrap=%s",
             module_path(strcmp(backend, "sim") ? ".libs" : "tests/plugins/.libs", backend, path, sizeof path));
    return text;
}

static void hang(int sig)
{
    static const char text[] = "watchdog: the test hangs\n";
    (void)sig;
    if (write(2, text, sizeof text - 1) < 0)
        _exit(98);
    abort(); /* the core or a debugger shows where */
}

void rig_watchdog(unsigned seconds)
{
    signal(SIGALRM, hang);
    alarm(seconds);
}

uint64_t rig_cache_bytes(const rig_options *o, uint64_t tokens)
{
    rig r;
    rig_open(&r, o);
    infer_memory_row rows[64];
    uint64_t bytes = 0;
    uint32_t n = infer_model_memory(r.model, rows, 64);
    for (uint32_t i = 0; i < n; i++)
        bytes += strcmp(rows[i].kind, "kv") ? 0 : rows[i].planned;
    infer_engine_stats st = rig_stats(&r);
    bytes = bytes / (st.blocks_total * st.block_size) * tokens;
    rig_close(&r);
    return bytes;
}
