/*
 * Mutants: programs of the plugin's own (a copy of the view, run op by op, with saving and claims) and collectives
 * between two devices, which sim has not; right where no mutant of them is chosen. A saved program is a number in a
 * list that this process keeps. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "mutant.h"
#include "ops/ops.h"

#define IS(id) mutant_is(MUT_##id)
#define IN     mutant_inner

enum { MAX_NODES = 16, MAX_SLOTS = 8, MAX_SAVED = 8 };

typedef struct kept_node {
    infer_op_desc op;
    infer_tensor_desc t[INFER_OP_MAX_OPERANDS];
    infer_any_attrs attrs;
    infer_operand at[INFER_OP_MAX_OPERANDS], counts, scratch;
} kept_node;

struct infer_program {
    uint32_t n_nodes, n_slots;
    kept_node n[MAX_NODES];
};

struct infer_exec {
    const infer_program *p;
    infer_range slots[MAX_SLOTS], first[MAX_SLOTS]; /* now; as instantiated */
    uint32_t runs;
};

static infer_program saved[MAX_SAVED];
static uint32_t n_saved;
static infer_range newest[MAX_SLOTS];
static const infer_host *services;

static infer_status p_build(infer_device *dev, const infer_graph_view *v, infer_program **out, infer_program_info *info)
{
    static infer_program first;
    (void)dev;
    infer_program *p = calloc(1, sizeof(*p));
    if (!p || v->n_nodes > MAX_NODES || v->n_slots > MAX_SLOTS) {
        free(p);
        return INFER_E_NO_MEMORY;
    }
    p->n_nodes = v->n_nodes;
    p->n_slots = v->n_slots;
    for (uint32_t i = 0; i < v->n_nodes; i++) {
        const infer_node *n = (const void *)((const char *)v->nodes + (uint64_t)i * v->node_size);
        kept_node *k = &p->n[i];
        k->op = *n->op;
        memcpy(k->t, n->op->tensors, (n->op->n_in + n->op->n_out) * sizeof(k->t[0]));
        if (n->op->attrs_size)
            memcpy(&k->attrs, n->op->attrs, n->op->attrs_size);
        memcpy(k->at, n->operands, (n->op->n_in + n->op->n_out) * sizeof(k->at[0]));
        k->counts = n->counts;
        k->scratch = n->scratch;
    }
    if (IS(prog_order) && p->n_nodes > 1) {
        kept_node last = p->n[p->n_nodes - 1];
        p->n[p->n_nodes - 1] = p->n[p->n_nodes - 2];
        p->n[p->n_nodes - 2] = last;
        mutant_changed();
    }
    if (IS(prog_last) && p->n_nodes > 1) {
        p->n_nodes--;
        mutant_changed();
    }
    if (IS(prog_bucket)) { /* the first that was ever built, where it fits */
        if (first.n_nodes != p->n_nodes)
            first = *p;
        else if (memcmp(first.n[0].t, p->n[0].t, sizeof(p->n[0].t)) &&
                 first.n[0].t[0].shape[0] < p->n[0].t[0].shape[0]) {
            *p = first;
            mutant_changed();
        }
    }
    infer_program_info i = {.struct_size = info->struct_size};
    memcpy(info, &i, info->struct_size < sizeof(i) ? info->struct_size : sizeof(i));
    *out = p;
    return INFER_OK;
}

static infer_status p_instantiate(infer_program *p, infer_queue *q, const infer_range *slots, uint32_t n,
                                  infer_exec **out)
{
    (void)q;
    infer_exec *x = calloc(1, sizeof(*x));
    if (!x || n > MAX_SLOTS) {
        free(x);
        return INFER_E_NO_MEMORY;
    }
    x->p = p;
    memcpy(x->slots, slots, n * sizeof(*slots));
    memcpy(x->first, slots, n * sizeof(*slots));
    memcpy(newest, slots, n * sizeof(*slots));
    *out = x;
    return INFER_OK;
}

static infer_status p_update(infer_exec *x, uint32_t slot, const infer_range *r)
{
    if (IS(prog_rebind)) {
        mutant_changed();
        return INFER_OK;
    }
    x->slots[slot] = newest[slot] = *r;
    return INFER_OK;
}

