/*
 * T1: lays an op's operands out in two device buffers, runs it, reads both buffers back whole and checks every byte
 * that is not the op's to write. What the result should be is cts_t1_ops.c's matter. SPDX-License-Identifier:
 * Apache-2.0
 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "cts_t1.h"
#include "ops/ops.h"
#include "quant/quant.h"

#define GUARD       320u /* bytes at least between operands: more than any vector or cache line */
#define PLANE_ALIGN 256u /* of side planes in a weight's image (ops.h) */

const char *cts_why_name(uint32_t why)
{
    static const char *const names[] = {"no reason",    "the op",      "a format",     "a shape", "a layout",
                                        "an attribute", "an epilogue", "unknown bits", "memory"};
    return why < sizeof(names) / sizeof(names[0]) ? names[why] : "an unknown reason";
}

void cts_job_from(cts_job *j, const infer_op_case *k)
{
    memset(j, 0, sizeof(*j));
    j->desc = k->desc;
    j->n = k->desc.n_in + k->desc.n_out;
    memcpy(j->t, k->tensors, sizeof(j->t));
    memcpy(j->counts, k->counts, sizeof(j->counts));
    for (uint32_t i = 0; i < j->n; i++)
        j->o[i] = (cts_operand){
            .data = k->data[i], .bytes = k->bytes[i], .same_as = k->same_as[i], .written = infer_op_case_writes(k, i)};
    j->desc.tensors = j->t;
    j->desc.tensor_size = sizeof(j->t[0]);
    j->scratch_fill = 0xFF;
}

/* Asks for a weight's plan, twice: one answer. 0: the case is failed. */
static int ask_plan(cts *c, uint32_t i, cts_operand *o)
{
    infer_error e = {0};
    infer_weight_plan again = {.struct_size = sizeof(again)};
    o->plan = (infer_weight_plan){.struct_size = sizeof(o->plan)};
    infer_status s = infer_hal_weight_plan(c->dev, &o->source, &o->plan, &e);
    if (!s)
        s = infer_hal_weight_plan(c->dev, &o->source, &again, &e);
    if (s || (o->plan.align & (o->plan.align - 1)) || !infer_format_get(o->plan.format)) {
        cts_fail(c, "weight_plan of operand %u: %s", i, s ? e.text : "align is no power of two, or no such format");
        return 0;
    }
    if (memcmp(&again, &o->plan, sizeof(again)))
        cts_fail(c, "weight_plan of operand %u: two answers to one question", i);
    return !c->failed;
}

int cts_job_plan(cts *c, cts_job *j)
{
    for (uint32_t i = 0; i < j->n; i++) {
        infer_tensor_desc *t = &j->t[i];
        cts_operand *o = &j->o[i];
        int special = o->shard.of || o->moved;
        if (!(t->flags & INFER_TENSOR_WEIGHT) || !o->data || (!special && !CTS_HAS(c, weight_plan)))
            continue;
        o->source = (infer_weight_desc){
            .struct_size = sizeof(o->source), .quant = t->quant, .rank = t->rank, .use = j->desc.op, .shard = o->shard};
        memcpy(o->source.shape, o->shard.of ? o->whole : t->shape, sizeof(t->shape));
        if (!t->quant.format)
            o->source.quant.format = t->format;
        if (!ask_plan(c, i, o))
            return 0;
        if (!special && o->plan.flags & INFER_WEIGHT_IN_PLACE && o->plan.layout == INFER_LAYOUT_CANONICAL) {
            if (o->plan.format == t->format && o->plan.packed_bytes == o->bytes)
                continue;
            cts_fail(c, "weight_plan of operand %u: in place, but another format or size", i);
            return 0;
        }
        o->packed = 1;
        if (o->plan.format != t->format)
            t->quant = (infer_quant){0};
        t->format = o->plan.format;
        t->layout = o->plan.layout;
    }
    return 1;
}

