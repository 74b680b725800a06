/* Steps that are submitted behind the one that runs: that they are, on one device; that requests which end in any way,
 * after any token, tell the same, free their blocks and leave nothing wrong in the prefix cache; that what fails in one
 * step makes the next one void. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdlib.h>
#include <unistd.h>

#include "e2e/rig.h"
#include "plugins/fault/fault.h"

enum { CTX = 96, N = 20, N_PROMPT = 11 };

static const int32_t prompt[N_PROMPT] = {72, 101, 108, 108, 111, 32, 119, 111, 114, 108, 100};

static rig_options options(const char *devices)
{
    return (rig_options){.model = rig_golden("llama"),
                         .devices = devices,
                         .split = strchr(devices, ',') ? "1,1" : NULL,
                         .ctx = CTX,
                         .parallel = 4,
                         .block = 8,
                         .batched = 64};
}

static infer_request request(uint64_t seed)
{
    return (infer_request){.prompt = prompt,
                           .n_prompt = N_PROMPT,
                           .max_tokens = N,
                           .flags = INFER_REQ_IGNORE_EOS,
                           .sampling = {.temperature = 1.2f, .frequency_penalty = seed % 2 ? 0.3f : 0, .seed = seed}};
}

/* ---- Order of calls -------------------------------------------------------------------------------------------- */

typedef struct sampled {
    double submitted, seen;
    void *tl;
    unsigned long long value;
} sampled;

typedef struct calls {
    sampled steps[N + 1];
    uint32_t n, feeds, updates; /* feeds: copies from one place on the device to another */
} calls;

/* Lines are written when a call returns: "seconds backend slot text = status microseconds us". */
static void read_trace(const char *path, calls *c)
{
    char line[1000], slot[32];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    memset(c, 0, sizeof *c);
    for (int signal_next = 0; fgets(line, sizeof line, f);) {
        double t0, us;
        int at = 0;
        void *tl;
        unsigned long long value;
        const char *status = strstr(line, " = ok ");
        if (sscanf(line, "%lf %*s %31s %n", &t0, slot, &at) != 2 || !status || sscanf(status, " = ok %lf", &us) != 1)
            continue;
        if (!strcmp(slot, "cmd_op") && strstr(line + at, " sample ")) {
            assert_true(c->n <= N);
            c->steps[c->n++] = (sampled){.submitted = t0};
            signal_next = 1;
        } else if (!strcmp(slot, "queue_signal") && signal_next) {
            sampled *s = &c->steps[c->n - 1];
            assert_int_equal(sscanf(line + at, "queue %*p tl %p %llu", &s->tl, &s->value), 2);
            signal_next = 0;
        } else if (!strcmp(slot, "tl_wait") && sscanf(line + at, "tl %p %llu", &tl, &value) == 2) {
            for (uint32_t i = 0; i < c->n; i++)
                if (c->steps[i].tl == tl && c->steps[i].value == value)
                    c->steps[i].seen = t0 + us / 1e6;
        } else if (c->n && !strcmp(slot, "cmd_copy")) {
            c->feeds += sscanf(line + at, "queue %*p buf %p <- buf %p", &tl, &tl) == 2;
            c->updates += sscanf(line + at, "queue %*p buf %p <- host %p", &tl, &tl) == 2;
        }
    }
    fclose(f);
}

/* A device on which every op takes its time: the next step's last op is in its queue before the ids of the step that
 * runs are seen, so that it never runs dry; on a plan of two devices steps wait. Where drafts
 * are on, who has none (for its penalties) is served as without. */
static void test_order(void **state)
{
    (void)state;
    static const char *const devices[] = {"sim0", "sim0,ref0", "sim0"};
    static const char *const settings[] = {"sim.native_timelines=1", "sim.pace=1", "sim.launch_ns=300000", NULL};
    for (int d = 0; d < 3; d++) {
        char path[] = "/tmp/infer-ahead-XXXXXX";
        int fd = mkstemp(path);
        assert_true(fd >= 0);
        close(fd);
        rig r;
        answer a, *list[] = {&a};
        calls c;
        rig_options o = options(devices[d]);
        o.settings = settings;
        o.trace = path;
        o.speculative = d == 2 ? INFER_SPECULATIVE_ALWAYS : INFER_SPECULATIVE_OFF;
        o.logit_rows = d == 2 ? 16 : 0;
        rig_open(&r, &o);
        infer_request q = request(1);
        rig_submit(&r, &q, &a);
        assert_int_equal(rig_collect(&r, list, 1), INFER_OK);
        assert_int_equal(a.n, N);
        rig_idle(&r);
        const infer_engine_stats st = rig_stats(&r);
        rig_close(&r);
        read_trace(path, &c);
        unlink(path);
        uint32_t ahead = 0;
        for (uint32_t i = 1; i < c.n; i++)
            ahead += c.steps[i].submitted < c.steps[i - 1].seen;
        printf("%s: %u steps, %u submitted before the ids were seen, %u ids handed on, %u updates, gap %.1f us\n",
               devices[d], c.n, ahead, c.feeds, c.updates, (double)st.gap_ns / 1e3);
        if (d == 1) { /* it samples elsewhere */
            assert_int_equal(c.feeds, 0);
        } else {
            assert_int_equal(c.n, N);
            assert_int_equal(c.feeds, N - 1);
            assert_true(ahead >= N - 3);        /* this process may be held up now and then */
            assert_int_equal(c.updates, N - 1); /* all parameters of a step of few rows at once */
            assert_int_equal(st.gap_ns, 0);
        }
        answer_free(&a);
    }
}

