/*
 * T1, every op against the reference: the cases of core/ops/cases between guard zones, then for each what the contract
 * adds to a right result: the same twice, the counts at both ends, the epilogue prefix that was promised, and a row's
 * independence of its company where the device claims it.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "cts_t1.h"
#include "ops/ops.h"
#include "quant/quant.h"

#define LATE_CASES 3u /* of an op, in its case "late" */

/* What the cases of one op came to. */
typedef struct op_arg {
    infer_op_id op;
    uint32_t index;
    uint32_t taken, refused, why; /* why of the first refusal */
    double us;                    /* the reference's time for the costliest refused case, */
    char costly[160];             /* which is this */
} op_arg;

/* ---- Expected results ------------------------------------------------------------------------------------ */

static void free_results(void **r)
{
    for (uint32_t i = 0; i < INFER_OP_MAX_OPERANDS; i++)
        infer_free(r[i]);
    memset(r, 0, INFER_OP_MAX_OPERANDS * sizeof(*r));
}

/* A weight that the device converts at load may lose as much as the new format's own rounding. */
infer_case_tol cts_bounds(const infer_op_case *k, const cts_job *j)
{
    infer_case_tol tol = k->tol_i8; /* equal to tol unless the op lets the device convert activations to 8 bits */
    for (uint32_t i = 0; i < j->n; i++) {
        const cts_operand *o = &j->o[i];
        if (!o->packed || o->plan.format == o->source.quant.format)
            continue;
        const infer_format_info *f = infer_format_get(o->plan.format);
        double lost = f->max_rel_rms;
        if (o->plan.format == INFER_FMT_F16)
            lost = 0x1p-11;
        else if (o->plan.format == INFER_FMT_BF16)
            lost = 0x1p-8;
        tol.abs += 4 * lost; /* a single value may be some standard deviations off */
        tol.nrms += lost;
    }
    return tol;
}

int cts_compare(cts *c, const infer_op_case *k, const cts_job *j, const char *what)
{
    void *expect[INFER_OP_MAX_OPERANDS] = {NULL};
    infer_case_tol tol = cts_bounds(k, j);
    infer_status s = infer_op_case_expect(k, expect);
    if (s) {
        cts_fail(c, "%s: the reference: %s", k->label, infer_status_name(s));
        return 0;
    }
    for (uint32_t i = 0; i < j->n && !c->failed; i++) {
        infer_case_diff d;
        if (!expect[i])
            continue;
        if (!infer_op_case_compare(k, i, expect[i], cts_job_result(j, i), &tol, &d))
            cts_fail(c, "%s: %s%s %u: %s", k->label, what, i < j->desc.n_in ? "input" : "output",
                     i < j->desc.n_in ? i : i - j->desc.n_in, d.text);
    }
    free_results(expect);
    return !c->failed;
}

/* ---- Epilogue prefix ------------------------------------------------------------------------------------- */

/* Takes input i out of a case. */
static void drop_input(infer_op_case *k, uint32_t i)
{
    uint32_t n = k->desc.n_in + k->desc.n_out;
    if (k->same_as[i] < 0)
        infer_free_aligned(k->data[i]);
    for (uint32_t m = i; m + 1 < n; m++) {
        k->tensors[m] = k->tensors[m + 1];
        k->data[m] = k->data[m + 1];
        k->bytes[m] = k->bytes[m + 1];
        k->same_as[m] = k->same_as[m + 1];
    }
    k->data[n - 1] = NULL;
    k->same_as[n - 1] = -1;
    for (uint32_t m = 0; m + 1 < n; m++)
        k->same_as[m] -= k->same_as[m] > (int32_t)i;
    for (uint32_t e = 0; e < k->desc.n_epilogue; e++)
        k->epilogue[e].operand -= k->epilogue[e].operand > i;
    k->desc.n_in--;
}

/* Cuts the list to its first `steps`, with the inputs that only served the others: what the core would emit. */
static void cut_epilogue(infer_op_case *k, uint32_t steps)
{
    const infer_op_info *info = infer_op_get(k->desc.op);
    k->desc.n_epilogue = steps;
    for (uint32_t i = k->desc.n_in; i-- > info->n_in_max;) {
        int used = 0;
        for (uint32_t e = 0; e < steps; e++) {
            uint32_t kind = k->epilogue[e].kind;
            used |= (kind == INFER_EPI_BIAS || kind == INFER_EPI_RESIDUAL || kind == INFER_EPI_MUL) &&
                    k->epilogue[e].operand == i;
        }
        if (!used)
            drop_input(k, i);
    }
}

