/* Steps on devices: one job a part on its device's submit thread, values that cross go through host memory. Knows rows
 * and buffers, no requests. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "sched/places.h"
#include "sched/private.h"

enum { MAX_BUCKETS = 24 };

typedef struct part_run {
    int first_on_device;
    infer_hal_tl *tl; /* reaches the step's number when the part is done */
    infer_hal_prog *prog[MAX_BUCKETS];
    infer_hal_exec *exec[MAX_BUCKETS];
} part_run;

struct side;

/* A part of one side's step. */
typedef struct part_job {
    infer_hal_job job; /* first: the thread gets a pointer to it */
    struct side *on;
    uint32_t part;
    uint64_t t_seen; /* its end, by who waits for it on another thread */
} part_job;

/* A step's image and what it gives: one is filled, or its results read, while the other's step runs. Two may be in a
 * device's queue, hence all that belongs to a step is here. */
typedef struct side {
    infer_runner *r;
    uint8_t *bytes;
    infer_step_image image;
    int32_t *ids, *top_ids;
    float *logprobs, *top_logprobs, *logits, *hidden;
    infer_step_part *part_times; /* n_parts */
    infer_step_copy *copy_times; /* n_xfers; sender and receiver write their own fields */
    const infer_step_extra *extra;
    infer_copy_region *feeds; /* max_seqs: of ids that the device hands on */
    part_job *jobs;           /* one a part */
    uint64_t no;              /* the step's number */
    uint32_t bucket;
    uint32_t done; /* parts whose jobs have run; under the runner's lock, as err */
    _Atomic uint64_t copy_bytes;
    _Atomic infer_status status; /* the first failure of the step */
    infer_error err;
} side;

struct infer_runner {
    infer_model *m;
    infer_plan *p;
    infer_hal_buf arena[INFER_GRAPH_MAX_DEVS], step[INFER_GRAPH_MAX_DEVS], state[INFER_GRAPH_MAX_DEVS],
        kv[INFER_GRAPH_MAX_DEVS];
    uint32_t buckets[MAX_BUCKETS], n_buckets;
    part_run *parts;
    uint8_t *stage;
    side sides[2];
    int one_device; /* its queue orders all parts: nobody waits between them, nor between two steps */
    int is_inline;
    infer_places places;
    uint64_t step_no; /* of the last one that began */
    uint64_t t_end;   /* of the last part that was awaited, with one device */
    pthread_mutex_t lock;
    pthread_cond_t done_cond;
};

/* ---- One part, on its device's submit thread ------------------------------------------------------------------- */

static void fail(side *on, infer_hal_dev *d, infer_status s, const char *what)
{
    pthread_mutex_lock(&on->r->lock);
    if (atomic_load(&on->status) == INFER_OK) {
        infer_hal_fail(d, s, &on->err, what);
        atomic_store(&on->status, s);
    }
    pthread_mutex_unlock(&on->r->lock);
}

/* Bytes of a transfer that this step uses. */
static uint64_t transfer_bytes(const side *on, const infer_transfer *x)
{
    if (x->rows_from >= INFER_COUNT_MAX)
        return x->max_bytes;
    uint64_t n = (uint64_t)on->image.counts[x->rows_from] * x->rows_mul * x->row_bytes;
    return n < x->max_bytes ? n : x->max_bytes;
}

/* *who: the device that a failure is of. */
static infer_status receive(side *on, infer_hal_dev *d, uint32_t part, infer_hal_dev **who)
{
    infer_runner *r = on->r;
    for (uint32_t i = 0; i < r->p->compiled.n_xfers; i++) {
        const infer_transfer *x = &r->p->compiled.xfers[i];
        if (x->dst_part != part)
            continue;
        uint64_t n = transfer_bytes(on, x);
        if (!n)
            continue;
        infer_step_copy *c = &on->copy_times[i];
        c->t_wait = infer_clock_ns();
        infer_status s = infer_hal_tl_wait(r->parts[x->src_part].tl, on->no, UINT64_MAX);
        c->t_receive = infer_clock_ns();
        if (s != INFER_OK) {
            *who = r->p->devs[x->src_dev].dev;
            return s;
        }
        infer_copy_end src = {NULL, r->stage + x->stage_offset}, dst = {r->arena[x->dst_dev].h, NULL};
        infer_copy_region g = {.dst_offset = x->dst_offset, .bytes = n, .rows = 1};
        INFER_TRY(infer_hal_copy(d, &dst, &src, &g, 1));
        c->t_received = infer_clock_ns();
    }
    return INFER_OK;
}

