/* A decoding step allocates nothing, on any thread: malloc and its relatives are counted in the whole process,
 * libraries included, while four requests of every kind run. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <unistd.h>

#include "e2e/rig.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int main(void)
{
    return 77; /* a sanitizer's own allocator cannot be counted so */
}
#else

/* ---- The counted allocator ------------------------------------------------------------------------------------ */

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);
extern void __libc_free(void *p);

static _Atomic int counting;
static _Atomic uint64_t allocations, releases, bytes;

static void count(size_t n)
{
    if (!atomic_load(&counting))
        return;
    atomic_fetch_add(&allocations, 1);
    atomic_fetch_add(&bytes, n);
}

/* The C library's and every module's calls come here: the program's symbols are found first. */
#define EXPORT __attribute__((visibility("default")))

EXPORT void *malloc(size_t n)
{
    count(n);
    return __libc_malloc(n);
}

EXPORT void *calloc(size_t n, size_t size)
{
    count(n * size);
    return __libc_calloc(n, size);
}

EXPORT void *realloc(void *p, size_t n)
{
    count(n);
    return __libc_realloc(p, n);
}

EXPORT void free(void *p)
{
    if (p && atomic_load(&counting))
        atomic_fetch_add(&releases, 1);
    __libc_free(p);
}

EXPORT void *memalign(size_t align, size_t n)
{
    count(n);
    return __libc_memalign(align, n);
}

EXPORT void *aligned_alloc(size_t align, size_t n)
{
    count(n);
    return __libc_memalign(align, n);
}

EXPORT int posix_memalign(void **p, size_t align, size_t n)
{
    count(n);
    *p = __libc_memalign(align, n);
    return *p ? 0 : ENOMEM;
}

static void test_counter(void **state)
{
    (void)state;
    atomic_store(&counting, 1);
    uint64_t before = atomic_load(&allocations), freed = atomic_load(&releases);
    char *volatile a = malloc(10), *volatile b = strdup("the C library's own call");
    void *volatile c;
    assert_int_equal(posix_memalign((void **)(uintptr_t)&c, 64, 100), 0);
    free(a);
    free(b);
    free(c);
    atomic_store(&counting, 0);
    assert_int_equal(atomic_load(&allocations) - before, 3);
    assert_int_equal(atomic_load(&releases) - freed, 3);
}

/* ---- Steps ---------------------------------------------------------------------------------------------------- */

enum { PROMPT = 5, REQUESTS = 4, STEPS = 60, TRIES = 20 };
static uint32_t tokens_each; /* the more, the longer the polling thread may be kept from running */

static void submit_all(rig *r, infer_engine_stats *before)
{
    static int32_t prompt[PROMPT] = {10, 20, 30, 40, 50};
    static const infer_sample_bias bias[] = {{7, 0.5f}};
    static const char *const stops[] = {"a string that will not come"};
    static const infer_sampling kinds[REQUESTS] = {
        {.temperature = 0},
        {.temperature = 1, .top_k = 40, .top_p = 0.9f, .min_p = 0.01f, .seed = 1},
        {.temperature = 0.8f, .repetition_penalty = 1.1f, .frequency_penalty = 0.1f, .seed = 2},
        {.temperature = 1, .seed = 3, .n_bias = 1, .bias = bias},
    };
    prompt[0] = 10 + (prompt[0] - 9) % 100; /* nobody's yet: what was computed for others is in the way */
    *before = rig_stats(r);
    for (int i = 0; i < REQUESTS; i++) {
        uint64_t id;
        infer_request q = {.struct_size = sizeof q,
                           .prompt = prompt,
                           .n_prompt = PROMPT,
                           .max_tokens = (int32_t)tokens_each,
                           .flags = INFER_REQ_IGNORE_EOS,
                           .sampling = kinds[i],
                           .stop = stops,
                           .n_stop = 1,
                           .n_top_logprobs = i == 1 ? 20 : 0};
        assert_int_equal(infer_engine_submit(r->engine, &q, &id, NULL), INFER_OK);
    }
}

/* Takes what events there are, after a millisecond at most. Returns the number of requests that ended. */
static uint32_t poll_once(rig *r)
{
    const infer_event *ev;
    uint32_t n, ended = 0;
    assert_int_equal(infer_engine_poll(r->engine, 1, &ev, &n), INFER_OK);
    for (uint32_t i = 0; i < n; i++)
        ended += ev[i].type == INFER_EVENT_DONE;
    return ended;
}

static uint32_t poll_steps(rig *r, uint64_t steps)
{
    uint32_t ended = 0;
    for (uint64_t until = rig_stats(r).steps + steps; ended < REQUESTS && rig_stats(r).steps < until;)
        ended += poll_once(r);
    return ended;
}

/* All the tokens of all requests, with no event taken before the end: no backlog of the measured steps is longer. The
 * pages of events grow for a polling thread that the machine keeps from running, and are the one thing that may. */
static void fill_page(rig *r)
{
    infer_engine_stats before;
    const infer_event *ev;
    uint32_t n;
    submit_all(r, &before);
    while (rig_stats(r).generated_tokens < before.generated_tokens + REQUESTS * tokens_each || rig_stats(r).n_running)
        usleep(1000);
    assert_int_equal(infer_engine_poll(r->engine, 0, &ev, &n), INFER_OK);
    assert_int_equal(n, REQUESTS * (tokens_each + 1));
}

