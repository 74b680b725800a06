/* Same request, same tokens: alone, among others that come, go and are cancelled, in chunks of any size, preempted and
 * resumed, on any number of rows a step, from prefixes that others computed, cut over two devices, beside another model
 * on the same device.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <unistd.h>

#include "e2e/rig.h"
#include "unit/rng.h"

enum { VOCAB = 264, CTX = 128, CASES = 12 };

/* How many of the requests run; where devices are emulated, few and in few variants. */
static int n_cases = CASES;
/* The variants that run, by bits; 0: all. */
static unsigned only_variants, only_reuse;
/* Instrumented or emulated. */
static int slow;

/* Requests of every kind of sampling; prompts of 1 to 61 tokens. */
typedef struct wish {
    infer_request q;
    int32_t prompt[64];
    infer_sample_bias bias[2];
} wish;

static wish wishes[CASES];

static void make_wishes(void)
{
    static const infer_sampling kinds[CASES] = {
        {.temperature = 0},
        {.temperature = 1, .seed = 1},
        {.temperature = 1, .seed = 2},
        {.temperature = 0.7f, .top_k = 20, .seed = 3},
        {.temperature = 1.3f, .top_p = 0.8f, .seed = 4},
        {.temperature = 1.1f, .min_p = 0.05f, .seed = 5},
        {.temperature = 0, .repetition_penalty = 1.3f},
        {.temperature = 1, .presence_penalty = 0.7f, .frequency_penalty = 0.4f, .seed = 6},
        {.temperature = 0, .frequency_penalty = -0.5f, .presence_penalty = 0.2f},
        {.temperature = 0.9f, .seed = 7, .n_bias = 2},
        {.temperature = 0.8f, .top_k = 50, .top_p = 0.9f, .min_p = 0.01f, .repetition_penalty = 1.1f, .seed = 8},
        {.temperature = 0, .n_bias = 2},
    };
    rng r = {42};
    for (int i = 0; i < CASES; i++) {
        wish *w = &wishes[i];
        w->q = (infer_request){.sampling = kinds[i], .prompt = w->prompt, .n_prompt = 1 + rng_below(&r, 61)};
        for (uint64_t k = 0; k < w->q.n_prompt; k++)
            w->prompt[k] = (int32_t)rng_below(&r, 256);
        w->bias[0] = (infer_sample_bias){(int32_t)rng_below(&r, 256), 3};
        w->bias[1] = (infer_sample_bias){(int32_t)rng_below(&r, 256), -5};
        w->q.sampling.bias = kinds[i].n_bias ? w->bias : NULL;
        w->q.max_tokens = 20 + (int64_t)rng_below(&r, 30);
        w->q.min_tokens = i % 3 ? 0 : 5;
        w->q.flags = i % 2 ? INFER_REQ_IGNORE_EOS : 0;
        w->q.n_top_logprobs = i % 4 ? 0 : 3;
    }
}

static void free_all(answer *a, int n)
{
    for (int i = 0; i < n; i++)
        answer_free(&a[i]);
}

/* Each request alone, one after the other. */
static void run_alone(const rig_options *o, answer *out)
{
    rig r;
    rig_open(&r, o);
    for (int i = 0; i < n_cases; i++) {
        answer *list[] = {&out[i]};
        rig_submit(&r, &wishes[i].q, &out[i]);
        assert_int_equal(rig_collect(&r, list, 1), INFER_OK);
        assert_true(out[i].finish == INFER_FINISH_LENGTH || out[i].finish == INFER_FINISH_STOP);
    }
    rig_idle(&r);
    rig_close(&r);
}

