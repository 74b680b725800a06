/*
 * Devices seen twice: two backends may show one piece of hardware. Rows are the same where their UUIDs are equal, or
 * their PCI addresses where each backend has only one row there (a card cut into parts has several). The row of the
 * usable backend with the highest rank is preferred; the others point to it.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <string.h>
#include <strings.h>

#include "hal/internal.h"

static int alone_at_pci(const infer_hal *h, const infer_hal_device_info *row)
{
    for (uint32_t i = 0; i < h->n_devices; i++)
        if (h->devices[i] != row && h->devices[i]->backend == row->backend &&
            !strcasecmp(h->devices[i]->info.pci, row->info.pci))
            return 0;
    return 1;
}

static int same(const infer_hal *h, const infer_hal_device_info *a, const infer_hal_device_info *b)
{
    if (a->backend == b->backend || a->info.kind == INFER_KIND_SOFTWARE || b->info.kind == INFER_KIND_SOFTWARE)
        return 0;
    if (a->info.uuid[0] && !strcasecmp(a->info.uuid, b->info.uuid))
        return 1;
    return a->info.pci[0] && !strcasecmp(a->info.pci, b->info.pci) && alone_at_pci(h, a) && alone_at_pci(h, b);
}

/* Whether a is chosen before b; ties go to the row that was found first. */
static int before(const infer_hal *h, uint32_t a, uint32_t b)
{
    const infer_hal_device_info *ra = h->devices[a], *rb = h->devices[b];
    int ua = ra->info.status == INFER_OK, ub = rb->info.status == INFER_OK;
    int32_t ka = h->backends[ra->backend]->desc.rank, kb = h->backends[rb->backend]->desc.rank;
    return ua != ub ? ua > ub : ka != kb ? ka > kb : a < b;
}

void hal_identity_merge(infer_hal *h)
{
    for (uint32_t i = 0; i < h->n_devices; i++) {
        uint32_t best = i;
        for (uint32_t k = 0; k < h->n_devices; k++)
            if (k != i && same(h, h->devices[i], h->devices[k]) && before(h, k, best))
                best = k;
        h->devices[i]->same_as = best == i ? -1 : (int32_t)best;
    }
}

/* Rows that share a PCI address or UUID: hardware before simulations of it, the preferred row before its doubles. */
static int worth(const infer_hal_device_info *r)
{
    return 1 + (r->same_as < 0) + 2 * (r->info.kind != INFER_KIND_SOFTWARE);
}

int32_t infer_hal_find(const infer_hal *h, const char *id)
{
    int32_t found = -1;
    for (uint32_t i = 0; i < h->n_devices; i++) {
        const infer_hal_device_info *r = h->devices[i];
        if (!strcmp(r->id, id))
            return (int32_t)i;
        if (*id && (!strcasecmp(r->info.pci, id) || !strcasecmp(r->info.uuid, id)) &&
            (found < 0 || worth(r) > worth(h->devices[found])))
            found = (int32_t)i;
    }
    return found;
}