/* Allocations in STEPS decoding steps, after all that grows has grown. */
static uint64_t measure(const char *model, const char *devices, uint32_t drafts, const char *dir)
{
    rig r;
    rig_options o = {.model = model,
                     .devices = devices,
                     .ctx = PROMPT + tokens_each,
                     .parallel = REQUESTS,
                     .batched = 32,
                     .logit_rows = REQUESTS * (1 + drafts),
                     .speculative = drafts ? INFER_SPECULATIVE_ALWAYS : INFER_SPECULATIVE_OFF,
                     .drafts = drafts,
                     .prefix_host = dir ? 1 << 18 : 0,
                     .prefix_dir = dir,
                     .prefix_file = 1 << 23};
    rig_open(&r, &o);
    fill_page(&r);
    fill_page(&r); /* there are two */
    uint64_t made = 0, freed = 0, size = 0, steps = 0, tokens = 0, stored = 0, written = 0;
    int whole = 0; /* a window that no request ended in */
    for (int i = 0; i < TRIES && !whole; i++) {
        infer_engine_stats before, after;
        submit_all(&r, &before);
        uint32_t ended = poll_steps(&r, STEPS);
        before = rig_stats(&r);
        made = atomic_load(&allocations), freed = atomic_load(&releases), size = atomic_load(&bytes);
        atomic_store(&counting, 1);
        ended += poll_steps(&r, STEPS);
        atomic_store(&counting, 0);
        after = rig_stats(&r);
        made = atomic_load(&allocations) - made, freed = atomic_load(&releases) - freed;
        size = atomic_load(&bytes) - size;
        steps = after.steps - before.steps, tokens = after.generated_tokens - before.generated_tokens;
        stored = after.tier_host.stored - before.tier_host.stored;
        written = after.tier_file.stored - before.tier_file.stored;
        whole = before.n_running == REQUESTS && after.n_running == REQUESTS && !ended;
        while (ended < REQUESTS)
            ended += poll_once(&r);
    }
    printf("%-10s %llu allocations of %llu bytes, %llu releases in %llu steps of %d requests\n", devices,
           (unsigned long long)made, (unsigned long long)size, (unsigned long long)freed, (unsigned long long)steps,
           REQUESTS);
    assert_true(whole);
    if (dir)
        printf("           %llu blocks to host memory, %llu to the file\n", (unsigned long long)stored,
               (unsigned long long)written);
    assert_true(!dir || (stored && written));
    if (drafts) /* who has them makes more than one */
        assert_true(tokens > steps * REQUESTS && rig_stats(&r).spec_accepted_tokens);
    else
        assert_int_equal(tokens, steps * REQUESTS);
    rig_close(&r);
    return made;
}

/* Allocations of STEPS steps of a beam search, and of the request before them. */
static uint64_t measure_beams(const char *model, const char *devices)
{
    enum { WIDTH = 4 };
    static const int32_t prompt[PROMPT] = {10, 20, 30, 40, 50};
    rig r;
    rig_options o = {
        .model = model, .devices = devices, .ctx = PROMPT + 4 * STEPS, .parallel = WIDTH, .batched = 32, .block = 16};
    uint64_t made = 0;
    int whole = 0;
    rig_open(&r, &o);
    for (int i = 0; i < TRIES && !whole; i++) {
        uint64_t id;
        infer_request q = {.struct_size = sizeof q,
                           .prompt = prompt,
                           .n_prompt = PROMPT,
                           .max_tokens = 4 * STEPS,
                           .flags = INFER_REQ_IGNORE_EOS,
                           .beam_width = WIDTH,
                           .length_penalty = 1};
        assert_int_equal(infer_engine_submit(r.engine, &q, &id, NULL), INFER_OK);
        uint32_t ended = poll_steps(&r, STEPS);
        const infer_engine_stats before = rig_stats(&r);
        made = atomic_load(&allocations);
        atomic_store(&counting, 1);
        ended = poll_steps(&r, STEPS);
        atomic_store(&counting, 0);
        const infer_engine_stats after = rig_stats(&r);
        made = atomic_load(&allocations) - made;
        whole = before.n_running == WIDTH && after.n_running == WIDTH && !ended;
        while (!ended)
            ended += poll_once(&r);
    }
    printf("%-10s %llu allocations in %d steps of %d beams\n", devices, (unsigned long long)made, STEPS, WIDTH);
    assert_true(whole);
    rig_close(&r);
    return made;
}

static void test_cpu(void **state)
{
    (void)state;
    if (!rig_has("cpu0"))
        skip();
    assert_int_equal(measure_beams(rig_golden("llama"), "cpu0"), 0);
    assert_int_equal(measure(rig_golden("llama"), "cpu0", 0, NULL), 0);
    assert_int_equal(measure(rig_golden("qwen3moe"), "cpu0", 0, NULL), 0);
    assert_int_equal(measure(rig_golden("llama"), "cpu0", 4, NULL), 0);
}

/* So do steps that move what the prefix cache gives up to host memory, and what the file's thread does with it. */
static void test_tiers(void **state)
{
    (void)state;
    char dir[] = "/tmp/infer-alloc-XXXXXX";
    if (!rig_has("cpu0"))
        skip();
    assert_non_null(mkdtemp(dir));
    assert_int_equal(measure(rig_golden("llama"), "cpu0", 0, dir), 0);
    assert_int_equal(rmdir(dir), 0);
}

/* The reference ops take scratch from the heap (they are there to be read), and sim runs those: printed, not judged. */
static void test_reference(void **state)
{
    (void)state;
    measure(rig_golden("llama"), "ref0", 0, NULL);
    measure(rig_golden("llama"), "sim0", 0, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counter),
        cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_tiers),
        cmocka_unit_test(test_reference),
    };
    tokens_each = getenv("INFER_TEST_SLOW") ? 300 : 2000;
    rig_watchdog(120);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
