/*
 * Speed of the CPU backend's products and attention, through the plugin's own table. Not installed, not a test.
 *   bench_kernels [-t THREADS] [-i ISA] [-f FORMAT] [-n ROWS_OF_W] [-k COLUMNS] [-m ROWS[,ROWS…]] [-s SECONDS]
 *                 [-p a[SHAPE]|m] [-cru]
 * -p: attention (one shape of it) or products only; -c: from cache; -r: blocks of the KV cache in no order; -u: time of
 * the processor. Prints, per format, bytes of weights a second for one row, GFLOP/s for more; for attention bytes of
 * keys and values a second; and the rate of a plain read loop. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <infer/backend.h>

#include "kern.h"

#define POOL ((size_t)256 << 20) /* beyond any cache that is ours alone */

static const char *isa, *threads = "1";
static clockid_t clock_id = CLOCK_MONOTONIC;

static void host_log(void *ctx, int32_t level, const char *text)
{
    (void)ctx;
    (void)level;
    fprintf(stderr, "%s\n", text);
}

static void host_detail(void *ctx, infer_status status, const char *text)
{
    (void)ctx;
    fprintf(stderr, "%d: %s\n", status, text);
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
    (void)ctx;
    return strcmp(key, "isa") == 0 ? isa : strcmp(key, "threads") == 0 ? threads : NULL;
}

