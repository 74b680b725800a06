/* Steps as infer_engine_options.on_step tells them: each once, agreeing with the statistics, their times in order.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "e2e/rig.h"
#include "plugins/fault/fault.h"

static const int32_t prompt[] = {72, 101, 108, 108, 111, 32, 119, 111, 114, 108, 100};
enum { N_PROMPT = sizeof prompt / sizeof prompt[0] };

typedef struct seen {
    uint64_t steps, tokens, sampled, bytes, parts, copies, last_begin, last_end, busy, overlapped;
    uint32_t most_seqs;
    infer_status status;
} seen;

static void note_copy(const infer_step_info *i, const infer_step_copy *c)
{
    assert_true(c->src_part < i->n_parts && c->dst_part < i->n_parts);
    assert_string_equal(c->src, i->parts[c->src_part].device);
    assert_string_equal(c->dst, i->parts[c->dst_part].device);
    assert_true(i->parts[c->src_part].t_begin <= c->t_send && c->t_send <= c->t_sent);
    assert_true(c->t_sent <= i->parts[c->src_part].t_end);
    assert_true(i->parts[c->dst_part].t_begin <= c->t_wait && c->t_wait <= c->t_receive);
    assert_true(c->t_receive <= c->t_received && c->t_received <= i->parts[c->dst_part].t_end);
    assert_true(c->t_sent <= c->t_received);
}

static void on_step(void *user, const infer_step_info *i)
{
    seen *s = user;
    assert_int_equal(i->struct_size, sizeof *i);
    assert_int_equal(i->number, ++s->steps);
    assert_true(i->t_build <= i->t_built && i->t_built <= i->t_begin && i->t_begin <= i->t_end);
    assert_true(s->last_begin <= i->t_build && s->last_end <= i->t_begin); /* one is built at a time, one runs */
    s->overlapped += i->t_build < s->last_end;
    s->last_begin = i->t_begin;
    s->last_end = i->t_end;
    s->status = i->status;
    if (i->status != INFER_OK)
        return;
    s->tokens += i->n_tokens;
    s->sampled += i->n_sampled;
    s->most_seqs = i->n_seqs > s->most_seqs ? i->n_seqs : s->most_seqs;
    for (uint32_t k = 0; k < i->n_parts; k++) {
        const infer_step_part *p = &i->parts[k];
        assert_true(i->t_begin <= p->t_begin && p->t_begin <= p->t_end && p->t_end <= i->t_end);
        s->busy += p->t_end - p->t_begin;
        s->parts++;
    }
    for (uint32_t k = 0; k < i->n_copies; k++) {
        if (!i->copies[k].bytes)
            continue;
        note_copy(i, &i->copies[k]);
        s->bytes += i->copies[k].bytes;
        s->copies++;
    }
}

static void run_three(rig *r, infer_status want)
{
    answer a[3] = {{0}}, *list[] = {&a[0], &a[1], &a[2]};
    for (int i = 0; i < 3; i++) {
        infer_request q = {.prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = 5, .flags = INFER_REQ_IGNORE_EOS};
        rig_submit(r, &q, &a[i]);
    }
    rig_collect(r, list, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(a[i].status, want);
        answer_free(&a[i]);
    }
}

static void check_agrees(const rig *r, const seen *s)
{
    infer_engine_stats st = rig_stats(r);
    assert_int_equal(s->steps, st.steps);
    assert_int_equal(s->sampled, st.generated_tokens);
    assert_int_equal(s->tokens, st.prompt_tokens + st.generated_tokens - 3); /* the last token of each is not read */
    assert_int_equal(s->bytes, st.copy_bytes);
    assert_int_equal(s->busy, st.device_busy_ns);
    assert_true(s->overlapped > 0 && s->overlapped < s->steps);
}

