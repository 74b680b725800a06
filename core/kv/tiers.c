/* Where the content of the prefix cache's nodes lies: who leaves the pool, host memory, the file, and who comes back.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stddef.h>

#include "kv/prefix_private.h"

/* ---- Places and slots -------------------------------------------------------------------------------------------- */

static void take_place(infer_prefix *t, int32_t place)
{
    t->place_refs[place - t->first_place]++;
}

static void give_place(infer_prefix *t, int32_t place)
{
    if (--t->place_refs[place - t->first_place] == 0)
        t->free_places[t->n_free_places++] = place;
}

/* The node is not on its way any more. */
static void not_busy(infer_prefix *t, int32_t b)
{
    node *x = &t->nodes[b];
    if (x->busy == BUSY_NOT)
        return;
    x->busy = BUSY_NOT;
    x->holds--;
    prefix_rank(t, b);
}

static void set_busy(infer_prefix *t, int32_t b, uint8_t how)
{
    t->nodes[b].busy = how;
    t->nodes[b].holds++;
    prefix_rank(t, b);
}

/* What a node was on its way with goes on without it: whoever makes the copy holds the place itself. */
static void drop_place(infer_prefix *t, int32_t b)
{
    node *x = &t->nodes[b];
    if (x->place != NONE)
        give_place(t, x->place);
    x->place = NONE;
    x->was_read = 0;
}

static void drop_block(infer_prefix *t, int32_t b)
{
    node *x = &t->nodes[b];
    if (x->block == NONE)
        return;
    t->node_of[x->block] = NONE;
    infer_kv_pool_unkeep(t->pool, x->block);
    x->block = NONE;
}

void tiers_release(infer_prefix *t, int32_t b)
{
    node *x = &t->nodes[b];
    drop_block(t, b);
    drop_place(t, b);
    if (x->slot != NONE)
        t->free_slots[t->n_free_slots++] = x->slot;
    x->slot = NONE;
}

void tiers_to_pool(infer_prefix *t, int32_t b, int32_t block)
{
    node *x = &t->nodes[b];
    not_busy(t, b);
    drop_place(t, b);
    x->block = block;
    t->node_of[block] = b;
    infer_kv_pool_keep(t->pool, block);
    prefix_set_tier(t, b, INFER_TIER_POOL);
}

/* ---- Who leaves a tier ------------------------------------------------------------------------------------------- */

static void lose(infer_prefix *t, int32_t b)
{
    const uint32_t tier = t->nodes[b].tier == INFER_TIER_FILE ? INFER_TIER_FILE : INFER_TIER_HOST;
    t->counts[tier].lost += prefix_remove(t, b);
}

static void evict(infer_prefix *t, int32_t b)
{
    t->counts[t->nodes[b].tier].evicted++;
    prefix_remove(t, b);
}

/* The least worthy of a tier's loose leaves, which is to leave; NONE: there is none. */
static int32_t next_of(infer_prefix *t, uint32_t tier)
{
    heap *h = &t->heaps[tier];
    return h->n ? h->at[0] : NONE;
}

static void note_worth(infer_prefix *t, int32_t b)
{
    const node *x = &t->nodes[b];
    if (x->worth > t->heaps[x->tier].base)
        t->heaps[x->tier].base = x->worth;
}

/* A node whose content the file has too stays there alone. */
static void to_file(infer_prefix *t, int32_t b)
{
    drop_block(t, b);
    drop_place(t, b);
    prefix_set_tier(t, b, INFER_TIER_FILE);
}

/* A free place with a reference, so that `spare` stay free; NONE: there is none. Who leaves host memory for it has
 * nothing below, or is in the file already: for one place no more than one block is lost. */
static int32_t new_place(infer_prefix *t, uint32_t spare)
{
    const int32_t b = t->n_free_places > spare ? NONE : next_of(t, INFER_TIER_HOST);
    if (b != NONE) {
        note_worth(t, b);
        if (t->nodes[b].slot != NONE)
            to_file(t, b);
        else if (t->nodes[b].children == NONE)
            evict(t, b);
    }
    if (t->n_free_places <= spare)
        return NONE;
    const int32_t place = t->free_places[--t->n_free_places];
    take_place(t, place);
    return place;
}

