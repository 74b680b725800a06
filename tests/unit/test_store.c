/* core/kv/store: what is written comes back or counts as not read; reads before writes; folders and room.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "unit/unit.h"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "kv/store.h"
#include "unit/rng.h"

enum { PLACES = 8, SLOTS = 20, A = 5000, B = 37 };

static char dir[] = "/tmp/infer-store-XXXXXX";
static uint8_t a[PLACES * A], b[PLACES * B];
static const infer_kv_store_part parts[] = {{a, A}, {b, B}};

static void wake(void *user)
{
    __atomic_fetch_add((uint32_t *)user, 1, __ATOMIC_SEQ_CST);
}

static uint32_t n_woken;

static infer_kv_store_options options(void)
{
    return (infer_kv_store_options){
        .dir = dir, .n_slots = SLOTS, .n_jobs = PLACES, .parts = parts, .n_parts = 2, .wake = wake, .user = &n_woken};
}

static infer_kv_store *opened(void)
{
    infer_kv_store *s = NULL;
    infer_error e = {0};
    const infer_kv_store_options o = options();
    if (infer_kv_store_create(&o, &s, &e))
        fail_msg("%s", e.text);
    assert_true(infer_kv_store_read_ns(s) > 0);
    return s;
}

static infer_kv_io taken(infer_kv_store *s)
{
    infer_kv_io io;
    for (int i = 0; !infer_kv_store_take(s, &io); i++) {
        assert_true(i < 20000);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return io;
}

static void fill(int32_t place, uint32_t what)
{
    rng r = {what};
    for (int i = 0; i < A; i++)
        a[place * A + i] = (uint8_t)rng_next(&r);
    for (int i = 0; i < B; i++)
        b[place * B + i] = (uint8_t)rng_next(&r);
}

static int holds(int32_t place, uint32_t what)
{
    uint8_t was_a[A], was_b[B];
    memcpy(was_a, &a[place * A], A);
    memcpy(was_b, &b[place * B], B);
    fill(place, what);
    return !memcmp(was_a, &a[place * A], A) && !memcmp(was_b, &b[place * B], B);
}

static void test_round_trip(void **state)
{
    (void)state;
    infer_kv_store *s = opened();
    uint32_t in_slot[SLOTS] = {0};
    rng r = {3};
    for (uint32_t i = 1; i < 400; i++) {
        const int32_t place = (int32_t)rng_below(&r, PLACES), slot = (int32_t)rng_below(&r, SLOTS);
        const infer_kv_io io = {.is_write = !in_slot[slot] || rng_below(&r, 2), .place = place, .slot = slot, .id = i};
        if (io.is_write)
            fill(place, in_slot[slot] = i);
        infer_kv_store_post(s, &io);
        const infer_kv_io done = taken(s);
        assert_true(done.ok && done.id == i && done.slot == slot);
        assert_true(holds(place, in_slot[slot]));
    }
    while (__atomic_load_n(&n_woken, __ATOMIC_SEQ_CST) < 399)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    assert_false(infer_kv_store_ready(s));
    infer_kv_store_destroy(s);
}

/* Every way in which a disk fails is told, and none is taken for what was written. */
static void test_faults(void **state)
{
    (void)state;
    static const uint32_t faults[] = {INFER_KV_FAULT_READ, INFER_KV_FAULT_SHORT, INFER_KV_FAULT_FLIP};
    infer_kv_store *s = opened();
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        fill(0, 7);
        infer_kv_store_post(s, &(infer_kv_io){.is_write = 1, .place = 0, .slot = 1});
        assert_true(taken(s).ok);
        infer_kv_store_plant(faults[i], 1, 0);
        infer_kv_store_post(s, &(infer_kv_io){.place = 1, .slot = 1});
        assert_false(taken(s).ok);
        infer_kv_store_plant(0, 1, 0);
    }
    infer_kv_store_plant(INFER_KV_FAULT_WRITE, 1, 0);
    infer_kv_store_post(s, &(infer_kv_io){.is_write = 1, .place = 0, .slot = 1});
    assert_false(taken(s).ok);
    infer_kv_store_plant(0, 1, 0);
    /* nobody wrote there */
    infer_kv_store_post(s, &(infer_kv_io){.place = 1, .slot = 10});
    assert_false(taken(s).ok);
    infer_kv_store_destroy(s);
}