static infer_status send(side *on, infer_hal_dev *d, uint32_t part)
{
    infer_runner *r = on->r;
    for (uint32_t i = 0; i < r->p->compiled.n_xfers; i++) {
        const infer_transfer *x = &r->p->compiled.xfers[i];
        uint64_t n = transfer_bytes(on, x);
        if (x->src_part != part || !n)
            continue;
        infer_copy_end dst = {NULL, r->stage + x->stage_offset}, src = {r->arena[x->src_dev].h, NULL};
        infer_copy_region g = {.src_offset = x->src_offset, .bytes = n, .rows = 1};
        infer_step_copy *c = &on->copy_times[i];
        c->t_send = infer_clock_ns();
        INFER_TRY(infer_hal_copy(d, &dst, &src, &g, 1));
        c->t_sent = infer_clock_ns();
        c->bytes = n;
        atomic_fetch_add(&on->copy_bytes, n);
    }
    return INFER_OK;
}

/* From one byte of the image to another, into the same place on the device. */
static infer_status update_range(side *on, infer_hal_dev *d, int32_t dev, uint64_t at, uint64_t end)
{
    infer_range dst = {on->r->step[dev].h, at, end - at};
    return infer_hal_update(d, &dst, on->bytes + at, end - at);
}

/* The step's parameters: what this step fills, and what lies between where that is less than another call costs. */
static infer_status update_step(side *on, infer_hal_dev *d, int32_t dev)
{
    enum { GAP = 32768 };
    const infer_step_layout *l = &on->r->p->dec.step;
    const infer_step_image *im = &on->image;
    const struct {
        uint64_t at, bytes;
    } rows[] = {
        /* in order of the layout */
        {l->counts, INFER_COUNT_MAX * sizeof(int32_t)},
        {l->ids, im->n_tokens * sizeof(int32_t)},
        {l->pos, im->n_tokens * sizeof(int32_t)},
        {l->slots, im->n_tokens * sizeof(int32_t)},
        {l->adapter_row, im->n_tokens * sizeof(int32_t)},
        {l->logit_rows, im->n_logits * sizeof(int32_t)},
        {l->kv_len, im->n_seqs * sizeof(int32_t)},
        {l->q_start, (l->max_seqs + 1) * sizeof(int32_t)}, /* also of those that own no row */
        {l->sample_rows, im->n_logits * sizeof(infer_sample_row)},
        {l->block_table, (uint64_t)im->n_seqs * l->max_blocks * sizeof(int32_t)},
        {l->bias, im->n_bias * sizeof(infer_sample_bias)},
    };
    uint64_t at = rows[0].at, end = at;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (!rows[i].bytes)
            continue;
        if (rows[i].at - end > GAP) {
            INFER_TRY(update_range(on, d, dev, at, end));
            at = rows[i].at;
        }
        end = rows[i].at + rows[i].bytes;
    }
    return update_range(on, d, dev, at, end);
}

/* Where a value lies in a device's arena. */
static uint64_t place_of(const infer_runner *r, int32_t dev, infer_val v)
{
    const infer_compiled *c = &r->p->compiled;
    return c->place[(size_t)dev * c->g->n_vals + (size_t)v];
}

/* Ids that the step before samples, from where its sampler leaves them. One that is out of range gives a row of zeros,
 * and its request fails. */
static infer_status feed_ids(side *on, infer_hal_dev *d, int32_t dev)
{
    const infer_runner *r = on->r;
    const uint64_t from = place_of(r, dev, r->p->out.ids), to = r->p->dec.step.ids;
    const infer_copy_end src = {r->arena[dev].h, NULL}, dst = {r->step[dev].h, NULL};
    uint32_t n = 0;
    for (uint32_t i = 0; i < on->extra->n_late; i++) {
        const infer_copy_region g = {.src_offset = from + 4ull * on->extra->late[i].logit,
                                     .dst_offset = to + 4ull * on->extra->late[i].row,
                                     .bytes = 4,
                                     .rows = 1};
        infer_copy_region *last = n ? &on->feeds[n - 1] : NULL;
        if (last && g.src_offset == last->src_offset + last->bytes && g.dst_offset == last->dst_offset + last->bytes)
            last->bytes += g.bytes;
        else
            on->feeds[n++] = g;
    }
    return n ? infer_hal_copy(d, &dst, &src, on->feeds, n) : INFER_OK;
}

