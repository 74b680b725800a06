/* The engine that runs pre-tokenizer steps, depth first: a word goes through all later steps before the next one is
 * cut, so that memory does not grow with the number of words. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "text/pretokenize.h"
#include "text/utf8.h"

typedef struct pre_run {
    const infer_pre_step *steps;
    size_t n_steps;
    infer_norm_scratch *norm;
    infer_pre_scratch *scratch;
    infer_word_fn fn;
    void *user;
    infer_error *err;
} pre_run;

/* Joins the pieces of one text, match and gap in turn, as the step's behaviour says. */
typedef struct splitter {
    const pre_run *run;
    size_t next_step;
    infer_str text;
    int at_start;
    size_t from, to; /* what is held back */
    int held, held_match;
} splitter;

static infer_status run_step(const pre_run *r, size_t i, infer_str text, int at_start);

static infer_status emit_held(splitter *sp)
{
    if (!sp->held)
        return INFER_OK;
    sp->held = 0;
    return run_step(sp->run, sp->next_step, infer_str_of(sp->text.p + sp->from, sp->to - sp->from),
                    sp->at_start && sp->from == 0);
}

static infer_status split_piece(splitter *sp, infer_split how, size_t from, size_t to, int match)
{
    int join = 0;
    switch (how) {
    case INFER_SPLIT_ISOLATED:
        break;
    case INFER_SPLIT_REMOVED:
        if (match)
            return emit_held(sp);
        break;
    case INFER_SPLIT_PREVIOUS:
        join = match && !sp->held_match;
        break;
    case INFER_SPLIT_NEXT:
        join = !match && sp->held_match;
        break;
    case INFER_SPLIT_CONTIGUOUS:
        join = match == sp->held_match;
        break;
    }
    if (sp->held && join) {
        sp->to = to;
        sp->held_match = match;
        return INFER_OK;
    }
    infer_status s = emit_held(sp);
    sp->from = from;
    sp->to = to;
    sp->held = 1;
    sp->held_match = match;
    return s;
}

static infer_status run_split(const pre_run *r, size_t i, infer_str text, int at_start)
{
    const infer_pre_step *step = &r->steps[i];
    splitter sp = {.run = r, .next_step = i + 1, .text = text, .at_start = at_start};
    infer_regex_scratch *scratch = NULL;
    infer_status s = INFER_OK;
    if (step->regex)
        s = infer_norm_scratch_regex(r->norm, &scratch, r->err);
    size_t done = 0, from = 0; /* all before `done` is in pieces; the search goes on at `from` */
    while (s == INFER_OK && from <= text.n) {
        size_t start = 0, end = 0;
        int found = 0;
        if (step->regex) {
            s = infer_regex_search(step->regex, scratch, text.p, text.n, from, &found, &start, &end, r->err);
        } else if (from < text.n) {
            const char *at = memmem(text.p + from, text.n - from, step->string.p, step->string.n);
            found = at != NULL;
            start = found ? (size_t)(at - text.p) : 0;
            end = start + step->string.n;
        }
        if (s != INFER_OK || !found)
            break;
        if (start > done)
            s = split_piece(&sp, step->split, done, start, step->invert);
        if (s == INFER_OK) /* an empty match still parts what is around it */
            s = split_piece(&sp, step->split, start, end, !step->invert);
        done = end;
        from = end > start ? end : end < text.n ? end + infer_utf8_len(text.p[end]) : text.n + 1;
    }
    if (s == INFER_OK && done < text.n)
        s = split_piece(&sp, step->split, done, text.n, step->invert);
    return s == INFER_OK ? emit_held(&sp) : s;
}

static infer_status run_step(const pre_run *r, size_t i, infer_str text, int at_start)
{
    if (!text.n)
        return INFER_OK;
    if (i == r->n_steps)
        return r->fn(r->user, text.p, text.n);
    const infer_pre_step *step = &r->steps[i];
    if (step->kind == INFER_PRE_SPLIT)
        return run_split(r, i, text, at_start);
    infer_buf *b = &r->scratch->buf[i];
    infer_buf_clear(b);
    switch (step->kind) {
    case INFER_PRE_PREFIX:
        if ((step->first_only && !at_start) ||
            (text.n >= step->string.n && memcmp(text.p, step->string.p, step->string.n) == 0))
            return run_step(r, i + 1, text, at_start);
        infer_buf_append(b, step->string.p, step->string.n);
        infer_buf_append(b, text.p, text.n);
        break;
    case INFER_PRE_METASPACE:
        for (size_t k = 0; k < text.n;) {
            const char *space = memchr(text.p + k, ' ', text.n - k);
            size_t run = space ? (size_t)(space - text.p) - k : text.n - k;
            infer_buf_append(b, text.p + k, run);
            if (space)
                infer_buf_append(b, step->string.p, step->string.n);
            k += run + 1;
        }
        break;
    case INFER_PRE_BYTES: {
        char *out = infer_buf_reserve(b, text.n * 2); /* no character of the alphabet is longer */
        if (!out)
            break;
        for (size_t k = 0; k < text.n; k++)
            out += infer_utf8_put(infer_byte_to_char((uint8_t)text.p[k]), out);
        b->n = (size_t)(out - b->p);
        break;
    }
    case INFER_PRE_SPLIT:
        break;
    }
    if (b->failed)
        return infer_buf_error(b, r->err, "pre-tokenize text");
    return run_step(r, i + 1, infer_str_of(b->p, b->n), at_start);
}

infer_status infer_pretokenize(const infer_pre_step *steps, size_t n_steps, infer_norm_scratch *norm,
                               infer_pre_scratch *scratch, infer_str text, int at_start, infer_word_fn fn, void *user,
                               infer_error *err)
{
    pre_run r = {steps, n_steps, norm, scratch, fn, user, err};
    return run_step(&r, 0, text, at_start);
}

void infer_pre_scratch_free(infer_pre_scratch *s)
{
    for (size_t i = 0; i < INFER_PRE_MAX_STEPS; i++)
        infer_buf_free(&s->buf[i]);
}
