/* Layer placement over a chain of devices. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "place/place.h"

enum { MAX_DEVS = 16 };

/* Splits `n` units by weights: floor of each share, then the largest remainders; the first wins a tie. */
static void split(uint32_t n, const double *w, uint32_t n_devs, uint32_t *out)
{
    double total = 0, rest[MAX_DEVS];
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

infer_status infer_place_layers(const infer_place_facts *f, const infer_place_dev *devs, uint32_t n_devs, int32_t *home,
                                infer_error *err)
{
    double w[MAX_DEVS] = {0};
    uint32_t count[MAX_DEVS] = {0};
    if (!n_devs || n_devs > MAX_DEVS)
        return infer_error_set(err, INFER_E_INVALID, "placement: %u devices", n_devs);
    double shares = 0, accel = 0, plain = 0;
    for (uint32_t i = 0; i < n_devs; i++)
        shares += devs[i].share;
    for (uint32_t i = 0; i < n_devs; i++) {
        w[i] = shares > 0 ? devs[i].share : (double)devs[i].budget;
        *(devs[i].accelerator ? &accel : &plain) += w[i];
    }
    uint32_t on_accel = f->n_layers;
    if (f->max_accelerated >= 0 && accel > 0 && plain > 0) {
        on_accel = (uint32_t)f->max_accelerated < f->n_layers ? (uint32_t)f->max_accelerated : f->n_layers;
        double wa[MAX_DEVS] = {0}, wp[MAX_DEVS] = {0};
        uint32_t ca[MAX_DEVS], cp[MAX_DEVS];
        for (uint32_t i = 0; i < n_devs; i++)
            *(devs[i].accelerator ? &wa[i] : &wp[i]) = w[i];
        split(on_accel, wa, n_devs, ca);
        split(f->n_layers - on_accel, wp, n_devs, cp);
        for (uint32_t i = 0; i < n_devs; i++)
            count[i] = ca[i] + cp[i];
    } else {
        split(f->n_layers, w, n_devs, count);
    }
    uint32_t layer = 0;
    int32_t first = -1, last = 0;
    for (uint32_t i = 0; i < n_devs; i++) {
        uint64_t bytes = 0;
        uint32_t from = layer;
        for (uint32_t k = 0; k < count[i]; k++, layer++) {
            home[layer + 1] = (int32_t)i;
            bytes += f->layer_bytes[layer];
        }
        if (!count[i])
            continue;
        if (first < 0) {
            first = (int32_t)i;
            bytes += f->first_bytes;
        }
        if (layer == f->n_layers)
            bytes += f->last_bytes;
        last = (int32_t)i;
        if (bytes > devs[i].budget)
            return infer_error_set(
                err, INFER_E_NO_FIT, "layers %u to %u need %llu MiB on device %u of the list, which may use %llu MiB",
                from, layer - 1, (unsigned long long)(bytes >> 20), i, (unsigned long long)(devs[i].budget >> 20));
    }
    home[0] = first < 0 ? 0 : first;
    home[f->n_layers + 1] = last;
    return INFER_OK;
}