/* All of them at once in changing company: others arrive meanwhile, and half of those are cancelled at some time. */
static void run_crowded(const rig_options *o, answer *out, infer_engine_stats *stats)
{
    enum { OTHERS = 2 * CASES };
    rig r;
    answer others[OTHERS];
    answer *list[CASES], *rest[OTHERS];
    int32_t prompt[70];
    uint32_t n_others = 0, most = 2 * (uint32_t)n_cases;
    rng x = {7};
    rig_open(&r, o);
    memset(others, 0, sizeof others);
    for (int i = 0; i < n_cases; i++)
        list[i] = &out[i];
    for (int i = 0, left = n_cases; left || n_others < most;) {
        if (left && rng_below(&x, 2)) {
            rig_submit(&r, &wishes[i].q, &out[i]);
            i++;
            left--;
        }
        if (n_others < most && rng_below(&x, 2)) {
            infer_request q = {.prompt = prompt,
                               .n_prompt = 1 + rng_below(&x, 70),
                               .max_tokens = (int64_t)rng_below(&x, 50),
                               .sampling = {.temperature = (float)rng_below(&x, 2),
                                            .repetition_penalty = rng_below(&x, 2) ? 1.2f : 0,
                                            .seed = x.x}};
            for (int k = 0; k < 70; k++)
                prompt[k] = (int32_t)rng_below(&x, 256);
            rig_submit(&r, &q, &others[n_others]);
            rest[n_others] = &others[n_others];
            n_others++;
        }
        if (n_others && rng_below(&x, 3) == 0)
            infer_engine_cancel(r.engine, others[rng_below(&x, n_others) & ~1u].id);
        if (rng_below(&x, 3) == 0)
            assert_int_equal(rig_poll(&r, 1), INFER_OK);
    }
    assert_int_equal(rig_collect(&r, list, (uint32_t)n_cases), INFER_OK);
    assert_int_equal(rig_collect(&r, rest, most), INFER_OK);
    rig_idle(&r);
    *stats = rig_stats(&r);
    free_all(others, OTHERS);
    rig_close(&r);
}

/* `exact`: log-probabilities bit for bit, else ids only. */
static void compare(const answer *want, const answer *got, int exact, const char *where)
{
    for (int i = 0; i < n_cases; i++) {
        uint32_t n = want[i].n < got[i].n ? want[i].n : got[i].n;
        for (uint32_t k = 0; k < n; k++) {
            if (want[i].ids[k] != got[i].ids[k])
                fail_msg("%s: request %d, token %u: %d, alone %d", where, i, k, got[i].ids[k], want[i].ids[k]);
            if (exact && memcmp(&want[i].logprobs[k], &got[i].logprobs[k], sizeof(float)))
                fail_msg("%s: request %d, token %u: log-probability %.9g, alone %.9g", where, i, k,
                         (double)got[i].logprobs[k], (double)want[i].logprobs[k]);
        }
        assert_int_equal(got[i].n, want[i].n);
        assert_int_equal(got[i].finish, want[i].finish);
        assert_string_equal(got[i].text, want[i].text);
        assert_int_equal(got[i].n_top, want[i].n_top);
        for (uint32_t k = 0; k < want[i].n_top; k++)
            assert_int_equal(got[i].top[k].id, want[i].top[k].id);
    }
}

/* Whether two answers differ somewhere: the requests must be able to tell. */
static int differ(const answer *a, const answer *b)
{
    return a->n != b->n || memcmp(a->ids, b->ids, a->n * sizeof *a->ids) != 0;
}

typedef struct variant {
    const char *name;
    uint32_t parallel, batched, step_tokens, chunk, block, kv_tokens; /* kv_tokens 0: enough for all */
    int crowded, swap, tiers;
} variant;

