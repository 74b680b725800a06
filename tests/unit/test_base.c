/* core/base: errors, allocation seam, buffers, checked arithmetic, string map. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "unit/unit.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/hash.h"

static void test_error_text(void **state)
{
    (void)state;
    infer_error e = {0};
    assert_int_equal(infer_error_set(&e, INFER_E_IO, "open %s", "x"), INFER_E_IO);
    infer_error_prefix(&e, INFER_E_IO, "load m");
    assert_string_equal(e.text, "load m: open x");
    assert_string_equal(infer_status_name(INFER_E_DEVICE_LOST), "INFER_E_DEVICE_LOST");
    assert_int_equal(infer_status_radius(INFER_E_DEVICE_LOST), 4);
    assert_int_equal(infer_status_radius(INFER_PENDING), 0);
}

static void test_alloc_seam(void **state)
{
    (void)state;
    infer_alloc_fail_after(1, 0);
    void *a = infer_malloc(8);
    void *b = infer_malloc(8);
    void *c = infer_malloc(8);
    assert_non_null(a);
    assert_null(b);
    assert_non_null(c);
    assert_int_equal(infer_alloc_fail_after(-1, 0), 1);
    infer_free(a);
    infer_free(c);
    assert_null(infer_realloc_array(NULL, SIZE_MAX, 2));
}

static void test_buf(void **state)
{
    (void)state;
    infer_buf b = {.limit = 12};
    infer_buf_puts(&b, "abc");
    infer_buf_printf(&b, "%d", 42);
    infer_buf_put_utf8(&b, 0x20AC);
    assert_string_equal(b.p, "abc42\xE2\x82\xAC");
    infer_buf_puts(&b, "too long");
    assert_int_equal(b.failed, 2);
    assert_null(infer_buf_detach(&b));
    infer_buf_putc(&b, 'x');
    char *s = infer_buf_detach(&b);
    assert_string_equal(s, "x");
    infer_free(s);
}

static void test_checked(void **state)
{
    (void)state;
    uint64_t r;
    assert_false(infer_mul_u64(UINT64_MAX, 2, &r));
    assert_true(infer_round_up_u64(33, 32, &r));
    assert_int_equal(r, 64);
    assert_false(infer_round_up_u64(UINT64_MAX, 32, &r));
    assert_false(infer_range_ok(8, UINT64_MAX, 16));
    assert_true(infer_range_ok(8, 8, 16));
}

static void test_strmap(void **state)
{
    (void)state;
    infer_strmap m = {0};
    char keys[500][16];
    for (int i = 0; i < 500; i++) {
        snprintf(keys[i], sizeof keys[i], "k%d", i);
        assert_int_equal(infer_strmap_put(&m, infer_str_of(keys[i], strlen(keys[i])), (uint32_t)i), INFER_OK);
    }
    uint32_t v;
    for (int i = 0; i < 500; i++) {
        assert_true(infer_strmap_get(&m, infer_str_of(keys[i], strlen(keys[i])), &v));
        assert_int_equal(v, i);
    }
    assert_false(infer_strmap_get(&m, INFER_STR("absent"), &v));
    infer_strmap_free(&m);
}

/* The first of the vectors that its authors publish with their code (vectors_sip128). */
static void test_hash_secret(void **state)
{
    (void)state;
    const uint64_t secret[2] = {0x0706050403020100u, 0x0F0E0D0C0B0A0908u};
    const uint8_t zero = 0;
    uint64_t h[2];
    infer_hash_secret(NULL, 0, secret, h);
    assert_true(h[0] == 0xE6A825BA047F81A3u && h[1] == 0x930255C71472F66Du);
    infer_hash_secret(&zero, 1, secret, h);
    assert_true(h[0] == 0x44AF996BD8C187DAu && h[1] == 0x45FC229B11597634u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hash_secret), cmocka_unit_test(test_error_text), cmocka_unit_test(test_alloc_seam),
        cmocka_unit_test(test_buf),         cmocka_unit_test(test_checked),    cmocka_unit_test(test_strmap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
