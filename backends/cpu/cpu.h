/* Objects of the CPU backend that its files share. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_CPU_CPU_H
#define INFER_CPU_CPU_H

#include <stdatomic.h>
#include <stdint.h>

#include <infer/backend.h>

#include "kern.h"
#include "workers.h"

struct infer_device {
    const infer_host *host;
    const kern_table *kern;
    cpu_team *team;
    _Atomic uint64_t bytes; /* allocated from the heap */
};

struct infer_buffer {
    uint8_t *p;
    uint64_t size;
    uint32_t imported;
    uint32_t reserved;
};

/* Sines and cosines of the positions seen lately, for one table of frequencies: the layers of a step share them. */
enum { CPU_ROPE_SLOTS = 1024, CPU_ROPE_PAIRS = 256 };
typedef struct cpu_rope_cache {
    uint32_t n_pairs; /* 0: empty */
    float magnitude;
    float inv_freq[CPU_ROPE_PAIRS];
    int32_t position[CPU_ROPE_SLOTS]; /* -1: empty; position p lies in slot p % CPU_ROPE_SLOTS */
    float *angles;                    /* [CPU_ROPE_SLOTS][2][CPU_ROPE_PAIRS]: cosines, sines */
} cpu_rope_cache;

struct infer_queue {
    infer_device *dev;
    cpu_rope_cache rope;
};

/* Sets the host's detail text and returns status. */
infer_status cpu_fail(const infer_host *host, infer_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* cpu_device.c */
infer_status cpu_probe(const infer_host *host, infer_device_info *out, uint32_t cap, uint32_t *n);
infer_status cpu_dev_open(const infer_host *host, uint32_t index, infer_device **out);
void cpu_dev_close(infer_device *dev);
infer_status cpu_dev_props(infer_device *dev, infer_device_props *out);
infer_status cpu_dev_heaps(infer_device *dev, infer_heap_info *out, uint32_t cap, uint32_t *n);
infer_status cpu_dev_heap_stats(infer_device *dev, uint32_t heap, infer_heap_stats *out);
/* Bytes that this process may still take: the least of what the system and each enclosing control group leave. */
uint64_t cpu_memory_free(uint64_t *total);

/* cpu_mem.c */
infer_status cpu_buf_alloc(infer_device *dev, uint32_t heap, uint64_t bytes, infer_buffer **out);
void cpu_buf_free(infer_device *dev, infer_buffer *buf);
infer_status cpu_buf_import_host(infer_device *dev, void *p, uint64_t bytes, infer_buffer **out);
infer_status cpu_buf_map(infer_device *dev, const infer_range *range, void **out);
void cpu_buf_unmap(infer_device *dev, const infer_range *range, void *p);
infer_status cpu_kv_query(infer_device *dev, const infer_kv_spec *spec, infer_kv_answer *out);

/* cpu_weight.c */
enum { CPU_LAYOUT_PANELS = 1 };
infer_status cpu_weight_plan(infer_device *dev, const infer_weight_desc *desc, infer_weight_plan *out);
infer_status cpu_weight_begin(infer_device *dev, const infer_weight_desc *desc, const infer_weight_plan *plan,
                              const infer_range *dst, infer_weight **out);
infer_status cpu_weight_append(infer_weight *w, uint32_t plane, const void *data, uint64_t bytes);
infer_status cpu_weight_finish(infer_weight *w);
void cpu_weight_destroy(infer_weight *w);

/* cpu_queue.c */
infer_status cpu_queue_create(infer_device *dev, uint32_t classes, infer_queue **out);
void cpu_queue_destroy(infer_device *dev, infer_queue *queue);
infer_status cpu_queue_wait(infer_queue *queue, infer_timeline *tl, uint64_t value);
infer_status cpu_queue_signal(infer_queue *queue, infer_timeline *tl, uint64_t value);
infer_status cpu_cmd_copy(infer_queue *queue, const infer_copy_end *dst, const infer_copy_end *src,
                          const infer_copy_region *regions, uint32_t n);
infer_status cpu_cmd_fill(infer_queue *queue, const infer_range *dst, uint32_t pattern, uint32_t pattern_bytes);
infer_status cpu_cmd_update(infer_queue *queue, const infer_range *dst, const void *data, uint64_t bytes);

/* cpu_ops.c */
infer_status cpu_op_query(infer_device *dev, const infer_op_desc *ops, uint32_t op_size, uint32_t n,
                          infer_op_answer *out, uint32_t answer_size);
infer_status cpu_cmd_op(infer_queue *queue, const infer_op_desc *op, const infer_op_args *args);

#endif
