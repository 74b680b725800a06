/* Tiers of the prefix cache: what the pool cannot hold is found again in host memory and in a file, with the same
 * tokens as alone, whatever the disk does; too few blocks, clients that leave, engines that end meanwhile.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "e2e/rig.h"
#include "kv/store.h"
#include "plugins/fault/fault.h"
#include "unit/rng.h"

enum { VOCAB = 264, CTX = 128, MAX = 32, BLOCK = 8, PROMPT = 60, OUT = 6 };

static char dir[] = "/tmp/infer-tier-XXXXXX";

static rig_options options(void)
{
    return (rig_options){.model = rig_golden("llama"),
                         .devices = rig_has("cpu0") ? "cpu0" : "ref0",
                         .ctx = CTX,
                         .parallel = MAX,
                         .batched = 256,
                         .block = BLOCK,
                         .queue = 1000,
                         .prefix_fetch = INFER_PREFIX_FETCH_ALWAYS};
}

/* Bytes of cache for so many tokens. */
static uint64_t cache_bytes(uint64_t tokens)
{
    static uint64_t block;
    const rig_options o = options();
    block = block ? block : rig_cache_bytes(&o, BLOCK);
    return block * tokens / BLOCK;
}

/* Bytes of a file for so many tokens. */
static uint64_t file_bytes(uint64_t tokens)
{
    return infer_kv_store_slot_bytes(cache_bytes(BLOCK)) * tokens / BLOCK;
}

static infer_request wish(uint32_t i, int32_t *prompt)
{
    rng r = {i + 1};
    infer_request q = {.flags = INFER_REQ_IGNORE_EOS, .prompt = prompt, .n_prompt = PROMPT, .max_tokens = OUT};
    for (uint32_t k = 0; k < PROMPT; k++)
        prompt[k] = (int32_t)(3 + rng_below(&r, VOCAB - 3));
    return q;
}

static void ask(rig *r, uint32_t i, answer *a)
{
    int32_t prompt[CTX];
    infer_request q = wish(i, prompt);
    rig_submit(r, &q, a);
}

static answer alone[MAX];

static void same_text(const answer *got, uint32_t i)
{
    assert_int_equal(got->finish, INFER_FINISH_LENGTH);
    assert_int_equal(got->n, alone[i].n);
    assert_memory_equal(got->ids, alone[i].ids, got->n * sizeof *got->ids);
}

static int open_all(void **state)
{
    (void)state;
    rig r;
    const rig_options o = options();
    assert_non_null(mkdtemp(dir));
    rig_open(&r, &o);
    for (uint32_t i = 0; i < MAX; i++) {
        answer *list[] = {&alone[i]};
        ask(&r, i, &alone[i]);
        assert_int_equal(rig_collect(&r, list, 1), INFER_OK);
    }
    rig_close(&r);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < MAX; i++)
        answer_free(&alone[i]);
    return rmdir(dir); /* every file in it had no name */
}

static void nap(uint32_t us)
{
    nanosleep(&(struct timespec){us / 1000000, (long)(us % 1000000) * 1000}, NULL);
}

/* Until what is to be written is written: nothing is left in host memory, or, where it stays there too, nothing has
 * changed for as long as a busy machine may keep the file's thread waiting. */
static void settle(rig *r)
{
    enum { NAP_US = 10000, STILL = 25 };
    infer_engine_stats st = rig_stats(r), last;
    for (uint32_t still = 0; st.tier_host.blocks && still < STILL; still++) {
        last = st;
        nap(NAP_US);
        st = rig_stats(r);
        if (st.tier_file.stored != last.tier_file.stored || st.tier_host.stored != last.tier_host.stored)
            still = 0;
    }
}

/* n requests one after the other; returns the prompt tokens that were found. */
static uint64_t one_by_one(rig *r, uint32_t n)
{
    uint64_t cached = 0;
    for (uint32_t i = 0; i < n; i++) {
        answer a, *list[] = {&a};
        ask(r, i, &a);
        assert_int_equal(rig_collect(r, list, 1), INFER_OK);
        same_text(&a, i);
        cached += a.n_cached;
        answer_free(&a);
        if (r->engine && rig_stats(r).tier_file.capacity)
            settle(r);
    }
    return cached;
}