/* Reads go first; what is posted and not begun goes with the store. */
static void test_order(void **state)
{
    (void)state;
    infer_kv_store *s = opened();
    infer_kv_store_post(s, &(infer_kv_io){.is_write = 1, .place = 0, .slot = 0});
    assert_true(taken(s).ok);
    infer_kv_store_plant(0, 1, 20000);
    for (int32_t i = 0; i < 4; i++)
        infer_kv_store_post(s, &(infer_kv_io){.is_write = 1, .place = i, .slot = 1 + i});
    infer_kv_store_post(s, &(infer_kv_io){.place = 5, .slot = 0});
    int before = 0;
    while (taken(s).is_write)
        before++;
    assert_true(before <= 2); /* at most what was under way */
    const int left = 4 - before;
    infer_kv_store_destroy(s);
    assert_true(left >= 2);
    infer_kv_store_plant(0, 1, 0);
    infer_kv_store_destroy(NULL);
}

static void refused(infer_kv_store_options o, infer_status want, const char *text)
{
    infer_kv_store *s = NULL;
    infer_error e = {0};
    assert_int_equal(infer_kv_store_create(&o, &s, &e), want);
    assert_null(s);
    if (!strstr(e.text, text))
        fail_msg("%s", e.text);
}

static void test_refused(void **state)
{
    (void)state;
    infer_kv_store_options o = options();
    const infer_kv_store_part huge[] = {{a, UINT64_C(1) << 30}}, beyond[] = {{a, UINT64_C(1) << 50}};
    o.parts = huge;
    o.n_parts = 1;
    o.n_slots = 1 << 20; /* a petabyte */
    refused(o, INFER_E_IO, "bytes are free, the file takes 1125899906842624");
    o.parts = beyond;
    refused(o, INFER_E_TOO_LARGE, "1048576 blocks");
    o = options();
    o.dir = "/nowhere at all";
    refused(o, INFER_E_NOT_FOUND, "/nowhere at all");
    o.dir = "/dev/null";
    refused(o, INFER_E_IO, "/dev/null");
    o.dir = "/tmp"; /* everybody's */
    refused(o, INFER_E_INVALID, "/tmp");
    if (geteuid() == 0) { /* somebody else's */
        char theirs[64];
        snprintf(theirs, sizeof theirs, "%s/theirs", dir);
        assert_int_equal(mkdir(theirs, 0700) | chown(theirs, 12345, 12345), 0);
        o.dir = theirs;
        refused(o, INFER_E_INVALID, theirs);
        assert_int_equal(rmdir(theirs), 0);
    }
    o = options();
    o.n_slots = 0;
    refused(o, INFER_E_INVALID, "0 blocks");
    infer_kv_store_plant(INFER_KV_FAULT_WRITE, 1, 0); /* room, but writing fails */
    refused(options(), INFER_E_IO, dir);
    infer_kv_store_plant(0, 1, 0);
}

static void test_no_memory(void **state)
{
    (void)state;
    for (int n = 0;; n++) {
        infer_kv_store *s = NULL;
        infer_error e = {0};
        const infer_kv_store_options o = options();
        infer_alloc_fail_after(n, 0);
        const infer_status st = infer_kv_store_create(&o, &s, &e);
        if (!infer_alloc_fail_after(-1, 0)) {
            assert_int_equal(st, INFER_OK);
            infer_kv_store_destroy(s);
            break;
        }
        assert_int_equal(st, INFER_E_NO_MEMORY);
        assert_true(e.text[0]);
    }
}

static int make_dir(void **state)
{
    (void)state;
    return !mkdtemp(dir);
}

static int remove_dir(void **state)
{
    (void)state;
    return rmdir(dir); /* nothing is left in it */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_faults),    cmocka_unit_test(test_order),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
