/* The CUDA kernels in emulation: every case of the conformance kit against the reference, with threads in rising and in
 * falling order (equal to the byte), cut in several ways; then what the cases are too small for. Prints the failures;
 * exit 1 where there is one. An argument chooses ops by name. SPDX-License-Identifier: Apache-2.0 */
#include "simt.h"

#include <cstdio>
#include <string>
#include <vector>
#ifdef SIMT_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n)   ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

#include "lower.h"
#include "more.h"
#include "pack.h"
extern "C" {
#include "base/alloc.h"
#include "ops/cases.h"
#include "ops/cases_make.h"
#include "quant/quant.h"
}

namespace
{
const uint64_t before = 128, after = 64; /* bytes around an operand, which nothing may touch */
int failures, passes, quick_norms;
/* Instrumented, each way is run in one order of threads, in turn, unless INFER_TEST_LONG is set: whether the order
 * shows is a matter of results, which a plain build compares. */
#ifdef SIMT_ASAN
const bool both_orders = getenv("INFER_TEST_LONG") != nullptr;
#else
const bool both_orders = true;
#endif

struct image {
    std::vector<unsigned char *> mem;
    lower_place place[INFER_OP_MAX_OPERANDS], counts;
    uint64_t bytes[INFER_OP_MAX_OPERANDS];
};

unsigned char *guarded(const void *from, uint64_t bytes)
{
    unsigned char *p = (unsigned char *)infer_alloc_aligned(before + bytes + after, 64);
    memset(p, 0x5C, before + bytes + after);
    memcpy(p + before, from, bytes);
    ASAN_POISON_MEMORY_REGION(p, before); /* nor read */
    ASAN_POISON_MEMORY_REGION(p + before + bytes, after);
    return p;
}

void load(image *m, const infer_op_case *c)
{
    *m = image();
    for (uint32_t i = 0; i < c->desc.n_in + c->desc.n_out; i++) {
        m->bytes[i] = c->bytes[i];
        if (c->same_as[i] >= 0) {
            m->place[i] = m->place[c->same_as[i]];
        } else if (c->data[i]) {
            m->mem.push_back(guarded(c->data[i], c->bytes[i]));
            m->place[i] = lower_place{m->mem.back(), before};
        }
    }
    m->mem.push_back(guarded(c->counts, sizeof c->counts));
    m->counts = lower_place{m->mem.back(), before};
}

void drop(image *m)
{
    for (unsigned char *p : m->mem) {
        ASAN_UNPOISON_MEMORY_REGION(p, before + after);
        infer_free_aligned(p);
    }
    m->mem.clear();
}

void fail(const infer_op_case *c, const char *how, const char *what)
{
    failures++;
    printf("FAIL %s (%s): %s\n", c->label, how, what);
}

/* What may not be written is as it was: inputs, and the bytes around every operand. */
void check_guards(const image *m, const infer_op_case *c, const char *how)
{
    for (uint32_t i = 0; i < c->desc.n_in + c->desc.n_out; i++) {
        if (!m->place[i].base)
            continue;
        const unsigned char *p = m->place[i].base;
        int bad = 0;
        ASAN_UNPOISON_MEMORY_REGION(p, before + m->bytes[i] + after);
        for (uint64_t k = 0; k < before; k++)
            bad |= p[k] != 0x5C;
        for (uint64_t k = 0; k < after; k++)
            bad |= p[before + m->bytes[i] + k] != 0x5C;
        if (bad)
            fail(c, how, "writes beside an operand");
        if (i < c->desc.n_in && !infer_op_case_writes(c, i) && c->data[i] &&
            memcmp(p + before, c->data[i], c->bytes[i])) {
            int shared = 0; /* a pool that is also an output */
            for (uint32_t o = c->desc.n_in; o < c->desc.n_in + c->desc.n_out; o++)
                shared |= c->same_as[o] == (int32_t)i;
            if (!shared)
                fail(c, how, "writes an input");
        }
    }
}

/* Runs a case one way, as a rule twice; -1: not taken. same: outputs of another way that these have to equal, if any.
 */
int run_case(const infer_op_case *c, const lower_how *how, const char *name, const infer_case_tol *tol, image *same)
{
    image m, r;
    void *expect[INFER_OP_MAX_OPERANDS] = {0};
    static int turn;
    load(&m, c);
    simt::reverse = both_orders ? 0 : turn++ & 1;
    if (!lower_run(&c->desc, m.place, &m.counts, how)) {
        drop(&m);
        return -1;
    }
    load(&r, c);
    simt::reverse = 1;
    if (both_orders)
        lower_run(&c->desc, r.place, &r.counts, how);
    if (infer_op_case_expect(c, expect) != INFER_OK)
        fail(c, name, "no reference");
    check_guards(&m, c, name);
    for (uint32_t i = 0; i < c->desc.n_in + c->desc.n_out; i++) {
        if (!expect[i] || !m.place[i].base)
            continue;
        infer_case_diff diff;
        const unsigned char *got = m.place[i].base + before;
        if (!infer_op_case_compare(c, i, expect[i], got, tol, &diff))
            fail(c, name, diff.text);
        else
            passes++;
        if (both_orders && memcmp(got, r.place[i].base + before, m.bytes[i]))
            fail(c, name, "the order of threads shows");
        if (same && same->place[i].base && memcmp(got, same->place[i].base + before, m.bytes[i]))
            fail(c, name, "differs from another cut of the same");
    }
    for (void *p : expect)
        infer_free(p);
    drop(&r);
    if (same && same->mem.empty())
        *same = m;
    else
        drop(&m);
    return 1;
}

int is_product(infer_op_id op)
{
    return op == INFER_OP_MATMUL || op == INFER_OP_MOE_MATMUL || op == INFER_OP_QKV || op == INFER_OP_GATED_MLP ||
           op == INFER_OP_LORA_SHRINK || op == INFER_OP_LORA_EXPAND_ADD;
}

int is_attention(infer_op_id op)
{
    return op == INFER_OP_ATTN_PAGED || op == INFER_OP_MLA_PAGED || op == INFER_OP_ATTN_DENSE;
}

int few_taken, many_taken; /* runs of the kernels for few and many rows */

/* All ways to cut a case, of a large one some. Ways that must not show are compared to the byte. */
int run_all(const infer_op_case *c, int large)
{
    infer_op_id op = c->desc.op;
    lower_how how = {1, 0, 0, 16, 0, 8, 128, 0, 0};
    image same = image();
    int taken = 0;
    char name[60];
    if (is_product(op)) {
        for (int r = 1; r <= 8; r *= large ? 4 : 2)
            for (int fused = 0; fused < (op == INFER_OP_QKV || op == INFER_OP_GATED_MLP ? 2 : 1); fused++) {
                how.rows = r;
                how.fused = fused;
                snprintf(name, sizeof name, "rows %d fused %d", r, fused);
                taken = run_case(c, &how, name, &c->tol, &same);
                if (taken < 0)
                    return -1;
            }
        drop(&same);
        for (int f16 = 0;
             f16 < 2 && (op == INFER_OP_MATMUL || op == INFER_OP_GATED_MLP) && c->tensors[1].shape[1] < 1000; f16++) {
            infer_case_tol tol =
                c->tol; /* both factors rounded by at most 2^-9 or 2^-12: a quarter of this in the mean */
            double stages = op == INFER_OP_GATED_MLP ? 2 : 1, step = f16 ? 0x1p-11 : 0x1p-8;
            how.rows = how.fused = 0;
            how.tile_f16 = f16;
            if (tol.nrms > 0) { /* else whole numbers, which both hold */
                tol.rel = 0;
                tol.abs += 6 * stages * step;
                tol.nrms += 2 * stages * step;
            }
            run_case(c, &how, f16 ? "tile f16" : "tile bf16", &tol, nullptr);
        }
        return 1;
    }
    if (is_attention(op)) {
        for (int heads = 1; heads <= 8; heads *= large ? 8 : 2)
            for (int parts = 0; parts < 3; parts += large ? 2 : 1) {
                how.heads = heads;
                how.parts = parts;
                snprintf(name, sizeof name, "heads %d blocks %d", heads, parts);
                taken = run_case(c, &how, name, &c->tol, &same);
                if (taken < 0)
                    return -1;
            }
        drop(&same);
        how.split = 256;
        how.parts = 0;
        how.threads = 256;
        taken = run_case(c, &how, "one part", &c->tol, nullptr);
        for (int spans = 16; spans > 0; spans /= 4) { /* how blocks share the work must not show */
            same = image();
            for (how.few = 1; how.few <= 4; how.few *= 2)
                for (how.parts = 1; how.parts < 30; how.parts += 21) {
                    how.split = spans;
                    snprintf(name, sizeof name, "few %d blocks %d spans %d", how.few, how.parts, spans);
                    if (run_case(c, &how, name, &c->tol, &same) > 0)
                        few_taken++;
                }
            drop(&same);
        }
        infer_case_tol tol = c->tol;
        if (tol.rel < 1e-3) { /* queries and shares are rounded to what the cache is in */
            tol.rel = c->tensors[1].format == INFER_FMT_BF16 ? 4e-3 : 1e-3;
            tol.abs = 5 * tol.rel;
            tol.nrms = tol.rel;
        }
        how.few = 1;
        for (how.many = 1; how.many < 8; how.many += 4) { /* who makes a tile must not either */
            same = image();
            for (how.parts = 1; how.parts < 8; how.parts += 3) {
                snprintf(name, sizeof name, "many %d blocks %d", how.many, how.parts);
                if (run_case(c, &how, name, &tol, &same) > 0)
                    many_taken++;
            }
            drop(&same);
        }
        return taken;
    }
    taken = run_case(c, &how, "", &c->tol, &same);
    if (taken < 0)
        return -1;
    if (op == INFER_OP_KV_WRITE || op == INFER_OP_ROPE_KV_WRITE) {
        how.fused = 1;
        run_case(c, &how, "K and V at once", &c->tol, &same);
    }
    drop(&same);
    if (op == INFER_OP_SOFTMAX || op == INFER_OP_ARGMAX || op == INFER_OP_RMS_NORM || op == INFER_OP_LAYER_NORM ||
        op == INFER_OP_ADD_RMS_NORM) {
        how.threads = SIMT_WAVE;
        run_case(c, &how, "one wave", &c->tol, nullptr);
        how.threads = 1024;
        run_case(c, &how, "1024 threads", &c->tol, nullptr);
        how.fused = op == INFER_OP_RMS_NORM || op == INFER_OP_ADD_RMS_NORM;
        if (how.fused)
            quick_norms += run_case(c, &how, "as it mostly is", &c->tol, nullptr) > 0;
    }
    return 1;
}
} // namespace