/* A pool of three prompts, and sixteen of them, twice: what of the second time is found, and where. */
static void test_twice(void **state)
{
    (void)state;
    enum { N = 16, WHOLE = PROMPT / BLOCK * BLOCK };
    const uint64_t text = (PROMPT + OUT + BLOCK - 1) / BLOCK * BLOCK;
    static const struct {
        int host, file;
    } rows[] = {{0, 0}, {1, 0}, {0, 1}, {1, 1}};
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        rig r;
        rig_options o = options();
        o.parallel = 4;
        o.kv_memory = cache_bytes(3 * text);
        o.prefix_host = rows[k].host ? cache_bytes((rows[k].file ? 4 : 2 * N) * text) : 0;
        o.prefix_dir = rows[k].file ? dir : NULL;
        o.prefix_file = rows[k].file ? file_bytes(2 * N * text) : 0;
        rig_open(&r, &o);
        assert_int_equal(one_by_one(&r, N), 0);
        const infer_engine_stats before = rig_stats(&r);
        const uint64_t cached = one_by_one(&r, N);
        const infer_engine_stats st = rig_stats(&r);
        print_message("host %d, file %d: %llu of %d found; host: %llu of %llu, %llu stored, %llu back; file: %llu of "
                      "%llu, %llu stored, %llu back; %llu lost\n",
                      rows[k].host, rows[k].file, (unsigned long long)cached, N * PROMPT,
                      (unsigned long long)st.tier_host.blocks, (unsigned long long)st.tier_host.capacity,
                      (unsigned long long)st.tier_host.stored, (unsigned long long)st.tier_host.hits,
                      (unsigned long long)st.tier_file.blocks, (unsigned long long)st.tier_file.capacity,
                      (unsigned long long)st.tier_file.stored, (unsigned long long)st.tier_file.hits,
                      (unsigned long long)(st.tier_host.lost + st.tier_file.lost));
        /* Told truthfully: what was found was not computed. */
        assert_int_equal(cached + (st.prompt_tokens - before.prompt_tokens), N * PROMPT);
        assert_int_equal(st.prefix_hits - before.prefix_hits, cached);
        assert_int_equal(st.tier_host.lost + st.tier_file.lost, 0);
        if (!rows[k].host && !rows[k].file) {
            assert_true(!cached && !st.tier_host.stored && !st.tier_file.stored);
        } else {
            assert_int_equal(cached, N * WHOLE);
            assert_int_equal(st.tier_host.hits + st.tier_file.hits, N * WHOLE / BLOCK);
            assert_true(rows[k].file ? st.tier_file.hits > st.tier_host.hits : !st.tier_file.hits);
        }
        rig_close(&r);
    }
}

/* A quarter of what 32 need at once: all end, each with the text that it has alone; and once more. */
static void test_few_blocks(void **state)
{
    (void)state;
    const uint64_t text = (PROMPT + OUT + BLOCK - 1) / BLOCK * BLOCK;
    static const struct {
        int host, file, swap;
    } rows[] = {{1, 0, 0}, {0, 1, 0}, {1, 1, 0}, {1, 1, 1}, {0, 1, 1}};
    static answer got[MAX];
    answer *list[MAX];
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        rig r;
        rig_options o = options();
        uint64_t cached = 0;
        o.kv_memory = cache_bytes(MAX * text / 4);
        o.prefix_host = rows[k].host ? cache_bytes(MAX * text / 2) : 0;
        o.prefix_dir = rows[k].file ? dir : NULL;
        o.prefix_file = file_bytes(2 * MAX * text);
        o.swap = rows[k].swap ? 1 << 24 : 0;
        o.preemption = INFER_PREEMPTION_SWAP;
        o.chunk = 20;
        rig_open(&r, &o);
        for (int again = 0; again < 3; again++) {
            for (uint32_t i = 0; i < MAX; i++)
                ask(&r, i, list[i] = &got[i]);
            assert_int_equal(rig_collect(&r, list, MAX), INFER_OK);
            for (uint32_t i = 0; i < MAX; i++) {
                same_text(&got[i], i);
                cached += got[i].n_cached;
                answer_free(&got[i]);
            }
            rig_idle(&r);
            if (rows[k].file)
                settle(&r);
        }
        const infer_engine_stats st = rig_stats(&r);
        print_message("host %d, file %d, swap %d: %llu found, %llu back from host memory, %llu from the file\n",
                      rows[k].host, rows[k].file, rows[k].swap, (unsigned long long)cached,
                      (unsigned long long)st.tier_host.hits, (unsigned long long)st.tier_file.hits);
        assert_true(st.tier_host.hits + st.tier_file.hits > 0);
        assert_true(!rows[k].file || st.tier_file.hits > 0);
        rig_close(&r);
    }
}