static uint64_t host_clock(void *ctx)
{
    struct timespec t;
    (void)ctx;
    clock_gettime(clock_id, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint32_t host_cpus(void *ctx, int32_t node, uint32_t *cpus, uint32_t cap, uint32_t *n_cores)
{
    uint32_t n = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    (void)ctx;
    (void)node;
    for (uint32_t i = 0; i < n && i < cap; i++)
        cpus[i] = i;
    *n_cores = n;
    return n;
}

static infer_status host_check(void *ctx, const infer_op_desc *op)
{
    (void)ctx;
    (void)op;
    return INFER_OK;
}

static const infer_host host = {.struct_size = sizeof host,
                                .abi_minor = INFER_ABI_MINOR,
                                .log = host_log,
                                .status_detail = host_detail,
                                .alloc = host_alloc,
                                .free = host_free,
                                .config_get = host_config,
                                .clock_ns = host_clock,
                                .cpu_list = host_cpus,
                                .op_check = host_check};

typedef struct bench {
    const infer_backend_ops *ops;
    infer_device *dev;
    infer_queue *queue;
    infer_buffer *weights, *x, *y, *scratch;
    double seconds;
    int cached, scattered;
} bench;

static void *map(bench *b, infer_buffer *buf)
{
    void *p = NULL;
    const infer_range r = {buf, 0, 0};
    b->ops->buf_map(b->dev, &r, &p);
    return p;
}

/* How this device would keep a matrix: bytes of the image, and its layout. */
static uint64_t image(bench *b, infer_format f, int64_t n, int64_t k, uint32_t *layout)
{
    const infer_weight_desc d = {
        .struct_size = sizeof d, .quant.format = f, .rank = 2, .use = INFER_OP_MATMUL, .shape = {n, k, 1, 1}};
    infer_weight_plan p = {.struct_size = sizeof p};
    const kern_format *kf = &kern_generic_table.format[f];
    *layout = 0;
    if (b->ops->weight_plan(b->dev, &d, &p) != INFER_OK)
        return (uint64_t)(n * k / kf->block_elems) * kf->block_bytes;
    *layout = p.layout;
    return p.packed_bytes;
}

/* Seconds of the best of several runs of one product, with the matrix at one place of the pool after the other. */
static int matmul(bench *b, infer_format f, int64_t n, int64_t k, int64_t m, double *best)
{
    uint32_t layout;
    const uint64_t bytes = image(b, f, n, k, &layout);
    const infer_tensor_desc t[4] = {{.format = INFER_FMT_F32, .rank = 2, .shape = {m, k, 1, 1}},
                                    {.format = f, .rank = 2, .layout = layout, .shape = {n, k, 1, 1}},
                                    {.flags = INFER_TENSOR_ABSENT, .rank = 1},
                                    {.format = INFER_FMT_F32, .rank = 2, .shape = {m, n, 1, 1}}};
    const infer_attrs_matmul a = {.struct_size = sizeof a};
    const infer_op_desc op = {.struct_size = sizeof op,
                              .op = INFER_OP_MATMUL,
                              .rows_from = INFER_ROWS_STATIC,
                              .n_in = 3,
                              .n_out = 1,
                              .tensor_size = sizeof t[0],
                              .attrs_size = sizeof a,
                              .tensors = t,
                              .attrs = &a};
    infer_op_answer answer = {.struct_size = sizeof answer};
    infer_buffer *scratch;
    b->ops->op_query(b->dev, &op, sizeof op, 1, &answer, sizeof answer);
    if (!answer.level || b->ops->buf_alloc(b->dev, 0, answer.scratch_bytes + 1, &scratch) != INFER_OK)
        return 0;
    infer_range r[4] = {{b->x, 0, 0}, {b->weights, 0, 0}, {NULL, 0, 0}, {b->y, 0, 0}};
    const infer_op_args args = {
        .struct_size = sizeof args, .n_operands = 4, .operands = r, .scratch = {scratch, 0, answer.scratch_bytes}};
    uint64_t start = host_clock(NULL), copies = b->cached ? 1 : POOL / bytes;
    *best = 1e30;
    /* Round the pool, so that every matrix comes from memory. The best single run: other programs only disturb. */
    for (uint64_t i = 0; i < copies || (double)(host_clock(NULL) - start) * 1e-9 < b->seconds; i++) {
        r[1].offset = i % copies * bytes;
        uint64_t t0 = host_clock(NULL);
        if (b->ops->cmd_op(b->queue, &op, &args) != INFER_OK)
            return 0;
        double s = (double)(host_clock(NULL) - t0) * 1e-9;
        *best = s < *best ? s : *best;
        if (m > 1 && i >= 3 && (double)(host_clock(NULL) - start) * 1e-9 > b->seconds)
            break;
    }
    b->ops->buf_free(b->dev, scratch);
    return 1;
}

/* Rows of floats, 16 MiB at a time: what the memory gives to a loop that does next to nothing. */
static double read_rate(bench *b)
{
    double best = 1e30;
    return matmul(b, INFER_FMT_F32, 512, 8192, 1, &best) ? (double)(16 << 20) / best * 1e-9 : 0;
}

/* What an op costs beside its work: a small ADD on the calling thread, and a product just large enough to be shared. */
static void overheads(bench *b)
{
    enum { N = 576, RUNS = 2000 };
    const infer_tensor_desc t[3] = {{.format = INFER_FMT_F32, .rank = 2, .shape = {1, N, 1, 1}},
                                    {.format = INFER_FMT_F32, .rank = 2, .shape = {1, N, 1, 1}},
                                    {.format = INFER_FMT_F32, .rank = 2, .shape = {1, N, 1, 1}}};
    const infer_op_desc op = {.struct_size = sizeof op,
                              .op = INFER_OP_ADD,
                              .rows_from = INFER_ROWS_STATIC,
                              .n_in = 2,
                              .n_out = 1,
                              .tensor_size = sizeof t[0],
                              .tensors = t};
    const infer_range r[3] = {{b->x, 0, 0}, {b->x, 4 * N, 0}, {b->y, 0, 0}};
    const infer_op_args args = {.struct_size = sizeof args, .n_operands = 3, .operands = r};
    double best = 1e30, product;
    for (int i = 0; i < RUNS; i++) {
        uint64_t t0 = host_clock(NULL);
        for (int j = 0; j < 10; j++)
            b->ops->cmd_op(b->queue, &op, &args);
        double s = (double)(host_clock(NULL) - t0) / 10;
        best = s < best ? s : best;
    }
    int cached = b->cached;
    b->cached = 1;
    matmul(b, INFER_FMT_Q8_0, 128, N, 1, &product);
    b->cached = cached;
    printf("add of %d: %.0f ns; q8_0 %d x 128 from cache: %.0f ns\n", N, best, N, product * 1e9);
}

/* One op: `seqs` sequences of `len` keys, each with its `rows` newest rows; the last one with `last` instead, if any.
 */
typedef struct shape {
    int64_t heads, kv, d, seqs, rows, last;
    int32_t len;
} shape;

static void attention(bench *b, infer_format f, const char *name, const shape *s)
{
    enum { BLOCK = 32, MAX = 1024, SEQS = 32 };
    static int32_t table[MAX], lens[SEQS], start[SEQS + 1];
    const int64_t per = (s->len + BLOCK - 1) / BLOCK, n_blocks = s->seqs * per, heads = s->heads, kv = s->kv, d = s->d;
    const kern_format *kf = &kern_generic_table.format[f];
    const double key_bytes = (double)(d / kf->block_elems * kf->block_bytes * kv);
    infer_buffer *meta[3];
    if (n_blocks > MAX || s->seqs > SEQS)
        return;
    double pairs = 0;
    for (int32_t i = 0; i < n_blocks; i++)
        table[i] = (int32_t)(b->scattered ? (int64_t)i * 37 % n_blocks : i);
    for (int64_t i = 0; i < s->seqs; i++) {
        int64_t rows = i + 1 == s->seqs && s->last ? s->last : s->rows;
        lens[i] = s->len;
        start[i + 1] = start[i] + (int32_t)rows;
        pairs += (double)rows * ((double)s->len - (double)(rows - 1) / 2);
    }
    const int64_t rows = start[s->seqs];
    infer_attrs_attn a = {.struct_size = sizeof a, .scale = 0.1f, .n_heads = (uint32_t)heads};
    a.kv = (infer_attrs_kv){sizeof a.kv, 0, f, f, (uint32_t)kv, (uint32_t)d, (uint32_t)d, BLOCK, (uint64_t)n_blocks};
    const infer_tensor_desc t[9] = {{.format = INFER_FMT_F32, .rank = 3, .shape = {rows, heads, d, 1}},
                                    {.format = f, .rank = 4, .shape = {n_blocks, kv, BLOCK, d}},
                                    {.format = f, .rank = 4, .shape = {n_blocks, kv, BLOCK, d}},
                                    {.format = INFER_FMT_I32, .rank = 2, .shape = {s->seqs, per, 1, 1}},
                                    {.format = INFER_FMT_I32, .rank = 1, .shape = {s->seqs, 1, 1, 1}},
                                    {.format = INFER_FMT_I32, .rank = 1, .shape = {s->seqs + 1, 1, 1, 1}},
                                    {.flags = INFER_TENSOR_ABSENT, .rank = 1, .shape = {1, 1, 1, 1}},
                                    {.flags = INFER_TENSOR_ABSENT, .rank = 1, .shape = {1, 1, 1, 1}},
                                    {.format = INFER_FMT_F32, .rank = 3, .shape = {rows, heads, d, 1}}};
    const infer_op_desc op = {.struct_size = sizeof op,
                              .op = INFER_OP_ATTN_PAGED,
                              .rows_from = INFER_ROWS_STATIC,
                              .n_in = 8,
                              .n_out = 1,
                              .tensor_size = sizeof t[0],
                              .attrs_size = sizeof a,
                              .tensors = t,
                              .attrs = &a};
    infer_op_answer answer = {.struct_size = sizeof answer};
    b->ops->op_query(b->dev, &op, sizeof op, 1, &answer, sizeof answer);
    void *memory[3] = {table, lens, start};
    for (int i = 0; i < 3; i++)
        if (b->ops->buf_import_host(b->dev, memory[i], sizeof table, &meta[i]) != INFER_OK)
            return;
    infer_buffer *scratch;
    if (b->ops->buf_alloc(b->dev, 0, answer.scratch_bytes, &scratch) != INFER_OK)
        return;
    infer_range r[9] = {{b->x, 0, 0},    {b->weights, 0, 0}, {b->weights, POOL / 2, 0},
                        {meta[0], 0, 0}, {meta[1], 0, 0},    {meta[2], 0, 0},
                        {NULL, 0, 0},    {NULL, 0, 0},       {b->y, 0, 0}};
    const infer_op_args args = {
        .struct_size = sizeof args, .n_operands = 9, .operands = r, .scratch = {scratch, 0, answer.scratch_bytes}};
    uint64_t layer = (uint64_t)((double)(n_blocks * BLOCK) * key_bytes) / 64 * 64 + 64;
    double best = 1e30, read = read_rate(b);
    uint64_t begin = host_clock(NULL), layers = b->cached ? 1 : POOL / 2 / layer;
    for (uint64_t i = 0; (double)(host_clock(NULL) - begin) * 1e-9 < b->seconds || i < 3; i++) {
        r[1].offset = i % layers * layer;
        r[2].offset = POOL / 2 + r[1].offset;
        uint64_t t0 = host_clock(NULL);
        if (b->ops->cmd_op(b->queue, &op, &args) != INFER_OK)
            return;
        double seconds = (double)(host_clock(NULL) - t0) * 1e-9;
        best = seconds < best ? seconds : best;
    }
    printf("attention %-7s %2lld/%lld x %3lld, %2lld x %3lld", name, (long long)heads, (long long)kv, (long long)d,
           (long long)s->seqs, (long long)s->rows);
    if (s->last)
        printf(" and %lld", (long long)s->last);
    printf(" rows, %4d keys: %8.1f us %6.1f GB/s (read loop %.1f) %6.1f GFLOP/s\n", s->len, best * 1e6,
           (double)s->len * (double)s->seqs * key_bytes * 2e-9 / best, read, pairs * (double)(heads * d) * 4e-9 / best);
    fflush(stdout);
    b->ops->buf_free(b->dev, scratch);
    for (int i = 0; i < 3; i++)
        b->ops->buf_free(b->dev, meta[i]);
}

static void attentions(bench *b, const char *only, int which)
{
    static const struct {
        infer_format f;
        const char *name;
    } formats[] = {{INFER_FMT_F16, "f16"},         {INFER_FMT_F32, "f32"},   {INFER_FMT_BF16, "bf16"},
                   {INFER_FMT_F8_E4M3, "f8_e4m3"}, {INFER_FMT_Q8_0, "q8_0"}, {INFER_FMT_Q4_0, "q4_0"}};
    static const shape shapes[] = {
        {9, 3, 64, 1, 1, 0, 1024},     {32, 8, 64, 1, 1, 0, 4096},   {32, 8, 128, 1, 1, 0, 4096},
        {8, 8, 128, 1, 1, 0, 4096},    {64, 8, 128, 1, 1, 0, 4096},  {32, 8, 64, 16, 1, 0, 1024},
        {9, 3, 64, 1, 512, 0, 512},    {32, 8, 64, 1, 128, 0, 2048}, {32, 8, 128, 1, 512, 0, 512},
        {32, 8, 128, 1, 128, 0, 2048}, {32, 8, 64, 8, 1, 120, 2048}, {9, 3, 64, 1, 1, 0, 4096}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (size_t j = 0; j < sizeof formats / sizeof formats[0]; j++)
            if ((which < 0 || which == (int)i) &&
                (only ? strcmp(only, formats[j].name) == 0 : j == 0 || i == 1 || i == 2 || i == 11))
                attention(b, formats[j].f, formats[j].name, &shapes[i]);
}

int main(int argc, char **argv)
{
    static const struct {
        infer_format f;
        const char *name;
    } formats[] = {{INFER_FMT_F32, "f32"},   {INFER_FMT_F16, "f16"},    {INFER_FMT_BF16, "bf16"},
                   {INFER_FMT_Q8_0, "q8_0"}, {INFER_FMT_Q4_0, "q4_0"},  {INFER_FMT_Q4_1, "q4_1"},
                   {INFER_FMT_Q5_0, "q5_0"}, {INFER_FMT_Q5_1, "q5_1"},  {INFER_FMT_Q2_K, "q2_k"},
                   {INFER_FMT_Q3_K, "q3_k"}, {INFER_FMT_Q4_K, "q4_k"},  {INFER_FMT_Q5_K, "q5_k"},
                   {INFER_FMT_Q6_K, "q6_k"}, {INFER_FMT_MXFP4, "mxfp4"}};
    static const infer_abi_range range = {sizeof range, INFER_ABI_MAJOR, INFER_ABI_MINOR, INFER_ABI_MINOR};
    const char *only = NULL, *rows = "1,64,512";
    int64_t n = 2048, k = 2048;
    char part = 0;
    int which = -1;
    bench b = {.seconds = 0.3};
    for (int c; (c = getopt(argc, argv, "t:i:f:n:k:m:s:cp:ru")) != -1;) {
        switch (c) {
        case 't':
            threads = optarg;
            break;
        case 'i':
            isa = optarg;
            break;
        case 'f':
            only = optarg;
            break;
        case 'n':
            n = atol(optarg);
            break;
        case 'k':
            k = atol(optarg);
            break;
        case 'm':
            rows = optarg;
            break;
        case 'c': /* one matrix again and again */
            b.cached = 1;
            break;
        case 'u': /* time of the processor: for one thread, where others run too */
            clock_id = CLOCK_PROCESS_CPUTIME_ID;
            break;
        case 'r': /* blocks of keys and values in no order */
            b.scattered = 1;
            break;
        case 'p':
            part = *optarg;
            which = optarg[1] ? atoi(optarg + 1) : -1;
            break;
        case 's':
            b.seconds = atof(optarg);
            break;
        default:
            return 2;
        }
    }
    b.ops = infer_plugin_query(&host, &range)->ops;
    infer_device_props props = {.struct_size = sizeof props};
    if (b.ops->dev_open(&host, 0, &b.dev) != INFER_OK || b.ops->queue_create(b.dev, 1, &b.queue) != INFER_OK ||
        b.ops->buf_alloc(b.dev, 0, POOL, &b.weights) != INFER_OK ||
        b.ops->buf_alloc(b.dev, 0, (uint64_t)(4 * 1024 * (k > 16384 ? k : 16384)), &b.x) != INFER_OK ||
        b.ops->buf_alloc(b.dev, 0, (uint64_t)(4 * 1024 * (n > 16384 ? n : 16384)), &b.y) != INFER_OK)
        return 1;
    b.ops->dev_props(b.dev, &props);
    float *x = map(&b, b.x);
    uint8_t *w = map(&b, b.weights);
    for (int64_t i = 0; i < 1024 * k; i++)
        x[i] = (float)(i * 7 % 13 - 6) * 0.1f;
    memset(w, 0x11, POOL); /* small numbers in every format */
    printf("isa %s, %s threads, %lld x %lld; f32 rows from memory: %.1f GB/s\n", props.isa, threads, (long long)n,
           (long long)k, read_rate(&b));
    overheads(&b);
    if (part != 'm')
        attentions(&b, only, which);
    if (part == 'a')
        return 0;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        const kern_format *f = &kern_generic_table.format[formats[i].f];
        uint32_t layout;
        uint64_t bytes = image(&b, formats[i].f, n, k, &layout);
        if ((only && strcmp(only, formats[i].name) != 0) || k % f->block_elems || bytes > POOL)
            continue;
        printf("%-6s", formats[i].name);
        for (const char *p = rows; p && *p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
            int64_t m = atol(p);
            double s;
            if (m < 1 || m > 1024 || !matmul(&b, formats[i].f, n, k, m, &s))
                return 1;
            if (m == 1)
                printf("  1 row %6.1f GB/s %7.1f us", (double)bytes / s * 1e-9, s * 1e6);
            else
                printf("  %lld rows %6.1f GFLOP/s", (long long)m, 2e-9 * (double)n * (double)k * (double)m / s);
        }
        printf("\n");
        fflush(stdout);
    }
    b.ops->buf_free(b.dev, b.weights);
    b.ops->buf_free(b.dev, b.x);
    b.ops->buf_free(b.dev, b.y);
    b.ops->queue_destroy(b.dev, b.queue);
    b.ops->dev_close(b.dev);
    return 0;
}