static const variant variants[] = {
    {"alone, chunk 1", 1, 64, 0, 1, 0, 0, 0, 0, 0},
    {"alone, chunk 7", 1, 64, 0, 7, 0, 0, 0, 0, 0},
    {"alone, chunk 64", 1, 64, 0, 64, 0, 0, 0, 0, 0},
    {"alone, blocks of 8", 1, 64, 0, 0, 8, 0, 0, 0, 0},
    {"16 at once", 16, 512, 0, 0, 0, 0, 1, 0, 0},
    {"16 at once, chunk 1", 16, 512, 0, 1, 0, 0, 1, 0, 0},
    {"16 at once, chunk 7, 20 rows a step", 16, 64, 20, 7, 0, 0, 1, 0, 0},
    {"16 at once, chunk 64", 16, 64, 0, 64, 0, 0, 1, 0, 0},
    {"16 at once, chunk 512", 16, 512, 0, 512, 0, 0, 1, 0, 0},
    {"preempted", 16, 512, 0, 0, 8, 2 * CTX, 1, 0, 0},
    {"preempted, chunk 7", 16, 48, 24, 7, 8, CTX + CTX / 2, 1, 0, 0},
    {"swapped", 16, 512, 0, 0, 8, 2 * CTX, 1, 1, 0},
    {"swapped, chunk 7", 16, 48, 24, 7, 8, CTX + CTX / 2, 1, 1, 0},
    {"preempted, tiers", 16, 512, 0, 0, 8, 2 * CTX, 1, 0, 1},
    {"preempted, chunk 7, tiers", 16, 48, 24, 7, 8, CTX + CTX / 2, 1, 0, 1},
};

/* Those that run where requests are few, by bits: in chunks, together, preempted. */
enum { FEW_VARIANTS = 1 << 1 | 1 << 5 | 1 << 6 | 1 << 9 | 1 << 11 | 1 << 13, FEW_HALF = 1 << 1 | 1 << 6 | 1 << 9 };
static unsigned few_variants = FEW_VARIANTS;
/* Those for each pair of cache types: in chunks, preempted, swapped; matches that end inside blocks, few blocks. */
enum { CACHE_VARIANTS = 1 << 1 | 1 << 10 | 1 << 12, CACHE_REUSE = 1 << 1 | 1 << 2 };

/* All variants on one set of devices against each request alone there; *first: those answers, for the caller. */
static void check(rig_options base, const char *what, answer *alone)
{
    uint64_t preemptions = 0;
    int ran = 0;
    base.ctx = CTX;
    base.batched = 512;
    base.parallel = 1;
    base.no_prefix_cache = 1;
    run_alone(&base, alone);
    base.no_prefix_cache = 0;
    int same = 0;
    for (int i = 1; i < n_cases; i++)
        same += !differ(&alone[i], &alone[i - 1]);
    assert_int_equal(same, 0);
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        const variant *v = &variants[i];
        if (n_cases < CASES ? !(few_variants >> i & 1) : only_variants && !(only_variants >> i & 1))
            continue;
        ran++;
        answer got[CASES];
        infer_engine_stats stats = {0};
        char where[128];
        rig_options o = base;
        o.parallel = v->parallel;
        o.batched = v->batched;
        o.step_tokens = v->step_tokens;
        o.chunk = v->chunk;
        /* other attention kernels take blocks of 8 */
        o.block = v->block && n_cases < CASES ? 16 : v->block;
        if (v->kv_tokens)
            o.kv_memory = rig_cache_bytes(&o, v->kv_tokens);
        if (v->swap) {
            o.swap = 1 << 24;
            o.preemption = INFER_PREEMPTION_SWAP;
        }
        if (v->tiers) {
            o.prefix_host = 1 << 24;
            o.prefix_fetch = INFER_PREFIX_FETCH_ALWAYS;
        }
        snprintf(where, sizeof where, "%s, %s", what, v->name);
        if (v->crowded)
            run_crowded(&o, got, &stats);
        else
            run_alone(&o, got);
        if (v->kv_tokens) {
            assert_true(stats.preemptions > 0 || n_cases < CASES);
            preemptions += stats.preemptions;
            assert_true(!v->swap || stats.blocks_swapped_in > 0 || n_cases < CASES);
            assert_true(!v->tiers || stats.tier_host.hits > 0 || n_cases < CASES);
        }
        compare(alone, got, 1, where);
        free_all(got, n_cases);
    }
    printf("%-40s %d variants, %llu preemptions\n", what, ran, (unsigned long long)preemptions);
}

