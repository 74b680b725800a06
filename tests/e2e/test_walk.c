/* The walk: from creating a runtime to destroying it, with requests between, every host allocation and every call to a
 * device fails once. Nothing crashes, hangs or leaks (under a sanitizer); each failure has a status and a text; and the
 * process works as before afterwards. INFER_TEST_LONG walks every step, else a part of them.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "e2e/rig.h"
#include "plugins/fault/fault.h"

enum { REQUESTS = 4, TOKENS = 4, LIMIT = 30 };

static const int32_t prompt[] = {72, 101, 108, 108, 111, 32, 119};

typedef struct tally {
    uint32_t runs, opened, ended_well, ended_badly, fatal;
} tally;

static int64_t clean[REQUESTS][TOKENS];

static void on_logits(void *user, uint64_t pos, const float *logits, uint32_t n_vocab)
{
    (void)logits;
    (void)n_vocab;
    *(uint64_t *)user = pos;
}

static infer_request request_of(int i, uint64_t *seen)
{
    static const char *const stops[] = {"never"};
    infer_request q = {.struct_size = sizeof q,
                       .prompt = prompt,
                       .n_prompt = 7 - (uint64_t)i,
                       .max_tokens = TOKENS,
                       .flags = INFER_REQ_IGNORE_EOS};
    if (i == 0) {
        q.flags |= INFER_REQ_PROMPT_ROWS;
        q.on_row = on_logits;
        q.row_user = seen;
    } else if (i == 1) {
        q.stop = stops;
        q.n_stop = 1;
        q.sampling = (infer_sampling){.temperature = 1, .repetition_penalty = 1.2f, .seed = 5};
        q.n_top_logprobs = 2;
    } else if (i == 3) {
        q.beam_width = q.beam_best = 2;
    }
    return q;
}

/* One life of an engine. A call that fails must say why; one that works must leave no error behind. */
static void live(const rig_options *o, tally *t, int must_work)
{
    rig r;
    infer_status s = rig_try(&r, o);
    t->runs++;
    if (s) {
        assert_int_equal(r.err.status, s);
        if (!r.err.text[0])
            fail_msg("status %d without a text", s);
        if (must_work)
            fail_msg("%s", r.err.text);
        rig_close(&r);
        return;
    }
    assert_int_equal(r.err.status, 0);
    t->opened++;
    answer a[REQUESTS];
    uint64_t seen = 0;
    uint32_t want = 0, told = 0;
    memset(a, 0, sizeof a);
    for (int i = 0; i < REQUESTS; i++) {
        infer_request q = request_of(i, &seen);
        infer_error e = {0};
        q.user = &a[i];
        s = infer_engine_submit(r.engine, &q, &a[i].id, &e);
        if (s && !e.text[0])
            fail_msg("submit: status %d without a text", s);
        assert_int_equal(e.status, s);
        want += s == INFER_OK;
    }
    while (told < want) {
        if ((s = rig_poll(&r, -1)) != INFER_OK)
            break;
        told = 0;
        for (int i = 0; i < REQUESTS; i++)
            told += (uint32_t)a[i].done;
    }
    assert_int_equal(told, want); /* every end is told before a fatal status is */
    infer_engine_stats st = rig_stats(&r);
    t->fatal += st.fatal != INFER_OK;
    for (int i = 0; i < REQUESTS; i++) {
        if (!a[i].done)
            continue;
        *(a[i].finish == INFER_FINISH_LENGTH ? &t->ended_well : &t->ended_badly) += 1;
        const int32_t *ids = i == 3 ? a[i].hyps[0].ids : a[i].ids;
        const uint64_t n = i == 3 ? a[i].hyps[0].n : a[i].n;
        for (uint64_t k = 0; k < n; k++) {
            if (must_work == 2)
                clean[i][k] = ids[k];
            assert_int_equal(ids[k], clean[i][k]); /* what is told is right */
        }
        if (must_work)
            assert_int_equal(n, TOKENS);
        answer_free(&a[i]);
    }
    if (must_work)
        assert_int_equal(want, REQUESTS);
    rig_close(&r);
}

static int is_long(void)
{
    return getenv("INFER_TEST_LONG") != NULL;
}

static char dir[] = "/tmp/infer-walk-XXXXXX"; /* of the prefix cache's file */

/* Which step comes after n: all of them, or ever wider ones with every residue on the way. */
static int64_t after(int64_t n, int64_t dense, int64_t stride)
{
    return is_long() || n < dense ? n + 1 : n + stride;
}

static uint32_t drafts; /* of the next walks */

