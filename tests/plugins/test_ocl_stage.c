/* Small transfers of the OpenCL backend, on a driver in this file that runs what it has when it is told to: none is
 * given memory that is not pinned, none waits, and bytes for the host are there for whoever has seen reached what is
 * signalled behind them. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "unit/unit.h"

#include "ocl_fixture.h"
#include "ocl_timeline.h"

/* ---- A driver -----------------------------------------------------------------------------------------------------
 */

enum { MEM = 1 << 22, MOST = 256 };

struct _cl_mem {
    uint8_t bytes[MEM];
};

struct _cl_event {
    cl_int state;
    int refs;
};

typedef struct command {
    uint8_t *to;
    const uint8_t *from;
    size_t bytes;
    cl_event event;
} command;

static struct {
    command list[MOST];
    uint32_t n, done, foreign, finishes; /* foreign: transfers by memory that is not pinned */
    const uint8_t *pinned;
    size_t pinned_bytes;
} driver;

static void transfer(uint8_t *to, const uint8_t *from, size_t bytes, const uint8_t *host)
{
    assert_true(driver.n < MOST);
    driver.foreign += host < driver.pinned || host + bytes > driver.pinned + driver.pinned_bytes;
    driver.list[driver.n++] = (command){.to = to, .from = from, .bytes = bytes};
}

/* Runs commands up to number n. */
static void run(uint32_t n, cl_int state)
{
    for (; driver.done < n; driver.done++) {
        command *c = &driver.list[driver.done];
        if (c->event)
            c->event->state = state;
        else
            memcpy(c->to, c->from, c->bytes);
    }
}

static cl_mem create_buffer(cl_context x, cl_mem_flags flags, size_t bytes, void *p, cl_int *e)
{
    (void)x;
    (void)p;
    assert_true(flags & CL_MEM_ALLOC_HOST_PTR && bytes <= MEM);
    *e = CL_SUCCESS;
    driver.pinned_bytes = bytes;
    return calloc(1, sizeof(struct _cl_mem));
}

static void *map(cl_command_queue q, cl_mem m, cl_bool wait, cl_map_flags how, size_t at, size_t bytes, cl_uint n,
                 const cl_event *w, cl_event *ev, cl_int *e)
{
    (void)q, (void)wait, (void)how, (void)bytes, (void)n, (void)w, (void)ev;
    *e = CL_SUCCESS;
    driver.pinned = m->bytes + at;
    return m->bytes + at;
}

static cl_int unmap(cl_command_queue q, cl_mem m, void *p, cl_uint n, const cl_event *w, cl_event *ev)
{
    (void)q, (void)m, (void)p, (void)n, (void)w, (void)ev;
    return CL_SUCCESS;
}

static cl_int release_mem(cl_mem m)
{
    free(m);
    return CL_SUCCESS;
}

static cl_int read_buffer(cl_command_queue q, cl_mem m, cl_bool wait, size_t at, size_t bytes, void *p, cl_uint n,
                          const cl_event *w, cl_event *ev)
{
    (void)q, (void)n, (void)w, (void)ev;
    assert_false(wait);
    transfer(p, m->bytes + at, bytes, p);
    return CL_SUCCESS;
}

static cl_int write_buffer(cl_command_queue q, cl_mem m, cl_bool wait, size_t at, size_t bytes, const void *p,
                           cl_uint n, const cl_event *w, cl_event *ev)
{
    (void)q, (void)n, (void)w, (void)ev;
    transfer(m->bytes + at, p, bytes, p);
    if (wait)
        run(driver.n, CL_COMPLETE);
    return CL_SUCCESS;
}

static cl_command_queue create_queue(cl_context x, cl_device_id d, cl_command_queue_properties p, cl_int *e)
{
    (void)x, (void)d, (void)p;
    *e = CL_SUCCESS;
    return NULL;
}

static cl_int release_queue(cl_command_queue q)
{
    (void)q;
    return CL_SUCCESS;
}

static cl_int finish(cl_command_queue q)
{
    (void)q;
    driver.finishes++;
    run(driver.n, CL_COMPLETE);
    return CL_SUCCESS;
}

static cl_int flush(cl_command_queue q)
{
    (void)q;
    return CL_SUCCESS;
}

static cl_int marker(cl_command_queue q, cl_uint n, const cl_event *w, cl_event *ev)
{
    (void)q, (void)n, (void)w;
    *ev = calloc(1, sizeof **ev);
    **ev = (struct _cl_event){.state = CL_SUBMITTED, .refs = 1};
    driver.list[driver.n++] = (command){.event = *ev};
    return CL_SUCCESS;
}

