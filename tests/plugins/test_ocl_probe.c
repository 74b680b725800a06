/* In which order the OpenCL backend numbers devices, on a driver in this file: accelerators come first, whatever the
 * loader's order of platforms, and a device that is of two types is one. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "unit/unit.h"

#include "ocl_fixture.h"

/* ---- What the probe needs of other files, none of which is asked here ---- */

void ocl_text(const cl_api *cl, cl_device_id id, cl_device_info what, char *out, size_t cap)
{
    (void)cl, (void)id, (void)what, (void)cap;
    out[0] = 0;
}

uint64_t ocl_number(const cl_api *cl, cl_device_id id, cl_device_info what)
{
    (void)cl, (void)id, (void)what;
    return 0;
}

int cl_api_load(cl_api *api, char *why, size_t cap)
{
    (void)api, (void)why, (void)cap;
    return 0;
}

void launch_put(void *dst, void *src, uint32_t size)
{
    (void)dst, (void)src, (void)size;
}

/* ---- The driver ---- */

enum { PLATFORMS = 3, DEVICES = 5 };

static char platform[PLATFORMS], device[DEVICES];

static const struct {
    int of; /* its platform; the last one has none */
    cl_device_type type;
} devices[DEVICES] = {{0, CL_DEVICE_TYPE_CPU},
                      {1, CL_DEVICE_TYPE_GPU},
                      {1, CL_DEVICE_TYPE_CPU},
                      {0, CL_DEVICE_TYPE_CPU | CL_DEVICE_TYPE_ACCELERATOR},
                      {1, CL_DEVICE_TYPE_GPU}};

static cl_int platforms(cl_uint cap, cl_platform_id *out, cl_uint *n)
{
    for (cl_uint i = 0; i < PLATFORMS && i < cap; i++)
        out[i] = (cl_platform_id)(void *)&platform[i];
    *n = PLATFORMS;
    return CL_SUCCESS;
}

static cl_int devices_of(cl_platform_id p, cl_device_type types, cl_uint cap, cl_device_id *out, cl_uint *n)
{
    *n = 0;
    for (int i = 0; i < DEVICES; i++)
        if ((char *)p == &platform[devices[i].of] && types & devices[i].type) {
            if (*n < cap)
                out[*n] = (cl_device_id)(void *)&device[i];
            ++*n;
        }
    return *n ? CL_SUCCESS : CL_DEVICE_NOT_FOUND;
}

static void test_order(void **state)
{
    static const int want[DEVICES] = {3, 1, 4, 0, 2};
    cl_api cl;
    (void)state;
    memset(&cl, 0, sizeof cl);
    cl.GetPlatformIDs = platforms;
    cl.GetDeviceIDs = devices_of;
    for (uint32_t i = 0; i < DEVICES; i++)
        assert_ptr_equal(ocl_device_at(&cl, i), &device[want[i]]);
    assert_null(ocl_device_at(&cl, DEVICES));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