static infer_status init_counts(side *on, infer_hal_dev *d, int32_t dev)
{
    infer_runner *r = on->r;
    uint64_t bytes = 2ull * r->p->file->hp.n_vocab;
    for (uint32_t i = 0; i < on->extra->n_inits; i++) {
        infer_range dst = {r->state[dev].h, bytes * on->extra->inits[i].row, bytes};
        INFER_TRY(infer_hal_update(d, &dst, on->extra->inits[i].counts, bytes));
    }
    return INFER_OK;
}

/* Copies rows of a kept value to the host, where this device made it. */
static infer_status fetch(side *on, infer_hal_dev *d, int32_t dev, uint32_t part, infer_val v, void *to,
                          uint64_t row_bytes)
{
    infer_runner *r = on->r;
    const infer_compiled *c = &r->p->compiled;
    if (v < 0 || !on->image.n_logits)
        return INFER_OK;
    int here = 0;
    for (uint32_t i = c->parts[part].first; i < c->parts[part].first + c->parts[part].count; i++) {
        const infer_gnode *n = &c->g->nodes[c->order[i]];
        for (uint32_t k = 0; k < n->n_out; k++)
            here |= n->out[k] == v;
    }
    if (!here)
        return INFER_OK;
    infer_copy_end src = {r->arena[dev].h, NULL}, dst = {NULL, to};
    infer_copy_region g = {.src_offset = place_of(r, dev, v), .bytes = row_bytes * on->image.n_logits, .rows = 1};
    return infer_hal_copy(d, &dst, &src, &g, 1);
}

static infer_status fetch_all(side *on, infer_hal_dev *d, int32_t dev, uint32_t part)
{
    const infer_plan *p = on->r->p;
    const infer_decoder_outputs *o = &p->out;
    uint64_t n_top = p->dec.n_top;
    if (on->extra->want_logits)
        INFER_TRY(fetch(on, d, dev, part, o->logits, on->logits, 4ull * p->file->hp.n_vocab));
    if (on->extra->want_hidden)
        INFER_TRY(fetch(on, d, dev, part, o->hidden, on->hidden, 4ull * p->file->hp.n_embd));
    if (!on->extra->want_sample)
        return INFER_OK;
    INFER_TRY(fetch(on, d, dev, part, o->ids, on->ids, 4));
    INFER_TRY(fetch(on, d, dev, part, o->logprobs, on->logprobs, 4));
    if (!on->extra->want_top)
        return INFER_OK;
    INFER_TRY(fetch(on, d, dev, part, o->top_ids, on->top_ids, 4 * n_top));
    return fetch(on, d, dev, part, o->top_logprobs, on->top_logprobs, 4 * n_top);
}

static infer_status run_part(side *on, uint32_t i, infer_hal_dev *d, infer_hal_dev **who)
{
    infer_runner *r = on->r;
    const infer_part *part = &r->p->compiled.parts[i];
    part_run *pr = &r->parts[i];
    int sampling = part->program == INFER_PROGRAM_SAMPLE;
    if (pr->first_on_device) {
        INFER_TRY(update_step(on, d, part->dev));
        INFER_TRY(feed_ids(on, d, part->dev));
        /* In this order: a block that is copied out is free for the copies, and one that was copied from, for those in.
         */
        INFER_TRY(infer_places_out(&r->places, d, part->dev, on->extra->outs, on->extra->n_outs));
        INFER_TRY(infer_places_copy(&r->places, d, part->dev, on->extra->copies, on->extra->n_copies));
        INFER_TRY(infer_places_in(&r->places, d, part->dev, on->extra->ins, on->extra->n_ins));
    }
    if (sampling && !on->extra->want_sample)
        return INFER_OK;
    if (sampling && r->state[part->dev].h)
        INFER_TRY(init_counts(on, d, part->dev));
    INFER_TRY(receive(on, d, i, who));
    INFER_TRY(infer_hal_exec_submit(pr->exec[on->bucket]));
    INFER_TRY(send(on, d, i));
    return fetch_all(on, d, part->dev, i);
}

