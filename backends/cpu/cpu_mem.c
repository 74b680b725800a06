/* Buffers of the CPU backend (ordinary host memory), and how cache groups lie in them: canonically. Weights that
 * cpu_weight.c does not pack do too: the core binds a mapped file's bytes in place.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stddef.h>
#include <sys/mman.h>

#include "cpu.h"

enum { HUGE_PAGE = 2 << 20 };

infer_status cpu_buf_alloc(infer_device *dev, uint32_t heap, uint64_t bytes, infer_buffer **out)
{
    const infer_host *host = dev->host;
    uint64_t total, left;
    if (heap != 0 || bytes == 0)
        return cpu_fail(host, INFER_E_INVALID, "cpu: allocation of %llu bytes from heap %u", (unsigned long long)bytes,
                        heap);
    /* The system would promise more than it has and kill somebody later. */
    left = cpu_memory_free(&total);
    if (total && bytes > left)
        return cpu_fail(host, INFER_E_NO_MEMORY, "cpu: %llu bytes wanted, %llu are free", (unsigned long long)bytes,
                        (unsigned long long)left);
    infer_buffer *b = host->alloc(host->ctx, sizeof *b, _Alignof(infer_buffer));
    if (!b)
        return cpu_fail(host, INFER_E_NO_MEMORY, "cpu: no memory for a buffer's head");
    uint32_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : 64;
    b->p = bytes <= UINT64_MAX - align ? host->alloc(host->ctx, bytes, align) : NULL;
    if (!b->p) {
        host->free(host->ctx, b);
        return cpu_fail(host, INFER_E_NO_MEMORY, "cpu: the host has no %llu bytes", (unsigned long long)bytes);
    }
#ifdef MADV_HUGEPAGE
    if (bytes >= HUGE_PAGE)
        madvise(b->p, (size_t)(bytes / HUGE_PAGE * HUGE_PAGE), MADV_HUGEPAGE); /* a refusal only costs speed */
#endif
    b->size = bytes;
    b->imported = b->reserved = 0;
    atomic_fetch_add(&dev->bytes, bytes);
    *out = b;
    return INFER_OK;
}

infer_status cpu_buf_import_host(infer_device *dev, void *p, uint64_t bytes, infer_buffer **out)
{
    infer_buffer *b = dev->host->alloc(dev->host->ctx, sizeof *b, _Alignof(infer_buffer));
    if (!b)
        return cpu_fail(dev->host, INFER_E_NO_MEMORY, "cpu: no memory for a buffer's head");
    *b = (infer_buffer){.p = p, .size = bytes, .imported = 1};
    *out = b;
    return INFER_OK;
}

void cpu_buf_free(infer_device *dev, infer_buffer *buf)
{
    if (!buf->imported) {
        atomic_fetch_sub(&dev->bytes, buf->size);
        dev->host->free(dev->host->ctx, buf->p);
    }
    dev->host->free(dev->host->ctx, buf);
}

infer_status cpu_buf_map(infer_device *dev, const infer_range *range, void **out)
{
    (void)dev;
    *out = range->buffer->p + range->offset;
    return INFER_OK;
}

void cpu_buf_unmap(infer_device *dev, const infer_range *range, void *p)
{
    (void)dev;
    (void)range;
    (void)p;
}

infer_status cpu_kv_query(infer_device *dev, const infer_kv_spec *spec, infer_kv_answer *out)
{
    enum { BEST = 32 };
    infer_kv_answer a = {.struct_size = out->struct_size, .block_multiple = 1, .block_best = BEST, .align = 64};
    a.level = INFER_LEVEL_NATIVE;
    if (spec->kind != INFER_GROUP_FULL && spec->kind != INFER_GROUP_WINDOW && spec->kind != INFER_GROUP_LATENT &&
        spec->kind != INFER_GROUP_ENCODER) {
        a.level = INFER_LEVEL_NO;
        a.why = INFER_WHY_OP;
    }
    for (uint32_t i = 0; i < spec->n_planes && i < 4 && a.level; i++) {
        const infer_kv_plane *p = &spec->planes[i];
        const kern_format *f = p->format < INFER_FMT_COUNT ? &dev->kern->format[p->format] : &dev->kern->format[0];
        int kept = p->format == INFER_FMT_F32 || p->format == INFER_FMT_F16 || p->format == INFER_FMT_BF16 ||
                   p->format == INFER_FMT_F8_E4M3 || p->format == INFER_FMT_Q8_0 || p->format == INFER_FMT_Q4_0;
        if (!kept || p->width % f->block_elems) {
            a.level = INFER_LEVEL_NO;
            a.why = kept ? INFER_WHY_SHAPE : INFER_WHY_FORMAT;
            a.which = i;
            break;
        }
        uint64_t heads = p->per_head ? spec->n_heads : 1;
        a.block_bytes[i] = heads * BEST * (p->width / f->block_elems) * f->block_bytes;
    }
    *out = a;
    return INFER_OK;
}