static rig_options options(const char *devices, const char *const *settings)
{
    return (rig_options){.model = rig_golden("llama"),
                         .devices = devices,
                         .split = strchr(devices, ',') ? "1,1" : NULL,
                         .settings = settings,
                         .ctx = 32,
                         .parallel = 5,
                         .batched = 8,
                         .chunk = 4,
                         .logit_rows = 3 * (1 + drafts),
                         .speculative = drafts ? INFER_SPECULATIVE_ALWAYS : INFER_SPECULATIVE_OFF,
                         .drafts = drafts,
                         .swap = 1 << 20,
                         .prefix_host = 1 << 16};
}

static void print(const char *what, const tally *t)
{
    printf("%-28s %5u runs, %5u engines, requests %5u well %5u badly, %4u fatal\n", what, t->runs, t->opened,
           t->ended_well, t->ended_badly, t->fatal);
}

static void walk_host(const char *devices, const char *const *settings)
{
    rig_options o = options(devices, settings);
    tally t = {0}, fine = {0};
    char what[64];
    if (!strcmp(devices, "ref0")) {
        o.prefix_dir = dir;
        o.prefix_file = 1 << 16;
    }
    if (settings)
        rig_fault();
    live(&o, &fine, 2);
    for (int64_t n = 0;; n = after(n, 40, 23)) {
        alarm(LIMIT);
        if (settings)
            rig_fault();
        infer_alloc_fail_after(n, 0);
        live(&o, &t, 0);
        if (!infer_alloc_fail_after(-1, 0))
            break;
    }
    live(&o, &fine, 1);
    snprintf(what, sizeof what, "host memory, %s%s", devices, drafts ? ", drafts" : "");
    print(what, &t);
    assert_true(t.runs > t.opened);
}

static void test_host(void **state)
{
    (void)state;
    walk_host("ref0", NULL);
    walk_host("ref0,sim0", NULL);
    if (rig_has("cpu0"))
        walk_host("cpu0", NULL);
    drafts = 2;
    walk_host("ref0", NULL);
    drafts = 0;
}

/* Each class of calls to the decorated device, with the class's own status, and with the device lost. */
static void walk_device(const char *inner, const char *extra, const char *devices)
{
    static const struct {
        uint32_t cls;
        const char *name;
        int64_t dense, stride;
    } classes[] = {
#define X(id, name) {INFER_FAULT_##id, name, INFER_FAULT_##id == INFER_FAULT_TIMELINE ? 40 : 6, 11},
        INFER_FAULT_CLASSES(X)
#undef X
    };
    const char *settings[] = {rig_wrap(inner), extra, NULL};
    rig_options o = options(devices, settings);
    tally fine = {0};
    rig_fault();
    live(&o, &fine, 2);
    for (int lost = 0; lost < 2; lost++) {
        tally t = {0};
        char what[64];
        for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
            for (int64_t n = 0;; n = after(n, classes[i].dense, classes[i].stride)) {
                const infer_fault_api *fault = rig_fault();
                alarm(LIMIT);
                fault->arm(classes[i].cls, n, lost ? INFER_E_DEVICE_LOST : 0);
                live(&o, &t, 0);
                if (!fault->injected())
                    break;
            }
        }
        snprintf(what, sizeof what, "%s, %s%s%s", devices, inner, lost ? ", lost" : "", drafts ? ", drafts" : "");
        print(what, &t);
        assert_true(t.runs > t.opened && t.ended_badly > 0);
    }
    rig_fault();
    live(&o, &fine, 1);
}

static void test_sim(void **state)
{
    (void)state;
    walk_device("sim", NULL, "fault0");
    drafts = 2;
    walk_device("sim", NULL, "fault0");
    drafts = 0;
    walk_device("sim", NULL, "ref0,fault0");
}

static void test_native_timelines(void **state)
{
    (void)state;
    walk_device("sim", "fault.native_timelines=1", "fault0,ref0");
}

static void test_cpu(void **state)
{
    (void)state;
    if (!rig_has("cpu0"))
        skip();
    walk_device("cpu", NULL, "fault0");
}

/* The decorator wraps one backend a process, hence two. */
int main(void)
{
    const struct CMUnitTest first[] = {
        cmocka_unit_test(test_host),
        cmocka_unit_test(test_sim),
        cmocka_unit_test(test_native_timelines),
    };
    const struct CMUnitTest second[] = {
        cmocka_unit_test(test_cpu),
    };
    int status;
    if (!mkdtemp(dir))
        return 1;
    pid_t child = fork();
    if (child < 0)
        return 1;
    rig_watchdog(LIMIT);
    if (child)
        alarm(0); /* each of its steps has a limit of its own */
    if (!child)
        return cmocka_run_group_tests_name("on the processor", second, NULL, NULL);
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status))
        return 1;
    alarm(LIMIT);
    status = cmocka_run_group_tests_name("on simulated devices", first, NULL, NULL);
    return rmdir(dir) ? 1 : status;
}