static int32_t new_slot(infer_prefix *t)
{
    const int32_t b = t->n_free_slots ? NONE : next_of(t, INFER_TIER_FILE);
    if (b != NONE) {
        note_worth(t, b);
        evict(t, b);
    }
    return t->n_free_slots ? t->free_slots[--t->n_free_slots] : NONE;
}

/* A node without others of the pool below it, that nobody uses, leaves the pool. */
static void leave_pool(infer_prefix *t, int32_t b, infer_kv_move *outs, uint32_t *n_outs)
{
    node *x = &t->nodes[b];
    const int in_file = x->slot != NONE && !x->kids[INFER_TIER_HOST];
    int32_t place = NONE;
    if (in_file && t->n_places == t->n_stage) { /* host memory is but the way to the file */
        to_file(t, b);
        return;
    }
    if (outs && t->n_places && x->n_tokens == t->block_size)
        place = new_place(t, t->n_stage / 4); /* for reads, when the disk does not keep up */
    if (place == NONE) {
        if (in_file) {
            to_file(t, b);
            return;
        }
        t->counts[INFER_TIER_HOST].lost += outs && t->n_places && x->n_tokens == t->block_size;
        lose(t, b);
        return;
    }
    outs[(*n_outs)++] = (infer_kv_move){x->block, place, b, x->id};
    take_place(t, place); /* the copy's */
    drop_block(t, b);
    x->place = place;
    prefix_set_tier(t, b, INFER_TIER_HOST);
    set_busy(t, b, BUSY_OUT);
}

int infer_prefix_reclaim(infer_prefix *t, uint32_t n, infer_kv_move *outs, uint32_t *n_outs)
{
    /* Leaves in use are set behind every other as they come up, each once before one that can go. */
    heap *h = &t->heaps[INFER_TIER_POOL];
    uint32_t in_use = 0;
    while (infer_kv_pool_free(t->pool) < n && infer_kv_pool_idle(t->pool) && in_use < h->n) {
        const int32_t b = h->at[0];
        node *x = &t->nodes[b];
        if (infer_kv_pool_refs(t->pool, x->block) > 1 || x->came == t->step) {
            x->worth = h->base + t->max_cost + 1;
            x->used = ++t->clock; /* also behind those that were set so before */
            prefix_settle(t, h, 0);
            in_use++;
            continue;
        }
        in_use = 0;
        note_worth(t, b);
        leave_pool(t, b, outs, n_outs);
    }
    return infer_kv_pool_free(t->pool) >= n;
}

/* ---- By name ----------------------------------------------------------------------------------------------------- */

/* The node, if it is still the same. */
static node *alive(const infer_prefix *t, int32_t b, uint64_t id)
{
    node *x = b >= 0 && (uint32_t)b < t->cap ? &t->nodes[b] : NULL;
    return x && x->n_tokens && x->id == id ? x : NULL;
}

int infer_prefix_state(const infer_prefix *t, infer_prefix_ref ref)
{
    const node *x = alive(t, ref.node, ref.id);
    if (!x)
        return INFER_PREFIX_GONE;
    if (x->busy == BUSY_OUT || x->busy == BUSY_READ)
        return INFER_PREFIX_BUSY;
    return x->tier == INFER_TIER_POOL   ? INFER_PREFIX_IN_POOL
           : x->tier == INFER_TIER_HOST ? INFER_PREFIX_IN_HOST
                                        : INFER_PREFIX_IN_FILE;
}

int infer_prefix_is_read(const infer_prefix *t, infer_prefix_ref ref)
{
    const node *x = alive(t, ref.node, ref.id);
    return x && x->busy == BUSY_READ;
}

void infer_prefix_hold(infer_prefix *t, infer_prefix_ref ref)
{
    node *x = alive(t, ref.node, ref.id);
    if (!x)
        return;
    x->holds++;
    prefix_rank(t, ref.node);
}

