/* Weights onto the devices of a plan, and where programs find them. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "model/private.h"
#include "topo/topo.h"

/* Binds a file part in place on a device, once. */
static infer_status import_part(infer_model *m, int32_t dev, uint32_t part, infer_error *err)
{
    infer_hal_buf *b = &m->parts[dev][part];
    if (b->h)
        return INFER_OK;
    const uint8_t *p;
    uint64_t n;
    infer_gguf_part_bytes(m->plan->file->gguf, part, &p, &n);
    infer_hal_dev *d = m->plan->devs[dev].dev;
    infer_status s = infer_hal_buf_import(d, (void *)(uintptr_t)p, n, INFER_LEDGER_WEIGHTS, b, err);
    if (s == INFER_E_UNSUPPORTED) /* it comes without a text */
        return infer_error_set(err, s, "binding the model file in place on %s: the device does not take it",
                               infer_hal_dev_id(d));
    return s == INFER_OK ? s : infer_error_prefix(err, s, "binding the model file in place");
}

static infer_status load_packed(infer_model *m, const infer_weight_inst *x, infer_error *err)
{
    infer_plan *p = m->plan;
    const infer_weight_src *w = &p->file->weights.p[x->ref];
    infer_weight_desc d;
    infer_plan_weight_source(p, x, &d);
    const void *planes[3] = {w->tensor ? (const void *)w->tensor->data : w->data, NULL, NULL};
    uint64_t bytes[3] = {w->tensor ? w->tensor->bytes : (uint64_t)w->shape[0] * sizeof(float), 0, 0};
    infer_range dst = {m->packed[x->dev].h, x->offset, x->plan.packed_bytes};
    infer_status s = infer_plan_recodes(p, x->ref)
                         ? infer_plan_load_recoded(p, x, &d, &dst, err)
                         : infer_hal_weight_load(p->devs[x->dev].dev, &d, &x->plan, &dst, planes, bytes, err);
    return s == INFER_OK ? s : infer_error_prefix(err, s, "load %s", w->name);
}

infer_status infer_model_alloc(infer_model *m, uint32_t dev, uint64_t bytes, infer_ledger_kind kind, infer_hal_buf *out,
                               infer_error *err)
{
    if (!bytes)
        return INFER_OK;
    INFER_TRY(infer_hal_buf_alloc(m->plan->devs[dev].dev, bytes, kind, out, err));
    atomic_fetch_add(&m->booked[dev][kind], out->size);
    return INFER_OK;
}

void infer_model_free(infer_model *m, uint32_t dev, infer_hal_buf *b)
{
    if (b->h)
        atomic_fetch_sub(&m->booked[dev][b->kind], b->size);
    infer_hal_buf_free(b);
}

/* ---- Loading ------------------------------------------------------------------------------------------------ */

enum { MAX_LOADERS = 12 }; /* more brought nothing: 33 GB/s by 8, 40 by 12 and by 16 */

/* A weight to bring. */
typedef struct load_job {
    uint64_t bytes;
    uint32_t inst;
} load_job;

/* What the threads share. Of several failures the first in the plan's order counts, so weights before it are still
 * tried. */
typedef struct loader {
    infer_model *m;
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    load_job *jobs;
    uint32_t n_jobs;
    uint64_t total;
    pthread_mutex_t mu; /* of what follows */
    pthread_cond_t ended;
    uint32_t next, running, failed; /* failed: the instance */
    uint64_t done, told;            /* told: what progress was last called with */
    infer_status status;
    infer_error err;
} loader;

static void note_failure(loader *l, uint32_t inst, infer_status s, const infer_error *err)
{
    if (inst >= l->failed)
        return;
    l->failed = inst;
    l->status = s;
    l->err = *err;
}

