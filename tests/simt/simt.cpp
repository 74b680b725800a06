/* Fibers, barriers and exchanges of simt.h. SPDX-License-Identifier: Apache-2.0 */
#include "simt.h"

#include <cstdio>
#include <sys/mman.h>

#ifdef SIMT_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__)
/* Saves the callee's registers on the stack, then changes stacks: a switch without a system call. */
extern "C" void simt_switch(void **save, void *to);
asm(".text\n.globl simt_switch\n.type simt_switch,@function\nsimt_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size simt_switch,.-simt_switch\n");
#else
#include <ucontext.h>
#endif

namespace simt
{
const thread *self;
dim3 block_idx, block_dim, grid_dim;
int reverse;
uint64_t block_number;
kernel *kernel::all;

enum { READY, WAIT_WAVE, WAIT_BLOCK, DONE };
static const size_t stack_bytes = 128 << 10, max_threads = 1024;

struct fiber : thread {
    int state, line;
    size_t bytes;
#if defined(__x86_64__)
    void *sp;
#else
    ucontext_t ctx;
#endif
    void *fake;
};

struct wave {
    int arrived, parity;
    unsigned char slot[2][64 * SIMT_WAVE];
};

static fiber fibers[max_threads];
static wave waves[max_threads / SIMT_WAVE];
static unsigned char *stacks;
static fiber *now;
static int n_threads, at_barrier;
static int turn, running; /* whose turn it is in the order of threads; threads of the block that have not ended */

/* Threads that yield stay READY; so many yields in a row and nobody moves. */
static const long max_idle = 4 << 20;
static long idle;

static const int max_parts = 16;
struct part {
    int arrived, n;
    uint32_t turn;
};
static part parts[max_parts];
#if defined(__x86_64__)
static void *main_sp;
#else
static ucontext_t main_ctx;
#endif
#ifdef SIMT_ASAN
static const void *main_stack;
static size_t main_bytes;
static bool from_main; /* the last change of stacks was out of main's */
#endif
static void (*body)(void *);
static void *body_ctx;
static const char *kernel_name;
static unsigned char *dyn;

static void fail(const char *what, const fiber *f)
{
    fprintf(stderr, "simt: %s, block %u,%u,%u, thread %u,%u,%u, line %d: %s\n", kernel_name, block_idx.x, block_idx.y,
            block_idx.z, f->tid.x, f->tid.y, f->tid.z, f->line, what);
    abort();
}

static unsigned char *stack_of(const fiber *f)
{
    return stacks + (size_t)(f - fibers) * stack_bytes;
}

void poison(void *p, size_t bytes)
{
    memset(p, 0xFF, bytes); /* a NaN in every float format, -1 as a number */
}

unsigned char *dynamic()
{
    return dyn;
}

/* Who is next in the order of threads; NULL: all had their turn. */
static fiber *next()
{
    while (++turn < n_threads) {
        fiber *f = &fibers[reverse ? n_threads - 1 - turn : turn];
        if (f->state == READY)
            return f;
    }
    return nullptr;
}

/* From a fiber to the next one, or out of the last: a processor foresees returns in a stack that it came to from the
 * same place of another, so that this costs a fraction of two changes by way of a scheduler. */
static void leave(int for_good)
{
    fiber *f = now, *to = next();
#ifdef SIMT_ASAN
    from_main = false;
    __sanitizer_start_switch_fiber(for_good ? nullptr : &f->fake, to ? stack_of(to) : main_stack,
                                   to ? stack_bytes : main_bytes);
#else
    (void)for_good;
#endif
    now = to;
    self = to;
#if defined(__x86_64__)
    simt_switch(&f->sp, to ? to->sp : main_sp);
#else
    swapcontext(&f->ctx, to ? &to->ctx : &main_ctx);
#endif
#ifdef SIMT_ASAN
    __sanitizer_finish_switch_fiber(f->fake, from_main ? &main_stack : nullptr, from_main ? &main_bytes : nullptr);
#endif
}

static void entry()
{
#ifdef SIMT_ASAN
    __sanitizer_finish_switch_fiber(nullptr, from_main ? &main_stack : nullptr, from_main ? &main_bytes : nullptr);
#endif
    body(body_ctx);
    now->state = DONE;
    running--;
    leave(1);
    abort();
}

/* Into a fiber; back when all had their turn. */
static void enter(fiber *f)
{
    now = f;
    self = f;
#ifdef SIMT_ASAN
    void *fake;
    from_main = true;
    __sanitizer_start_switch_fiber(&fake, stack_of(f), stack_bytes);
#endif
#if defined(__x86_64__)
    simt_switch(&main_sp, f->sp);
#else
    swapcontext(&main_ctx, &f->ctx);
#endif
#ifdef SIMT_ASAN
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

static void prepare(fiber *f)
{
    unsigned char *stack = stack_of(f);
    f->state = READY;
    f->fake = nullptr;
#if defined(__x86_64__)
    void **top = (void **)(stack + stack_bytes - 64);
    *top = (void *)entry; /* what simt_switch returns to, the stack as after a call */
    f->sp = top - 6;
    memset(f->sp, 0, 6 * sizeof(void *));
#else
    getcontext(&f->ctx);
    f->ctx.uc_stack.ss_sp = stack;
    f->ctx.uc_stack.ss_size = stack_bytes;
    f->ctx.uc_link = nullptr;
    makecontext(&f->ctx, entry, 0);
#endif
}

void barrier(int line)
{
    fiber *f = now;
    f->line = line;
    if (++at_barrier < n_threads) {
        f->state = WAIT_BLOCK;
        leave(0);
    } else {
        at_barrier = 0;
        for (int i = 0; i < n_threads; i++) {
            if (fibers[i].state == DONE || fibers[i].line != line)
                fail("another thread stands at another barrier, or has ended", &fibers[i]);
            fibers[i].state = READY;
        }
        leave(0); /* so that the order of threads holds */
    }
}

const unsigned char *exchange(const void *mine, size_t n, int line)
{
    fiber *f = now;
    wave *w = &waves[f->wave];
    unsigned char *slot = w->slot[w->parity];
    int first = f->wave * SIMT_WAVE;
    f->line = line;
    f->bytes = n;
    memcpy(slot + 64 * f->lane, mine, n);
    if (++w->arrived < SIMT_WAVE) {
        f->state = WAIT_WAVE;
        leave(0);
        return slot;
    }
    w->arrived = 0;
    w->parity ^= 1;
    for (int i = first; i < first + SIMT_WAVE; i++) {
        if (fibers[i].line != line || fibers[i].bytes != n)
            fail("a lane of the wave stands at another exchange", &fibers[i]);
        fibers[i].state = READY;
    }
    return slot;
}

void yield(int line)
{
    now->line = line;
    if (++idle > max_idle)
        fail("waits for what no thread writes", now);
    leave(0);
}

void moved()
{
    idle = 0;
}

void part_barrier(int id, int n, int line)
{
    part *p = &parts[id];
    uint32_t turn = p->turn;
    if (id < 1 || id >= max_parts || (p->arrived && p->n != n))
        fail("a barrier of another number of threads", now);
    p->n = n;
    if (++p->arrived == n) {
        p->arrived = 0;
        p->turn++;
        idle = 0;
    }
    while (p->turn == turn)
        yield(line);
}

static void run_block()
{
    block_number++;
    at_barrier = 0;
    idle = 0;
    memset(parts, 0, sizeof parts);
    memset(waves, 0, sizeof waves);
    for (int i = 0; i < n_threads; i++)
        prepare(&fibers[i]);
    for (running = n_threads; running > 0;) {
        turn = -1;
        fiber *f = next();
        for (int i = 0; !f && i < n_threads; i++)
            if (fibers[i].state == WAIT_WAVE || fibers[i].state == WAIT_BLOCK)
                fail("waits for threads that have ended or wait elsewhere", &fibers[i]);
        enter(f);
    }
}

void run(dim3 grid, dim3 block, size_t dyn_bytes, void (*b)(void *), void *ctx, const char *name)
{
    if (!stacks)
        stacks = (unsigned char *)mmap(nullptr, stack_bytes * max_threads, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    kernel_name = name;
    n_threads = (int)(block.x * block.y * block.z);
    if (n_threads % SIMT_WAVE || (size_t)n_threads > max_threads || grid.y > 65535 || grid.z > 65535) {
        fprintf(stderr, "simt: %s: a block of %d threads, grid %u %u %u\n", name, n_threads, grid.x, grid.y, grid.z);
        abort();
    }
    body = b;
    body_ctx = ctx;
    block_dim = block;
    grid_dim = grid;
    for (int i = 0; i < n_threads; i++) {
        fibers[i].tid = dim3((uint32_t)i % block.x, (uint32_t)i / block.x % block.y, (uint32_t)i / block.x / block.y);
        fibers[i].lane = i % SIMT_WAVE;
        fibers[i].wave = i / SIMT_WAVE;
    }
    dyn = (unsigned char *)aligned_alloc(16, (dyn_bytes + 15) / 16 * 16 + 16);
    for (uint32_t z = 0; z < grid.z; z++)
        for (uint32_t y = 0; y < grid.y; y++)
            for (uint32_t x = 0; x < grid.x; x++) {
                block_idx = dim3(x, y, z);
                poison(dyn, dyn_bytes);
                run_block();
            }
    free(dyn);
    dyn = nullptr;
}

const kernel *find(const char *name)
{
    const kernel *k = kernel::all;
    while (k && strcmp(k->name, name))
        k = k->next;
    return k;
}

void start(const launch &l)
{
    const kernel *k = find(l.name);
    if (!k) {
        fprintf(stderr, "simt: there is no kernel %s\n", l.name);
        abort();
    }
    k->go(l);
}
} // namespace simt

static float from_half(uint32_t h)
{
    uint32_t sign = (h & 0x8000u) << 16, e = h >> 10 & 31u, m = h & 0x3FFu;
    if (e == 31)
        return __uint_as_float(sign | 0x7F800000u | (m ? m << 13 | 0x400000u : 0));
    if (e)
        return __uint_as_float(sign | (e + 112) << 23 | m << 13);
    float f = (float)m * 0x1p-24f;
    return sign ? -f : f;
}

static const float *all_halves()
{
    static float all[65536];
    for (uint32_t h = 0; h < 65536; h++)
        all[h] = from_half(h);
    return all;
}
const float *const simt_halves = all_halves();

uint16_t simt_float_to_half(float f)
{
    uint32_t u = __float_as_uint(f), sign = u >> 16 & 0x8000u, b = u & 0x7FFFFFFFu;
    if (b > 0x7F800000u)
        return (uint16_t)(sign | 0x7FFFu);
    if (b >= 0x477FF000u) /* 65520 and up round to infinity */
        return (uint16_t)(sign | 0x7C00u);
    if (b < 0x38800000u) /* below the least normal number: units of 2^-24 */
        return (uint16_t)(sign | (uint32_t)std::nearbyint(std::fabs(f) * 0x1p24f));
    b += 0xFFFu + (b >> 13 & 1u);
    return (uint16_t)(sign | ((b - 0x38000000u) >> 13));
}