void infer_prefix_let_go(infer_prefix *t, infer_prefix_ref ref)
{
    node *x = alive(t, ref.node, ref.id);
    if (!x)
        return;
    x->holds--;
    prefix_rank(t, ref.node);
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

void infer_prefix_in(infer_prefix *t, infer_prefix_ref ref, int32_t block, infer_kv_move *m)
{
    node *x = &t->nodes[ref.node];
    *m = (infer_kv_move){block, x->place, ref.node, ref.id};
    take_place(t, x->place);
    t->counts[x->was_read ? INFER_TIER_FILE : INFER_TIER_HOST].hits++;
    tiers_to_pool(t, ref.node, block);
    x->came = t->step;
}

void infer_prefix_out_done(infer_prefix *t, const infer_kv_move *m, int ok)
{
    const node *x = alive(t, m->node, m->id);
    if (x && x->busy == BUSY_OUT && x->place == m->place) {
        t->counts[INFER_TIER_HOST].stored += ok != 0;
        if (ok)
            not_busy(t, m->node);
        else
            lose(t, m->node);
    }
    give_place(t, m->place);
}

void infer_prefix_in_done(infer_prefix *t, const infer_kv_move *m, int ok)
{
    const node *x = alive(t, m->node, m->id);
    if (!ok && x && x->block == m->block) {
        t->counts[INFER_TIER_HOST].lost++;
        lose(t, m->node);
    }
    give_place(t, m->place);
}

int infer_prefix_write(infer_prefix *t, infer_kv_io *io)
{
    while (t->n_slots && t->n_free_places + t->n_writes < t->n_stage) {
        const int32_t b = next_of(t, INFER_TIER_HOST);
        if (b == NONE)
            return 0;
        node *x = &t->nodes[b];
        if (x->slot != NONE) {
            note_worth(t, b);
            to_file(t, b);
            continue;
        }
        const int32_t slot = new_slot(t);
        if (slot == NONE)
            return 0;
        note_worth(t, b);
        *io = (infer_kv_io){.is_write = 1, .place = x->place, .slot = slot, .node = b, .id = x->id};
        take_place(t, x->place);
        t->n_writes++;
        set_busy(t, b, BUSY_WRITE);
        return 1;
    }
    return 0;
}

int infer_prefix_read(infer_prefix *t, infer_prefix_ref ref, infer_kv_io *io)
{
    node *x = &t->nodes[ref.node];
    const int32_t place = new_place(t, 0);
    if (place == NONE)
        return 0;
    x->place = place;
    take_place(t, place); /* the copy's */
    set_busy(t, ref.node, BUSY_READ);
    *io = (infer_kv_io){.place = place, .slot = x->slot, .node = ref.node, .id = ref.id};
    return 1;
}

static void write_done(infer_prefix *t, const infer_kv_io *io)
{
    node *x = alive(t, io->node, io->id);
    t->n_writes--;
    if (x && io->ok && x->slot == NONE) {
        x->slot = io->slot;
        t->counts[INFER_TIER_FILE].stored++;
    } else {
        t->free_slots[t->n_free_slots++] = io->slot;
    }
    if (!x || x->busy != BUSY_WRITE || x->place != io->place)
        return;
    not_busy(t, io->node);
    if (!io->ok) {
        t->counts[INFER_TIER_FILE].lost += prefix_remove(t, io->node);
        return;
    }
    if (!x->kids[INFER_TIER_HOST] && !x->holds)
        to_file(t, io->node);
}

static void read_done(infer_prefix *t, const infer_kv_io *io)
{
    node *x = alive(t, io->node, io->id);
    if (!x || x->busy != BUSY_READ || x->place != io->place)
        return;
    not_busy(t, io->node);
    if (!io->ok) {
        lose(t, io->node);
        return;
    }
    if (x->parent != NONE && t->nodes[x->parent].tier == INFER_TIER_FILE) { /* nobody waits for it any more */
        drop_place(t, io->node);
        return;
    }
    prefix_set_tier(t, io->node, INFER_TIER_HOST);
    x->was_read = 1;
}

void infer_prefix_io_done(infer_prefix *t, const infer_kv_io *io)
{
    (io->is_write ? write_done : read_done)(t, io);
    give_place(t, io->place);
}

void infer_prefix_get_counts(const infer_prefix *t, uint32_t tier, infer_prefix_counts *out)
{
    *out = t->counts[tier];
}