int cts_job_query(cts *c, cts_job *j)
{
    infer_op_answer *a = &j->answer;
    *a = (infer_op_answer){.struct_size = sizeof(*a)};
    if (!cts_ok(c, c->ops->op_query(c->h, &j->desc, sizeof(j->desc), 1, a, sizeof(*a)), "op_query"))
        return 0;
    const char *wrong = NULL;
    if (a->level > INFER_LEVEL_NATIVE)
        wrong = "an unknown level";
    else if (!a->level && (a->why == INFER_WHY_NONE || a->why > INFER_WHY_MEMORY))
        wrong = "NO without a reason code";
    else if (a->level && a->n_epilogue > j->desc.n_epilogue)
        wrong = "more epilogue steps than the list has";
    else if (a->level && a->scratch_bytes && (!a->scratch_align || (a->scratch_align & (a->scratch_align - 1))))
        wrong = "a scratch_align that is no power of two";
    else if (a->level && !(isfinite(a->est_ns) && a->est_ns >= 0 && isfinite(a->est_bytes) && a->est_bytes >= 0))
        wrong = "an estimate that is negative or not finite";
    if (wrong)
        cts_fail(c, "op_query answers with %s", wrong);
    return !wrong && a->level != INFER_LEVEL_NO;
}

/* ---- Layout ---------------------------------------------------------------------------------------------- */