/* ---- From what others computed ------------------------------------------------------------------------------------
 */

/* Four rounds of requests that begin like others: the wishes; what follows on each one's answer; what leaves its text
 * in the middle, inside a block or at its edge; the wishes again. */
enum { TURNS = 4 };

typedef struct turn {
    infer_request q;
    int32_t prompt[CTX];
    uint64_t known; /* tokens of it that are computed when those before it have ended */
} turn;

static turn turns[TURNS][CASES];

static void make_turns(answer said[TURNS][CASES], int round)
{
    rng r = {(uint64_t)round};
    for (int i = 0; i < CASES; i++) {
        turn *t = &turns[round][i];
        t->q = wishes[i].q;
        t->q.prompt = t->prompt;
        memcpy(t->prompt, wishes[i].prompt, t->q.n_prompt * sizeof *t->prompt);
        t->known = round ? t->q.n_prompt - 1 : 0;
        if (round != 1 && round != 2)
            continue;
        const answer *a = &said[0][i];
        uint64_t n = wishes[i].q.n_prompt;
        memcpy(t->prompt + n, a->ids, a->n * sizeof *t->prompt);
        n += a->n;
        t->known = n - (a->finish == INFER_FINISH_LENGTH); /* the last token was made and not read */
        if (round == 2)
            t->known = n = 1 + rng_below(&r, (uint32_t)n - 1);
        t->q.n_prompt = n + 4;
        for (int k = 0; k < 4; k++)
            t->prompt[n + (uint64_t)k] = k || round == 1 ? 256 + (int32_t)rng_below(&r, 4) : 261;
        t->q.max_tokens = 6;
    }
}

/* All rounds; `at_once`: the requests of a round run together, else a wish's rounds follow each other; `make`: the
 * rounds are made from the answers. */
static infer_engine_stats run_turns(const rig_options *o, answer out[TURNS][CASES], int at_once, int make)
{
    rig r;
    rig_open(&r, o);
    for (int i = 0; i < TURNS * CASES && !at_once && !make; i++) {
        answer *one = &out[i % TURNS][i / TURNS];
        rig_submit(&r, &turns[i % TURNS][i / TURNS].q, one);
        assert_int_equal(rig_collect(&r, &one, 1), INFER_OK);
    }
    for (int k = 0; k < TURNS && (at_once || make); k++) {
        answer *list[CASES];
        if (make)
            make_turns(out, k);
        for (int i = 0; i < CASES; i++) {
            list[i] = &out[k][i];
            rig_submit(&r, &turns[k][i].q, &out[k][i]);
            if (!at_once)
                assert_int_equal(rig_collect(&r, &list[i], 1), INFER_OK);
        }
        assert_int_equal(rig_collect(&r, list, CASES), INFER_OK);
    }
    rig_idle(&r);
    infer_engine_stats st = rig_stats(&r);
    rig_close(&r);
    return st;
}

