/* core/place: ranges of layers by shares, by budgets and by limits. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "unit/unit.h"

#include "place/place.h"
#include "unit/rng.h"

enum { MAX_LAYERS = 100 };

#define MIB ((uint64_t)1 << 20)

typedef struct result {
    infer_status status;
    infer_error err;
    int32_t home[MAX_LAYERS + 2];
    uint32_t count[INFER_PLACE_MAX_DEVS];
} result;

static result place(const infer_place_facts *f, const infer_place_dev *d, uint32_t n)
{
    result r = {0};
    memset(r.home, 0xFF, sizeof r.home);
    r.status = infer_place_layers(f, d, n, r.home, &r.err);
    assert_int_equal(r.status, r.err.status);
    if (r.status)
        return r;
    for (uint32_t l = 0; l < f->n_layers; l++) {
        assert_true(r.home[l + 1] >= 0 && (uint32_t)r.home[l + 1] < n);
        assert_true(l == 0 || r.home[l + 1] >= r.home[l]); /* in the order of the devices */
        r.count[r.home[l + 1]]++;
    }
    assert_int_equal(r.home[0], r.home[1]);
    assert_int_equal(r.home[f->n_layers + 1], r.home[f->n_layers]);
    return r;
}

static uint64_t even[MAX_LAYERS];

static infer_place_facts layers(uint32_t n)
{
    for (int i = 0; i < MAX_LAYERS; i++)
        even[i] = 10 * MIB;
    return (infer_place_facts){.n_layers = n, .layer_bytes = even, .max_accelerated = -1};
}

