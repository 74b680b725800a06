/* core/hal registry, normalisation and identity; core/base/module. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "unit/unit.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/module.h"
#include "hal/hal.h"
#include "unit/fake_backend.h"

static const char *which(void *user, const char *backend, const char *key)
{
    (void)user;
    if (strcmp(key, "which"))
        return NULL;
    return !strcmp(backend, "fakea") ? "0" : !strcmp(backend, "fakeb") ? "1" : "2";
}

static infer_hal *make_hal(const char *path, const char *allow, const char *deny)
{
    infer_hal_options opt = {.backend_path = path, .allow = allow, .deny = deny, .config = which, .validate = 1};
    opt.topo_xml = "synthetic:numa:1 core:2 pu:1";
    infer_hal *h = NULL;
    infer_error e = {0};
    if (infer_hal_create(&opt, &h, &e))
        fail_msg("%s", e.text);
    return h;
}

static int setup(void **state)
{
    fake_reset();
    *state = make_hal("", "ref", NULL);
    return 0;
}

static int teardown(void **state)
{
    infer_hal_destroy(*state);
    return fake.devices || fake.queues || fake.buffers || fake.timelines || fake.inits;
}

/* ---- Tables and descriptors --------------------------------------------------------------------------------- */

static void expect_refused(infer_hal *h, const char *word)
{
    infer_error e = {0};
    uint32_t n = infer_hal_n_backends(h);
    assert_int_equal(infer_hal_add(h, fake_queries[0], "test:a", &e), INFER_E_ABI);
    if (!strstr(e.text, word))
        fail_msg("\"%s\" does not say \"%s\"", e.text, word);
    assert_int_equal(infer_hal_n_backends(h), n + 1);
    infer_hal_backend_info info;
    infer_hal_backend(h, n, &info);
    assert_int_equal(info.status, INFER_E_ABI);
    assert_non_null(strstr(info.reason, word));
    assert_null(info.desc);
}

static void test_missing_slots(void **state)
{
    static const char *const names[] = {"probe",        "dev_open",       "dev_close",  "dev_props",
                                        "dev_heaps",    "dev_heap_stats", "buf_alloc",  "buf_free",
                                        "queue_create", "queue_destroy",  "queue_wait", "queue_signal",
                                        "cmd_copy",     "cmd_fill",       "op_query",   "cmd_op"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        fake_reset();
        memset((char *)&fake_plugins[0].ops + offsetof(infer_backend_ops, probe) + i * sizeof(void *), 0,
               sizeof(void *));
        expect_refused(*state, names[i]);
    }
    fake_reset();
    fake_add_timelines(&fake_plugins[0]);
    fake_plugins[0].ops.tl_wait = NULL;
    expect_refused(*state, "tl_wait");
    fake_reset();
    fake_add_programs(&fake_plugins[0]);
    fake_plugins[0].ops.exec_destroy = NULL;
    expect_refused(*state, "exec_destroy");
    fake_reset();
    fake_plugins[0].desc.ops = NULL;
    expect_refused(*state, "table");
}

static void test_short_tables(void **state)
{
    infer_hal *h = *state;
    /* A table that ends inside the last required slot lacks it. */
    fake_plugins[0].ops.struct_size = offsetof(infer_backend_ops, cmd_op) + 4;
    expect_refused(h, "cmd_op");
    /* One that ends after it is complete; what lies beyond is not read. */
    fake_plugins[0].ops.struct_size = offsetof(infer_backend_ops, backend_init);
    fake_add_timelines(&fake_plugins[0]);
    fake_plugins[0].ops.queue_wait = fake_plugins[1].ops.queue_wait;
    fake_plugins[0].ops.queue_signal = fake_plugins[1].ops.queue_signal;
    infer_error e = {0};
    assert_int_equal(infer_hal_add(h, fake_queries[0], "test:a", &e), INFER_OK);
    infer_hal_dev *d = NULL;
    assert_int_equal(infer_hal_open(h, "fakea0", &d, &e), INFER_OK);
    assert_int_equal(fake.timelines, 0);
    assert_int_equal(fake.inits, 0);
    const infer_backend_ops *ops = infer_hal_dev_ops(d);
    assert_true(ops->backend_init && ops->dev_edge && ops->dev_health && ops->buf_map && ops->buf_import_host);
    assert_true(ops->tl_create && ops->kv_query && ops->prog_claim && ops->prog_save && ops->comm_create);
    assert_int_equal(ops->struct_size, sizeof *ops);
    infer_hal_close(d);
    /* A longer table from a newer plugin is cut. */
    fake_reset();
    struct {
        infer_backend_ops ops;
        void *more[4];
    } longer = {.ops = fake_plugins[1].ops};
    longer.ops.struct_size = sizeof longer;
    fake_plugins[1].desc.ops = &longer.ops;
    fake_plugins[1].desc.abi_minor = INFER_ABI_MINOR + 3;
    assert_int_equal(infer_hal_add(h, fake_queries[1], "test:b", &e), INFER_OK);
}

