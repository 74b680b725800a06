/*
 * skeleton: what its two source files share. The device here is plain host memory, and its queue runs work at once; the
 * three structs below are where a vendor's handles (context, stream, device pointer) go.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef SKELETON_H
#define SKELETON_H

#include <infer/backend.h>

#define SKELETON_VERSION "0.1"

struct infer_device {
    const infer_host *host;
    uint64_t memory; /* bytes of the only heap */
    uint64_t used;   /* of these, by buf_alloc ([setup]: one caller at a time) */
};

struct infer_queue {
    infer_device *dev;
};

struct infer_buffer {
    uint8_t *p;
    uint64_t bytes;
};

/* Says the cause of a failure that is about to be returned, and returns it. */
static inline infer_status skeleton_fail(const infer_host *host, infer_status s, const char *text)
{
    host->status_detail(host->ctx, s, text);
    return s;
}

/* skeleton_ops.c */
infer_status skeleton_op_query(infer_device *dev, const infer_op_desc *ops, uint32_t op_size, uint32_t n,
                               infer_op_answer *out, uint32_t answer_size);
infer_status skeleton_cmd_op(infer_queue *queue, const infer_op_desc *op, const infer_op_args *args);

#endif