static uint64_t place(cts_job *j, uint32_t arena, uint64_t bytes, uint64_t align)
{
    uint64_t at = (j->size[arena] + GUARD + align - 1) / align * align;
    /* not better aligned than it must be: an odd multiple */
    if (at / align % 2 == 0)
        at += align;
    j->size[arena] = at + bytes;
    return at;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t held(const cts_operand *o)
{
    return o->packed ? o->plan.packed_bytes : o->bytes;
}

static void lay_out(cts *c, cts_job *j)
{
    uint64_t align = c->props->buffer_align;
    j->size[0] = j->size[1] = 0;
    for (uint32_t i = 0; i < j->n; i++) {
        cts_operand *o = &j->o[i];
        if (!o->data)
            continue;
        uint64_t need = o->packed ? o->plan.align : j->t[i].quant.format ? PLANE_ALIGN : 1;
        if (o->same_as >= 0) {
            o->arena = j->o[o->same_as].arena;
            o->at = j->o[o->same_as].at;
            continue;
        }
        o->arena = i >= j->desc.n_in;
        o->at = place(j, o->arena, held(o), larger(align, need));
    }
    j->counts_at = place(j, 0, sizeof(j->counts), align);
    j->scratch_at =
        j->answer.scratch_bytes ? place(j, 1, j->answer.scratch_bytes, larger(align, j->answer.scratch_align)) : 0;
    j->size[0] += GUARD;
    j->size[1] += GUARD;
}

static int fill_images(cts *c, cts_job *j)
{
    for (int a = 0; a < 2; a++) {
        j->before[a] = infer_malloc(j->size[a]);
        j->after[a] = infer_malloc(j->size[a]);
        if (!j->before[a] || !j->after[a]) {
            cts_fail(c, "no host memory");
            return 0;
        }
        cts_bytes(c, j->before[a], j->size[a]);
    }
    for (uint32_t i = 0; i < j->n; i++)
        if (j->o[i].data && j->o[i].same_as < 0 && !j->o[i].packed)
            memcpy(j->before[j->o[i].arena] + j->o[i].at, j->o[i].data, j->o[i].bytes);
    memcpy(j->before[0] + j->counts_at, j->counts, sizeof(j->counts));
    if (j->answer.scratch_bytes)
        memset(j->before[1] + j->scratch_at, (int)j->scratch_fill, j->answer.scratch_bytes);
    return 1;
}

/* The stream by hand, in pieces cut anywhere: the hal's own pieces are far longer than these weights. */
static int stream_weight(cts *c, const cts_operand *o, const infer_range *dst, const void *const planes[3],
                         const uint64_t bytes[3])
{
    infer_weight *w = NULL;
    if (!cts_ok(c, c->ops->weight_begin(c->h, &o->source, &o->plan, dst, &w), "weight_begin"))
        return 0;
    int ok = 1;
    for (uint32_t p = 0; p < 3; p++) {
        for (uint64_t at = 0, n; ok && at < bytes[p]; at += n) {
            n = o->piece ? o->piece : 1 + cts_below(c, bytes[p] / 3 + 1);
            n = n < bytes[p] - at ? n : bytes[p] - at;
            ok = cts_ok(c, c->ops->weight_append(w, p, (const uint8_t *)planes[p] + at, n), "weight_append");
        }
    }
    ok = ok && cts_ok(c, c->ops->weight_finish(w), "weight_finish");
    c->ops->weight_destroy(w);
    return ok;
}

/* Streams the source planes of a packed weight into its place. */
static int load_weight(cts *c, const cts_job *j, uint32_t i, const infer_range *dst)
{
    const cts_operand *o = &j->o[i];
    const infer_weight_desc *d = &o->source;
    const void *planes[3] = {o->data, NULL, NULL};
    uint64_t bytes[3] = {o->bytes, 0, 0}, at = 0;
    infer_error e = {0};
    if (d->quant.scale_format) {
        uint64_t experts = d->rank == 3 ? (uint64_t)d->shape[0] : 1;
        if (infer_quant_bytes(&d->quant, (uint64_t)d->shape[d->rank - 2], (uint64_t)d->shape[d->rank - 1], bytes)) {
            cts_fail(c, "weight of operand %u: side planes", i);
            return 0;
        }
        for (int p = 0; p < 3; p++) {
            bytes[p] *= experts;
            planes[p] = bytes[p] ? o->data + at : NULL;
            at += (bytes[p] + PLANE_ALIGN - 1) / PLANE_ALIGN * PLANE_ALIGN;
        }
    }
    int canonical = o->plan.layout == INFER_LAYOUT_CANONICAL && o->plan.format == d->quant.format;
    if ((!canonical || (o->plan.flags & INFER_WEIGHT_STREAM)) && CTS_HAS(c, weight_begin) && !d->shard.of &&
        (o->piece || cts_below(c, 2)))
        return stream_weight(c, o, dst, planes, bytes);
    if (infer_hal_weight_load(c->dev, d, &o->plan, dst, planes, bytes, &e)) {
        cts_fail(c, "weight of operand %u: %s", i, e.text);
        return 0;
    }
    return 1;
}

/* Packs at another place first, from where the image is copied; that place is then overwritten. */
static int load_moved(cts *c, const cts_job *j, uint32_t i, const infer_range *dst)
{
    const cts_operand *o = &j->o[i];
    uint64_t align = o->plan.align > c->props->buffer_align ? o->plan.align : c->props->buffer_align;
    infer_hal_buf tmp = {0};
    infer_error e = {0};
    int ok = 0;
    if (infer_hal_buf_alloc(c->dev, dst->size + 6 * align, INFER_LEDGER_WORKSPACE, &tmp, &e)) {
        cts_fail(c, "%s", e.text);
        return 0;
    }
    infer_range at = {tmp.h, 4 * align, dst->size};
    infer_copy_region r = {.src_offset = at.offset, .dst_offset = dst->offset, .bytes = dst->size, .rows = 1};
    ok = load_weight(c, j, i, &at) &&
         cts_ok(c, cts_copy(c, c->queue, (infer_copy_end){dst->buffer, NULL}, (infer_copy_end){tmp.h, NULL}, &r, 1),
                "cmd_copy of a weight's image") &&
         cts_ok(c, cts_fill(c, c->queue, tmp.h, 0, dst->size + 6 * align, 0xFF, 1), "cmd_fill");
    ok = cts_sync(c) && ok;
    if (!c->run->dead[0])
        infer_hal_buf_free(&tmp);
    return ok;
}

/* ---- Running --------------------------------------------------------------------------------------------- */

/* Checks [from, to) of an arena, which nothing may have changed. */
static int check_kept(cts *c, const uint8_t *before, const uint8_t *after, uint64_t from, uint64_t to,
                      const char *label, const char *what)
{
    int64_t at = from < to ? cts_differ(before + from, after + from, to - from) : -1;
    if (at >= 0)
        cts_fail(c, "%s: %s: byte %lld of %llu changed", label, what, (long long)at, (unsigned long long)(to - from));
    return at < 0;
}

/* Guard zones of an arena: everything between the operands, walked in order of their places. */
static int check_guards(cts *c, const cts_job *j, uint32_t arena, const char *label, const char *what)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i <= j->n; i++) { /* operands of an arena lie in the order of their numbers */
        uint64_t begin = j->size[arena], end = begin;
        char text[96];
        if (i < j->n) {
            const cts_operand *o = &j->o[i];
            if (!o->data || o->same_as >= 0 || o->arena != arena)
                continue;
            begin = o->at;
            end = o->at + held(o);
        } else if (arena == 0) {
            begin = j->counts_at;
            end = begin; /* the counts are checked like a guard */
        } else if (j->answer.scratch_bytes) {
            begin = j->scratch_at;
            end = begin + j->answer.scratch_bytes;
        }
        if (i < j->n)
            snprintf(text, sizeof(text), "%s: guard before operand %u", what, i);
        else
            snprintf(text, sizeof(text), "%s: guard behind the last operand", what);
        if (!check_kept(c, j->before[arena], j->after[arena], at, begin, label, text))
            return 0;
        at = end;
    }
    return check_kept(c, j->before[arena], j->after[arena], at, j->size[arena], label,
                      arena ? "guard after the last output or scratch" : "step counts or the guard behind them");
}