static void test_versions(void **state)
{
    infer_plugin_desc *desc = &fake_plugins[0].desc;
    desc->abi_major = INFER_ABI_MAJOR + 1;
    expect_refused(*state, "plugin interface 1.1");
    fake_reset();
    desc->abi_minor = INFER_ABI_MINOR - 1;
    expect_refused(*state, "build it anew");
    fake_reset();
    desc->abi_minor = desc->min_host_minor = INFER_ABI_MINOR + 1;
    expect_refused(*state, "plugin interface");
    fake_reset();
    desc->struct_size = 24;
    expect_refused(*state, "descriptor of 24 bytes");
    fake_reset();
    desc->device_prefix = "Two Words";
    expect_refused(*state, "prefix");
    fake_reset();
    fake_plugins[0].decline = "no driver newer than 5";
    expect_refused(*state, "no driver newer than 5");
    fake_reset();
    desc->sanitizer = 77;
    expect_refused(*state, "sanitizer");
    /* A descriptor without the reserved words is long enough. */
    fake_reset();
    desc->struct_size = offsetof(infer_plugin_desc, reserved);
    infer_error e = {0};
    assert_int_equal(infer_hal_add(*state, fake_queries[0], "test:a", &e), INFER_OK);
    assert_int_equal(infer_hal_add(*state, fake_queries[0], "test:again", &e), INFER_E_INVALID);
    assert_non_null(strstr(e.text, "already loaded from test:a"));
}

/* ---- Devices ------------------------------------------------------------------------------------------------- */

static void add_all(infer_hal *h)
{
    infer_error e = {0};
    for (int i = 0; i < FAKE_BACKENDS; i++)
        if (infer_hal_add(h, fake_queries[i], "test", &e))
            fail_msg("%s", e.text);
}

static const infer_hal_device_info *row(infer_hal *h, const char *id)
{
    int32_t i = infer_hal_find(h, id);
    if (i < 0)
        fail_msg("no device %s", id);
    return infer_hal_device(h, (uint32_t)i);
}

static void set_row(int backend, uint32_t at, const char *pci, const char *uuid)
{
    infer_device_info *r = &fake_plugins[backend].rows[at];
    *r = (infer_device_info){.kind = INFER_KIND_GPU, .numa_node = -1, .index = at};
    snprintf(r->pci, sizeof r->pci, "%s", pci);
    snprintf(r->uuid, sizeof r->uuid, "%s", uuid);
}