/* Nothing comes back as it was written, or not at all, or nothing can be written: it is computed. */
static void test_bad_disk(void **state)
{
    (void)state;
    enum { N = 12 };
    const uint64_t text = (PROMPT + OUT + BLOCK - 1) / BLOCK * BLOCK;
    static const struct {
        const char *what;
        uint32_t faults, every;
    } rows[] = {{"no room", INFER_KV_FAULT_WRITE, 1},
                {"no room, now and then", INFER_KV_FAULT_WRITE, 3},
                {"an error", INFER_KV_FAULT_READ, 1},
                {"an error, now and then", INFER_KV_FAULT_READ, 5},
                {"the file is short", INFER_KV_FAULT_SHORT, 1},
                {"other bytes", INFER_KV_FAULT_FLIP, 1},
                {"other bytes, now and then", INFER_KV_FAULT_FLIP, 4}};
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        rig r;
        rig_options o = options();
        o.parallel = 4;
        o.kv_memory = cache_bytes(3 * text);
        o.prefix_dir = dir;
        o.prefix_file = file_bytes(2 * N * text);
        rig_open(&r, &o);
        infer_kv_store_plant(rows[k].faults, rows[k].every, 0);
        uint64_t cached = one_by_one(&r, N);
        assert_int_equal(cached, 0);
        cached += one_by_one(&r, N);
        cached += one_by_one(&r, N);
        infer_kv_store_plant(0, 1, 0);
        const infer_engine_stats st = rig_stats(&r);
        print_message("%s: %llu found, %llu stored, %llu lost\n", rows[k].what, (unsigned long long)cached,
                      (unsigned long long)st.tier_file.stored, (unsigned long long)st.tier_file.lost);
        assert_true(st.tier_host.lost + st.tier_file.lost > 0);
        assert_true(rows[k].every > 1 ? cached > 0 : !cached);
        assert_int_equal(cached + st.prompt_tokens, 3 * N * PROMPT);
        one_by_one(&r, N); /* the disk is well again */
        assert_true(one_by_one(&r, N) > 0);
        rig_close(&r);
    }
}

/* While one waits for a slow disk others run; it can leave, and the engine can end. */
static void test_slow_disk(void **state)
{
    (void)state;
    enum { N = 8 };
    const uint64_t text = (PROMPT + OUT + BLOCK - 1) / BLOCK * BLOCK;
    for (int how = 0; how < 3; how++) {
        rig r;
        rig_options o = options();
        answer slow, other, *list[] = {&slow, &other};
        o.parallel = 4;
        o.kv_memory = cache_bytes(3 * text);
        o.prefix_dir = dir;
        o.prefix_file = file_bytes(2 * N * text);
        rig_open(&r, &o);
        assert_int_equal(one_by_one(&r, N), 0);
        infer_kv_store_plant(0, 1, 60000); /* 7 blocks: 0.4 s */
        ask(&r, 0, &slow);
        nap(20000);
        assert_int_equal(rig_stats(&r).n_waiting, 1);
        assert_int_equal(rig_stats(&r).n_running, 0);
        ask(&r, MAX - 1, &other);
        if (how < 2) {
            assert_int_equal(rig_collect(&r, &list[1], 1), INFER_OK);
            same_text(&other, MAX - 1);
            assert_int_equal(slow.done, 0);
        }
        if (how == 1)
            infer_engine_cancel(r.engine, slow.id);
        if (how < 2) {
            const uint64_t t0 = infer_engine_now();
            assert_int_equal(rig_collect(&r, list, 2), INFER_OK);
            if (how) {
                assert_int_equal(slow.finish, INFER_FINISH_CANCELLED);
                assert_true(infer_engine_now() - t0 < 300000000u || getenv("INFER_TEST_SLOW"));
            } else {
                same_text(&slow, 0);
                assert_int_equal(slow.n_cached, PROMPT / BLOCK * BLOCK);
                assert_true(slow.t_first_token > other.t_first_token);
            }
            rig_idle(&r);
            infer_kv_store_plant(0, 1, 0);
            settle(&r);
            assert_true(one_by_one(&r, N) > 0); /* nothing is stuck */
            answer_free(&slow);
            answer_free(&other);
        }
        rig_close(&r);
        infer_kv_store_plant(0, 1, 0);
        if (how == 2) { /* the engine has ended them: their events were not asked for */
            answer_free(&slow);
            answer_free(&other);
        }
    }
}