/* ---- Rows alone ------------------------------------------------------------------------------------------ */

/* Bytes from one index of axis 0 to the next. */
static uint64_t row_step(const infer_tensor_desc *t, uint64_t bytes)
{
    for (uint32_t i = 0; i + 1 < t->rank; i++)
        if (t->stride[i])
            return (uint64_t)t->stride[0];
    return bytes / (uint64_t)t->shape[0];
}

/* Bytes of one index of axis 0, without a gap behind it. */
static uint64_t row_span(const infer_tensor_desc *t)
{
    infer_tensor_desc one = *t;
    uint64_t bytes = 0;
    one.shape[0] = 1;
    return infer_tensor_bytes(&one, &bytes) ? 0 : bytes;
}

/* Which operands have the rows axis, by the table's signature ("x[n...d]:f w[d]:f? -> …"). */
static uint32_t row_operands(const infer_op_case *k)
{
    const infer_op_info *info = infer_op_get(k->desc.op);
    uint32_t mask = 0, i = 0;
    int64_t rows = k->tensors[info->rows_of].shape[0];
    int outputs = 0;
    for (const char *s = info->sig; (s = strchr(s, '[')); s++, i++) {
        const char *arrow = strstr(info->sig, "->");
        if (!outputs && s > arrow) {
            outputs = 1;
            i = k->desc.n_in;
        }
        if (!outputs && i >= k->desc.n_in)
            continue; /* an optional input left off */
        if (i >= k->desc.n_in + k->desc.n_out)
            break;
        const char *end = strchr(s, ']'), *bar = memchr(s, '|', (size_t)(end - s));
        int first = s[1] == 'n', vector = bar && bar[1] != 'n' && k->tensors[i].rank == 1;
        if (first && !vector && k->data[i] && k->tensors[i].shape[0] == rows)
            mask |= 1u << i;
    }
    for (uint32_t e = 0; e < k->desc.n_epilogue; e++)
        if (k->epilogue[e].kind == INFER_EPI_RESIDUAL || k->epilogue[e].kind == INFER_EPI_MUL)
            mask |= 1u << k->epilogue[e].operand;
    return mask;
}

/* Small operands that a row alone needs changed: an attention row's own sequence. */
typedef struct alone {
    int32_t kv_len, q_start[2];
    infer_attrs_attn attn;
} alone;

static void set_operand(cts_job *j, uint32_t i, const void *data, uint64_t bytes, int64_t first_axis)
{
    j->o[i].data = data;
    j->o[i].bytes = bytes;
    j->t[i].shape[0] = first_axis;
    memset(j->t[i].stride, 0, sizeof(j->t[i].stride));
}

/* Makes row r of a paged attention a sequence of its own, which ends at that row. 0: this cannot be asked of it. */
static int attn_alone(const infer_op_case *k, cts_job *j, int64_t r, alone *a)
{
    uint32_t p = k->desc.op == INFER_OP_MLA_PAGED ? 2 : 3; /* block_table, kv_len, q_start */
    const int32_t *kv_len = (const void *)k->data[p + 1], *q_start = (const void *)k->data[p + 2];
    int64_t n_seqs = k->tensors[p].shape[0];
    infer_op_attrs(&k->desc, &a->attn, sizeof(a->attn));
    if (a->attn.mask > INFER_MASK_FULL)
        return 0; /* a tree or spans name other rows */
    for (int64_t s = 0; s < n_seqs; s++) {
        if (r < q_start[s] || r >= q_start[s + 1])
            continue;
        a->kv_len = kv_len[s]; /* of which the row sees all, or those up to itself */
        if (a->attn.mask != INFER_MASK_FULL)
            a->kv_len -= q_start[s + 1] - 1 - (int32_t)r;
        a->q_start[0] = 0;
        a->q_start[1] = 1;
        if (a->kv_len < 1)
            return 0;
        set_operand(j, p, k->data[p] + (uint64_t)s * row_step(&k->tensors[p], k->bytes[p]), row_span(&k->tensors[p]),
                    1);
        set_operand(j, p + 1, &a->kv_len, 4, 1);
        set_operand(j, p + 2, a->q_start, 8, 2);
        a->attn.struct_size = sizeof(a->attn);
        a->attn.kind = INFER_ATTN_DECODE;
        j->desc.attrs = &a->attn;
        j->desc.attrs_size = sizeof(a->attn);
        return 1;
    }
    return 0;
}

