/*
 * What became of a request. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "load.h"

void load_record_piece(load_record *r, uint64_t now)
{
    if (!r->t_first) {
        r->t_first = r->t_last = now;
        r->n_pieces = 1;
        return;
    }
    if (r->n_pieces - 1 == r->cap_gaps) {
        uint32_t cap = r->cap_gaps ? 2 * r->cap_gaps : 64;
        uint64_t *p = realloc(r->gaps, cap * sizeof *p);
        if (!p) {
            load_record_fail(r, "client", "out of memory");
            return;
        }
        r->gaps = p;
        r->cap_gaps = cap;
    }
    r->gaps[r->n_pieces++ - 1] = now - r->t_last;
    r->t_last = now;
}

void load_record_fail(load_record *r, const char *kind, const char *fmt, ...)
{
    va_list ap;
    if (*r->kind)
        return;
    snprintf(r->kind, sizeof r->kind, "%s", kind);
    va_start(ap, fmt);
    vsnprintf(r->why, sizeof r->why, fmt, ap);
    va_end(ap);
}

void load_record_end(load_record *r, uint64_t now)
{
    r->t_end = now;
    if (!*r->finish)
        load_record_fail(r, LOAD_KIND_CUT, "the answer has no finish_reason");
    if (!r->n_pieces)
        load_record_fail(r, "empty", "the answer has no text");
    if (r->counted == LOAD_NOT_COUNTED) {
        r->counted = LOAD_BY_PIECES;
        r->n_out = r->n_pieces;
    }
}

void load_records_free(load_record *r, uint32_t n)
{
    for (uint32_t i = 0; r && i < n; i++)
        free(r[i].gaps);
    free(r);
}