static void test_identity(void **state)
{
    infer_hal *h = *state;
    /* The same card by UUID in a and b, by address in c; two parts of one card in a; a simulation of it in b. */
    fake_plugins[0].n_rows = 4;
    set_row(0, 0, "0000:3b:00.0", "11-aa");
    set_row(0, 1, "0000:3c:00.0", "part-1");
    set_row(0, 2, "0000:3c:00.0", "part-2");
    set_row(0, 3, "", "");
    fake_plugins[1].n_rows = 2;
    set_row(1, 0, "", "11-AA");
    set_row(1, 1, "0000:3b:00.0", "11-aa");
    fake_plugins[1].rows[1].kind = INFER_KIND_SOFTWARE;
    fake_plugins[2].n_rows = 2;
    set_row(2, 0, "0000:3B:00.0", "other form");
    set_row(2, 1, "0000:3c:00.0", "whole card");
    fake_plugins[0].desc.rank = 10;
    fake_plugins[1].desc.rank = 20;
    fake_plugins[2].desc.rank = 5;
    fake_plugins[2].n_rows = 3; /* the last one's number is there already */
    fake_plugins[2].rows[2] = fake_plugins[2].rows[1];
    add_all(h);
    assert_int_equal(infer_hal_probe(h, NULL), INFER_OK);
    assert_int_equal(infer_hal_probe(h, NULL), INFER_OK);
    assert_int_equal(infer_hal_n_devices(h), 1 + 4 + 2 + 2);
    assert_int_equal(row(h, "fakea0")->same_as, infer_hal_find(h, "fakeb0"));
    assert_int_equal(row(h, "fakeb0")->same_as, -1);
    assert_int_equal(row(h, "fakeb1")->same_as, -1);
    assert_int_equal(row(h, "fakec0")->same_as, infer_hal_find(h, "fakea0"));
    assert_int_equal(row(h, "fakea1")->same_as, -1);
    assert_int_equal(row(h, "fakea2")->same_as, -1);
    assert_int_equal(row(h, "fakec1")->same_as, -1);
    assert_string_equal(row(h, "11-aa")->id, "fakeb0");
    assert_string_equal(row(h, "part-2")->id, "fakea2");
    assert_int_equal(infer_hal_find(h, "fakez0"), -1);
    assert_int_equal(infer_hal_find(h, ""), -1);
}

static void test_unusable_loses(void **state)
{
    infer_hal *h = *state;
    set_row(0, 0, "0000:3b:00.0", "");
    set_row(1, 0, "0000:3b:00.0", "");
    fake_plugins[0].desc.rank = 10;
    fake_plugins[0].rows[0].status = INFER_E_NO_DEVICE;
    strcpy(fake_plugins[0].rows[0].reason, "driver too old");
    add_all(h);
    infer_hal_dev *d = NULL;
    infer_error e = {0};
    assert_int_equal(infer_hal_open(h, "fakea0", &d, &e), INFER_E_NO_DEVICE);
    assert_non_null(strstr(e.text, "driver too old"));
    assert_int_equal(row(h, "fakea0")->same_as, infer_hal_find(h, "fakeb0"));
    assert_string_equal(row(h, "0000:3b:00.0")->id, "fakeb0");
    assert_int_equal(infer_hal_open(h, "fakeq0", &d, &e), INFER_E_NO_DEVICE);
    assert_non_null(strstr(e.text, "ref0"));
    assert_null(d);
}

static void test_failed_probe(void **state)
{
    infer_hal *h = *state;
    fake.probe_status = INFER_E_NO_DEVICE;
    infer_error e = {0};
    assert_int_equal(infer_hal_add(h, fake_queries[0], "test", &e), INFER_OK);
    assert_int_equal(infer_hal_probe(h, &e), INFER_OK);
    infer_hal_backend_info info;
    infer_hal_backend(h, 1, &info);
    assert_int_equal(info.status, INFER_E_NO_DEVICE);
    assert_non_null(strstr(info.reason, "fake says no"));
    infer_hal_dev *d = NULL;
    assert_int_equal(infer_hal_open(h, "fakea0", &d, &e), INFER_E_NO_DEVICE);
    assert_non_null(strstr(e.text, "fake says no"));
    assert_int_equal(infer_hal_open(h, "ref0", &d, &e), INFER_OK);
    infer_hal_close(d);
}

static void test_visibility(void **state)
{
    infer_hal *h = *state;
    fake_plugins[0].n_rows = 3;
    for (uint32_t i = 0; i < 3; i++)
        set_row(0, i, "", i == 2 ? "uu-2" : "");
    fake_plugins[0].desc.visibility = "INFER_TEST_VISIBLE";
    setenv("INFER_TEST_VISIBLE", "1,UU-2", 1);
    infer_error e = {0};
    assert_int_equal(infer_hal_add(h, fake_queries[0], "test", &e), INFER_OK);
    assert_int_equal(infer_hal_probe(h, &e), INFER_OK);
    unsetenv("INFER_TEST_VISIBLE");
    assert_int_equal(row(h, "fakea0")->info.status, INFER_E_NO_DEVICE);
    assert_string_equal(row(h, "fakea0")->info.reason, "hidden by INFER_TEST_VISIBLE");
    assert_int_equal(row(h, "fakea1")->info.status, INFER_OK);
    assert_int_equal(row(h, "fakea2")->info.status, INFER_OK);
}