static cl_int event_info(cl_event ev, cl_event_info what, size_t size, void *p, size_t *got)
{
    (void)what, (void)got;
    memcpy(p, &ev->state, size);
    return CL_SUCCESS;
}

static cl_int release_event(cl_event ev)
{
    if (!--ev->refs)
        free(ev);
    return CL_SUCCESS;
}

static const cl_api api = {.CreateBuffer = create_buffer,
                           .ReleaseMemObject = release_mem,
                           .EnqueueMapBuffer = map,
                           .EnqueueUnmapMemObject = unmap,
                           .EnqueueReadBuffer = read_buffer,
                           .EnqueueWriteBuffer = write_buffer,
                           .CreateCommandQueue = create_queue,
                           .ReleaseCommandQueue = release_queue,
                           .Finish = finish,
                           .Flush = flush,
                           .EnqueueMarkerWithWaitList = marker,
                           .GetEventInfo = event_info,
                           .ReleaseEvent = release_event};

/* ---- What is not under test ---------------------------------------------------------------------------------------
 */

infer_status ocl_fill_bytes(infer_queue *q, const infer_range *dst, uint32_t pattern, uint32_t bytes)
{
    (void)q, (void)dst, (void)pattern, (void)bytes;
    return INFER_E_UNSUPPORTED;
}

/* ---- Tests --------------------------------------------------------------------------------------------------------
 */

typedef struct rig {
    infer_device dev;
    infer_queue *q;
    infer_timeline *tl, *other;
    infer_buffer b;
} rig;

static rig *rig_open(void)
{
    rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    memset(&driver, 0, sizeof driver);
    r->dev.host = &ocl_host;
    r->dev.cl = &api;
    r->b = (infer_buffer){calloc(1, sizeof(struct _cl_mem)), MEM, 0};
    assert_non_null(r->b.mem);
    assert_int_equal(ocl_stage_open(&r->dev), INFER_OK);
    assert_int_equal(ocl_queue_create(&r->dev, INFER_QUEUE_COMPUTE, &r->q), INFER_OK);
    assert_int_equal(ocl_tl_create(&r->dev, &r->tl), INFER_OK);
    assert_int_equal(ocl_tl_create(&r->dev, &r->other), INFER_OK);
    return r;
}

static void rig_close(rig *r)
{
    ocl_queue_destroy(&r->dev, r->q);
    ocl_tl_destroy(&r->dev, r->tl);
    ocl_tl_destroy(&r->dev, r->other);
    ocl_stage_close(&r->dev);
    free(r->b.mem);
    free(r);
}

static void fetch(rig *r, uint64_t from, void *to, uint64_t bytes)
{
    const infer_copy_end d = {NULL, to}, s = {&r->b, NULL};
    const infer_copy_region g = {.src_offset = from, .bytes = bytes, .rows = 1};
    assert_int_equal(ocl_cmd_copy(r->q, &d, &s, &g, 1), INFER_OK);
}

static uint64_t value_of(infer_timeline *tl)
{
    uint64_t v = 0;
    assert_int_equal(ocl_tl_query(tl, &v), INFER_OK);
    return v;
}

static infer_status update(rig *r, uint64_t at, const void *data, uint64_t bytes)
{
    const infer_range dst = {&r->b, at, bytes};
    return ocl_cmd_update(r->q, &dst, data, bytes);
}

/* As a step does, twice: parameters in, ids out, the second behind the first. */
static void test_step(void **state)
{
    (void)state;
    rig *r = rig_open();
    uint8_t in[40000], ids[2][8] = {{0}};
    for (uint32_t k = 0; k < 2; k++) {
        memset(in, (int)(7 + k), sizeof in);
        assert_int_equal(update(r, 3, in, sizeof in), INFER_OK);
        memset(in, 99, sizeof in); /* it was read during the call */
        fetch(r, 3 + 39992, ids[k], 8);
        assert_int_equal(ocl_queue_signal(r->q, r->tl, k + 1), INFER_OK);
        if (k == 0)
            run(driver.n - 1, CL_COMPLETE); /* all but the signal */
    }
    assert_int_equal(driver.foreign, 0);
    assert_int_equal(driver.finishes, 0);
    assert_int_equal(value_of(r->tl), 0);
    assert_int_equal(ids[0][0], 0);
    run(driver.done + 1, CL_COMPLETE);
    assert_int_equal(value_of(r->tl), 1);
    assert_int_equal(ids[0][0], 7);
    assert_int_equal(ids[0][7], 7);
    assert_int_equal(ids[1][0], 0);
    run(driver.n, CL_COMPLETE);
    assert_int_equal(ocl_tl_wait(r->tl, 2, 0), INFER_OK);
    assert_int_equal(ids[1][7], 8);
    rig_close(r);
}

