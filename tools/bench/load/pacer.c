/*
 * Who may start: arrivals, a bound on what runs at once, turns after their answers. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stdlib.h>

#include "load.h"

typedef struct ready_turn {
    uint32_t index;
    uint64_t since;
} ready_turn;

struct load_pacer {
    const load_list *list;
    uint32_t concurrency, n_running, n_left; /* n_left: neither ended nor given up */
    uint32_t next;                           /* the next conversation's first turn; n: none */
    ready_turn *ready;                       /* ring of later turns whose answer is there, of list->n_conversations */
    uint32_t head, n_ready;
    uint64_t t_freed; /* when a place last became free */
};

load_pacer *load_pacer_create(const load_list *l, uint32_t concurrency)
{
    load_pacer *p = calloc(1, sizeof *p);
    ready_turn *ready = calloc(l->n_conversations ? l->n_conversations : 1, sizeof *ready);
    if (!p || !ready) {
        free(p);
        free(ready);
        return NULL;
    }
    *p = (load_pacer){.list = l, .concurrency = concurrency, .n_left = l->n, .ready = ready};
    return p;
}

void load_pacer_destroy(load_pacer *p)
{
    if (p)
        free(p->ready);
    free(p);
}

int64_t load_pacer_next(load_pacer *p, uint64_t now, uint64_t *due, uint64_t *wait)
{
    const load_list *l = p->list;
    uint32_t i;
    *wait = UINT64_MAX;
    if (p->concurrency && p->n_running >= p->concurrency)
        return -1;
    if (p->n_ready) {
        i = p->ready[p->head].index;
        *due = p->ready[p->head].since;
        p->head = (p->head + 1) % l->n_conversations;
        p->n_ready--;
        p->n_running++;
        return i;
    }
    i = p->next;
    if (i == l->n)
        return -1;
    if (l->r[i].due > now) {
        *wait = l->r[i].due - now;
        return -1;
    }
    /* With times of arrival those count, however long all places were taken; without, a place that became free. */
    *due = l->r[i].due ? l->r[i].due : p->t_freed;
    do
        p->next++;
    while (p->next < l->n && l->r[p->next].turn);
    p->n_running++;
    return i;
}

uint32_t load_pacer_ended(load_pacer *p, uint32_t index, int ok, uint64_t now)
{
    const load_list *l = p->list;
    uint32_t later = 0;
    while (index + later + 1 < l->n && l->r[index + later + 1].turn)
        later++;
    p->n_running--;
    p->n_left--;
    p->t_freed = now;
    if (!ok) {
        p->n_left -= later;
        return later;
    }
    if (later)
        p->ready[(p->head + p->n_ready++) % l->n_conversations] = (ready_turn){index + 1, now};
    return 0;
}

int load_pacer_done(const load_pacer *p)
{
    return !p->n_left;
}