/* Takes weights until there are none. own: on the calling thread, which says how far all are. */
static void load_some(loader *l, int own)
{
    infer_plan *p = l->m->plan;
    pthread_mutex_lock(&l->mu);
    while (l->next < l->n_jobs) {
        const load_job *j = &l->jobs[l->next++];
        const infer_weight_inst *x = &p->insts[j->inst];
        const infer_weight_src *w = &p->file->weights.p[x->ref];
        if (j->inst > l->failed)
            continue;
        pthread_mutex_unlock(&l->mu);
        infer_error e = {0};
        infer_status s = load_packed(l->m, x, &e);
        /* What was copied need not stay resident; who reads it in place too will fault in the pages that it touches. */
        if (!s && w->tensor)
            infer_gguf_tensor_drop(p->file->gguf, w->tensor);
        pthread_mutex_lock(&l->mu);
        if (s) {
            note_failure(l, j->inst, s, &e);
            continue;
        }
        uint64_t done = l->done += j->bytes;
        if (own && l->progress && !l->status) {
            l->told = done;
            pthread_mutex_unlock(&l->mu);
            l->progress(l->user, done, l->total);
            pthread_mutex_lock(&l->mu);
        }
    }
    pthread_mutex_unlock(&l->mu);
}

static void *load_main(void *arg)
{
    loader *l = arg;
    load_some(l, 0);
    pthread_mutex_lock(&l->mu);
    l->running--;
    pthread_cond_signal(&l->ended);
    pthread_mutex_unlock(&l->mu);
    return NULL;
}

/* As many as there are cores, where every device takes several streams at once. */
static uint32_t n_loaders(const infer_plan *p)
{
    for (uint32_t i = 0; i < p->n_devs; i++)
        if (!(infer_hal_dev_props(p->devs[i].dev)->flags & INFER_PROP_PARALLEL_LOAD))
            return 1;
    const infer_topo *t = infer_hal_topo(p->rt->hal);
    double quota = infer_topo_cpu_quota(t);
    uint32_t cores = infer_topo_n_cores(t);
    if (quota > 0 && quota < cores)
        cores = quota < 1 ? 1 : (uint32_t)quota;
    return cores < MAX_LOADERS ? cores : MAX_LOADERS;
}

static int by_bytes(const void *a, const void *b)
{
    const load_job *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return x->inst < y->inst ? -1 : 1;
}

/* Runs the jobs: alone in the plan's order, else the largest first, so that none is left to one thread at the end. */
static void load_all(loader *l, uint32_t n)
{
    pthread_t threads[MAX_LOADERS];
    uint32_t started = 0;
    n = n < l->n_jobs ? n : l->n_jobs;
    if (n > 1)
        qsort(l->jobs, l->n_jobs, sizeof *l->jobs, by_bytes);
    l->running = n > 1 ? n - 1 : 0;
    for (; started + 1 < n; started++)
        if (pthread_create(&threads[started], NULL, load_main, l))
            break; /* the others do it */
    pthread_mutex_lock(&l->mu);
    l->running -= n > 1 ? n - 1 - started : 0;
    pthread_mutex_unlock(&l->mu);
    load_some(l, 1);
    pthread_mutex_lock(&l->mu);
    while (l->running)
        pthread_cond_wait(&l->ended, &l->mu);
    pthread_mutex_unlock(&l->mu);
    if (l->progress && !l->status && l->told != l->done)
        l->progress(l->user, l->done, l->total);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
}

static infer_status load_weights(infer_model *m, void (*progress)(void *user, uint64_t done, uint64_t total),
                                 void *user, infer_error *err)
{
    const infer_plan *p = m->plan;
    loader l = {.m = m, .progress = progress, .user = user, .failed = UINT32_MAX};
    l.jobs = infer_malloc(((size_t)p->n_insts + 1) * sizeof *l.jobs);
    if (!l.jobs)
        return infer_error_set(err, INFER_E_NO_MEMORY, "load: no host memory");
    for (uint32_t i = 0; i < p->n_insts && !l.status; i++) {
        const infer_weight_inst *x = &p->insts[i];
        infer_error e = {0};
        if (!x->used || x->shares >= 0)
            continue;
        if (!x->in_place) {
            l.jobs[l.n_jobs++] = (load_job){x->plan.packed_bytes, i};
            l.total += x->plan.packed_bytes;
            continue;
        }
        infer_status s = import_part(m, x->dev, x->part, &e);
        if (s)
            note_failure(&l, i, s, &e);
    }
    pthread_mutex_init(&l.mu, NULL);
    pthread_cond_init(&l.ended, NULL);
    load_all(&l, n_loaders(p));
    pthread_cond_destroy(&l.ended);
    pthread_mutex_destroy(&l.mu);
    infer_free(l.jobs);
    if (l.status && err)
        *err = l.err;
    return l.status;
}