static infer_range place(const infer_operand *o, const infer_range *slots)
{
    if (o->slot == INFER_SLOT_ABSENT)
        return (infer_range){0};
    return (infer_range){slots[o->slot].buffer, slots[o->slot].offset + o->offset, o->size};
}

/* Inputs and counts of the first run, kept on a place of their own in the arena's buffer: as a capture that took
 * values instead of addresses. Here: later runs find the bytes of the first by copying them back before the run. */
static infer_status restore(infer_exec *x, infer_queue *q, uint32_t slot, uint64_t bytes, uint8_t *host)
{
    infer_copy_region r = {.bytes = bytes, .rows = 1};
    infer_copy_end dev = {x->slots[slot].buffer, NULL}, mem = {NULL, host};
    infer_status s;
    if (x->runs) {
        r.dst_offset = x->slots[slot].offset;
        mutant_changed();
        while ((s = IN.cmd_copy(q, &dev, &mem, &r, 1)) == INFER_AGAIN)
            sched_yield();
        return s;
    }
    r.src_offset = x->slots[slot].offset;
    while ((s = IN.cmd_copy(q, &mem, &dev, &r, 1)) == INFER_AGAIN)
        sched_yield();
    return s;
}

static infer_status run_all(infer_exec *x, infer_queue *q)
{
    const infer_range *slots = x->slots;
    if (IS(prog_all_execs)) {
        if (memcmp(newest, x->slots, x->p->n_slots * sizeof(*newest)))
            mutant_changed();
        slots = newest;
    }
    for (uint32_t i = 0; i < x->p->n_nodes; i++) {
        const kept_node *k = &x->p->n[i];
        infer_op_desc op = k->op;
        infer_range r[INFER_OP_MAX_OPERANDS];
        const infer_range *from = IS(prog_rebind_first) && i ? x->first : slots;
        if (from == x->first && memcmp(x->first, slots, x->p->n_slots * sizeof(*slots)))
            mutant_changed();
        op.tensors = k->t;
        op.attrs = op.attrs_size ? &k->attrs : NULL;
        for (uint32_t m = 0; m < op.n_in + op.n_out; m++)
            r[m] = place(&k->at[m], from);
        infer_op_args a = {.struct_size = sizeof(a),
                           .n_operands = op.n_in + op.n_out,
                           .operands = r,
                           .counts = place(&k->counts, slots),
                           .scratch = place(&k->scratch, slots)};
        infer_status s;
        while ((s = IN.cmd_op(q, &op, &a)) == INFER_AGAIN)
            sched_yield();
        if (s)
            return s;
    }
    return INFER_OK;
}

static infer_status p_submit(infer_exec *x, infer_queue *q)
{
    static uint8_t first_counts[64], first_input[4096];
    infer_status s = INFER_OK;
    if (IS(prog_counts) && x->p->n_slots > 4)
        s = restore(x, q, 4, sizeof(first_counts), first_counts);
    if (IS(prog_input) && !s)
        s = restore(x, q, 0, x->p->n_slots > 4 ? 144 : 64, first_input);
    x->runs++;
    if (s)
        return s;
    if (IS(prog_skip) && x->runs % 50 == 0) {
        mutant_changed();
        return INFER_OK;
    }
    if (IS(prog_twice) && x->runs % 50 == 0) {
        mutant_changed();
        s = run_all(x, q);
    }
    return s ? s : run_all(x, q);
}

static void p_exec_destroy(infer_exec *x)
{
    free(x);
}

static void p_destroy(infer_program *p)
{
    free(p);
}

/* ---- Saving ------------------------------------------------------------------------------------------------ */

typedef struct image {
    uint8_t magic[8];
    uint32_t number, sum;
    uint8_t rest[48];
} image;

static infer_status p_save(infer_program *p, void **data, uint64_t *bytes)
{
    if (IS(prog_save_none)) {
        mutant_changed();
        *bytes = 0;
        return INFER_OK;
    }
    image *m = services->alloc(services->ctx, sizeof(*m), 64);
    if (!m)
        return INFER_E_NO_MEMORY;
    *m = (image){.magic = "mutant1", .number = n_saved % MAX_SAVED, .sum = n_saved % MAX_SAVED ^ 0x5A5A5A5Au};
    saved[n_saved++ % MAX_SAVED] = *p;
    *data = m;
    *bytes = sizeof(*m);
    return INFER_OK;
}

