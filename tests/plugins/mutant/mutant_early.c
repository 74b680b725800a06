/*
 * Mutants: ops that read device memory when they are submitted instead of when they run. One queue at a time: what was
 * read waits in a list in the order of submission. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "mutant.h"
#include "ops/ops.h"
#include "plugins/sim/sim.h"

#define IS(id) mutant_is(MUT_##id)

typedef struct early {
    struct early *next;
    int32_t counts[INFER_COUNT_MAX];
    uint32_t operand;
    uint64_t bytes; /* 0: no operand */
    uint8_t data[];
} early;

static struct {
    pthread_mutex_t lock;
    early *first, **last;
} waiting = {.lock = PTHREAD_MUTEX_INITIALIZER};

int mutant_early(void)
{
    return IS(early_counts) || IS(early_input) || IS(early_index) || IS(early_unwaited);
}

/* The operand that is read too early, or n_in: none. */
static uint32_t chosen(const infer_op_desc *op)
{
    uint32_t i = 0, shared = infer_op_get(op->op)->inout;
    if (IS(early_index))
        while (i < op->n_in && (op->tensors[i].format != INFER_FMT_I32 || op->tensors[i].flags & INFER_TENSOR_ABSENT))
            i++;
    return IS(early_index) || (IS(early_input) && !shared) ? i : op->n_in;
}

void mutant_early_read(infer_queue *q, const infer_op_desc *op, const infer_op_args *args)
{
    uint32_t i = chosen(op);
    const infer_range *r = i < op->n_in ? &args->operands[i] : NULL;
    const uint8_t *from = r && r->buffer ? sim_resolve(q->dev, r->buffer, r->offset, r->size) : NULL;
    early *e = calloc(1, sizeof(*e) + (from ? r->size : 0));
    if (!e)
        abort();
    e->operand = i;
    if (from) {
        e->bytes = r->size;
        memcpy(e->data, from, r->size);
    }
    if (args->counts.buffer)
        memcpy(e->counts, sim_resolve(q->dev, args->counts.buffer, args->counts.offset, sizeof(e->counts)),
               sizeof(e->counts));
    pthread_mutex_lock(&waiting.lock); /* and until it is submitted, as the worker may be quick */
    if (!waiting.first)
        waiting.last = &waiting.first;
    *waiting.last = e;
}

void mutant_early_submitted(infer_status s)
{
    early *e = *waiting.last;
    if (s) {
        *waiting.last = NULL;
        free(e);
    } else {
        waiting.last = &e->next;
    }
    pthread_mutex_unlock(&waiting.lock);
}

infer_status mutant_early_run(const infer_host *real, const infer_op_desc *op, void *const *data, const int32_t *counts)
{
    void *d[INFER_OP_MAX_OPERANDS];
    pthread_mutex_lock(&waiting.lock);
    early *e = waiting.first;
    if (e)
        waiting.first = e->next;
    pthread_mutex_unlock(&waiting.lock);
    if (!e) /* of a program: not by cmd_op */
        return real->ref_op(real->ctx, op, data, counts);
    memcpy(d, data, (op->n_in + op->n_out) * sizeof(*d));
    int differs = counts && op->rows_from != INFER_ROWS_STATIC && (IS(early_counts) || IS(early_unwaited)) &&
                  e->counts[op->rows_from] != counts[op->rows_from];
    if (e->bytes && memcmp(e->data, d[e->operand], e->bytes)) {
        d[e->operand] = e->data;
        differs = 1;
    }
    if (differs)
        mutant_changed();
    infer_status s = real->ref_op(real->ctx, op, d, IS(early_counts) || IS(early_unwaited) ? e->counts : counts);
    free(e);
    return s;
}