static void check_reuse(rig_options o, const char *what)
{
    answer plain[TURNS][CASES], got[TURNS][CASES];
    const variant rows[] = {
        {"one by one", 16, 64, 0, 0, 0, 0, 0, 0, 0},
        {"one by one, chunk 3, blocks of 8", 16, 64, 0, 3, 8, 0, 0, 0, 0},
        {"one by one, few blocks", 1, 64, 0, 0, 8, 0, 0, 0, 0}, /* one context of cache: what is known goes again */
        {"at once", 16, 512, 0, 0, 0, 0, 1, 0, 0},
        {"at once, few blocks, chunk 7", 16, 48, 24, 7, 8, 2 * CTX, 1, 0, 0},
    };
    o.ctx = CTX;
    o.batched = 512;
    o.parallel = 1;
    o.no_prefix_cache = 1;
    infer_engine_stats st = run_turns(&o, plain, 0, 1);
    assert_int_equal(st.prefix_queries + st.prefix_hits + st.blocks_cached, 0);
    o.no_prefix_cache = 0;
    for (size_t v = 0; v < sizeof rows / sizeof rows[0]; v++) {
        uint64_t cached = 0, asked = 0;
        char where[128];
        if (only_reuse && !(only_reuse >> v & 1))
            continue;
        snprintf(where, sizeof where, "%s, %s", what, rows[v].name);
        rig_options x = o;
        x.parallel = rows[v].parallel;
        x.batched = rows[v].batched;
        x.step_tokens = rows[v].step_tokens;
        x.chunk = rows[v].chunk;
        x.block = rows[v].block;
        if (rows[v].kv_tokens)
            x.kv_memory = rig_cache_bytes(&x, rows[v].kv_tokens);
        st = run_turns(&x, got, rows[v].crowded, 0);
        for (int k = 0; k < TURNS; k++) {
            compare(plain[k], got[k], 1, where);
            for (int i = 0; i < CASES; i++) {
                cached += got[k][i].n_cached;
                asked += got[k][i].n_prompt;
                if (v < 2 && got[k][i].n_cached < turns[k][i].known)
                    fail_msg("%s, round %d, request %d: %llu tokens reused of %llu known", where, k, i,
                             (unsigned long long)got[k][i].n_cached, (unsigned long long)turns[k][i].known);
            }
            free_all(got[k], CASES);
        }
        assert_int_equal(st.prefix_hits, cached);
        assert_int_equal(st.prefix_queries, asked);
        assert_true(st.blocks_cached > 0 && cached > 0);
        assert_true(!rows[v].kv_tokens || st.preemptions > 0);
        printf("%-40s %llu of %llu prompt tokens reused, %llu preemptions\n", where, (unsigned long long)cached,
               (unsigned long long)asked, (unsigned long long)st.preemptions);
    }
    for (int k = 0; k < TURNS; k++)
        free_all(plain[k], CASES);
}

static void test_reuse(void **state)
{
    (void)state;
    check_reuse((rig_options){.model = rig_golden("llama"), .devices = "ref0"}, "llama on ref0");
    check_reuse((rig_options){.model = rig_golden("llama"), .devices = "ref0,sim0", .split = "1,1"}, "ref0,sim0");
    if (rig_has("cpu0")) {
        check_reuse((rig_options){.model = rig_golden("llama"), .devices = "cpu0"}, "llama on cpu0");
        check_reuse((rig_options){.model = rig_golden("qwen3moe"), .devices = "cpu0"}, "qwen3moe on cpu0");
    }
    if (rig_has("opencl0"))
        check_reuse((rig_options){.model = rig_golden("llama"), .devices = "opencl0"}, "llama on opencl0");
}

static void check_one(rig_options o, const char *what)
{
    answer alone[CASES];
    check(o, what, alone);
    free_all(alone, n_cases);
}

static void test_ref(void **state)
{
    (void)state;
    check_one((rig_options){.model = rig_golden("llama"), .devices = "ref0"}, "llama on ref0");
    check_one((rig_options){.model = rig_golden("qwen3moe"), .devices = "ref0"}, "qwen3moe on ref0");
}

static void test_cpu(void **state)
{
    (void)state;
    if (!rig_has("cpu0"))
        skip();
    check_one((rig_options){.model = rig_golden("llama"), .devices = "cpu0"}, "llama on cpu0");
    check_one((rig_options){.model = rig_golden("qwen2"), .devices = "cpu0"}, "qwen2 on cpu0");
    check_one((rig_options){.model = rig_golden("qwen3moe"), .devices = "cpu0"}, "qwen3moe on cpu0");
}

static void test_opencl(void **state)
{
    (void)state;
    if (!rig_has("opencl0"))
        skip();
    check_one((rig_options){.model = rig_golden("llama"), .devices = "opencl0"}, "llama on opencl0");
    check_one((rig_options){.model = rig_golden("qwen3moe"), .devices = "opencl0"}, "qwen3moe on opencl0");
}