/* ---- Ends ------------------------------------------------------------------------------------------------------ */

enum { BY_LENGTH, BY_ID, BY_TEXT, BY_CANCEL, WAYS };

/* The first token that is not found earlier; at least `from`. */
static uint32_t first_new(const answer *a, uint32_t from)
{
    for (uint32_t i = from; i < a->n; i++) {
        uint32_t k = 0;
        while (k < i && a->ids[k] != a->ids[i])
            k++;
        if (k == i)
            return i;
    }
    return a->n;
}

static void check_begin(const answer *got, const answer *whole)
{
    assert_true(got->n <= whole->n);
    for (uint32_t i = 0; i < got->n; i++) {
        assert_int_equal(got->ids[i], whole->ids[i]);
        assert_memory_equal(&got->logprobs[i], &whole->logprobs[i], sizeof(float));
    }
    size_t n_text = got->n_text;
    while (got->n < whole->n && n_text >= 3 && !memcmp(got->text + n_text - 3, "\xEF\xBF\xBD", 3))
        n_text -= 3; /* it ended inside a character */
    assert_true(n_text <= whole->n_text);
    assert_memory_equal(got->text, whole->text, n_text);
    assert_int_equal(got->n_generated, got->n);
    assert_int_equal(got->n_prompt, N_PROMPT);
}

/* Four at once, which end in the four ways after about k tokens, while the others go on. Then one whose prompt is what
 * the first one made, from the prefix cache. */
static void check_ends(rig *r, const answer *whole, uint32_t k)
{
    answer a[WAYS] = {0}, more, *list[WAYS], *last[] = {&more};
    infer_request q[WAYS];
    int32_t stop_id = 0, text[N_PROMPT + N];
    char stop[2] = "";
    const char *stops[] = {stop};
    const uint32_t at = first_new(&whole[BY_ID], k);
    size_t text_end = whole[BY_TEXT].n_text;
    for (int i = 0; i < WAYS; i++) {
        q[i] = request((uint64_t)i);
        list[i] = &a[i];
    }
    q[BY_LENGTH].max_tokens = k + 1;
    if (at < N) {
        stop_id = whole[BY_ID].ids[at];
        q[BY_ID].stop_ids = &stop_id;
        q[BY_ID].n_stop_ids = 1;
    }
    for (size_t i = k; i < whole[BY_TEXT].n_text; i++) {
        const unsigned char c = (unsigned char)whole[BY_TEXT].text[i];
        if (!c || c >= 0x80)
            continue;
        stop[0] = (char)c;
        text_end = (size_t)(strchr(whole[BY_TEXT].text, c) - whole[BY_TEXT].text);
        q[BY_TEXT].stop = stops;
        q[BY_TEXT].n_stop = 1;
        break;
    }
    for (int i = 0; i < WAYS; i++)
        rig_submit(r, &q[i], &a[i]);
    while (a[BY_CANCEL].n < k && !a[BY_CANCEL].done)
        assert_int_equal(rig_poll(r, -1), INFER_OK);
    infer_engine_cancel(r->engine, a[BY_CANCEL].id);
    assert_int_equal(rig_collect(r, list, WAYS), INFER_OK);
    for (int i = 0; i < WAYS; i++)
        check_begin(&a[i], &whole[i]);
    assert_int_equal(a[BY_LENGTH].finish, INFER_FINISH_LENGTH);
    assert_int_equal(a[BY_LENGTH].n, k + 1);
    assert_int_equal(a[BY_ID].finish, at < N ? INFER_FINISH_STOP : INFER_FINISH_LENGTH);
    assert_int_equal(a[BY_ID].n, at);
    assert_int_equal(a[BY_TEXT].finish, stop[0] ? INFER_FINISH_STOP : INFER_FINISH_LENGTH);
    assert_int_equal(a[BY_TEXT].n_text, text_end);
    assert_true(a[BY_CANCEL].finish == INFER_FINISH_CANCELLED || a[BY_CANCEL].n == N);
    assert_true(a[BY_CANCEL].n >= k);
    rig_idle(r);
    /* from the prefix cache they go on as they would have; with a penalty they would not, for the prompt counts else */
    for (int i = 0; i < WAYS; i++) {
        memcpy(text, prompt, sizeof prompt);
        if (a[i].n)
            memcpy(text + N_PROMPT, a[i].ids, a[i].n * sizeof *a[i].ids);
        infer_request on = request((uint64_t)i);
        on.prompt = text;
        on.n_prompt = N_PROMPT + a[i].n;
        on.max_tokens = N - (int64_t)a[i].n;
        rig_submit(r, &on, &more);
        assert_int_equal(rig_collect(r, last, 1), INFER_OK);
        assert_true(more.n_cached < on.n_prompt && more.n_cached + 1 >= N_PROMPT);
        assert_int_equal(more.n, N - a[i].n);
        for (uint32_t t = 0; t < more.n && !(i % 2); t++)
            assert_int_equal(more.ids[t], whole[i].ids[a[i].n + t]);
        answer_free(&more);
        answer_free(&a[i]);
    }
    rig_idle(r);
}

