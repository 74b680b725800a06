/* Devices, contexts, memory and modules of the fake driver. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fakecuda.h"

fake_config fake;
pthread_mutex_t fake_mu = PTHREAD_MUTEX_INITIALIZER;
_Thread_local cu_context fake_current;
_Thread_local int fake_recording;

static struct CUctx_st contexts[FAKE_MAX_DEVICES];

typedef struct block {
    struct block *next;
    uint8_t *p;
    size_t bytes;
    cu_context ctx;
    int pinned;
} block;
static block *blocks;

void fake_die(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("fakecuda: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    abort();
}

void fakecuda_configure(const char *text)
{
    static const fake_config usual = {
        .devices = 2, .version = 13000, .peer = 1, .memops = 1, .image = 1, .update = 1, .memory = 256u << 20};
    pthread_mutex_lock(&fake_mu);
    fake = usual;
    const struct {
        const char *key;
        int *to;
    } keys[] = {{"devices", &fake.devices}, {"version", &fake.version}, {"peer", &fake.peer},
                {"memops", &fake.memops},   {"image", &fake.image},     {"update", &fake.update},
                {"alloc", &fake.alloc},     {"lose", &fake.lose}};
    while (text && *text) {
        char key[16];
        long long v;
        int n = 0, found = 0;
        if (sscanf(text, "%15[a-z]=%lld%n", key, &v, &n) != 2)
            fake_die("configuration \"%s\"", text);
        if (!strcmp(key, "memory")) {
            fake.memory = (size_t)v;
            found = 1;
        }
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
            if (!strcmp(key, keys[i].key)) {
                *keys[i].to = (int)v;
                found = 1;
            }
        if (!found)
            fake_die("configuration key \"%s\"", key);
        text += n + (text[n] == ',');
    }
    if (fake.devices > FAKE_MAX_DEVICES)
        fake_die("%d devices", fake.devices);
    pthread_mutex_unlock(&fake_mu);
}

int fake_due(int *counter)
{
    return *counter > 0 && --*counter == 0;
}

cu_result fake_enter(cu_context *ctx)
{
    if (!fake_current || !fake_current->retained)
        return CU_E_INVALID_CONTEXT;
    *ctx = fake_current;
    return atomic_load(&fake_current->lost);
}

cu_result fake_enter_safe(cu_context *ctx)
{
    return fake_recording ? CU_E_CAPTURE_UNSUPPORTED : fake_enter(ctx);
}

/* ---- Devices ------------------------------------------------------------------------------------------------- */

cu_result cuInit(unsigned int flags)
{
    fakecuda_configure(getenv("INFER_FAKECUDA"));
    return flags ? CU_E_INVALID_VALUE : fake.devices ? CU_OK : CU_E_NO_DEVICE;
}

cu_result cuDriverGetVersion(int *version)
{
    const char *text = getenv("INFER_FAKECUDA"), *at = text ? strstr(text, "version=") : NULL;
    *version = at ? atoi(at + 8) : 13000; /* also before cuInit */
    return CU_OK;
}

