/*
 * How many launches a step of one row is on an OpenCL device, a layer, and that it says the same bit for bit as with
 * each node's launches by themselves. Skipped where there is no device. Sampling stays on the host: not every driver
 * that is cut in lanes runs its kernels (backends/npu/opencl/README.md).
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <dlfcn.h>

#include "e2e/rig.h"
#include "hal/hal.h"
#include "model/private.h"
#include "ocl.h"

/* ---- The module, its launches counted ---------------------------------------------------------------------------- */

static const infer_plugin_desc *module;
static infer_backend_ops table;
static infer_plugin_desc desc;
static cl_api api, counting;    /* the driver; the same with a function that counts */
static unsigned launches, most; /* since the start of a program's run; of the largest run */

static cl_int enqueue(cl_command_queue q, cl_kernel k, cl_uint dims, const size_t *offset, const size_t *global,
                      const size_t *group, cl_uint n, const cl_event *list, cl_event *e)
{
    launches++;
    return api.EnqueueNDRangeKernel(q, k, dims, offset, global, group, n, list, e);
}

static infer_status dev_open(const infer_host *host, uint32_t index, infer_device **out)
{
    infer_status s = module->ops->dev_open(host, index, out);
    if (s)
        return s;
    api = counting = *(*out)->cl;
    counting.EnqueueNDRangeKernel = enqueue;
    (*out)->cl = &counting;
    return INFER_OK;
}

static infer_status op_query(infer_device *dev, const infer_op_desc *ops, uint32_t op_size, uint32_t n,
                             infer_op_answer *out, uint32_t answer_size)
{
    for (uint32_t i = 0; i < n; i++) {
        const infer_op_desc *op = (const infer_op_desc *)(const void *)((const uint8_t *)ops + (size_t)i * op_size);
        infer_op_answer *a = (infer_op_answer *)(void *)((uint8_t *)out + (size_t)i * answer_size);
        if (op->op == INFER_OP_SAMPLE)
            *a = (infer_op_answer){.struct_size = sizeof *a, .level = INFER_LEVEL_NO, .why = INFER_WHY_OP};
        else if (module->ops->op_query(dev, op, op_size, 1, a, answer_size))
            return INFER_E_INVALID;
    }
    return INFER_OK;
}

static infer_status prog_submit(infer_exec *exec, infer_queue *queue)
{
    launches = 0;
    infer_status s = module->ops->prog_submit(exec, queue);
    most = launches > most ? launches : most;
    return s;
}

static const infer_plugin_desc *query(const infer_host *host, const infer_abi_range *range)
{
    infer_plugin_query_fn f;
    char path[512];
    const char *build = getenv("INFER_BUILDDIR");
    snprintf(path, sizeof path, "%s/.libs/infer-opencl.so", build ? build : ".");
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL), *symbol = lib ? dlsym(lib, "infer_plugin_query") : NULL;
    if (!symbol)
        fail_msg("%s", dlerror());
    memcpy(&f, &symbol, sizeof f);
    module = f(host, range);
    assert_non_null(module);
    desc = *module;
    table = *module->ops;
    table.dev_open = dev_open;
    table.op_query = op_query;
    table.prog_submit = prog_submit;
    desc.ops = &table;
    return &desc;
}

/* ---- Whole models ------------------------------------------------------------------------------------------------ */

enum { PROMPT = 7, CONTEXT = 64 };

/* One row a step: a prompt of one token. Then a prompt of several. */
static unsigned run(const char *model, const char *const *settings, answer out[2])
{
    static const int32_t prompt[PROMPT] = {72, 101, 108, 108, 111, 32, 119};
    infer_runtime *rt = NULL;
    infer_runtime_options ro = {
        .struct_size = sizeof ro, .settings = settings, .backend_path = "", .allow_backends = "ref"};
    infer_error e = {0};
    rig r;
    while (settings[ro.n_settings])
        ro.n_settings++;
    if (infer_runtime_create(&ro, &rt, &e) || infer_hal_add(rt->hal, query, "in process", &e))
        fail_msg("%s", e.text);
    const rig_options o = {.model = model,
                           .devices = "opencl0",
                           .ctx = CONTEXT,
                           .parallel = 2,
                           .batched = 16,
                           .no_prefix_cache = 1,
                           .runtime = rt};
    rig_open(&r, &o);
    most = 0;
    unsigned of_one = 0;
    for (int i = 0; i < 2; i++) {
        infer_request q = {
            .prompt = prompt, .n_prompt = i ? PROMPT : 1, .max_tokens = 6, .flags = INFER_REQ_IGNORE_EOS};
        answer *list[] = {&out[i]};
        rig_submit(&r, &q, &out[i]);
        assert_int_equal(rig_collect(&r, list, 1), INFER_OK);
        of_one = i ? of_one : most;
    }
    rig_close(&r);
    infer_runtime_destroy(rt);
    return of_one;
}

static void same(const answer *a, const answer *b)
{
    assert_int_equal(a->n, b->n);
    assert_true(a->n > 0);
    assert_memory_equal(a->ids, b->ids, a->n * sizeof *a->ids);
    assert_memory_equal(a->logprobs, b->logprobs, a->n * sizeof *a->logprobs);
}

static const struct model {
    const char *name, *args;
    unsigned lanes, items; /* launches of a layer */
} models[] = {
    {"llama, f32", "--arch llama --type f32", 8, 12},
    {"llama, q8_0", "--arch llama --type q8_0", 8, 12},
};

static unsigned check(const struct model *m, const char *tune)
{
    unsigned n[2];
    for (int i = 0; i < 2; i++) {
        char args[200], cut[40];
        answer one[2], many[2];
        snprintf(args, sizeof args, "--tiny %s --layers %d", m->args, 2 + i);
        snprintf(cut, sizeof cut, "opencl.tune=%s", tune);
        const char *model = rig_made(args);
        n[i] = run(model, (const char *const[]){cut, NULL}, one);
        unsigned all = run(model, (const char *const[]){cut, "opencl.merge=0", NULL}, many);
        assert_true(all > n[i]);
        for (int k = 0; k < 2; k++) {
            same(&one[k], &many[k]);
            answer_free(&one[k]);
            answer_free(&many[k]);
        }
    }
    printf("%s, %s: %u launches a layer, %u beside them\n", m->name, tune, n[1] - n[0], 3 * n[0] - 2 * n[1]);
    return n[1] - n[0];
}

static void test_launches(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        assert_int_equal(check(&models[i], "lanes"), models[i].lanes);
        assert_int_equal(check(&models[i], "items"), models[i].items);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_launches)};
    if (!rig_has("opencl0"))
        return 77;
    rig_watchdog(300);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
