/* Rows of a step against its time. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>
#include <string.h>

#include "sched/budget.h"

#define NEW      0.25 /* weight of a new time in a point's mean */
#define LIFE     256  /* steps that a point above the present load is believed for */
#define MARGIN   0.95 /* of the target is aimed at: times scatter */
#define MOST_NEW 2.0  /* times a point's mean count as so much at most: one hiccup is no trend */

static uint32_t point_of(uint32_t rows)
{
    const double p = 2 * log2(rows);
    return p < INFER_BUDGET_POINTS - 1 ? (uint32_t)p : INFER_BUDGET_POINTS - 1;
}

void infer_budget_init(infer_budget *b, uint64_t target_ns, uint32_t max_rows)
{
    memset(b, 0, sizeof *b);
    b->target_ns = target_ns;
    b->max_rows = max_rows;
    b->least = max_rows / 64 > 16 ? max_rows / 64 : 16;
}

void infer_budget_note(infer_budget *b, uint32_t rows, uint64_t ns)
{
    if (!rows)
        return;
    const uint32_t k = point_of(rows);
    double t = (double)ns;
    if (b->points[k].rows > 0) {
        if (t > MOST_NEW * b->points[k].ns)
            t = MOST_NEW * b->points[k].ns;
        b->points[k].rows += NEW * (rows - b->points[k].rows);
        b->points[k].ns += NEW * (t - b->points[k].ns);
    } else {
        b->points[k].rows = rows;
        b->points[k].ns = t;
    }
    b->points[k].seen = ++b->n_notes;
    for (uint32_t i = k + 1; i < INFER_BUDGET_POINTS; i++)
        if (b->n_notes - b->points[i].seen > LIFE)
            b->points[i].rows = 0;
}

double infer_budget_predict(const infer_budget *b, uint32_t rows)
{
    int low = -1, high = -1; /* the known points around it */
    for (int i = 0; i < (int)INFER_BUDGET_POINTS && high < 0; i++) {
        if (!(b->points[i].rows > 0))
            continue;
        *(b->points[i].rows >= rows ? &high : &low) = i;
    }
    if (high >= 0 && low < 0)
        return b->points[high].ns; /* at most */
    if (low < 0 || (high < 0 && rows > 2 * b->points[low].rows))
        return INFINITY;
    const double at = b->points[low].rows, ns = b->points[low].ns;
    double slope = ns / at; /* beyond all points as if nothing were fixed: at most, so that the target is come up to */
    if (high >= 0)
        slope = (b->points[high].ns - ns) / (b->points[high].rows - at);
    return ns + (slope > 0 ? slope : 0) * (rows - at);
}

double infer_budget_least(const infer_budget *b)
{
    for (uint32_t i = 0; i < INFER_BUDGET_POINTS; i++)
        if (b->points[i].rows > 0)
            return b->points[i].rows;
    return INFINITY;
}

double infer_budget_most(const infer_budget *b)
{
    for (uint32_t i = INFER_BUDGET_POINTS; i-- > 0;)
        if (b->points[i].rows > 0)
            return b->points[i].rows;
    return 0;
}

uint32_t infer_budget_rows(const infer_budget *b, uint32_t decodes)
{
    uint64_t floor = (uint64_t)decodes + b->least;
    if (floor > b->max_rows)
        floor = b->max_rows;
    if (!b->target_ns)
        return b->max_rows;
    uint32_t low = (uint32_t)floor, high = b->max_rows;
    while (low < high) { /* the prediction rises, up to noise */
        const uint32_t mid = low + (high - low + 1) / 2;
        if (infer_budget_predict(b, mid) <= MARGIN * (double)b->target_ns)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

double infer_budget_row_ns(const infer_budget *b)
{
    int few = -1, many = -1;
    for (int i = 0; i < (int)INFER_BUDGET_POINTS; i++) {
        if (!(b->points[i].rows > 0))
            continue;
        if (few < 0)
            few = i;
        many = i;
    }
    if (few < 0)
        return 0;
    if (few == many)
        return b->points[few].ns / b->points[few].rows;
    const double d = (b->points[many].ns - b->points[few].ns) / (b->points[many].rows - b->points[few].rows);
    return d > 0 ? d : 0;
}