/* A step that reads ids of one that failed does not run. */
static void inherit_failure(side *on)
{
    infer_runner *r = on->r;
    side *before = &r->sides[on == &r->sides[0]];
    pthread_mutex_lock(&r->lock);
    const infer_status s = on->extra->n_late ? atomic_load(&before->status) : INFER_OK;
    if (s != INFER_OK && atomic_load(&on->status) == INFER_OK) {
        on->err = before->err;
        atomic_store(&on->status, s);
    }
    pthread_mutex_unlock(&r->lock);
}

/* A part did not end as it should: the device may still be at the buffers, which a failed engine frees. Whoever waits
 * for the part must not wait for ever. On the submit thread. */
static void abandon(side *on, uint32_t part)
{
    infer_runner *r = on->r;
    (void)infer_hal_drain(r->p->devs[r->p->compiled.parts[part].dev].dev);
    infer_hal_tl_signal_host(r->parts[part].tl, on->no);
}

static void run_part_job(infer_hal_job *job)
{
    part_job *j = (part_job *)job;
    side *on = j->on;
    infer_runner *r = on->r;
    infer_hal_tl *tl = r->parts[j->part].tl;
    infer_hal_dev *d = r->p->devs[r->p->compiled.parts[j->part].dev].dev, *who = d;
    infer_status s = INFER_OK;
    on->part_times[j->part].t_begin = infer_clock_ns();
    inherit_failure(on);
    if (atomic_load(&on->status) == INFER_OK && (s = run_part(on, j->part, d, &who)) != INFER_OK)
        fail(on, who, s, "step");
    /* Signalled also after a failure, so that no later part waits for ever. */
    s = infer_hal_signal(d, tl, on->no);
    if (s == INFER_OK && !r->one_device)
        s = infer_hal_tl_wait(tl, on->no, UINT64_MAX);
    if (s != INFER_OK) {
        fail(on, d, s, "step");
        abandon(on, j->part);
    }
    on->part_times[j->part].t_end = infer_clock_ns();
    pthread_mutex_lock(&r->lock);
    if (++on->done == r->p->compiled.n_parts)
        pthread_cond_signal(&r->done_cond);
    pthread_mutex_unlock(&r->lock);
}

int infer_runner_feeds(const infer_runner *r)
{
    return r->one_device;
}

void infer_runner_begin(infer_runner *r, uint32_t which, const infer_step_extra *x)
{
    const infer_compiled *c = &r->p->compiled;
    side *on = &r->sides[which];
    infer_step_image *im = &on->image;
    on->extra = x;
    on->no = ++r->step_no;
    on->done = 0;
    for (uint32_t i = 0; i < c->n_xfers; i++)
        on->copy_times[i].bytes = 0;
    atomic_store(&on->copy_bytes, 0);
    atomic_store(&on->status, INFER_OK);
    im->counts[INFER_COUNT_TOKENS] = (int32_t)im->n_tokens;
    im->counts[INFER_COUNT_SEQS] = (int32_t)im->n_seqs;
    im->counts[INFER_COUNT_LOGITS] = (int32_t)im->n_logits;
    for (uint32_t i = im->n_seqs + 1; i <= r->p->dec.step.max_seqs; i++) /* the others own no row */
        im->q_start[i] = (int32_t)im->n_tokens;
    on->bucket = 0;
    while (r->buckets[on->bucket] < im->n_tokens)
        on->bucket++;
    for (uint32_t i = 0; i < c->n_parts; i++)
        infer_hal_post(r->p->devs[c->parts[i].dev].dev, &on->jobs[i].job);
}

typedef struct abandon_job {
    infer_hal_job job;
    side *on;
    uint32_t part;
} abandon_job;

static void run_abandon(infer_hal_job *job)
{
    const abandon_job *a = (abandon_job *)job;
    abandon(a->on, a->part);
}

/* Waits for a step's parts here, where the submit thread is to go on with the next step. */
static void await_parts(side *on)
{
    infer_runner *r = on->r;
    for (uint32_t i = 0; i < r->p->compiled.n_parts; i++) {
        infer_hal_dev *d = r->p->devs[r->p->compiled.parts[i].dev].dev;
        const infer_status s = infer_hal_tl_wait(r->parts[i].tl, on->no, UINT64_MAX);
        if (s != INFER_OK) {
            abandon_job a = {.job.run = run_abandon, .on = on, .part = i};
            fail(on, d, s, "step");
            infer_hal_run(d, &a.job);
        }
        on->jobs[i].t_seen = infer_clock_ns();
    }
}