static void test_shares(void **state)
{
    (void)state;
    const struct {
        uint32_t n_layers;
        double share[3];
        uint32_t want[3];
    } rows[] = {
        {30, {1, 1}, {15, 15}},       {31, {1, 1}, {16, 15}},    {30, {3, 1}, {23, 7}},
        {10, {1, 1, 1}, {4, 3, 3}},   {10, {0, 1}, {0, 10}},     {10, {1, 0}, {10, 0}},
        {1, {1, 5}, {0, 1}},          {2, {1e-9, 1}, {0, 2}},    {7, {0.5, 0.25, 0.25}, {3, 2, 2}},
        {30, {1, 0, 1}, {15, 0, 15}}, {3, {1, 1, 1}, {1, 1, 1}}, {99, {1, 2, 3}, {17, 33, 49}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        infer_place_facts f = layers(rows[i].n_layers);
        infer_place_dev d[3] = {{0}};
        for (int k = 0; k < 3; k++)
            d[k] = (infer_place_dev){.id = "dev", .budget = 10000 * MIB, .share = rows[i].share[k]};
        result r = place(&f, d, 3);
        assert_int_equal(r.status, INFER_OK);
        for (int k = 0; k < 3; k++)
            assert_int_equal(r.count[k], rows[i].want[k]);
    }
}

/* Shares that do not fit are an error that says how many layers would; trying that number works. */
static void test_shares_no_fit(void **state)
{
    (void)state;
    infer_place_facts f = layers(10);
    f.first_bytes = 15 * MIB;
    f.last_bytes = 5 * MIB;
    infer_place_dev d[] = {{"cpu0", 50 * MIB, 5, 0}, {"gpu0", 1000 * MIB, 5, 1}};
    result r = place(&f, d, 2);
    assert_int_equal(r.status, INFER_E_NO_FIT);
    assert_string_equal(r.err.text, "cpu0: layers 0 to 4 need 65 MiB, it may use 50 MiB: 3 layers fit there");
    d[0].share = 3;
    d[1].share = 7;
    assert_int_equal(place(&f, d, 2).status, INFER_OK);
    d[0].share = 4;
    d[1].share = 6;
    assert_int_equal(place(&f, d, 2).status, INFER_E_NO_FIT);
    /* what stands after the last layer counts on the last device */
    d[0] = (infer_place_dev){"cpu0", 1000 * MIB, 8, 0};
    d[1] = (infer_place_dev){"gpu0", 24 * MIB, 2, 1};
    assert_int_equal(place(&f, d, 2).status, INFER_E_NO_FIT);
    d[1].budget = 25 * MIB;
    assert_int_equal(place(&f, d, 2).status, INFER_OK);
}

static void test_budgets(void **state)
{
    (void)state;
    infer_place_facts f = layers(12);
    infer_place_dev d[] = {{"a", 300 * MIB, 0, 1}, {"b", 100 * MIB, 0, 1}};
    result r = place(&f, d, 2);
    assert_int_equal(r.count[0], 9);
    assert_int_equal(r.count[1], 3);
    /* in proportion the first would have too much, as it also has what stands before */
    f.first_bytes = 280 * MIB;
    r = place(&f, d, 2);
    assert_int_equal(r.status, INFER_OK);
    assert_int_equal(r.count[0], 2);
    assert_int_equal(r.count[1], 10);
    f.first_bytes = 281 * MIB;
    assert_int_equal(place(&f, d, 2).status, INFER_E_NO_FIT); /* a MiB more than both have */
    f.first_bytes = 301 * MIB;
    r = place(&f, d, 2);
    assert_int_equal(r.status, INFER_E_NO_FIT);
    assert_non_null(strstr(r.err.text, "needs 421 MiB"));
    assert_non_null(strstr(r.err.text, "400 MiB in all"));
    /* nothing at all */
    infer_place_dev none[] = {{"a", 0, 0, 0}};
    assert_int_equal(place(&f, none, 1).status, INFER_E_NO_FIT);
    assert_int_equal(place(&f, none, 0).status, INFER_E_INVALID);
    infer_place_dev many[INFER_PLACE_MAX_DEVS + 1] = {{0}};
    assert_int_equal(place(&f, many, INFER_PLACE_MAX_DEVS + 1).status, INFER_E_INVALID);
}

/* -ngl: so many layers on accelerators, the rest on the others, unless there are no others. */
static void test_accelerated(void **state)
{
    (void)state;
    infer_place_facts f = layers(30);
    infer_place_dev d[] = {{"cpu0", 1000 * MIB, 0, 0}, {"gpu0", 400 * MIB, 0, 1}, {"gpu1", 400 * MIB, 0, 1}};
    const struct {
        int32_t max;
        uint32_t cpu, gpu0, gpu1;
    } rows[] = {{0, 30, 0, 0}, {10, 20, 5, 5}, {11, 19, 6, 5}, {30, 0, 15, 15}, {99, 0, 15, 15}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        f.max_accelerated = rows[i].max;
        result r = place(&f, d, 3);
        assert_int_equal(r.status, INFER_OK);
        assert_int_equal(r.count[0], rows[i].cpu);
        assert_int_equal(r.count[1], rows[i].gpu0);
        assert_int_equal(r.count[2], rows[i].gpu1);
    }
    f.max_accelerated = 5;
    d[0].budget = 100 * MIB; /* the limit holds although there is room on accelerators */
    assert_int_equal(place(&f, d, 3).status, INFER_E_NO_FIT);
    d[0].budget = 1000 * MIB;
    d[1].budget = d[2].budget = 20 * MIB; /* too much was asked of them: the processor takes it */
    f.max_accelerated = 20;
    result r = place(&f, d, 3);
    assert_int_equal(r.status, INFER_OK);
    assert_int_equal(r.count[1] + r.count[2], 4);
    f.max_accelerated = 3;
    assert_int_equal(place(&f, d + 1, 2).status, INFER_E_NO_FIT); /* only accelerators: they have it all */
    d[1].budget = d[2].budget = 200 * MIB;
    assert_int_equal(place(&f, d + 1, 2).count[0], 15);
}

/* Random facts: whatever is answered fits, and a single device's answer is exact. */
static void test_random(void **state)
{
    (void)state;
    rng r = {77};
    uint32_t fits = 0, refused = 0;
    for (int i = 0; i < 5000; i++) {
        uint64_t bytes[MAX_LAYERS], all = 0, used[INFER_PLACE_MAX_DEVS] = {0};
        infer_place_facts f = {.n_layers = 1 + rng_below(&r, 40), .layer_bytes = bytes, .max_accelerated = -1};
        for (uint32_t l = 0; l < f.n_layers; l++)
            all += bytes[l] = 1 + rng_below(&r, 100);
        f.first_bytes = rng_below(&r, 300);
        f.last_bytes = rng_below(&r, 300);
        all += f.first_bytes + f.last_bytes;
        uint32_t n = 1 + rng_below(&r, 5);
        infer_place_dev d[5] = {{0}};
        for (uint32_t k = 0; k < n; k++)
            d[k] = (infer_place_dev){.id = "d", .budget = rng_below(&r, (uint32_t)(3 * all / n)), .accelerator = k % 2};
        result x = place(&f, d, n);
        if (n == 1)
            assert_int_equal(x.status, all <= d[0].budget ? INFER_OK : INFER_E_NO_FIT);
        fits += !x.status;
        refused += x.status != 0;
        if (x.status)
            continue;
        for (uint32_t l = 0; l < f.n_layers; l++)
            used[x.home[l + 1]] += bytes[l];
        used[x.home[0]] += f.first_bytes;
        used[x.home[f.n_layers + 1]] += f.last_bytes;
        for (uint32_t k = 0; k < n; k++)
            assert_true(used[k] <= d[k].budget);
    }
    assert_true(fits > 1000 && refused > 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),      cmocka_unit_test(test_shares_no_fit), cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_accelerated), cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