static int wanted(infer_op_id op, int argc, char **argv)
{
    const infer_op_info *info = infer_op_get(op);
    int yes = argc < 2;
    for (int a = 1; info && a < argc; a++)
        yes |= !strcmp(argv[a], info->name);
    return info && yes;
}

int main(int argc, char **argv)
{
    for (infer_op_id op = 0; op < INFER_OP_COUNT; op++) {
        const infer_op_info *info = infer_op_get(op);
        uint32_t n = infer_op_case_count(op), taken = 0;
        if (!n || !wanted(op, argc, argv))
            continue;
        for (uint32_t i = 0; i < n; i++) {
            infer_op_case c;
            if (infer_op_case_make(op, i, 11, &c) != INFER_OK) {
                failures++;
                continue;
            }
            taken += run_all(&c, 0) > 0;
            infer_op_case_free(&c);
        }
        printf("%-16s %u of %u cases\n", info->name, taken, n);
        fflush(stdout);
    }
    for (uint32_t i = 0;; i++) {
        infer_op_case c;
        int made = more_case(i, &c);
        if (!made)
            break;
        if (made < 0 || (wanted(c.desc.op, argc, argv) && run_all(&c, 1) < 0))
            fail(&c, "", "not made or not taken");
        infer_op_case_free(&c);
    }
    if ((wanted(INFER_OP_RMS_NORM, argc, argv) || wanted(INFER_OP_ADD_RMS_NORM, argc, argv)) && quick_norms < 2) {
        printf("FAIL %d norms for the kernels of the usual case\n", quick_norms);
        failures++;
    }
    int packs = argc < 2;
    for (int a = 1; a < argc; a++)
        packs |= !strcmp(argv[a], "pack");
    failures += packs ? pack_checks(&passes) : 0;
    if (few_taken)
        printf("attention of few rows: %d runs, of many: %d\n", few_taken, many_taken);
    printf("wave %d: %d results right, %d wrong\n", SIMT_WAVE, passes, failures);
    return failures != 0;
}