static infer_status p_load(infer_device *dev, const void *data, uint64_t bytes, infer_program **out)
{
    image m = {.number = 0};
    (void)dev;
    memcpy(&m, data, bytes < sizeof(m) ? bytes : sizeof(m));
    int whole = bytes == sizeof(m) && !memcmp(m.magic, "mutant1", 8) && (m.number ^ 0x5A5A5A5Au) == m.sum &&
                m.number < MAX_SAVED && m.number < n_saved;
    if (!whole && IS(prog_load_any)) {
        m.number = 0;
        mutant_changed();
    } else if (!whole) {
        services->status_detail(services->ctx, INFER_E_INVALID, "mutant: not a whole program");
        return INFER_E_INVALID;
    }
    infer_program *p = malloc(sizeof(*p));
    if (!p)
        return INFER_E_NO_MEMORY;
    *p = saved[m.number];
    if (IS(prog_load_other) && p->n_nodes) {
        p->n_nodes -= 3;
        mutant_changed();
    }
    *out = p;
    return INFER_OK;
}

static infer_status p_claim(infer_device *dev, const infer_graph_view *v, int32_t *set_of)
{
    static int32_t n;
    (void)dev;
    for (uint32_t i = 0; i < v->n_nodes; i++)
        set_of[i] = i < 3 ? 0 : -1;
    if (IS(claim_range) && v->n_nodes) {
        set_of[v->n_nodes - 1] = -2;
        mutant_changed();
    }
    if (IS(claim_unsteady) && v->n_nodes) {
        set_of[0] = n++ % 2 ? 0 : -1;
        mutant_changed();
    }
    return INFER_OK;
}

/* ---- Collectives ------------------------------------------------------------------------------------------- */

enum { MAX_FLOATS = 8192 };

struct infer_comm {
    infer_device *dev;
    uint32_t rank;
};

/* One group at a time: both ranks bring their input, then both take what they need. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    uint32_t arrived, left, round;
    float x[2][MAX_FLOATS];
} group = {.lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};

static int is_collective(infer_op_id op)
{
    return op >= INFER_OP_ALL_REDUCE && op <= INFER_OP_BROADCAST;
}

static infer_status p_unique_id(infer_device *dev, uint8_t id[128])
{
    (void)dev;
    memset(id, 0x42, 128);
    return INFER_OK;
}

static infer_status p_comm_create(infer_device *dev, const uint8_t id[128], uint32_t rank, uint32_t n, infer_comm **out)
{
    infer_comm *c = calloc(1, sizeof(*c));
    if (!c || n != 2 || id[0] != 0x42) {
        free(c);
        return INFER_E_INVALID;
    }
    c->dev = dev;
    c->rank = rank;
    *out = c;
    return INFER_OK;
}

static void p_comm_destroy(infer_comm *c)
{
    free(c);
}

static infer_status move_bytes(infer_queue *q, const infer_comm *c, const infer_range *r, void *host, int out)
{
    infer_copy_region g = {.bytes = r->size, .rows = 1};
    infer_copy_end dev = {r->buffer, NULL}, mem = {NULL, host};
    infer_timeline *tl;
    infer_status s = IN.tl_create(c->dev, &tl);
    if (s)
        return s;
    if (out)
        g.src_offset = r->offset;
    else
        g.dst_offset = r->offset;
    s = IN.cmd_copy(q, out ? &mem : &dev, out ? &dev : &mem, &g, 1);
    if (!s)
        s = IN.queue_signal(q, tl, 1);
    if (!s)
        s = IN.tl_wait(tl, 1, UINT64_MAX);
    IN.tl_destroy(c->dev, tl);
    return s;
}

static void exchange(uint32_t rank, const float *x, uint64_t n, float all[2][MAX_FLOATS])
{
    pthread_mutex_lock(&group.lock);
    uint32_t round = group.round;
    memcpy(group.x[rank], x, n * sizeof(*x));
    if (++group.arrived == 2) {
        group.arrived = 0;
        group.round++;
        pthread_cond_broadcast(&group.moved);
    }
    while (group.round == round)
        pthread_cond_wait(&group.moved, &group.lock);
    memcpy(all, group.x, sizeof(group.x));
    if (++group.left == 2) {
        group.left = 0;
        pthread_cond_broadcast(&group.moved);
    }
    while (group.left == 1) /* nobody brings the next before both have taken */
        pthread_cond_wait(&group.moved, &group.lock);
    pthread_mutex_unlock(&group.lock);
}

