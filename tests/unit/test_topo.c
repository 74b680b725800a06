/* core/topo: synthetic machines, and this one. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "unit/unit.h"

#include "topo/topo.h"

static void test_two_nodes(void **state)
{
    (void)state;
    infer_topo *t = NULL;
    infer_error e = {0};
    assert_int_equal(infer_topo_create("synthetic:numa:2 core:4 pu:2", &t, &e), INFER_OK);
    assert_int_equal(infer_topo_n_numa(t), 2);
    assert_int_equal(infer_topo_n_cores(t), 8);
    assert_int_equal(infer_topo_n_pus(t), 16);
    assert_true(infer_topo_cpu_quota(t) == 0);
    uint32_t cpus[32] = {0}, cores = 0;
    /* Node 1 has processors 8..15, two of each core side by side: first one of every core, then the siblings. */
    static const uint32_t want[8] = {8, 10, 12, 14, 9, 11, 13, 15};
    assert_int_equal(infer_topo_cpus(t, 1, cpus, 32, &cores), 8);
    assert_int_equal(cores, 4);
    assert_memory_equal(cpus, want, sizeof want);
    assert_int_equal(infer_topo_cpus(t, -1, cpus, 32, NULL), 16);
    /* Only as many are written as fit. */
    cpus[3] = 99;
    assert_int_equal(infer_topo_cpus(t, 0, cpus, 3, &cores), 8);
    assert_int_equal(cpus[3], 99);
    assert_int_equal(infer_topo_cpus(t, 7, cpus, 32, &cores), 0);
    assert_int_equal(cores, 0);
    assert_true(infer_topo_memory(t, 0) > 0);
    assert_true(infer_topo_memory(t, -1) == infer_topo_memory(t, 0) + infer_topo_memory(t, 1));
    assert_true(infer_topo_memory(t, 5) == 0);
    assert_int_equal(infer_topo_pci_node(t, "0000:3b:00.0"), -1);
    assert_string_equal(infer_topo_cpu_name(t), "");
    infer_topo_destroy(t);
}

static void test_no_cores(void **state)
{
    (void)state;
    infer_topo *t = NULL;
    assert_int_equal(infer_topo_create("synthetic:pu:3", &t, NULL), INFER_OK);
    assert_int_equal(infer_topo_n_pus(t), 3);
    assert_int_equal(infer_topo_n_cores(t), 3);
    uint32_t cpus[4], cores;
    assert_int_equal(infer_topo_cpus(t, -1, cpus, 4, &cores), 3);
    assert_int_equal(cores, 3);
    infer_topo_destroy(t);
}

static void test_bad_source(void **state)
{
    (void)state;
    infer_topo *t = NULL;
    infer_error e = {0};
    assert_int_equal(infer_topo_create("synthetic:numa:two", &t, &e), INFER_E_BAD_FILE);
    assert_non_null(strstr(e.text, "numa:two"));
    assert_int_equal(infer_topo_create("/nowhere/machine.xml", &t, &e), INFER_E_BAD_FILE);
    assert_null(t);
    infer_topo_destroy(NULL);
}

static void test_this_machine(void **state)
{
    (void)state;
    infer_topo *t = NULL;
    infer_error e = {0};
    assert_int_equal(infer_topo_create(NULL, &t, &e), INFER_OK);
    uint32_t pus = infer_topo_n_pus(t), cores = 0, all = 0;
    assert_true(infer_topo_n_numa(t) >= 1 && infer_topo_n_cores(t) >= 1 && pus >= infer_topo_n_cores(t));
    assert_true(infer_topo_memory(t, -1) > 0);
    uint32_t *cpus = calloc(pus, sizeof *cpus);
    assert_int_equal(infer_topo_cpus(t, -1, cpus, pus, &cores), pus);
    assert_int_equal(cores, infer_topo_n_cores(t));
    for (uint32_t i = 0; i < pus; i++)
        for (uint32_t k = 0; k < i; k++)
            assert_int_not_equal(cpus[i], cpus[k]);
    for (uint32_t i = 0; i < infer_topo_n_numa(t); i++)
        all += infer_topo_cpus(t, (int32_t)i, NULL, 0, NULL);
    assert_true(all >= pus);
    assert_true(infer_topo_cpu_quota(t) >= 0);
    free(cpus);
    infer_topo_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_nodes),
        cmocka_unit_test(test_no_cores),
        cmocka_unit_test(test_bad_source),
        cmocka_unit_test(test_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