/* With --deterministic, on the driver of tests/plugins/fakecuda; models whose weights are packed and read as they come,
 * norms that products would make by themselves, heads of the width that attention of few rows has. */
static void test_cuda(void **state)
{
    (void)state;
    static char folder[512], driver[600];
    const char *build = getenv("INFER_BUILDDIR");
    const char *const settings[] = {driver, NULL}, *const as_they_come[] = {driver, "cuda.packed=0", NULL};
    snprintf(folder, sizeof folder, "%s/tests/plugins/fakecuda/.libs", build ? build : ".");
    snprintf(driver, sizeof driver, "cuda.driver=%s/libfakecuda.so", folder);
    if (access(driver + strlen("cuda.driver="), R_OK))
        skip();
    rig_options o = {.devices = "cuda0", .settings = settings, .modules = folder, .deterministic = 1};
    n_cases = 3;
    o.model = rig_made("--tiny --vocab-size 264 --dim 128 --heads 2 --kv-heads 1 --head-dim 64 --ffn 192 --layers 2 "
                       "--ctx 256 --type q4_0 --seed 3");
    few_variants = slow ? FEW_HALF : FEW_VARIANTS; /* where it is slow, each variant once */
    check_one(o, "q4_0 on cuda0, deterministic");
    o.settings = as_they_come;
    few_variants = slow ? FEW_VARIANTS & ~FEW_HALF : FEW_VARIANTS;
    check_one(o, "q4_0 as it comes on cuda0, deterministic");
    n_cases = CASES;
}

/* The quantised cache needs heads of whole blocks; quantised weights come with it. Each type is once that of the keys
 * and once that of the values. */
static void test_cache_types(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {{"f32", "q8_0"},    {"f16", "q4_0"},  {"bf16", "f8_e4m3"},
                                           {"f8_e4m3", "f32"}, {"q8_0", "bf16"}, {"q4_0", "f16"}};
    static const struct {
        const char *devices, *split, *needs;
    } places[] = {{"ref0", NULL, "ref0"},
                  {"cpu0", NULL, "cpu0"},
                  {"sim0", NULL, "sim0"},
                  {"cpu0,sim0", "1,1", "cpu0"},
                  {"opencl0", NULL, "opencl0"}};
    const char *model = rig_made("--tiny --vocab-size 264 --dim 64 --heads 2 --kv-heads 1 --head-dim 32 --ffn 96 "
                                 "--layers 2 --ctx 256 --type q4_0 --seed 3");
    check_one((rig_options){.model = model, .devices = "ref0", .cache_type = "q4_0"}, "q4_0 cache on ref0");
    if (rig_has("cpu0"))
        check_one((rig_options){.model = model, .devices = "cpu0", .cache_type = "q8_0"}, "q8_0 cache on cpu0");
    only_variants = CACHE_VARIANTS;
    only_reuse = CACHE_REUSE;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        for (size_t k = 0; k < sizeof pairs / sizeof pairs[0] && rig_has(places[i].needs); k++) {
            if (slow && k != i) /* each place has its own pair only */
                continue;
            const rig_options o = {.model = model,
                                   .devices = places[i].devices,
                                   .split = places[i].split,
                                   .cache_type = pairs[k][0],
                                   .cache_type_v = pairs[k][1]};
            char what[80];
            snprintf(what, sizeof what, "keys %s, values %s on %s", pairs[k][0], pairs[k][1], places[i].devices);
            check_one(o, what);
            check_reuse(o, what);
        }
    }
    only_variants = only_reuse = 0;
}