infer_status infer_model_load(infer_plan *p, void (*progress)(void *user, uint64_t done, uint64_t total), void *user,
                              infer_model **out, infer_error *err)
{
    infer_status s = INFER_OK;
    infer_model *m = infer_calloc(1, sizeof *m);
    if (!m)
        return infer_error_set(err, INFER_E_NO_MEMORY, "load: no host memory");
    m->plan = p;
    for (uint32_t i = 0; i < p->n_devs && !s; i++)
        s = infer_model_alloc(m, i, p->devs[i].ledger[INFER_LEDGER_WEIGHTS], INFER_LEDGER_WEIGHTS, &m->packed[i], err);
    if (!s)
        s = load_weights(m, progress, user, err);
    if (s)
        infer_model_destroy(m);
    else
        *out = m;
    return s;
}

void infer_model_destroy(infer_model *m)
{
    if (!m)
        return;
    for (uint32_t i = 0; i < m->plan->n_devs; i++) {
        infer_model_free(m, i, &m->packed[i]);
        for (uint32_t j = 0; j < INFER_MODEL_MAX_PARTS; j++)
            infer_hal_buf_free(&m->parts[i][j]);
    }
    infer_free(m);
}

infer_file *infer_model_file(const infer_model *m)
{
    return m->plan->file;
}

uint32_t infer_model_memory(const infer_model *m, infer_memory_row *rows, uint32_t cap)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->plan->n_devs; i++) {
        const infer_plan_dev *d = &m->plan->devs[i];
        for (infer_ledger_kind k = 0; k < INFER_LEDGER_KINDS; k++, n++) {
            if (n >= cap)
                continue;
            rows[n] = (infer_memory_row){.planned = d->ledger[k], .booked = atomic_load(&m->booked[i][k])};
            strncpy(rows[n].device, infer_hal_dev_id(d->dev), sizeof rows[n].device - 1);
            strncpy(rows[n].kind, infer_ledger_kind_name(k), sizeof rows[n].kind - 1);
        }
    }
    return n;
}

/* ---- Binding ------------------------------------------------------------------------------------------------ */

static infer_status bind_weight(void *user, int32_t dev, uint64_t ref, infer_op_id use, infer_operand *out)
{
    infer_model *m = user;
    const infer_weight_inst *x = infer_plan_weight(m->plan, dev, ref, use);
    if (!x || !x->used)
        return INFER_E_NOT_FOUND;
    uint32_t slot = INFER_SLOT_I_WEIGHT0 + (x->in_place ? 1 + x->part : 0);
    *out = (infer_operand){.slot = slot, .offset = x->offset, .size = x->plan.packed_bytes};
    return INFER_OK;
}

static infer_status bind_kv(void *user, int32_t dev, uint64_t ref, infer_operand *out)
{
    infer_model *m = user;
    const infer_plan *p = m->plan;
    uint64_t layer = ref / INFER_GRAPH_PLANES;
    if (p->kv_home[layer] != dev)
        return INFER_E_NOT_FOUND;
    *out = (infer_operand){.slot = INFER_SLOT_I_KV};
    infer_kv_layout_plane(&p->devs[dev].kv, (uint32_t)p->kv_index[layer], (uint32_t)(ref % INFER_GRAPH_PLANES),
                          &out->offset, &out->size);
    return INFER_OK;
}

infer_status infer_model_bind(infer_model *m, int32_t dev, infer_graph_binding *b, infer_error *err)
{
    (void)err;
    b->n_slots = INFER_SLOT_I_WEIGHT0 + 1 + INFER_MODEL_MAX_PARTS;
    b->ranges[INFER_SLOT_I_WEIGHT0] = (infer_range){m->packed[dev].h, 0, m->packed[dev].size};
    for (uint32_t j = 0; j < INFER_MODEL_MAX_PARTS; j++)
        b->ranges[INFER_SLOT_I_WEIGHT0 + 1 + j] = (infer_range){m->parts[dev][j].h, 0, m->parts[dev][j].size};
    b->weight = bind_weight;
    b->kv = bind_kv;
    b->user = m;
    return INFER_OK;
}