static int check_inputs(cts *c, const cts_job *j, const char *label)
{
    for (uint32_t i = 0; i < j->n; i++) {
        const cts_operand *o = &j->o[i];
        char text[32];
        if (!o->data || o->written || o->same_as >= 0)
            continue;
        int shared = 0; /* an output may be the same range */
        for (uint32_t k = i + 1; k < j->n; k++)
            shared |= j->o[k].data && j->o[k].same_as == (int32_t)i && j->o[k].written;
        snprintf(text, sizeof(text), "input %u", i);
        if (!shared && !check_kept(c, j->before[o->arena], j->after[o->arena], o->at, o->at + held(o), label, text))
            return 0;
    }
    return 1;
}

/* Whether an operand's bytes may come late: a weight's are there before any work. */
static int comes_late(const cts_job *j, uint32_t i)
{
    return j->o[i].data && j->o[i].same_as < 0 && !j->o[i].packed && !(j->t[i].flags & INFER_TENSOR_WEIGHT);
}

/* Puts zeros where the operands and counts are, then submits what brings them back, and the op, while the queue is held
 * back. What it copies from lies in device memory, as a copy from the host may wait for the queue. */
static int run_late(cts *c, cts_job *j, const infer_hal_buf *b, const infer_op_args *args, const char *label)
{
    infer_buffer *from[2] = {NULL, NULL};
    infer_copy_region r[2][INFER_OP_MAX_OPERANDS + 1];
    uint32_t n[2] = {0, 0};
    int update = CTS_HAS(c, cmd_update), done = 0;
    cts_gate gate = {0};
    for (uint32_t i = 0; i < j->n; i++)
        if (comes_late(j, i)) {
            uint32_t a = j->o[i].arena;
            r[a][n[a]++] = (infer_copy_region){
                .src_offset = j->o[i].at, .dst_offset = j->o[i].at, .bytes = j->o[i].bytes, .rows = 1};
        }
    r[0][n[0]++] = (infer_copy_region){
        .src_offset = j->counts_at, .dst_offset = j->counts_at, .bytes = sizeof(j->counts), .rows = 1};
    for (int a = 0; a < 2; a++) {
        if (!(from[a] = cts_buf(c, j->size[a])) || !cts_write(c, from[a], 0, j->before[a], j->size[a]))
            goto out;
        for (uint32_t i = 0; i < n[a]; i++)
            if (!cts_ok(c, cts_fill(c, c->queue, b[a].h, r[a][i].dst_offset, r[a][i].bytes, 0, 1), "cmd_fill"))
                goto out;
    }
    n[0] -= update != 0; /* the counts come by that way then, as they do from the core */
    if (!cts_sync(c) || !cts_gate_close(c, &gate))
        goto out;
    for (int a = 0; a < 2; a++) {
        infer_copy_end to = {b[a].h, NULL}, source = {from[a], NULL};
        if (n[a] && !cts_ok(c, cts_copy(c, c->queue, to, source, r[a], n[a]), "cmd_copy"))
            goto out;
    }
    infer_range counts = {b[0].h, j->counts_at, sizeof(j->counts)};
    if (update && !cts_ok(c, cts_update(c, c->queue, &counts, j->counts, sizeof(j->counts)), "cmd_update"))
        goto out;
    done = cts_ok(c, cts_op(c, c->queue, &j->desc, args), label);
out:
    cts_gate_open(c, &gate);
    done = cts_sync(c) && done && !c->failed;
    for (int a = 0; a < 2; a++)
        cts_buf_free(c, from[a]);
    return done;
}