infer_status infer_runner_finish(infer_runner *r, uint32_t which, infer_step_result *out, infer_error *err)
{
    side *on = &r->sides[which];
    uint64_t busy = 0, t_end = 0;
    if (r->one_device)
        await_parts(on);
    pthread_mutex_lock(&r->lock);
    while (on->done < r->p->compiled.n_parts)
        pthread_cond_wait(&r->done_cond, &r->lock);
    pthread_mutex_unlock(&r->lock);
    for (uint32_t i = 0; i < r->p->compiled.n_parts; i++) {
        infer_step_part *t = &on->part_times[i];
        if (r->one_device && !r->is_inline)
            t->t_end = on->jobs[i].t_seen;
        if (r->one_device && t->t_begin < r->t_end) /* what was submitted behind others began when they ended */
            t->t_begin = r->t_end;
        if (t->t_end < t->t_begin)
            t->t_end = t->t_begin;
        r->t_end = t->t_end;
        t_end = t->t_end > t_end ? t->t_end : t_end;
        busy += t->t_end - t->t_begin;
    }
    *out = (infer_step_result){.t_end = t_end};
    infer_status s = atomic_load(&on->status);
    if (s != INFER_OK) {
        if (err)
            *err = on->err;
        return s;
    }
    *out = (infer_step_result){.ids = on->ids,
                               .logprobs = on->logprobs,
                               .top_ids = on->top_ids,
                               .top_logprobs = on->top_logprobs,
                               .logits = on->logits,
                               .hidden = on->hidden,
                               .n_top = r->p->dec.n_top,
                               .busy_ns = busy,
                               .t_end = t_end,
                               .copy_bytes = atomic_load(&on->copy_bytes)};
    return INFER_OK;
}

void infer_runner_describe(const infer_runner *r, uint32_t which, infer_step_info *out)
{
    out->n_parts = r->p->compiled.n_parts;
    out->parts = r->sides[which].part_times;
    out->n_copies = r->p->compiled.n_xfers;
    out->copies = r->sides[which].copy_times;
}

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

typedef struct fill_job {
    infer_hal_job job;
    infer_hal_dev *d;
    infer_range range;
    infer_status status;
} fill_job;

static void run_fill(infer_hal_job *job)
{
    fill_job *f = (fill_job *)job;
    f->status = infer_hal_fill(f->d, &f->range, 0, 4);
    if (f->status == INFER_OK)
        f->status = infer_hal_drain(f->d);
}

/* Zeroes a buffer: a step block's first counts, and states, must not be what memory held before. */
static infer_status zero(infer_hal_buf *b, infer_error *err)
{
    if (!b->h)
        return INFER_OK;
    fill_job f = {.job.run = run_fill, .d = b->dev, .range = {b->h, 0, b->size / 4 * 4}};
    infer_hal_run(b->dev, &f.job);
    return f.status == INFER_OK ? INFER_OK : infer_hal_fail(b->dev, f.status, err, "zeroing a buffer");
}

static infer_status alloc_device(infer_runner *r, uint32_t i, infer_error *err)
{
    const infer_plan_dev *d = &r->p->devs[i];
    INFER_TRY(infer_model_alloc(r->m, i, r->p->compiled.arena_bytes[i], INFER_LEDGER_ACTIVATIONS, &r->arena[i], err));
    INFER_TRY(infer_model_alloc(r->m, i, d->step_bytes, INFER_LEDGER_WORKSPACE, &r->step[i], err));
    INFER_TRY(infer_model_alloc(r->m, i, d->state_bytes, INFER_LEDGER_WORKSPACE, &r->state[i], err));
    INFER_TRY(infer_model_alloc(r->m, i, d->kv.total_bytes, INFER_LEDGER_KV, &r->kv[i], err));
    INFER_TRY(zero(&r->step[i], err));
    return zero(&r->state[i], err);
}