/* Row i of dense attention sees the keys 0 .. m - n + i, unless its mask is full. */
static int dense_alone(const infer_op_case *k, cts_job *j, int64_t r)
{
    infer_attrs_attn attn;
    infer_op_attrs(&k->desc, &attn, sizeof(attn));
    if (attn.mask == INFER_MASK_FULL)
        return 1;
    int64_t n = k->tensors[0].shape[0], keys = k->tensors[1].shape[0] - n + r + 1;
    if (keys < 1)
        return 0;
    for (uint32_t i = 1; i <= 2; i++) {
        j->t[i].shape[0] = keys;
        if (infer_tensor_bytes(&j->t[i], &j->o[i].bytes))
            return 0;
    }
    return 1;
}

/* Runs row r by itself: the same bits as among the others (`batch`), where the device claims it for both. */
static void row_alone(cts *c, const infer_op_case *k, const cts_job *batch, uint32_t mask, int64_t r)
{
    cts_job j;
    alone a;
    cts_job_from(&j, k);
    memcpy(j.o, batch->o, sizeof(j.o));
    memcpy(j.t, batch->t, sizeof(j.t));
    for (uint32_t i = 0; i < j.n; i++)
        if (mask >> i & 1)
            set_operand(&j, i, k->data[i] + (uint64_t)r * row_step(&k->tensors[i], k->bytes[i]),
                        row_span(&k->tensors[i]), 1);
    for (uint32_t i = 0; i < j.n; i++) /* heads inside a row may be strided */
        if (mask >> i & 1)
            memcpy(j.t[i].stride, k->tensors[i].stride, sizeof(j.t[i].stride));
    int can = 1;
    if (k->desc.op == INFER_OP_ATTN_PAGED || k->desc.op == INFER_OP_MLA_PAGED)
        can = attn_alone(k, &j, r, &a);
    else if (k->desc.op == INFER_OP_ATTN_DENSE)
        can = dense_alone(k, &j, r);
    if (j.desc.rows_from != INFER_ROWS_STATIC)
        j.counts[j.desc.rows_from] = 1;
    char label[200];
    snprintf(label, sizeof(label), "%s: row %lld alone", k->label, (long long)r);
    if (can && cts_job_query(c, &j) && j.answer.row_invariant && j.answer.n_epilogue == j.desc.n_epilogue &&
        cts_job_run(c, &j, label))
        for (uint32_t i = j.desc.n_in; i < j.n; i++) {
            if (!(mask >> i & 1))
                continue;
            uint64_t at = (uint64_t)r * row_step(&k->tensors[i], k->bytes[i]);
            int64_t d = cts_differ(cts_job_result(batch, i) + at, cts_job_result(&j, i), row_span(&k->tensors[i]));
            if (d >= 0)
                cts_fail(c,
                         "%s: output %u differs from the same row in the batch at byte %lld, though claimed invariant",
                         label, i - j.desc.n_in, (long long)d);
        }
    cts_job_free(&j);
}

static void check_rows(cts *c, const infer_op_case *k, const cts_job *batch)
{
    uint32_t mask = row_operands(k), outputs = 0;
    int64_t rows = infer_op_rows(&k->desc, k->desc.rows_from == INFER_ROWS_STATIC ? NULL : k->counts);
    for (uint32_t i = k->desc.n_in; i < batch->n; i++)
        outputs += mask >> i & 1;
    if (!outputs || rows < 2) /* lists that write into pools have no row of their own */
        return;
    /* attention: more of them, as a prompt may be cut anywhere and a sequence go on with single rows */
    int many =
        k->desc.op == INFER_OP_ATTN_PAGED || k->desc.op == INFER_OP_MLA_PAGED || k->desc.op == INFER_OP_ATTN_DENSE;
    for (int i = 0; i < (many ? 8 : 3) && !c->failed; i++)
        row_alone(c, k, batch, mask, i == 0 ? 0 : i == 1 ? rows - 1 : (int64_t)cts_below(c, (uint64_t)rows));
}

