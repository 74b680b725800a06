/* core/hal: registry, tables, memory and ledger, timelines, submission, programs. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "unit/unit.h"

#include "hal/hal.h"
#include "ops/ops.h"

static infer_hal *make_hal(const infer_hal_options *given)
{
    infer_hal_options opt = given ? *given : (infer_hal_options){0};
    infer_hal *h = NULL;
    infer_error e = {0};
    if (!opt.backend_path)
        opt.backend_path = "";
    if (!opt.allow)
        opt.allow = "ref";
    if (!opt.topo_xml)
        opt.topo_xml = "synthetic:numa:2 core:4 pu:2";
    opt.validate = 1;
    assert_int_equal(infer_hal_create(&opt, &h, &e), INFER_OK);
    return h;
}

static infer_hal_dev *open_dev(infer_hal *h, const char *id)
{
    infer_hal_dev *d = NULL;
    infer_error e = {0};
    if (infer_hal_open(h, id, &d, &e))
        fail_msg("open %s: %s", id, e.text);
    return d;
}

static void test_ref_memory(void **state)
{
    (void)state;
    infer_hal *h = make_hal(NULL);
    infer_hal_dev *d = open_dev(h, "ref0");
    infer_error e = {0};
    infer_hal_buf b = {0}, c = {0};
    assert_int_equal(infer_hal_buf_alloc(d, 100, INFER_LEDGER_KV, &b, &e), INFER_OK);
    assert_int_equal(infer_hal_buf_alloc(d, 4096, INFER_LEDGER_WEIGHTS, &c, &e), INFER_OK);
    infer_heap_stats st;
    assert_int_equal(infer_hal_dev_heap_stats(d, &st), INFER_OK);
    assert_true(st.ours.value == infer_hal_ledger(d, INFER_LEDGER_KV) + infer_hal_ledger(d, INFER_LEDGER_WEIGHTS));
    assert_true(infer_hal_ledger(d, INFER_LEDGER_KV) == infer_hal_buf_bytes(d, 100));
    uint8_t in[64], out[64];
    for (int i = 0; i < 64; i++)
        in[i] = (uint8_t)(i * 7);
    infer_range r = {.buffer = b.h, .offset = 32, .size = 64};
    assert_int_equal(infer_hal_write(d, &r, in, 64, &e), INFER_OK);
    assert_int_equal(infer_hal_read(d, &r, out, 64, &e), INFER_OK);
    assert_memory_equal(in, out, 64);
    r.offset = 80;
    assert_int_equal(infer_hal_write(d, &r, in, 64, &e), INFER_E_INVALID);
    assert_non_null(strstr(e.text, "write on ref0"));
    infer_hal_buf_free(&b);
    infer_hal_buf_free(&b);
    infer_hal_buf_free(&c);
    for (int k = 0; k < INFER_LEDGER_KINDS; k++)
        assert_true(infer_hal_ledger(d, (infer_ledger_kind)k) == 0);
    infer_hal_close(d);
    infer_hal_destroy(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ref_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