/* Weights are packed on the device: their images are the state before the op; what is around them has not changed. */
static int load_weights(cts *c, cts_job *j, infer_buffer *b, const char *label)
{
    int any = 0;
    for (uint32_t i = 0; i < j->n; i++) {
        if (!j->o[i].packed)
            continue;
        any = 1;
        infer_range dst = {b, j->o[i].at, j->o[i].plan.packed_bytes};
        if (!(j->o[i].moved ? load_moved(c, j, i, &dst) : load_weight(c, j, i, &dst)))
            return 0;
    }
    if (!any)
        return 1;
    if (!cts_read(c, b, 0, j->after[0], j->size[0]) || !check_guards(c, j, 0, label, "loading a weight"))
        return 0;
    for (uint32_t i = 0; i < j->n; i++)
        if (j->o[i].packed)
            memcpy(j->before[0] + j->o[i].at, j->after[0] + j->o[i].at, held(&j->o[i]));
    return 1;
}

int cts_job_run(cts *c, cts_job *j, const char *label)
{
    infer_hal_buf b[2] = {{0}}; /* the core's, as weights are loaded through it */
    infer_range ranges[INFER_OP_MAX_OPERANDS] = {{0}};
    int ok = 0;
    cts_job_free(j);
    lay_out(c, j);
    if (!fill_images(c, j))
        goto out;
    for (int a = 0; a < 2; a++) {
        infer_error e = {0};
        if (infer_hal_buf_alloc(c->dev, j->size[a], INFER_LEDGER_WORKSPACE, &b[a], &e)) {
            cts_fail(c, "%s: %s", label, e.text);
            goto out;
        }
        if (!cts_write(c, b[a].h, 0, j->before[a], j->size[a]))
            goto out;
    }
    if (!load_weights(c, j, b[0].h, label))
        goto out;
    for (uint32_t i = 0; i < j->n; i++)
        if (j->o[i].data)
            ranges[i] = (infer_range){b[j->o[i].arena].h, j->o[i].at, held(&j->o[i])};
    infer_op_args args = {.struct_size = sizeof(args), .n_operands = j->n, .operands = ranges};
    if (j->desc.rows_from != INFER_ROWS_STATIC)
        args.counts = (infer_range){b[0].h, j->counts_at, sizeof(j->counts)};
    if (j->answer.scratch_bytes)
        args.scratch = (infer_range){b[1].h, j->scratch_at, j->answer.scratch_bytes};
    if (j->late ? !run_late(c, j, b, &args, label)
                : !cts_ok(c, cts_op(c, c->queue, &j->desc, &args), label) || !cts_sync(c))
        goto out;
    for (int a = 0; a < 2; a++)
        if (!cts_read(c, b[a].h, 0, j->after[a], j->size[a]))
            goto out;
    ok = check_guards(c, j, 0, label, "inputs") && check_guards(c, j, 1, label, "outputs") && check_inputs(c, j, label);
out:
    for (int a = 0; a < 2; a++)
        if (!c->run->dead[0])
            infer_hal_buf_free(&b[a]);
    return ok;
}

const uint8_t *cts_job_result(const cts_job *j, uint32_t i)
{
    return j->after[j->o[i].arena] + j->o[i].at;
}

void cts_job_free(cts_job *j)
{
    for (int a = 0; a < 2; a++) {
        infer_free(j->before[a]);
        infer_free(j->after[a]);
        j->before[a] = j->after[a] = NULL;
    }
}