/* The core asks for the scratch of the most rows, and runs programs for fewer in it. */
static void check_scratch(cts *c, const infer_op_case *k, const cts_job *batch)
{
    static const int64_t rows[] = {640, 512, 300, 256, 129, 128, 64, 33, 5, 4, 1};
    uint32_t mask = row_operands(k);
    uint64_t room = UINT64_MAX;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && mask && !c->failed; i++) {
        cts_job j = *batch;
        j.desc.tensors = j.t;
        for (uint32_t o = 0; o < j.n; o++)
            if (mask >> o & 1)
                j.t[o].shape[0] = rows[i];
        if (!cts_job_query(c, &j))
            continue;
        NEED(j.answer.scratch_bytes <= room, "%s: asks for %llu bytes of scratch for %lld rows, for more rows %llu",
             k->label, (unsigned long long)j.answer.scratch_bytes, (long long)rows[i], (unsigned long long)room);
        room = j.answer.scratch_bytes;
    }
out:
    return;
}

/* ---- One case -------------------------------------------------------------------------------------------- */

/* The count at both ends: none touches nothing, more than the capacity means all. */
static void check_counts(cts *c, infer_op_case *k, cts_job *j)
{
    const infer_op_info *info = infer_op_get(k->desc.op);
    int32_t *count = &k->counts[k->desc.rows_from], was = *count;
    int32_t tried[] = {0, (int32_t)k->tensors[info->rows_of].shape[0] + 3};
    for (int i = 0; i < 2 && !c->failed; i++) {
        char what[48];
        *count = tried[i];
        memcpy(j->counts, k->counts, sizeof(j->counts));
        snprintf(what, sizeof(what), "with a count of %d: ", tried[i]);
        if (cts_job_run(c, j, k->label))
            cts_compare(c, k, j, what);
    }
    *count = was;
    memcpy(j->counts, k->counts, sizeof(j->counts));
}

static void check_repeat(cts *c, const infer_op_case *k, const cts_job *first)
{
    cts_job again = *first;
    again.before[0] = again.before[1] = again.after[0] = again.after[1] = NULL;
    again.desc.tensors = again.t;
    again.scratch_fill = 0;
    if (cts_job_run(c, &again, k->label))
        for (uint32_t i = 0; i < first->n && !c->failed; i++) {
            if (!first->o[i].data || !first->o[i].written)
                continue;
            int64_t d = cts_differ(cts_job_result(first, i), cts_job_result(&again, i), first->o[i].bytes);
            if (d >= 0)
                cts_fail(c, "%s: a second run differs at byte %lld of operand %u", k->label, (long long)d, i);
        }
    cts_job_free(&again);
}

int cts_op_check(cts *c, infer_op_case *k, uint32_t checks, uint32_t *why)
{
    cts_job j = {.n = 0};
    int taken = 0;
    cts_job_from(&j, k);
    if (!cts_job_plan(c, &j))
        goto out;
    if (!cts_job_query(c, &j)) {
        *why = j.answer.why;
        goto out;
    }
    taken = 1;
    if (j.answer.n_epilogue < k->desc.n_epilogue) {
        cut_epilogue(k, j.answer.n_epilogue);
        cts_job_from(&j, k);
        if (!cts_job_plan(c, &j))
            goto out;
        NEED(cts_job_query(c, &j) && j.answer.n_epilogue == k->desc.n_epilogue,
             "%s: takes %u epilogue steps of a longer list, but not of just these", k->label, k->desc.n_epilogue);
    }
    if (!cts_job_run(c, &j, k->label) || !cts_compare(c, k, &j, ""))
        goto out;
    if (checks & CTS_CHECK_REPEAT)
        check_repeat(c, k, &j);
    if (checks & CTS_CHECK_ROWS && !c->failed && j.answer.row_invariant)
        check_rows(c, k, &j);
    if (checks & CTS_CHECK_ROWS && !c->failed)
        check_scratch(c, k, &j);
    if (checks & CTS_CHECK_COUNTS && !c->failed && k->desc.rows_from != INFER_ROWS_STATIC)
        check_counts(c, k, &j);
out:
    cts_job_free(&j);
    return taken;
}