/* Clients leave at any time, with all tiers; the others' text is as alone. */
static void test_leaving(void **state)
{
    (void)state;
    const uint64_t text = (PROMPT + OUT + BLOCK - 1) / BLOCK * BLOCK;
    static answer got[MAX];
    answer *list[MAX];
    rng x = {5};
    rig r;
    rig_options o = options();
    o.parallel = 8;
    o.kv_memory = cache_bytes(6 * text);
    o.prefix_host = cache_bytes(8 * text);
    o.prefix_dir = dir;
    o.prefix_file = file_bytes(MAX * text);
    o.swap = 1 << 20;
    o.preemption = INFER_PREEMPTION_SWAP;
    rig_open(&r, &o);
    infer_kv_store_plant(0, 1, 300);
    uint64_t left = 0;
    for (int round = 0; round < 12; round++) {
        for (uint32_t i = 0; i < MAX; i++)
            ask(&r, i, list[i] = &got[i]);
        for (int k = 0; k < 10; k++) {
            rig_poll(&r, (int32_t)rng_below(&x, 3));
            infer_engine_cancel(r.engine, got[rng_below(&x, MAX)].id);
        }
        assert_int_equal(rig_collect(&r, list, MAX), INFER_OK);
        for (uint32_t i = 0; i < MAX; i++) {
            left += got[i].finish == INFER_FINISH_CANCELLED;
            if (got[i].finish != INFER_FINISH_CANCELLED)
                same_text(&got[i], i);
            answer_free(&got[i]);
        }
        rig_idle(&r);
    }
    infer_kv_store_plant(0, 1, 0);
    const infer_engine_stats st = rig_stats(&r);
    print_message("%llu left; %llu back from host memory, %llu from the file\n", (unsigned long long)left,
                  (unsigned long long)st.tier_host.hits, (unsigned long long)st.tier_file.hits);
    assert_true(left > 20 && st.tier_host.hits && st.tier_file.hits);
    rig_close(&r);
}

/* A copy of a step fails, whichever: who was in it is told so, and nobody has other tokens than alone, then or later.
 */
static void test_failing_steps(void **state)
{
    (void)state;
    enum { N = 8 };
    const uint64_t text = (PROMPT + OUT + BLOCK - 1) / BLOCK * BLOCK;
    const char *settings[] = {rig_wrap(rig_has("cpu0") ? "cpu" : "sim"), NULL};
    uint32_t badly = 0, well = 0, fatal = 0;
    int64_t n = 20;
    for (int more = 1; more; n += 7) {
        rig r;
        rig_options o = options();
        static answer got[N];
        answer *list[N];
        const infer_fault_api *fault = rig_fault();
        o.devices = "fault0";
        o.settings = settings;
        o.parallel = 4;
        o.chunk = 30;
        o.kv_memory = cache_bytes(3 * text);
        o.prefix_host = cache_bytes(N * text);
        rig_open(&r, &o);
        fault->arm(INFER_FAULT_COPY, n, 0);
        for (int round = 0; round < 3; round++) {
            uint32_t asked = 0;
            for (uint32_t i = 0; i < N; i++) {
                int32_t prompt[CTX];
                infer_request q = wish(i, prompt);
                q.struct_size = sizeof q;
                memset(&got[i], 0, sizeof got[i]);
                q.user = &got[i];
                if (infer_engine_submit(r.engine, &q, &got[i].id, NULL) == INFER_OK)
                    list[asked++] = &got[i];
            }
            (void)rig_collect(&r, list, asked);
            for (uint32_t i = 0; i < N; i++) {
                assert_memory_equal(got[i].ids, alone[i].ids, got[i].n * sizeof *got[i].ids);
                well += got[i].finish == INFER_FINISH_LENGTH && got[i].n == alone[i].n;
                badly += got[i].finish == INFER_FINISH_ERROR;
                answer_free(&got[i]);
            }
        }
        fatal += rig_stats(&r).fatal != INFER_OK;
        more = fault->injected() && n < 700;
        rig_close(&r);
    }
    rig_fault();
    print_message("%u ended well, %u badly, %u engines; %lld copies\n", well, badly, fatal, (long long)n);
    assert_true(well > 100 && badly > 10);
}