static infer_status make_part(infer_runner *r, uint32_t part, infer_error *err)
{
    const infer_compiled *c = &r->p->compiled;
    part_run *pr = &r->parts[part];
    int32_t dev = c->parts[part].dev;
    for (int i = 0; i < 2; i++)
        r->sides[i].jobs[part] = (part_job){.job.run = run_part_job, .on = &r->sides[i], .part = part};
    pr->first_on_device = 1;
    for (uint32_t k = 0; k < part; k++)
        if (c->parts[k].dev == dev)
            pr->first_on_device = 0;
    infer_graph_binding b = {.n_slots = 0};
    b.ranges[INFER_SLOT_I_ARENA] = (infer_range){r->arena[dev].h, 0, r->arena[dev].size};
    b.ranges[INFER_SLOT_I_STEP] = (infer_range){r->step[dev].h, 0, r->step[dev].size};
    b.ranges[INFER_SLOT_I_STATE] = (infer_range){r->state[dev].h, 0, r->state[dev].size};
    b.ranges[INFER_SLOT_I_KV] = (infer_range){r->kv[dev].h, 0, r->kv[dev].size};
    INFER_TRY(infer_model_bind(r->m, dev, &b, err));
    INFER_TRY(infer_hal_tl_create(r->p->devs[dev].dev, &pr->tl, err));
    for (uint32_t k = 0; k < r->n_buckets; k++)
        INFER_TRY(infer_graph_program(c, &r->p->target, part, r->buckets[k], &b, &pr->prog[k], &pr->exec[k], err));
    return INFER_OK;
}

static void choose_buckets(infer_runner *r)
{
    int many = 0;
    uint32_t max = r->p->opt.max_batched_tokens;
    for (uint32_t i = 0; i < r->p->n_devs; i++)
        many |= (infer_hal_dev_props(r->p->devs[i].dev)->flags & INFER_PROP_WANTS_BUCKETS) != 0;
    for (uint32_t b = 1; many && b < max && r->n_buckets < MAX_BUCKETS - 1; b *= 2)
        r->buckets[r->n_buckets++] = b;
    r->buckets[r->n_buckets++] = max;
}

static void name_times(const infer_plan *p, side *d)
{
    for (uint32_t i = 0; i < p->compiled.n_parts; i++) {
        const infer_part *part = &p->compiled.parts[i];
        d->part_times[i].device = infer_hal_dev_id(p->devs[part->dev].dev);
        d->part_times[i].sample = part->program == INFER_PROGRAM_SAMPLE;
    }
    for (uint32_t i = 0; i < p->compiled.n_xfers; i++) {
        const infer_transfer *x = &p->compiled.xfers[i];
        d->copy_times[i].src = infer_hal_dev_id(p->devs[x->src_dev].dev);
        d->copy_times[i].dst = infer_hal_dev_id(p->devs[x->dst_dev].dev);
        d->copy_times[i].src_part = (uint32_t)x->src_part;
        d->copy_times[i].dst_part = (uint32_t)x->dst_part;
    }
}

static infer_status alloc_side(infer_runner *r, side *d)
{
    const infer_plan *p = r->p;
    const infer_step_layout *l = &p->dec.step;
    uint64_t m = l->max_logits, top = p->dec.n_top;
    d->r = r;
    d->bytes = infer_alloc_aligned(l->bytes, 256);
    d->feeds = infer_calloc(l->max_seqs, sizeof *d->feeds);
    d->jobs = infer_calloc(p->compiled.n_parts, sizeof *d->jobs);
    d->ids = infer_calloc(m, sizeof *d->ids);
    d->logprobs = infer_calloc(m, sizeof *d->logprobs);
    d->top_ids = infer_calloc(m * top, sizeof *d->top_ids);
    d->top_logprobs = infer_calloc(m * top, sizeof *d->top_logprobs);
    /* Touched, and so resident, only where they are read back. */
    d->logits = infer_malloc(m * p->file->hp.n_vocab * sizeof *d->logits);
    d->hidden = infer_malloc(m * p->file->hp.n_embd * sizeof *d->hidden);
    d->part_times = infer_calloc(p->compiled.n_parts, sizeof *d->part_times);
    d->copy_times = infer_calloc(p->compiled.n_xfers, sizeof *d->copy_times);
    if (!d->bytes || !d->feeds || !d->jobs || !d->ids || !d->logprobs || !d->top_ids || !d->top_logprobs ||
        !d->logits || !d->hidden || !d->part_times || !d->copy_times)
        return INFER_E_NO_MEMORY;
    name_times(p, d);
    memset(d->bytes, 0, l->bytes);
    d->image = (infer_step_image){.counts = (int32_t *)(d->bytes + l->counts),
                                  .ids = (int32_t *)(d->bytes + l->ids),
                                  .pos = (int32_t *)(d->bytes + l->pos),
                                  .slots = (int32_t *)(d->bytes + l->slots),
                                  .adapter_row = (int32_t *)(d->bytes + l->adapter_row),
                                  .logit_rows = (int32_t *)(d->bytes + l->logit_rows),
                                  .kv_len = (int32_t *)(d->bytes + l->kv_len),
                                  .q_start = (int32_t *)(d->bytes + l->q_start),
                                  .block_table = (int32_t *)(d->bytes + l->block_table),
                                  .sample_rows = (infer_sample_row *)(d->bytes + l->sample_rows),
                                  .bias = (infer_sample_bias *)(d->bytes + l->bias)};
    return INFER_OK;
}