/* Who looks at a later signal only, on another timeline, has the bytes of all before, the newest last. */
static void test_order(void **state)
{
    (void)state;
    rig *r = rig_open();
    uint8_t to[4] = {0};
    r->b.mem->bytes[0] = 1;
    r->b.mem->bytes[100] = 2;
    fetch(r, 0, to, 4);
    assert_int_equal(ocl_queue_signal(r->q, r->tl, 1), INFER_OK);
    fetch(r, 100, to, 4);
    assert_int_equal(ocl_queue_signal(r->q, r->other, 1), INFER_OK);
    run(driver.n, CL_COMPLETE);
    assert_int_equal(value_of(r->other), 1);
    assert_int_equal(to[0], 2);
    assert_int_equal(value_of(r->tl), 1);
    assert_int_equal(to[0], 2);
    rig_close(r);
}

/* A large copy to memory that a small one is on its way to, and one from there. */
static void test_meets(void **state)
{
    (void)state;
    rig *r = rig_open();
    static uint8_t to[OCL_STAGE_BYTES + 1];
    memset(to, 0, sizeof to);
    r->b.mem->bytes[0] = 1;
    r->b.mem->bytes[4] = 2;
    fetch(r, 0, to, 1);
    fetch(r, 4, to, sizeof to);
    assert_int_equal(ocl_queue_signal(r->q, r->tl, 1), INFER_OK);
    run(driver.n, CL_COMPLETE);
    assert_int_equal(value_of(r->tl), 1);
    assert_int_equal(to[0], 2);
    fetch(r, 0, to, 1);
    const infer_copy_end d = {&r->b, NULL}, s = {NULL, to};
    const infer_copy_region g = {.dst_offset = 200, .bytes = 1, .rows = 1};
    assert_int_equal(ocl_cmd_copy(r->q, &d, &s, &g, 1), INFER_OK);
    run(driver.n, CL_COMPLETE);
    assert_int_equal(r->b.mem->bytes[200], 1);
    rig_close(r);
}

/* All places are in use: an update is refused with nothing enqueued until a signal is seen; one that never fits waits.
 */
static void test_full(void **state)
{
    (void)state;
    rig *r = rig_open();
    static uint8_t data[(OCL_STAGE_PLACES + 1) * OCL_STAGE_BYTES];
    assert_int_equal(update(r, 0, data, (OCL_STAGE_PLACES - 1) * OCL_STAGE_BYTES), INFER_OK);
    const uint32_t n = driver.n;
    assert_int_equal(update(r, 0, data, OCL_STAGE_BYTES + 1), INFER_AGAIN);
    assert_int_equal(driver.n, n);
    assert_int_equal(driver.foreign, 0);
    assert_int_equal(ocl_queue_signal(r->q, r->tl, 1), INFER_OK);
    run(driver.n, CL_COMPLETE);
    assert_int_equal(value_of(r->tl), 1);
    assert_int_equal(update(r, 0, data, OCL_STAGE_PLACES * OCL_STAGE_BYTES), INFER_OK);
    uint8_t to[4] = {9};
    fetch(r, 0, to, 4); /* no place: the driver's own way */
    assert_int_equal(driver.foreign, 1);
    data[sizeof data - 1] = 5;
    assert_int_equal(update(r, 0, data, sizeof data), INFER_OK);
    assert_int_equal(r->b.mem->bytes[sizeof data - 1], 5);
    rig_close(r);
}

/* What failed brings nothing, and its places are free. */
static void test_failed(void **state)
{
    (void)state;
    rig *r = rig_open();
    uint8_t to[4] = {9, 9, 9, 9};
    uint64_t v;
    fetch(r, 0, to, 4);
    assert_int_equal(ocl_queue_signal(r->q, r->tl, 1), INFER_OK);
    run(driver.n, -5);
    assert_int_equal(ocl_tl_query(r->tl, &v), INFER_E_QUEUE);
    assert_int_equal(to[0], 9);
    assert_true(r->dev.stage.free == UINT64_MAX);
    rig_close(r);
    assert_int_equal(to[0], 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_step), cmocka_unit_test(test_order),  cmocka_unit_test(test_meets),
        cmocka_unit_test(test_full), cmocka_unit_test(test_failed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