static void test_ends(void **state)
{
    (void)state;
    static const char *const devices[] = {"ref0,sim0", "ref0", "sim0"}; /* the first one: steps wait */
    for (int d = 0; d < 3; d++) {
        rig r;
        answer whole[WAYS], *one[1];
        rig_options o = options(devices[d]);
        rig_open(&r, &o);
        for (int i = 0; i < WAYS; i++) {
            infer_request q = request((uint64_t)i);
            one[0] = &whole[i];
            rig_submit(&r, &q, one[0]);
            assert_int_equal(rig_collect(&r, one, 1), INFER_OK);
            assert_int_equal(whole[i].n, N);
        }
        for (uint32_t k = 0; k < N; k++)
            check_ends(&r, whole, k);
        const infer_engine_stats st = rig_stats(&r);
        assert_int_equal(st.failed, 0);
        printf("%s: %llu steps, %llu tokens, gap %.1f us\n", devices[d], (unsigned long long)st.steps,
               (unsigned long long)st.generated_tokens, (double)st.gap_ns / 1e3);
        for (int i = 0; i < WAYS; i++)
            answer_free(&whole[i]);
        rig_close(&r);
    }
}

/* ---- Failures -------------------------------------------------------------------------------------------------- */

/* One step fails, by an op or a copy, while another is in the queue behind it: who was in it is told so; the others
 * start again and tell the same as without it. */
static void test_failures(void **state)
{
    (void)state;
    static const struct {
        uint32_t cls;
        int64_t first, by, n;
    } rows[] = {{INFER_FAULT_OP, 150, 23, 12}, {INFER_FAULT_COPY, 20, 5, 12}, {INFER_FAULT_SIGNAL, 5, 3, 6}};
    const infer_fault_api *fault = rig_fault();
    const char *settings[] = {rig_wrap("sim"), NULL};
    rig r;
    rig_options o = options("fault0");
    answer whole[3], a[3], *list[3] = {&a[0], &a[1], &a[2]};
    infer_request q[3];
    uint32_t failed = 0, went_on = 0;
    o.settings = settings;
    o.parallel = 2; /* the third one joins when another ends */
    rig_open(&r, &o);
    for (int i = 0; i < 3; i++) {
        answer *one[] = {&whole[i]};
        q[i] = request((uint64_t)i);
        q[i].max_tokens = i ? N : 4;
        rig_submit(&r, &q[i], &whole[i]);
        assert_int_equal(rig_collect(&r, one, 1), INFER_OK);
    }
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        for (int64_t i = 0; i < rows[k].n; i++) {
            const uint64_t before = fault->injected();
            fault->arm(rows[k].cls, rows[k].first + i * rows[k].by, INFER_E_NO_MEMORY);
            for (int j = 0; j < 3; j++)
                rig_submit(&r, &q[j], &a[j]);
            assert_int_equal(rig_collect(&r, list, 3), INFER_OK);
            for (int j = 0; j < 3; j++) {
                if (a[j].finish == INFER_FINISH_ERROR) {
                    assert_int_equal(a[j].status, INFER_E_NO_MEMORY);
                    assert_non_null(strstr(a[j].error, "fault0"));
                    failed++;
                } else {
                    assert_int_equal(a[j].n, whole[j].n);
                    went_on++;
                }
                for (uint32_t t = 0; t < a[j].n; t++)
                    assert_int_equal(a[j].ids[t], whole[j].ids[t]);
                answer_free(&a[j]);
            }
            assert_int_equal(fault->injected(), before + 1);
            rig_idle(&r);
        }
    }
    printf("%u failed, %u went on\n", failed, went_on);
    assert_true(failed >= 30 && went_on >= 15);
    for (int i = 0; i < 3; i++)
        answer_free(&whole[i]);
    rig_close(&r);
    fault->reset();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_failures),
    };
    rig_watchdog(300);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