static void free_side(side *d)
{
    infer_free(d->copy_times);
    infer_free(d->part_times);
    infer_free(d->hidden);
    infer_free(d->logits);
    infer_free(d->top_logprobs);
    infer_free(d->top_ids);
    infer_free(d->logprobs);
    infer_free(d->ids);
    infer_free(d->jobs);
    infer_free(d->feeds);
    infer_free_aligned(d->bytes);
}

static infer_status alloc_host(infer_runner *r, infer_error *err)
{
    const infer_plan *p = r->p;
    r->stage = infer_alloc_aligned(p->stage_bytes, 256);
    r->parts = infer_calloc(p->compiled.n_parts, sizeof *r->parts);
    if (!r->stage || !r->parts || alloc_side(r, &r->sides[0]) || alloc_side(r, &r->sides[1]))
        return infer_error_set(err, INFER_E_NO_MEMORY, "engine: no host memory for the step's blocks");
    return INFER_OK;
}

infer_status infer_runner_create(infer_model *m, uint32_t n_places, infer_runner **out, infer_error *err)
{
    infer_runner *r = infer_calloc(1, sizeof *r);
    if (!r)
        return infer_error_set(err, INFER_E_NO_MEMORY, "engine: no host memory");
    r->m = m;
    r->p = m->plan;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->done_cond, NULL);
    choose_buckets(r);
    r->one_device = 1;
    for (uint32_t i = 1; i < r->p->compiled.n_parts; i++)
        r->one_device &= r->p->compiled.parts[i].dev == r->p->compiled.parts[0].dev;
    for (uint32_t i = 0; i < r->p->n_devs; i++)
        r->is_inline |= (infer_hal_dev_props(r->p->devs[i].dev)->flags & INFER_PROP_INLINE) != 0;
    infer_status s = alloc_host(r, err);
    if (s == INFER_OK)
        s = infer_places_create(&r->places, r->p, r->kv, n_places, err);
    for (uint32_t i = 0; s == INFER_OK && i < r->p->n_devs; i++)
        s = alloc_device(r, i, err);
    for (uint32_t i = 0; s == INFER_OK && i < r->p->compiled.n_parts; i++)
        s = make_part(r, i, err);
    if (s != INFER_OK) {
        infer_runner_destroy(r);
        return s;
    }
    *out = r;
    return INFER_OK;
}

void infer_runner_destroy(infer_runner *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; r->parts && i < r->p->compiled.n_parts; i++) {
        part_run *pr = &r->parts[i];
        for (uint32_t k = 0; k < r->n_buckets; k++) {
            if (pr->exec[k])
                infer_hal_exec_destroy(pr->exec[k]);
            if (pr->prog[k])
                infer_hal_prog_destroy(pr->prog[k]);
        }
        if (pr->tl)
            infer_hal_tl_destroy(pr->tl);
    }
    for (uint32_t i = 0; i < r->p->n_devs; i++) {
        infer_model_free(r->m, i, &r->kv[i]);
        infer_model_free(r->m, i, &r->state[i]);
        infer_model_free(r->m, i, &r->step[i]);
        infer_model_free(r->m, i, &r->arena[i]);
    }
    infer_places_destroy(&r->places);
    infer_free(r->parts);
    free_side(&r->sides[0]);
    free_side(&r->sides[1]);
    infer_free_aligned(r->stage);
    pthread_cond_destroy(&r->done_cond);
    pthread_mutex_destroy(&r->lock);
    infer_free(r);
}

const infer_places *infer_runner_places(const infer_runner *r)
{
    return &r->places;
}

infer_step_image *infer_runner_image(infer_runner *r, uint32_t which)
{
    return &r->sides[which].image;
}