static void one_device(const char *device)
{
    rig r;
    seen s = {0};
    rig_options o = {.model = rig_golden("llama"),
                     .devices = device,
                     .ctx = 96,
                     .parallel = 4,
                     .batched = 64,
                     .no_prefix_cache = 1,
                     .on_step = on_step,
                     .step_user = &s};
    rig_open(&r, &o);
    run_three(&r, INFER_OK);
    check_agrees(&r, &s);
    assert_int_equal(s.copies, 0);
    assert_true(s.parts >= s.steps);
    rig_close(&r);
}

/* Steps are submitted behind one another, and told as if each began when the one before it ended. */
static void test_one_device(void **state)
{
    (void)state;
    one_device("ref0");
    if (rig_has("sim0"))
        one_device("sim0");
}

static void test_two_devices(void **state)
{
    (void)state;
    rig r;
    seen s = {0};
    rig_options o = {.model = rig_golden("llama"),
                     .devices = "sim0,ref0",
                     .split = "1,1",
                     .ctx = 96,
                     .parallel = 4,
                     .batched = 64,
                     .no_prefix_cache = 1,
                     .on_step = on_step,
                     .step_user = &s};
    if (!rig_has("sim0"))
        skip();
    rig_open(&r, &o);
    run_three(&r, INFER_OK);
    check_agrees(&r, &s);
    assert_true(s.copies >= s.steps && s.bytes > 0);
    rig_close(&r);
}

static void test_a_step_that_fails(void **state)
{
    (void)state;
    rig r;
    seen s = {0};
    if (!rig_has("sim0"))
        skip();
    const char *settings[] = {rig_wrap("sim"), NULL};
    rig_options o = {.model = rig_golden("llama"),
                     .devices = "fault0",
                     .ctx = 96,
                     .parallel = 4,
                     .batched = 64,
                     .settings = settings,
                     .on_step = on_step,
                     .step_user = &s};
    const infer_fault_api *f = rig_fault();
    rig_open(&r, &o);
    f->arm(INFER_FAULT_SIGNAL, 0, INFER_E_DEVICE_LOST);
    run_three(&r, INFER_E_DEVICE_LOST);
    assert_int_equal(s.status, INFER_E_DEVICE_LOST);
    assert_int_equal(s.steps, 1);
    rig_close(&r);
    f->reset();
}

/* A request ends by the token of one step while the next, which was built before the token was known, runs. */
static void test_a_step_whose_requests_ended(void **state)
{
    (void)state;
    rig r;
    answer a = {0}, b = {0}, *list[] = {&a, &b};
    if (!rig_has("sim0"))
        skip();
    const char *settings[] = {rig_wrap("sim"), NULL};
    rig_options o = {.model = rig_golden("llama"),
                     .devices = "fault0",
                     .ctx = 96,
                     .parallel = 4,
                     .batched = 64,
                     .settings = settings};
    const infer_fault_api *f = rig_fault();
    rig_open(&r, &o);
    infer_request q = {.prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = 1, .flags = INFER_REQ_IGNORE_EOS};
    rig_submit(&r, &q, &a);
    rig_collect(&r, list, 1);
    assert_int_equal(a.n, 1);
    f->delay(INFER_FAULT_SIGNAL, 500000000);
    q.max_tokens = 5;
    q.stop_ids = a.ids;
    q.n_stop_ids = 1;
    rig_submit(&r, &q, &b);
    rig_collect(&r, &list[1], 1);
    infer_engine_stats st = rig_stats(&r);
    assert_int_equal(b.finish, INFER_FINISH_STOP);
    assert_true(st.n_running == 0 && st.n_waiting == 0 && st.under_way == 1);
    f->reset();
    rig_idle(&r);
    assert_int_equal(rig_stats(&r).under_way, 0);
    answer_free(&a);
    answer_free(&b);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_device),
        cmocka_unit_test(test_two_devices),
        cmocka_unit_test(test_a_step_that_fails),
        cmocka_unit_test(test_a_step_whose_requests_ended),
    };
    rig_watchdog(120);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
