/* Programs of the OpenCL backend on a driver in this file, whose kernels take groups of some size: kernels that go
 * through rows have as large groups as they are given, and what cannot be built is tried once.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "unit/unit.h"

#include "ocl_fixture.h"

/* ---- A driver -----------------------------------------------------------------------------------------------------
 */

enum { ROWS, COUNT, KERNELS }; /* a kernel that says its size, one that does not */

static struct {
    size_t lanes, largest; /* as the program was built; what a kernel of known size gets at most */
    int builds, programs;
} driver;

static cl_program create(cl_context x, cl_uint n, const char **text, const size_t *bytes, cl_int *e)
{
    (void)x, (void)n, (void)text, (void)bytes;
    driver.programs++;
    *e = CL_SUCCESS;
    return (cl_program)(void *)&driver;
}

static cl_int build(cl_program p, cl_uint n, const cl_device_id *id, const char *options,
                    void(CL_CALLBACK *done)(cl_program, void *), void *ctx)
{
    const char *lanes = strstr(options, "-DLANES=");
    (void)p, (void)n, (void)id, (void)done, (void)ctx;
    assert_non_null(lanes);
    driver.lanes = strtoul(lanes + 8, NULL, 10);
    driver.builds++;
    return CL_SUCCESS;
}

static cl_int build_info(cl_program p, cl_device_id id, cl_program_build_info what, size_t cap, void *out, size_t *n)
{
    (void)p, (void)id, (void)what, (void)cap, (void)out, (void)n;
    return CL_INVALID_VALUE;
}

static cl_int kernels(cl_program p, cl_uint cap, cl_kernel *k, cl_uint *n)
{
    static char names[KERNELS];
    (void)p;
    assert_true(cap >= KERNELS);
    for (int i = 0; i < KERNELS; i++)
        k[i] = (cl_kernel)(void *)&names[i];
    *n = KERNELS;
    return CL_SUCCESS;
}

static int number_of(cl_kernel k)
{
    cl_kernel all[KERNELS];
    cl_uint n;
    int i = 0;
    (void)kernels(NULL, KERNELS, all, &n);
    while (all[i] != k)
        i++;
    return i;
}

static cl_int kernel_info(cl_kernel k, cl_device_id id, cl_kernel_work_group_info what, size_t cap, void *out,
                          size_t *n)
{
    size_t v[3] = {0};
    (void)id, (void)n;
    if (what == CL_KERNEL_COMPILE_WORK_GROUP_SIZE) {
        if (number_of(k) == ROWS)
            v[0] = driver.lanes, v[1] = v[2] = 1;
    } else if (number_of(k) == ROWS) {
        v[0] = driver.lanes < driver.largest ? driver.lanes : driver.largest;
    } else {
        v[0] = 128; /* of unknown size: less than others get */
    }
    memcpy(out, v, cap);
    return CL_SUCCESS;
}

static cl_int release_kernel(cl_kernel k)
{
    (void)k;
    return CL_SUCCESS;
}

static cl_int release(cl_program p)
{
    (void)p;
    driver.programs--;
    return CL_SUCCESS;
}

static const cl_api api = {.CreateProgramWithSource = create,
                           .BuildProgram = build,
                           .GetProgramBuildInfo = build_info,
                           .CreateKernelsInProgram = kernels,
                           .GetKernelWorkGroupInfo = kernel_info,
                           .ReleaseKernel = release_kernel,
                           .ReleaseProgram = release};

/* ---- What is not under test ---------------------------------------------------------------------------------------
 */

int ocl_cache_read(infer_device *dev, const char *key, void **data, uint64_t *bytes)
{
    (void)dev, (void)key, (void)data, (void)bytes;
    return 0;
}

void ocl_cache_write(infer_device *dev, const char *key, const void *data, uint64_t bytes)
{
    (void)dev, (void)key, (void)data, (void)bytes;
}

/* ---- Tests --------------------------------------------------------------------------------------------------------
 */

static const ocl_tune lanes_tune = {.lanes = 256, .row_lanes = 512, .mv_lanes = 32, .mv_columns = 8};

static void open_dev(infer_device *dev, size_t largest)
{
    memset(&driver, 0, sizeof driver);
    memset(dev, 0, sizeof *dev);
    complaints = 0;
    driver.largest = largest;
    dev->host = &ocl_host;
    dev->cl = &api;
    dev->tune = &lanes_tune;
    dev->row_lanes = 512;
    dev->max_group = 1024;
    pthread_mutex_init(&dev->mu, NULL);
}

static void close_dev(infer_device *dev)
{
    ocl_programs_free(dev);
    assert_int_equal(driver.programs, 0);
    pthread_mutex_destroy(&dev->mu);
}

/* A kernel that says how large its groups are gets them, whatever others beside it get. */
static void test_said(void **state)
{
    infer_device dev;
    const ocl_program *p, *again;
    (void)state;
    open_dev(&dev, 1024);
    assert_int_equal(ocl_program_rows(&dev, &p), INFER_OK);
    assert_int_equal(p->lanes, 512);
    assert_int_equal(ocl_program_sample(&dev, &p), INFER_OK);
    assert_int_equal(p->lanes, 512);
    assert_int_equal(ocl_program_sample(&dev, &again), INFER_OK);
    assert_ptr_equal(p, again);
    assert_int_equal(driver.builds, 2);
    assert_int_equal(complaints, 0);
    close_dev(&dev);
}

/* Where a driver gives less, groups are smaller, and the host need not do the op. */
static void test_less(void **state)
{
    infer_device dev;
    const ocl_program *p;
    (void)state;
    open_dev(&dev, 192);
    assert_int_equal(ocl_program_rows(&dev, &p), INFER_OK);
    assert_int_equal(p->lanes, 128);
    assert_int_equal(driver.lanes, 128);
    close_dev(&dev);
}

/* What cannot be is said once, also to who asks for every op of a model. */
static void test_none(void **state)
{
    infer_device dev;
    const ocl_program *p;
    (void)state;
    open_dev(&dev, 16);
    assert_int_equal(ocl_program_rows(&dev, &p), INFER_E_UNSUPPORTED);
    const int builds = driver.builds, said = complaints;
    assert_true(builds > 0 && said > 0);
    for (int i = 0; i < 10; i++)
        assert_int_equal(ocl_program_rows(&dev, &p), INFER_E_UNSUPPORTED);
    assert_int_equal(driver.builds, builds);
    assert_int_equal(complaints, said);
    /* kernels of other programs have the size of their launches */
    assert_int_equal(ocl_program_ops(&dev, &p), INFER_E_UNSUPPORTED);
    close_dev(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_said),
        cmocka_unit_test(test_less),
        cmocka_unit_test(test_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