/* A layer a device. The same arithmetic on both: bit for bit what one of them gives. */
static void test_split(void **state)
{
    (void)state;
    static const char *const native[] = {"sim.native_timelines=1", NULL};
    static const char *const refuses[] = {"sim.deny_ops=rms_norm,glu,add_rms_norm", NULL};
    static const char *const no_cache[] = {"sim.deny_ops=attn_paged", NULL};
    static const char *const odd[] = {"sim.block_multiple=24", "sim.epilogues=0", NULL};
    const struct {
        const char *what, *devices;
        const char *const *settings;
    } rows[] = {
        {"ref0,sim0", "ref0,sim0", NULL},
        {"sim0,ref0, native timelines", "sim0,ref0", native},
        {"ref0,sim0, ops refused", "ref0,sim0", refuses},
        {"ref0,sim0, attention refused", "ref0,sim0", no_cache},
    };
    answer one[CASES], two[CASES];
    rig_options o = {.model = rig_golden("llama"), .devices = "ref0", .ctx = CTX, .batched = 512, .parallel = 1};
    run_alone(&o, one);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        o.devices = rows[i].devices;
        o.split = "1,1";
        o.settings = rows[i].settings;
        check(o, rows[i].what, two);
        compare(one, two, 1, rows[i].what);
        free_all(two, CASES);
    }
    /* blocks of 24 only: other variants ask for 8 */
    o.devices = "ref0,sim0";
    o.settings = odd;
    run_alone(&o, two);
    compare(one, two, 1, "blocks of 24");
    free_all(two, CASES);
    free_all(one, CASES);
}

/* Two kinds of arithmetic: the ids are those of either alone. */
static void test_split_cpu(void **state)
{
    (void)state;
    if (!rig_has("cpu0"))
        skip();
    answer cpu[CASES], both[CASES];
    rig_options o = {.model = rig_golden("llama"), .devices = "cpu0", .ctx = CTX, .batched = 512, .parallel = 1};
    run_alone(&o, cpu);
    o.devices = "cpu0,sim0";
    o.split = "1,1";
    check(o, "cpu0,sim0", both);
    compare(cpu, both, 0, "cpu0,sim0 against cpu0");
    free_all(both, CASES);
    o.cache_type = "f32";
    check(o, "cpu0,sim0, f32 cache", both);
    free_all(both, CASES);
    free_all(cpu, CASES);
}

/* Two models of one runtime share a device: each says what it says alone, and each has its own rows of the ledger. */
static void check_two_models(const char *device)
{
    static const char *const names[] = {"llama", "qwen2"};
    rig r[2];
    answer alone[2][CASES], got[2][CASES], *list[2][CASES];
    for (int m = 0; m < 2; m++) {
        rig_options o = {.model = rig_golden(names[m]), .devices = device, .ctx = CTX, .batched = 512, .parallel = 4};
        run_alone(&o, alone[m]);
        o.runtime = m ? r[0].rt : NULL;
        rig_open(&r[m], &o);
    }
    for (int i = 0; i < CASES; i++) {
        for (int m = 0; m < 2; m++) {
            list[m][i] = &got[m][i];
            rig_submit(&r[m], &wishes[i].q, &got[m][i]);
        }
    }
    for (int m = 0; m < 2; m++) {
        infer_memory_row rows[64];
        uint32_t n = infer_model_memory(r[m].model, rows, 64);
        for (uint32_t i = 0; i < n && i < 64; i++)
            assert_true(rows[i].booked == rows[i].planned);
        assert_int_equal(rig_collect(&r[m], list[m], CASES), INFER_OK);
        compare(alone[m], got[m], 1, names[m]);
        free_all(got[m], CASES);
        free_all(alone[m], CASES);
    }
    rig_close(&r[1]);
    rig_close(&r[0]);
}

static void test_two_models(void **state)
{
    (void)state;
    check_two_models("sim0");
    if (rig_has("cpu0"))
        check_two_models("cpu0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ref),       cmocka_unit_test(test_cpu),         cmocka_unit_test(test_opencl),
        cmocka_unit_test(test_cuda),      cmocka_unit_test(test_cache_types), cmocka_unit_test(test_split),
        cmocka_unit_test(test_split_cpu), cmocka_unit_test(test_two_models),  cmocka_unit_test(test_reuse),
    };
    slow = strcmp(INFER_SANITIZER, "none") != 0 || getenv("INFER_TEST_SLOW");
    rig_watchdog(600);
    make_wishes();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