static infer_status collective(infer_queue *q, const infer_op_desc *op, const infer_op_args *a)
{
    float(*all)[MAX_FLOATS] = malloc(sizeof(group.x)), *x = malloc(MAX_FLOATS * sizeof(float)),
    *y = malloc(MAX_FLOATS * sizeof(float));
    uint64_t nx = a->operands[0].size / 4, ny = a->operands[1].size / 4;
    uint64_t w = (uint64_t)op->tensors[0].shape[1], wy = (uint64_t)op->tensors[1].shape[1];
    uint32_t me = a->comm->rank;
    infer_status s = all && x && y && nx <= MAX_FLOATS && ny <= MAX_FLOATS ? INFER_OK : INFER_E_NO_MEMORY;
    if (!s)
        s = move_bytes(q, a->comm, &a->operands[0], x, 1);
    if (s)
        goto out;
    exchange(me, x, nx, all);
    uint32_t r0 = IS(comm_swap) ? 1 : 0, r1 = !r0;
    if (IS(comm_rank))
        memcpy(all[!me], all[me], nx * sizeof(float));
    if (IS(comm_swap) || IS(comm_rank))
        mutant_changed();
    for (uint64_t i = 0; i < ny; i++) {
        uint64_t row = i / wy, col = i % wy;
        if (op->op == INFER_OP_ALL_REDUCE)
            y[i] = all[0][i] + all[1][i];
        else if (op->op == INFER_OP_BROADCAST)
            y[i] = all[r0][i];
        else if (op->op == INFER_OP_ALL_GATHER)
            y[i] = all[col < w ? r0 : r1][row * w + col % w];
        else
            y[i] = all[0][row * w + me * wy + col] + all[1][row * w + me * wy + col];
    }
    s = move_bytes(q, a->comm, &a->operands[1], y, 0);
out:
    free(all);
    free(x);
    free(y);
    return s;
}

static infer_status (*next_query)(infer_device *dev, const infer_op_desc *ops, uint32_t op_size, uint32_t n,
                                  infer_op_answer *out, uint32_t answer_size);
static infer_status (*next_op)(infer_queue *q, const infer_op_desc *op, const infer_op_args *args);
static infer_status (*next_open)(const infer_host *host, uint32_t index, infer_device **out);

static infer_status p_query(infer_device *dev, const infer_op_desc *ops, uint32_t op_size, uint32_t n,
                            infer_op_answer *out, uint32_t answer_size)
{
    if (n == 1 && is_collective(ops->op)) {
        infer_op_answer a = {.struct_size = answer_size, .level = INFER_LEVEL_NATIVE};
        memcpy(out, &a, answer_size < sizeof(a) ? answer_size : sizeof(a));
        return INFER_OK;
    }
    return next_query(dev, ops, op_size, n, out, answer_size);
}

static infer_status p_op(infer_queue *q, const infer_op_desc *op, const infer_op_args *args)
{
    return is_collective(op->op) ? collective(q, op, args) : next_op(q, op, args);
}

static infer_status p_open(const infer_host *host, uint32_t index, infer_device **out)
{
    services = host;
    return next_open(host, index, out);
}

void mutant_prog_install(infer_backend_ops *t)
{
    next_query = t->op_query;
    next_op = t->cmd_op;
    next_open = t->dev_open;
    t->dev_open = p_open;
    t->prog_claim = p_claim;
    t->prog_build = p_build;
    t->prog_instantiate = p_instantiate;
    t->prog_update = p_update;
    t->prog_submit = p_submit;
    t->exec_destroy = p_exec_destroy;
    t->prog_destroy = p_destroy;
    t->prog_save = p_save;
    t->prog_load = p_load;
    if (!IN.tl_create) /* what a collective waits with */
        return;
    t->op_query = p_query;
    t->cmd_op = p_op;
    t->comm_unique_id = p_unique_id;
    t->comm_create = p_comm_create;
    t->comm_destroy = p_comm_destroy;
}