/* What the reference takes on this host for a case that falls back to it. */
static double reference_us(const infer_op_case *k)
{
    void *result[INFER_OP_MAX_OPERANDS] = {NULL};
    uint64_t start = infer_clock_ns();
    if (infer_op_case_expect(k, result))
        return 0;
    double us = (double)(infer_clock_ns() - start) / 1000;
    free_results(result);
    return us;
}

static void op_case(cts *c)
{
    op_arg *arg = c->arg;
    infer_op_case k;
    uint32_t why = INFER_WHY_NONE;
    infer_status s = infer_op_case_make(arg->op, arg->index, c->run->opt->seed, &k);
    if (s) {
        cts_fail(c, "making the case: %s", infer_status_name(s));
        return;
    }
    if (cts_op_check(c, &k, CTS_CHECK_ALL, &why)) {
        arg->taken++;
    } else if (!c->failed) {
        double us = arg->taken ? 0 : reference_us(&k);
        if (us > arg->us) {
            arg->us = us;
            snprintf(arg->costly, sizeof(arg->costly), "%s", k.label);
        }
        arg->why = arg->refused++ ? arg->why : why;
        cts_skip(c, "%s: answered NO for %s", k.label, cts_why_name(why));
    }
    infer_op_case_free(&k);
}

/* A case with its operands and counts written by commands that the queue still holds back when the op is submitted.
 * 1: it ran (it may have failed), 0: it is not taken. */
static int late_once(cts *c, const infer_op_case *k)
{
    char label[220];
    cts_job j;
    cts_job_from(&j, k);
    int taken = cts_job_plan(c, &j) && cts_job_query(c, &j) && j.answer.n_epilogue == k->desc.n_epilogue;
    j.late = 1;
    snprintf(label, sizeof(label), "%s, operands and counts written by commands before it", k->label);
    if (taken && cts_job_run(c, &j, label))
        cts_compare(c, k, &j, "operands and counts written by commands before it: ");
    cts_job_free(&j);
    return taken;
}

/* What the op reads, it reads when it runs and not when it is submitted: with a few of its cases, those with dynamic
 * rows before others. */
static void op_late(cts *c)
{
    const op_arg *arg = c->arg;
    uint32_t n = infer_op_case_count(arg->op), done = 0;
    for (int dynamic = 1; dynamic >= 0 && !done; dynamic--)
        for (uint32_t i = 0; i < n && done < LATE_CASES && !c->failed; i++) {
            infer_op_case k;
            infer_status s = infer_op_case_make(arg->op, i, c->run->opt->seed, &k);
            if (s) {
                cts_fail(c, "making the case: %s", infer_status_name(s));
                return;
            }
            int counted = k.desc.rows_from != INFER_ROWS_STATIC;
            if (counted == dynamic && infer_op_rows(&k.desc, counted ? k.counts : NULL) > 0)
                done += (uint32_t)late_once(c, &k);
            infer_op_case_free(&k);
        }
    if (!done)
        cts_skip(c, "answered NO in every case");
}

void cts_t1_ops(cts_run *r)
{
    for (infer_op_id op = 1; op < INFER_OP_COUNT; op++) {
        const infer_op_info *info = infer_op_get(op);
        uint32_t n = info ? infer_op_case_count(op) : 0;
        op_arg arg = {.op = op};
        for (arg.index = 0; arg.index < n; arg.index++) {
            char name[64];
            snprintf(name, sizeof(name), "t1.%s.%u", info->name, arg.index);
            cts_case_run(r, 1, name, op_case, 1, &arg);
        }
        if (n) {
            char name[64];
            snprintf(name, sizeof(name), "t1.%s.late", info->name);
            cts_case_run(r, 1, name, op_late, 1, &arg);
        }
        if (arg.refused && !arg.taken && !r->opt->only) {
            char why[320];
            snprintf(why, sizeof(why), "answered NO for %s; the host's reference takes %.0f us for %s",
                     cts_why_name(arg.why), arg.us, arg.costly);
            cts_report(r, 1, INFER_CONFORM_FALLBACK, info->name, why);
        }
    }
}
