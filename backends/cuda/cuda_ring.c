/* Products of few rows by packed weights (kernels/ring.cu): one launch each, which a norm of x may be part of.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "cuda.h"
#include "packed.h"
#include "ring.h"

/* Of a format: its kernel, elements and bytes of a step. */
typedef struct ring_row {
    uint16_t kernel, unit, step;
} ring_row;
#define ROW(id, name) [INFER_FMT_##id] = {CUDA_K_ring_##name, PACKED_UNIT_##id, PACKED_STEP_##id},
static const ring_row kernels_of[INFER_FMT_COUNT] = {CUDA_RING_FORMATS(ROW)};

/* The kernel that takes weights of f and a third one of g; 0: none. */
static uint32_t kernel_with(const infer_device *dev, infer_format f, infer_format g)
{
    return f == INFER_FMT_Q4_K && g == INFER_FMT_Q6_K && dev->kernels[CUDA_K_ring_q4_k_q6_k] ? CUDA_K_ring_q4_k_q6_k
                                                                                             : 0;
}

int cuda_rings(const infer_device *dev, infer_format f)
{
    return f < INFER_FMT_COUNT && kernels_of[f].unit && dev->kernels[kernels_of[f].kernel];
}

int cuda_ring_takes(const infer_device *dev, const infer_op_desc *op, uint32_t weight)
{
    const infer_tensor_desc *w = launch_tensor_desc(op, weight);
    return w->layout == CUDA_LAYOUT_PACKED && w->rank == 2 && cuda_rings(dev, w->format);
}

/* Rows of x that are held together, so that a ring of three copies, or of two with up to two rows, has room; and its
 * slots. */
static int32_t held_of(const infer_device *dev, const ring_row *f, int32_t k, int32_t rows, int32_t *slots,
                       uint32_t *bytes)
{
    const int64_t room = (int64_t)dev->tune.shared_per_block - RING_FIXED,
                  slot = RING_STEPS(f->step) * (int64_t)f->step;
    const int64_t k32 = ((int64_t)k + f->unit - 1) / f->unit * f->unit / 32;
    const int64_t row = RING_SUMS + RING_SIZE(k32);
    int32_t held = rows < RING_ROWS ? rows : RING_ROWS;
    while (held > 1 && room - held * row < (held > 2 ? 3 : 2) * slot)
        held--;
    int64_t n = (room - held * row) / slot;
    *slots = (int32_t)(n < RING_SLOTS ? n : RING_SLOTS);
    *bytes = (uint32_t)(RING_FIXED + held * row + *slots * slot);
    return room > row && n >= 2 ? held : 0;
}

int cuda_ring_fits(const infer_device *dev, infer_format f, int64_t k)
{
    int32_t slots;
    uint32_t bytes;
    return k <= INT32_MAX / 64 && held_of(dev, &kernels_of[f], (int32_t)k, 1, &slots, &bytes) == 1;
}

int cuda_ring_mixes(const infer_device *dev, const infer_op_desc *op)
{
    const infer_format f = launch_tensor_desc(op, 1)->format, g = launch_tensor_desc(op, 3)->format;
    return op->op == INFER_OP_QKV && launch_tensor_desc(op, 2)->format == f && cuda_ring_takes(dev, op, 1) &&
           cuda_ring_takes(dev, op, 2) && cuda_ring_takes(dev, op, 3) && kernel_with(dev, f, g);
}

/* The products' outputs and operands are of rank 2, and so lines. */
static lp_line line_of(const lp_tensor *t)
{
    return (lp_line){.off = t->off, .step = t->s0, .fmt = t->fmt};
}

