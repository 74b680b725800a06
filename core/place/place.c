/* Layer placement over a chain of devices. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "place/place.h"

/* Splits `n` units by weights: floor of each share, then the largest remainders; the first wins a tie. */
static void split(uint32_t n, const double *w, uint32_t n_devs, uint32_t *out)
{
    double total = 0, rest[INFER_PLACE_MAX_DEVS];
    uint32_t given = 0;
    for (uint32_t i = 0; i < n_devs; i++)
        total += w[i];
    for (uint32_t i = 0; i < n_devs; i++) {
        double x = total > 0 ? n * (w[i] / total) : 0;
        out[i] = (uint32_t)x;
        rest[i] = x - out[i];
        given += out[i];
    }
    for (; given < n; given++) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < n_devs; i++)
            if (rest[i] > rest[best])
                best = i;
        out[best]++;
        rest[best] -= 1;
    }
}

/* Bytes on each device when they take count[i] layers in order. */
static void weigh(const infer_place_facts *f, const uint32_t *count, uint32_t n_devs, uint64_t *bytes)
{
    uint32_t layer = 0;
    for (uint32_t i = 0; i < n_devs; i++) {
        bytes[i] = 0;
        if (!count[i])
            continue;
        if (layer == 0)
            bytes[i] += f->first_bytes;
        for (uint32_t k = 0; k < count[i]; k++, layer++)
            bytes[i] += f->layer_bytes[layer];
        if (layer == f->n_layers)
            bytes[i] += f->last_bytes;
    }
}

static uint32_t accelerated(const infer_place_dev *devs, const uint32_t *count, uint32_t n_devs)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_devs; i++)
        n += devs[i].accelerator ? count[i] : 0;
    return n;
}

/* Moves layers, one at a time, from a device that has too many to the one with most room, while there is one. */
static void relieve(const infer_place_facts *f, const infer_place_dev *devs, uint32_t n_devs, uint32_t *count)
{
    uint64_t bytes[INFER_PLACE_MAX_DEVS];
    for (uint32_t moves = 0; moves < f->n_layers * n_devs; moves++) {
        uint32_t from = 0, to = n_devs;
        weigh(f, count, n_devs, bytes);
        while (from < n_devs && bytes[from] <= devs[from].budget)
            from++;
        if (from == n_devs)
            return;
        int full = f->max_accelerated >= 0 && accelerated(devs, count, n_devs) >= (uint32_t)f->max_accelerated;
        for (uint32_t i = 0; i < n_devs; i++) {
            if (i == from || bytes[i] >= devs[i].budget || (full && devs[i].accelerator && !devs[from].accelerator))
                continue;
            if (to == n_devs || devs[i].budget - bytes[i] > devs[to].budget - bytes[to])
                to = i;
        }
        if (to == n_devs)
            return;
        count[from]--;
        count[to]++;
    }
}

static unsigned long long mib(uint64_t bytes)
{
    return (unsigned long long)((bytes + (1u << 20) - 1) >> 20);
}

/* The numbers of device i, whose range does not fit, and how many layers would. */
static infer_status no_fit(const infer_place_facts *f, const infer_place_dev *devs, uint32_t n_devs,
                           const uint32_t *count, const uint64_t *bytes, uint32_t i, infer_error *err)
{
    uint64_t need = f->first_bytes + f->last_bytes, have = 0, used = 0;
    uint32_t from = 0, fit = 0;
    int asked = 0;
    for (uint32_t l = 0; l < f->n_layers; l++)
        need += f->layer_bytes[l];
    for (uint32_t k = 0; k < n_devs; k++) {
        have += devs[k].budget;
        from += k < i ? count[k] : 0;
        asked |= devs[k].share > 0;
    }
    if (!asked)
        return infer_error_set(err, INFER_E_NO_FIT,
                               "the model needs %llu MiB for its layers, the devices may use %llu MiB in all; %s holds "
                               "at most %llu MiB",
                               mib(need), (unsigned long long)(have >> 20), devs[i].id,
                               (unsigned long long)(devs[i].budget >> 20));
    used = from == 0 ? f->first_bytes : 0;
    while (from + fit < f->n_layers && used + f->layer_bytes[from + fit] <= devs[i].budget)
        used += f->layer_bytes[from + fit++];
    return infer_error_set(err, INFER_E_NO_FIT,
                           "%s: layers %u to %u need %llu MiB, it may use %llu MiB: %u layers fit there", devs[i].id,
                           from, from + count[i] - 1, mib(bytes[i]), (unsigned long long)(devs[i].budget >> 20), fit);
}

infer_status infer_place_layers(const infer_place_facts *f, const infer_place_dev *devs, uint32_t n_devs, int32_t *home,
                                infer_error *err)
{
    double w[INFER_PLACE_MAX_DEVS] = {0}, shares = 0, accel = 0, plain = 0;
    uint32_t count[INFER_PLACE_MAX_DEVS] = {0};
    uint64_t bytes[INFER_PLACE_MAX_DEVS];
    if (!n_devs || n_devs > INFER_PLACE_MAX_DEVS)
        return infer_error_set(err, INFER_E_INVALID, "placement: %u devices, at least 1 and at most %u are possible",
                               n_devs, INFER_PLACE_MAX_DEVS);
    for (uint32_t i = 0; i < n_devs; i++)
        shares += devs[i].share;
    for (uint32_t i = 0; i < n_devs; i++) {
        w[i] = shares > 0 ? devs[i].share : (double)devs[i].budget;
        *(devs[i].accelerator ? &accel : &plain) += w[i];
    }
    if (f->max_accelerated >= 0 && accel > 0 && plain > 0) {
        uint32_t on_accel = (uint32_t)f->max_accelerated < f->n_layers ? (uint32_t)f->max_accelerated : f->n_layers;
        double wa[INFER_PLACE_MAX_DEVS] = {0}, wp[INFER_PLACE_MAX_DEVS] = {0};
        uint32_t ca[INFER_PLACE_MAX_DEVS], cp[INFER_PLACE_MAX_DEVS];
        for (uint32_t i = 0; i < n_devs; i++)
            *(devs[i].accelerator ? &wa[i] : &wp[i]) = w[i];
        split(on_accel, wa, n_devs, ca);
        split(f->n_layers - on_accel, wp, n_devs, cp);
        for (uint32_t i = 0; i < n_devs; i++)
            count[i] = ca[i] + cp[i];
    } else {
        split(f->n_layers, w, n_devs, count);
    }
    if (!(shares > 0))
        relieve(f, devs, n_devs, count);
    weigh(f, count, n_devs, bytes);
    int32_t first = -1, last = 0;
    uint32_t layer = 0;
    for (uint32_t i = 0; i < n_devs; i++) {
        if (bytes[i] > devs[i].budget)
            return no_fit(f, devs, n_devs, count, bytes, i, err);
        if (!count[i])
            continue;
        first = first < 0 ? (int32_t)i : first;
        last = (int32_t)i;
        for (uint32_t k = 0; k < count[i]; k++)
            home[++layer] = (int32_t)i;
    }
    home[0] = first;
    home[f->n_layers + 1] = last;
    return INFER_OK;
}