static void test_open_shares(void **state)
{
    infer_hal *h = *state;
    infer_error e = {0};
    assert_int_equal(infer_hal_add(h, fake_queries[0], "test", &e), INFER_OK);
    infer_hal_dev *a = NULL, *b = NULL;
    assert_int_equal(infer_hal_open(h, "fakea0", &a, &e), INFER_OK);
    assert_int_equal(infer_hal_open(h, "fakea0", &b, &e), INFER_OK);
    assert_ptr_equal(a, b);
    assert_int_equal(fake.devices, 1);
    assert_int_equal(fake.inits, 1);
    infer_hal_close(a);
    assert_int_equal(fake.devices, 1);
    infer_hal_close(b);
    assert_int_equal(fake.devices, 0);
    assert_int_equal(fake.inits, 0);
    assert_int_equal(infer_hal_open(h, "fakea0", &a, &e), INFER_OK);
    assert_int_equal(fake.inits, 1);
    infer_hal_close(a);
    fake.open_status = INFER_E_NO_MEMORY;
    assert_int_equal(infer_hal_open(h, "fakea0", &a, &e), INFER_E_NO_MEMORY);
    assert_string_equal(e.text, "open on fakea0: fake says no");
    fake.open_status = INFER_OK;
    fake.prop_status = INFER_E_DEVICE_LOST;
    assert_int_equal(infer_hal_open(h, "fakea0", &a, &e), INFER_E_DEVICE_LOST);
    assert_int_equal(fake.devices, 0);
}

/* ---- Modules -------------------------------------------------------------------------------------------------- */

static void copy_file(const char *from, const char *to)
{
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    assert_non_null(in);
    assert_non_null(out);
    char buf[4096];
    for (size_t n; (n = fread(buf, 1, sizeof buf, in));)
        assert_int_equal(fwrite(buf, 1, n, out), n);
    fclose(in);
    assert_int_equal(fclose(out), 0);
    assert_int_equal(chmod(to, 0644), 0);
}

static char folder[256], module[320], bad[320];

/* A folder of our own with a good module and one that is none. */
static void make_folder(void)
{
    const char *build = getenv("INFER_BUILDDIR");
    char from[1024];
    snprintf(from, sizeof from, "%s/tests/unit/.libs/infer-tiny.so", build ? build : ".");
    snprintf(folder, sizeof folder, "/tmp/infer-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(module, sizeof module, "%s/infer-tiny.so", folder);
    snprintf(bad, sizeof bad, "%s/infer-bad.so", folder);
    copy_file(from, module);
    FILE *f = fopen(bad, "w");
    assert_non_null(f);
    fputs("no library\n", f);
    fclose(f);
    assert_int_equal(chmod(bad, 0644), 0);
}

static void remove_folder(void)
{
    chmod(folder, 0755);
    unlink(module);
    unlink(bad);
    assert_int_equal(rmdir(folder), 0);
}

static void test_module_permissions(void **state)
{
    (void)state;
    make_folder();
    infer_error e = {0};
    char *real = NULL;
    void *sym = NULL;
    assert_int_equal(infer_module_check(module, &real, &e), INFER_OK);
    infer_free(real);
    assert_int_equal(infer_module_open(module, "infer_plugin_query", &sym, &e), INFER_OK);
    assert_non_null(sym);
    /* malloc is found through the module, but it is not the module's. */
    assert_int_equal(infer_module_open(module, "malloc", &sym, &e), INFER_E_ABI);
    assert_non_null(strstr(e.text, "defines no symbol malloc"));
    assert_int_equal(infer_module_open(bad, "infer_plugin_query", &sym, &e), INFER_E_IO);
    static const mode_t modes[] = {0664, 0646, 0666};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(chmod(module, modes[i]), 0);
        assert_int_equal(infer_module_check(module, &real, &e), INFER_E_IO);
        assert_non_null(strstr(e.text, "chmod go-w"));
    }
    assert_int_equal(chmod(module, 0644), 0);
    assert_int_equal(chmod(folder, 0777), 0);
    assert_int_equal(infer_module_check(module, &real, &e), INFER_E_IO);
    assert_non_null(strstr(e.text, folder));
    assert_int_equal(chmod(folder, 01777), 0); /* a sticky folder lets others add a module */
    assert_int_equal(infer_module_check(module, &real, &e), INFER_E_IO);
    assert_int_equal(chmod(folder, 0755), 0);
    if (geteuid() == 0) {
        assert_int_equal(chown(module, 65534, 0), 0);
        assert_int_equal(infer_module_check(module, &real, &e), INFER_E_IO);
        assert_non_null(strstr(e.text, "belongs to user 65534"));
        assert_int_equal(chown(module, 0, 0), 0);
    }
    assert_int_equal(infer_module_check("/nowhere/infer-x.so", &real, &e), INFER_E_NOT_FOUND);
    assert_int_equal(infer_module_check(folder, &real, &e), INFER_E_IO);
    /* A link is followed before anything is checked. */
    char link_name[400];
    snprintf(link_name, sizeof link_name, "%s/infer-link.so", folder);
    assert_int_equal(symlink(bad, link_name), 0);
    assert_int_equal(infer_module_check(link_name, &real, &e), INFER_OK);
    assert_string_equal(strrchr(real, '/'), "/infer-bad.so");
    infer_free(real);
    unlink(link_name);
    char **list = NULL;
    size_t n = 9;
    assert_int_equal(infer_module_list("plugins", &list, &n, &e), INFER_E_INVALID);
    assert_int_equal(infer_module_list("/nowhere", &list, &n, &e), INFER_OK);
    assert_int_equal(n, 0);
    assert_int_equal(infer_module_list(folder, &list, &n, &e), INFER_OK);
    assert_int_equal(n, 2);
    assert_string_equal(list[0], bad);
    assert_string_equal(list[1], module);
    infer_module_list_free(list, n);
    remove_folder();
}