/* which: of x, three weights, five of b, three of y. g: the third weight's format, f as a rule. */
static infer_status ring(launch_call *c, infer_format f, infer_format g, lp_ring *p, const lp_tensor *x,
                         const int which[12])
{
    infer_queue *queue = c->to;
    const ring_row *row = &kernels_of[f], *last = &kernels_of[g];
    cuda_norm *norm = &queue->norm;
    int list[14];
    cuda_launch l;
    uint32_t units = 0;
    p->x = line_of(x);
    for (int i = 0; i < (p->kind == RING_GLU ? 1 : 3); i++)
        units += (uint32_t)packed_panels(p->n[i]);
    memcpy(list, which, 12 * sizeof *list);
    list[12] = -2;
    list[13] = -1;
    const int makes_norm = norm->kept && which[0] == 0;
    if (makes_norm) {
        p->x = line_of(&norm->p.x);
        p->norm = line_of(&norm->p.w);
        p->has_norm = 1;
        p->eps = norm->p.eps;
        p->offset = norm->p.offset;
    }
    uint32_t shared, last_shared = 0;
    uint32_t grid = c->dev->tune.sms < units ? c->dev->tune.sms : units;
    p->held = held_of(c->dev, row, p->k, p->rows.cap, &p->slots, &shared);
    if (f != g) { /* blocks by bytes */
        grid = grid < 2 ? 2 : grid;
        const int32_t held = held_of(c->dev, last, p->k, p->held, &p->last_slots, &last_shared);
        p->held = held_of(c->dev, row, p->k, held, &p->slots, &shared);
        const uint64_t mine = (packed_bytes(f, p->n[0], p->k) + packed_bytes(f, p->n[1], p->k)) * grid,
                       all = mine / grid + packed_bytes(g, p->n[2], p->k);
        p->split = (int32_t)(mine / all);
        p->split = p->split < 1 ? 1 : p->split < (int32_t)grid ? p->split : (int32_t)grid - 1;
    }
    p->alone = p->held == 1 && !c->dev->deterministic;
    cuda_launch_init(&l, c, f == g ? row->kernel : kernel_with(c->dev, f, g), list, 14, p, sizeof *p);
    l.shared = shared > last_shared ? shared : last_shared;
    if (makes_norm) {
        l.ptr[0] = norm->x;
        l.ptr[12] = norm->w;
        norm->kept--;
    }
    return cuda_emit(c, &l, grid ? grid : 1, 1, 1, RING_THREADS, 1, 1);
}

infer_status cuda_ring_one(launch_call *c, infer_format f, const lp_mm *m, const int which[10])
{
    lp_ring p = {.y = {line_of(&m->y)},
                 .b = {line_of(&m->bias)},
                 .w_off = {m->w_off},
                 .rows = m->rows,
                 .n = {m->n},
                 .k = m->k,
                 .kind = RING_ONE,
                 .n_epi = m->n_epi,
                 .scale = m->scale,
                 .by_row = m->by_row};
    for (int i = 0; i < m->n_epi; i++) {
        const lp_epi *e = &m->epi[i];
        p.b[1 + i] = line_of(&e->t);
        if (e->kind == INFER_EPI_BIAS)
            p.b[1 + i].step = 0;
        p.epi_kind[i] = e->kind;
        p.epi_arg[i] = e->arg;
        p.epi_factor[i] = e->factor;
    }
    const int list[12] = {which[0], which[1], -2,       -2,       which[3], which[4],
                          which[5], which[6], which[7], which[8], -2,       -2};
    return ring(c, f, f, &p, &m->x, list);
}

infer_status cuda_ring_several(launch_call *c, infer_format f, infer_format g, const lp_mms *m, const int which[11])
{
    lp_ring p = {.rows = m->rows,
                 .k = m->k,
                 .kind = m->kind == LP_MMS_GLU ? RING_GLU : RING_SIDE,
                 .act = m->act,
                 .limit = m->limit,
                 .scale = 1,
                 .by_row = m->by_row};
    for (int i = 0; i < 3; i++) {
        p.y[i] = line_of(&m->y[i]);
        p.b[i] = line_of(&m->bias[i]);
        p.w_off[i] = m->w_off[i];
        p.n[i] = m->n[i];
    }
    const int list[12] = {which[0], which[1], which[2], which[3], which[4], which[5],
                          which[6], -2,       -2,       which[7], which[8], which[9]};
    return ring(c, f, g, &p, &m->x, list);
}