/* By measured times: tokens of a model that computes faster than a disk with delays reads are computed. */
static void test_auto(void **state)
{
    (void)state;
    enum { N = 10 };
    const uint64_t text = (PROMPT + OUT + BLOCK - 1) / BLOCK * BLOCK;
    rig r;
    rig_options o = options();
    o.prefix_fetch = INFER_PREFIX_FETCH_AUTO;
    o.parallel = 4;
    o.kv_memory = cache_bytes(3 * text);
    o.prefix_dir = dir;
    o.prefix_file = file_bytes(2 * N * text);
    infer_kv_store_plant(0, 1, 200000); /* as it is measured at creation */
    rig_open(&r, &o);
    infer_kv_store_plant(0, 1, 0);
    assert_int_equal(one_by_one(&r, N), 0);
    assert_int_equal(one_by_one(&r, N), 0);
    assert_int_equal(rig_stats(&r).tier_file.hits, 0);
    rig_close(&r);
}

static void refused(const rig_options *o, infer_status want, const char *text)
{
    rig r;
    assert_int_equal(rig_try(&r, o), want);
    if (!strstr(r.err.text, text))
        fail_msg("%s", r.err.text);
    rig_close(&r);
}

/* Folders that others may write, that are none, with too little room; a file without a block's room. And the file:
 * ours alone, without a name, not passed on. */
static void test_folder(void **state)
{
    (void)state;
    rig r;
    rig_options o = options();
    char open_to_all[64], path[300], at[300];
    snprintf(open_to_all, sizeof open_to_all, "%s/all", dir);
    assert_int_equal(mkdir(open_to_all, 0700), 0);
    assert_int_equal(chmod(open_to_all, 0722), 0);
    o.prefix_file = 1 << 20;
    o.prefix_dir = open_to_all;
    refused(&o, INFER_E_INVALID, "nobody else may write it");
    assert_int_equal(rmdir(open_to_all), 0);
    refused(&o, INFER_E_NOT_FOUND, open_to_all);
    o.prefix_dir = "/proc/self/exe";
    refused(&o, INFER_E_IO, "/proc/self/exe");
    o.prefix_dir = dir;
    o.prefix_file = 1;
    refused(&o, INFER_E_INVALID, "does not hold a block");
    o.prefix_file = UINT64_C(1) << 50; /* before there are records for so many blocks */
    refused(&o, INFER_E_IO, "bytes are free, the file takes 1125899906842624");
    o.prefix_file = 1 << 20;
    rig_open(&r, &o);
    DIR *fds = opendir("/proc/self/fd");
    int found = 0;
    for (struct dirent *e; fds && (e = readdir(fds));) {
        snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
        const ssize_t n = readlink(path, at, sizeof at - 1);
        if (n <= 0)
            continue;
        at[n] = 0;
        if (!strstr(at, ".infer-kv-"))
            continue;
        struct stat st;
        const int fd = atoi(e->d_name);
        found++;
        assert_non_null(strstr(at, "(deleted)"));
        assert_int_equal(fstat(fd, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        assert_int_equal(st.st_nlink, 0);
        assert_true((uint64_t)st.st_blocks * 512 >= (uint64_t)st.st_size && st.st_size > 0);
        assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    }
    closedir(fds);
    assert_int_equal(found, 1);
    rig_close(&r);
}

int main(void)
{
    rig_watchdog(600);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_twice),     cmocka_unit_test(test_few_blocks), cmocka_unit_test(test_bad_disk),
        cmocka_unit_test(test_slow_disk), cmocka_unit_test(test_leaving),    cmocka_unit_test(test_failing_steps),
        cmocka_unit_test(test_auto),      cmocka_unit_test(test_folder),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