static void test_search(void **state)
{
    (void)state;
    make_folder();
    char path[600];
    snprintf(path, sizeof path, ":relative:/nowhere:%s:%s", folder, folder);
    infer_hal *h = make_hal(path, "tiny,bad", NULL);
    infer_hal_backend_info info;
    assert_true(infer_hal_n_backends(h) >= 3);
    infer_hal_backend(h, 0, &info);
    assert_string_equal(info.name, "ref");
    assert_non_null(info.host);
    infer_hal_backend(h, 1, &info);
    assert_string_equal(info.name, "bad");
    assert_int_equal(info.status, INFER_E_IO);
    infer_hal_backend(h, 2, &info);
    assert_string_equal(info.name, "tiny");
    assert_int_equal(info.status, INFER_OK);
    assert_string_equal(info.desc->vendor, "test");
    assert_non_null(info.query);
    assert_int_equal(infer_hal_probe(h, NULL), INFER_OK);
    assert_int_equal(infer_hal_n_devices(h), 1);
    infer_hal_destroy(h);
    h = make_hal(path, NULL, "ref,TINY,bad");
    for (uint32_t i = 0; i < infer_hal_n_backends(h); i++) { /* there may be installed ones */
        infer_hal_backend(h, i, &info);
        assert_string_not_equal(info.name, "ref");
        assert_string_not_equal(info.name, "tiny");
        assert_string_not_equal(info.name, "bad");
    }
    infer_error e = {0};
    assert_int_equal(infer_hal_load(h, module, &e), INFER_OK);
    assert_int_equal(infer_hal_load(h, module, &e), INFER_E_INVALID);
    assert_int_equal(infer_hal_load(h, bad, &e), INFER_E_IO);
    infer_hal_destroy(h);
    remove_folder();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_missing_slots, setup, teardown),
        cmocka_unit_test_setup_teardown(test_short_tables, setup, teardown),
        cmocka_unit_test_setup_teardown(test_versions, setup, teardown),
        cmocka_unit_test_setup_teardown(test_identity, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unusable_loses, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failed_probe, setup, teardown),
        cmocka_unit_test_setup_teardown(test_visibility, setup, teardown),
        cmocka_unit_test_setup_teardown(test_open_shares, setup, teardown),
        cmocka_unit_test(test_module_permissions),
        cmocka_unit_test(test_search),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
