/* See cpu_fixture.h. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <time.h>

#include "unit/cpu_fixture.h"

static void host_log(void *ctx, int32_t level, const char *text)
{
    (void)ctx;
    (void)level;
    (void)text;
}

static void host_detail(void *ctx, infer_status status, const char *text)
{
    (void)ctx;
    (void)status;
    (void)text;
}

static void *host_alloc(void *ctx, uint64_t bytes, uint32_t align)
{
    (void)ctx;
    size_t a = align < 64 ? 64 : align;
    return aligned_alloc(a, (bytes + a - 1) / a * a);
}

static void host_free(void *ctx, void *p)
{
    (void)ctx;
    free(p);
}

static const char *host_config(void *ctx, const char *key)
{
    const fixture *f = ctx;
    return strcmp(key, "isa") == 0 ? f->isa : strcmp(key, "threads") == 0 ? f->threads : NULL;
}

static uint64_t host_clock(void *ctx)
{
    struct timespec t;
    (void)ctx;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint32_t host_cpus(void *ctx, int32_t node, uint32_t *cpus, uint32_t cap, uint32_t *n_cores)
{
    (void)ctx;
    (void)node;
    for (uint32_t i = 0; i < 2 && i < cap; i++)
        cpus[i] = i;
    *n_cores = 2;
    return 2;
}

static infer_status host_unpack(void *ctx, infer_format format, const void *src, float *dst, uint64_t n)
{
    (void)ctx;
    infer_format_get(format)->unpack(src, dst, n);
    return INFER_OK;
}

static infer_status host_pack(void *ctx, infer_format format, const float *src, void *dst, uint64_t n)
{
    (void)ctx;
    infer_format_get(format)->pack(src, dst, n);
    return INFER_OK;
}

static infer_status host_check(void *ctx, const infer_op_desc *op)
{
    (void)ctx;
    (void)op;
    return INFER_OK;
}

int fixture_open(fixture *f, const char *isa, const char *threads)
{
    static const infer_abi_range range = {sizeof range, INFER_ABI_MAJOR, INFER_ABI_MINOR, INFER_ABI_MINOR};
    *f = (fixture){.isa = isa, .threads = threads};
    f->host = (infer_host){.struct_size = sizeof f->host,
                           .abi_minor = INFER_ABI_MINOR,
                           .ctx = f,
                           .log = host_log,
                           .status_detail = host_detail,
                           .alloc = host_alloc,
                           .free = host_free,
                           .config_get = host_config,
                           .clock_ns = host_clock,
                           .cpu_list = host_cpus,
                           .unpack = host_unpack,
                           .pack = host_pack,
                           .op_check = host_check};
    f->ops = infer_plugin_query(&f->host, &range)->ops;
    infer_status s = f->ops->dev_open(&f->host, 0, &f->dev);
    if (s == INFER_E_UNSUPPORTED)
        return 0;
    assert_int_equal(s, INFER_OK);
    assert_int_equal(f->ops->queue_create(f->dev, INFER_QUEUE_COMPUTE, &f->queue), INFER_OK);
    return 1;
}

void fixture_close(fixture *f)
{
    f->ops->queue_destroy(f->dev, f->queue);
    f->ops->dev_close(f->dev);
}

operand tensor(infer_format format, void *data, uint32_t rank, int64_t s0, int64_t s1, int64_t s2, int64_t s3)
{
    operand o = {.desc = {.format = format, .rank = rank, .shape = {s0, s1, s2, s3}}, .data = data};
    for (uint32_t i = rank; i < 4; i++)
        o.desc.shape[i] = 1;
    return o;
}

operand absent(void)
{
    return (operand){.desc = {.flags = INFER_TENSOR_ABSENT, .rank = 1, .shape = {1, 1, 1, 1}}};
}

void run_op(fixture *f, infer_op_id id, const void *attrs, uint32_t attrs_size, const operand *operands, uint32_t n_in,
            uint32_t n_out, int32_t rows)
{
    enum { BIG = 1 << 30 };
    infer_tensor_desc tensors[INFER_OP_MAX_OPERANDS];
    infer_range ranges[INFER_OP_MAX_OPERANDS] = {{0}};
    infer_buffer *buffers[INFER_OP_MAX_OPERANDS + 2] = {0};
    int32_t counts[INFER_COUNT_MAX] = {rows};
    for (uint32_t i = 0; i < n_in + n_out; i++) {
        tensors[i] = operands[i].desc;
        if (!operands[i].data)
            continue;
        assert_int_equal(f->ops->buf_import_host(f->dev, operands[i].data, BIG, &buffers[i]), INFER_OK);
        ranges[i] = (infer_range){buffers[i], 0, BIG};
    }
    infer_op_desc op = {.struct_size = sizeof op,
                        .op = id,
                        .rows_from = rows < 0 ? INFER_ROWS_STATIC : 0,
                        .rows_mul = 1,
                        .n_in = n_in,
                        .n_out = n_out,
                        .tensor_size = sizeof tensors[0],
                        .attrs_size = attrs_size,
                        .tensors = tensors,
                        .attrs = attrs};
    infer_op_answer answer = {.struct_size = sizeof answer};
    assert_int_equal(f->ops->op_query(f->dev, &op, sizeof op, 1, &answer, sizeof answer), INFER_OK);
    assert_int_equal(answer.level, INFER_LEVEL_NATIVE);
    assert_int_equal(answer.row_invariant, 1);
    infer_op_args args = {.struct_size = sizeof args, .n_operands = n_in + n_out, .operands = ranges};
    void *scratch = room(answer.scratch_bytes + 64);
    assert_int_equal(f->ops->buf_import_host(f->dev, scratch, answer.scratch_bytes, &buffers[n_in + n_out]), INFER_OK);
    args.scratch = (infer_range){buffers[n_in + n_out], 0, answer.scratch_bytes};
    assert_int_equal(f->ops->buf_import_host(f->dev, counts, sizeof counts, &buffers[n_in + n_out + 1]), INFER_OK);
    args.counts = (infer_range){buffers[n_in + n_out + 1], 0, sizeof counts};
    assert_int_equal(f->ops->cmd_op(f->queue, &op, &args), INFER_OK);
    for (uint32_t i = 0; i < INFER_OP_MAX_OPERANDS + 2; i++)
        if (buffers[i])
            f->ops->buf_free(f->dev, buffers[i]);
    free(scratch);
}

float noise(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*state >> 32) * (1.0f / 2147483648.0f);
}

void fill_noise(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = noise(&seed);
}

void *room(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    assert_non_null(p);
    return p;
}

void *random_weights(infer_format format, int64_t n, uint64_t seed)
{
    uint64_t bytes;
    float *x = room((size_t)n * sizeof *x);
    assert_int_equal(infer_format_bytes(format, (uint64_t)n, &bytes), INFER_OK);
    uint8_t *w = room(bytes);
    fill_noise(x, (size_t)n, seed);
    infer_format_get(format)->pack(x, w, (uint64_t)n);
    free(x);
    return w;
}