cu_result cuGetErrorName(cu_result e, const char **name)
{
    static const struct {
        cu_result e;
        const char *name;
    } names[] = {{CU_E_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
                 {CU_E_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
                 {CU_E_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
                 {CU_E_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
                 {CU_E_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
                 {CU_E_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                 {CU_E_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].e == e) {
            *name = names[i].name;
            return CU_OK;
        }
    return CU_E_INVALID_VALUE;
}

cu_result cuDeviceGetCount(int *n)
{
    *n = fake.devices;
    return CU_OK;
}

cu_result cuDeviceGet(cu_device *dev, int ordinal)
{
    if (ordinal < 0 || ordinal >= fake.devices)
        return CU_E_INVALID_DEVICE;
    *dev = ordinal;
    return CU_OK;
}

cu_result cuDeviceGetName(char *name, int cap, cu_device dev)
{
    (void)dev;
    snprintf(name, (size_t)cap, "Fake CUDA device");
    return CU_OK;
}

cu_result cuDeviceGetUuid_v2(cu_uuid *uuid, cu_device dev)
{
    memset(uuid, 0xFA, sizeof *uuid);
    uuid->bytes[15] = (char)dev;
    return CU_OK;
}

cu_result cuDeviceTotalMem_v2(size_t *bytes, cu_device dev)
{
    (void)dev;
    *bytes = fake.memory;
    return CU_OK;
}

cu_result cuDeviceGetAttribute(int *value, cu_attribute attribute, cu_device dev)
{
    switch (attribute) {
    case CU_ATTR_WARP_SIZE:
        *value = 32;
        return CU_OK;
    case CU_ATTR_SM_COUNT:
        *value = 4;
        return CU_OK;
    case CU_ATTR_PCI_BUS:
        *value = 0xF0 + dev;
        return CU_OK;
    case CU_ATTR_MEMORY_CLOCK_KHZ:
        *value = 1000000;
        return CU_OK;
    case CU_ATTR_MEMORY_BUS_BITS:
        *value = 64;
        return CU_OK;
    case CU_ATTR_UNIFIED_ADDRESSING:
        *value = 1;
        return CU_OK;
    case CU_ATTR_CC_MAJOR:
        *value = 9;
        return CU_OK;
    case CU_ATTR_SHARED_PER_SM:
        *value = 228 << 10;
        return CU_OK;
    case CU_ATTR_SHARED_PER_BLOCK_OPTIN: /* what a launch is refused past */
        *value = (228 << 10) - 1024;
        return CU_OK;
    case CU_ATTR_STREAM_MEM_OPS_64:
        *value = fake.memops;
        return CU_OK;
    default:
        *value = 0;
        return CU_OK;
    }
}

cu_result cuDeviceCanAccessPeer(int *can, cu_device dev, cu_device peer)
{
    *can = fake.peer && dev != peer;
    return CU_OK;
}

/* ---- Contexts ------------------------------------------------------------------------------------------------ */

cu_result cuDevicePrimaryCtxRetain(cu_context *ctx, cu_device dev)
{
    if (dev < 0 || dev >= fake.devices)
        return CU_E_INVALID_DEVICE;
    pthread_mutex_lock(&fake_mu);
    cu_context c = &contexts[dev];
    if (!c->retained++) {
        memset(c, 0, sizeof *c);
        c->device = dev;
        c->retained = 1;
    }
    *ctx = c;
    pthread_mutex_unlock(&fake_mu);
    return CU_OK;
}

/* Everything was to be given back before; of a context that is lost the driver takes it. */
static void end(cu_context c)
{
    if (!atomic_load(&c->lost) && (c->streams || c->events || c->modules || c->graphs || c->pinned || c->used))
        fake_die("context %d ends with %d streams, %d events, %d modules, %d graphs, %d pinned, %zu bytes", c->device,
                 c->streams, c->events, c->modules, c->graphs, c->pinned, c->used);
    for (block **at = &blocks; *at;) {
        block *b = *at;
        if (b->ctx != c) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        free(b->p);
        free(b);
    }
}

cu_result cuDevicePrimaryCtxRelease_v2(cu_device dev)
{
    pthread_mutex_lock(&fake_mu);
    cu_context c = &contexts[dev];
    if (!c->retained)
        fake_die("context %d is released once too often", dev);
    if (!--c->retained)
        end(c);
    pthread_mutex_unlock(&fake_mu);
    return CU_OK;
}

cu_result cuCtxSetCurrent(cu_context ctx)
{
    fake_current = ctx;
    return CU_OK;
}

cu_result cuCtxEnablePeerAccess(cu_context peer, unsigned int flags)
{
    cu_context ctx;
    cu_result e = fake_enter_safe(&ctx);
    if (e || flags || peer == ctx)
        return e ? e : CU_E_INVALID_VALUE;
    pthread_mutex_lock(&fake_mu);
    unsigned bit = 1u << peer->device, was = ctx->peers & bit;
    ctx->peers |= bit;
    pthread_mutex_unlock(&fake_mu);
    return was ? CU_E_PEER_ALREADY_ENABLED : CU_OK;
}

/* ---- Modules -------------------------------------------------------------------------------------------------- */

struct CUmod_st {
    cu_context ctx;
};

cu_result cuModuleLoadData(cu_module *module, const void *image)
{
    cu_context ctx;
    uint64_t first;
    cu_result e = fake_enter_safe(&ctx);
    if (e)
        return e;
    memcpy(&first, image, sizeof first);
    if (!first)
        return CU_E_INVALID_IMAGE;
    if (!fake.image)
        return CU_E_NO_BINARY_FOR_GPU;
    *module = malloc(sizeof **module);
    if (!*module)
        return CU_E_OUT_OF_MEMORY;
    (*module)->ctx = ctx;
    ctx->modules++;
    return CU_OK;
}

cu_result cuModuleUnload(cu_module module)
{
    cu_context ctx;
    cu_result e = fake_enter_safe(&ctx);
    module->ctx->modules--;
    free(module);
    return e;
}

cu_result cuModuleGetFunction(cu_function *fn, cu_module module, const char *name)
{
    cu_context ctx;
    cu_result e = fake_enter_safe(&ctx);
    if (e || module->ctx != ctx)
        return e ? e : CU_E_INVALID_HANDLE;
    const fake_kernel *k = fake_kernel_find(name);
    *fn = (cu_function)(uintptr_t)k;
    return k ? CU_OK : CU_E_NOT_FOUND;
}

cu_result cuFuncGetAttribute(int *value, cu_func_attribute attribute, cu_function fn)
{
    (void)fn;
    *value = attribute == CU_FUNC_SHARED_BYTES ? 1024 : 0;
    return CU_OK;
}

cu_result cuFuncSetAttribute(cu_function fn, cu_func_attribute attribute, int value)
{
    (void)fn;
    return attribute == CU_FUNC_MAX_DYNAMIC_SHARED && value <= (228 << 10) - 1024 ? CU_OK : CU_E_INVALID_VALUE;
}

/* ---- Memory --------------------------------------------------------------------------------------------------- */

static cu_result add(cu_context ctx, size_t bytes, int pinned, void **out)
{
    cu_result e = CU_E_OUT_OF_MEMORY;
    pthread_mutex_lock(&fake_mu);
    block *b = malloc(sizeof *b);
    if (!b || fake_due(&fake.alloc) || (!pinned && (bytes > fake.memory || ctx->used > fake.memory - bytes)))
        goto out;
    *b = (block){.next = blocks, .bytes = bytes, .ctx = ctx, .pinned = pinned};
    if (posix_memalign((void **)&b->p, 4096, bytes ? bytes : 1))
        goto out;
    memset(b->p, 0xEE, bytes < 4096 ? bytes : 4096);
    ctx->used += pinned ? 0 : bytes;
    ctx->pinned += pinned;
    blocks = b;
    *out = b->p;
    b = NULL;
    e = CU_OK;
out:
    free(b);
    pthread_mutex_unlock(&fake_mu);
    return e;
}

static cu_result drop(const void *p, int pinned)
{
    cu_result e = CU_E_INVALID_VALUE;
    pthread_mutex_lock(&fake_mu);
    for (block **at = &blocks; *at; at = &(*at)->next) {
        block *b = *at;
        if (b->p != p || b->pinned != pinned)
            continue;
        b->ctx->used -= pinned ? 0 : b->bytes;
        b->ctx->pinned -= pinned;
        *at = b->next;
        free(b->p);
        free(b);
        e = CU_OK;
        break;
    }
    pthread_mutex_unlock(&fake_mu);
    return e;
}

void *fake_host(cu_deviceptr p, size_t bytes)
{
    void *found = NULL;
    const uint8_t *host = (const uint8_t *)(uintptr_t)(p & ~FAKE_DEVICE_BIT);
    pthread_mutex_lock(&fake_mu);
    for (block *b = blocks; b && !found; b = b->next)
        if (p & FAKE_DEVICE_BIT && host >= b->p && host < b->p + b->bytes && bytes <= (size_t)(b->p + b->bytes - host))
            found = b->p + (host - b->p);
    pthread_mutex_unlock(&fake_mu);
    return found;
}

int fake_pinned(const void *p)
{
    int found = 0;
    pthread_mutex_lock(&fake_mu);
    for (const block *b = blocks; b && !found; b = b->next)
        found = b->pinned && (const uint8_t *)p >= b->p && (const uint8_t *)p < b->p + b->bytes;
    pthread_mutex_unlock(&fake_mu);
    return found;
}

cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    cu_context ctx;
    cu_result e = fake_enter(&ctx);
    if (e)
        return e;
    pthread_mutex_lock(&fake_mu);
    *total = fake.memory;
    *free_bytes = fake.memory - ctx->used;
    pthread_mutex_unlock(&fake_mu);
    return CU_OK;
}

cu_result cuMemAlloc_v2(cu_deviceptr *p, size_t bytes)
{
    cu_context ctx;
    void *host = NULL;
    cu_result e = fake_enter_safe(&ctx);
    e = e ? e : bytes ? add(ctx, bytes, 0, &host) : CU_E_INVALID_VALUE;
    if (!e)
        *p = (cu_deviceptr)(uintptr_t)host | FAKE_DEVICE_BIT;
    return e;
}

cu_result cuMemFree_v2(cu_deviceptr p)
{
    cu_context ctx;
    cu_result e = fake_enter_safe(&ctx);
    return e ? e : drop((void *)(uintptr_t)(p & ~FAKE_DEVICE_BIT), 0);
}

cu_result cuMemHostAlloc(void **p, size_t bytes, unsigned int flags)
{
    cu_context ctx;
    cu_result e = fake_enter_safe(&ctx);
    (void)flags;
    return e ? e : add(ctx, bytes, 1, p);
}

cu_result cuMemFreeHost(void *p)
{
    cu_context ctx;
    cu_result e = fake_enter_safe(&ctx);
    return e ? e : drop(p, 1);
}

cu_result cuMemHostGetDevicePointer_v2(cu_deviceptr *d, void *p, unsigned int flags)
{
    if (flags || !fake_pinned(p))
        return CU_E_INVALID_VALUE;
    *d = (cu_deviceptr)(uintptr_t)p | FAKE_DEVICE_BIT;
    return CU_OK;
}
