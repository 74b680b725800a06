/* A request: checked copy of what was asked, text with stop strings. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "sched/private.h"

static infer_status check_sampling(const infer_sampling *s, uint32_t n_vocab, infer_error *err)
{
    const struct {
        const char *name;
        float value, low, high;
    } rows[] = {
        {"temperature", s->temperature, 0, 100},
        {"top_p", s->top_p, 0, 1},
        {"min_p", s->min_p, 0, 1},
        {"repetition_penalty", s->repetition_penalty, 0, 100},
        {"presence_penalty", s->presence_penalty, -100, 100},
        {"frequency_penalty", s->frequency_penalty, -100, 100},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (!(rows[i].value >= rows[i].low && rows[i].value <= rows[i].high))
            return infer_error_set(err, INFER_E_INVALID, "%s = %g: must lie in %g..%g", rows[i].name,
                                   (double)rows[i].value, (double)rows[i].low, (double)rows[i].high);
    if (s->top_k < 0)
        return infer_error_set(err, INFER_E_INVALID, "top_k = %d: must not be negative", s->top_k);
    if (s->n_bias > INFER_MAX_BIAS || (s->n_bias && !s->bias))
        return infer_error_set(err, INFER_E_INVALID, "logit_bias: at most %u entries", INFER_MAX_BIAS);
    for (uint32_t i = 0; i < s->n_bias; i++)
        if (s->bias[i].id < 0 || (uint32_t)s->bias[i].id >= n_vocab || isnan(s->bias[i].bias))
            return infer_error_set(err, INFER_E_INVALID, "logit_bias: entry %u (id %d) is out of range", i,
                                   s->bias[i].id);
    return INFER_OK;
}

static infer_status check(const infer_request *r, uint32_t n_vocab, uint32_t ctx_size, infer_error *err)
{
    if (!r->prompt || !r->n_prompt)
        return infer_error_set(err, INFER_E_INVALID, "prompt: must hold at least one token");
    if (r->n_prompt > ctx_size || r->n_prompt + (r->max_tokens != 0) > ctx_size)
        return infer_error_set(err, INFER_E_TOO_LARGE,
                               "prompt: %llu tokens and one to generate are over the context of %u",
                               (unsigned long long)r->n_prompt, ctx_size);
    for (uint64_t i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || (uint32_t)r->prompt[i] >= n_vocab)
            return infer_error_set(err, INFER_E_INVALID, "prompt: id %d at %llu is not in the vocabulary of %u",
                                   r->prompt[i], (unsigned long long)i, n_vocab);
    if (r->n_stop > INFER_MAX_STOPS || (r->n_stop && !r->stop))
        return infer_error_set(err, INFER_E_INVALID, "stop: at most %u strings", INFER_MAX_STOPS);
    for (uint32_t i = 0; i < r->n_stop; i++) {
        size_t n = r->stop[i] ? strlen(r->stop[i]) : 0;
        if (!n || n > INFER_MAX_STOP_LEN)
            return infer_error_set(err, INFER_E_INVALID, "stop: string %u must have 1 to %u bytes", i,
                                   INFER_MAX_STOP_LEN);
    }
    if (r->n_stop_ids > INFER_MAX_STOP_IDS || (r->n_stop_ids && !r->stop_ids))
        return infer_error_set(err, INFER_E_INVALID, "stop ids: at most %u", INFER_MAX_STOP_IDS);
    for (uint32_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] < 0 || (uint32_t)r->stop_ids[i] >= n_vocab)
            return infer_error_set(err, INFER_E_INVALID, "stop ids: id %d is not in the vocabulary of %u",
                                   r->stop_ids[i], n_vocab);
    if (r->n_top_logprobs > INFER_MAX_TOP)
        return infer_error_set(err, INFER_E_INVALID, "top_logprobs = %u: at most %u", r->n_top_logprobs, INFER_MAX_TOP);
    if (r->output > INFER_OUTPUT_POOLED)
        return infer_error_set(err, INFER_E_INVALID, "output = %u: no such kind", r->output);
    if (r->adapter)
        return infer_error_set(err, INFER_E_NOT_FOUND, "adapter %u: none is loaded", r->adapter);
    if ((r->flags & INFER_REQ_PROMPT_ROWS) && !r->on_row)
        return infer_error_set(err, INFER_E_INVALID, "prompt rows: no function to give them to");
    return check_sampling(&r->sampling, n_vocab, err);
}

void infer_req_count(infer_req *r, uint32_t n_vocab)
{
    memset(r->counts, 0, n_vocab * sizeof *r->counts);
    for (uint64_t i = 0; i < r->n_made; i++) {
        uint16_t *c = &r->counts[r->tokens[i]];
        if (i < r->n_prompt)
            *c |= 0x8000;
        else if ((*c & 0x7FFF) != 0x7FFF)
            ++*c;
    }
    r->counts_stale = 1;
}

static infer_status copy_in(infer_req *x, const infer_request *r, const infer_tokenizer *tok, uint32_t n_vocab,
                            uint32_t n_embd, uint32_t ctx_size)
{
    uint64_t room = ctx_size - r->n_prompt;
    uint64_t out = r->max_tokens < 0 || (uint64_t)r->max_tokens > room ? room : (uint64_t)r->max_tokens;
    const infer_sampling *s = &r->sampling;
    x->cap_tokens = r->n_prompt + out;
    x->tokens = infer_malloc(x->cap_tokens * sizeof *x->tokens);
    x->bias = infer_malloc(s->n_bias * sizeof *x->bias);
    x->stop_ids = infer_malloc(r->n_stop_ids * sizeof *x->stop_ids);
    if (!x->tokens || !x->bias || !x->stop_ids)
        return INFER_E_NO_MEMORY;
    memcpy(x->tokens, r->prompt, r->n_prompt * sizeof *x->tokens);
    if (s->n_bias)
        memcpy(x->bias, s->bias, s->n_bias * sizeof *x->bias);
    if (r->n_stop_ids)
        memcpy(x->stop_ids, r->stop_ids, r->n_stop_ids * sizeof *x->stop_ids);
    for (; x->n_stops < r->n_stop; x->n_stops++)
        if (!(x->stops[x->n_stops] = infer_strdup(r->stop[x->n_stops])))
            return INFER_E_NO_MEMORY;
    x->n_prompt = x->n_tokens = x->n_made = r->n_prompt;
    x->n_stop_ids = r->n_stop_ids;
    x->sampling = *s;
    x->sampling.bias = x->bias;
    if (x->sampling.top_p == 0)
        x->sampling.top_p = 1;
    if (x->sampling.repetition_penalty == 0)
        x->sampling.repetition_penalty = 1;
    if (x->sampling.repetition_penalty != 1 || s->presence_penalty != 0 || s->frequency_penalty != 0) {
        if (!(x->counts = infer_malloc(n_vocab * sizeof *x->counts)))
            return INFER_E_NO_MEMORY;
        infer_req_count(x, n_vocab);
    }
    if (x->on_row && x->output == INFER_OUTPUT_POOLED) {
        x->sum = infer_calloc(n_embd, sizeof *x->sum);
        x->pooled = infer_malloc(n_embd * sizeof *x->pooled);
        if (!x->sum || !x->pooled)
            return INFER_E_NO_MEMORY;
    }
    /* Room for every text that can be held back, so that decoding steps do not allocate. */
    if (x->n_stops && !infer_buf_reserve(&x->held, 2 * INFER_MAX_STOP_LEN + 512))
        return INFER_E_NO_MEMORY;
    return tok ? infer_detok_create(tok, INFER_DECODE_SKIP_SPECIAL, &x->detok) : INFER_OK;
}

infer_req *infer_req_alloc(void)
{
    infer_req *r = infer_alloc_aligned(sizeof *r, 64);
    if (r)
        memset(r, 0, sizeof *r);
    return r;
}

void infer_req_free(infer_req *r)
{
    infer_free_aligned(r);
}

infer_status infer_req_create(const infer_request *r, const infer_tokenizer *tok, uint32_t n_vocab, uint32_t n_embd,
                              uint32_t ctx_size, infer_req **out, infer_error *err)
{
    infer_request full = {0};
    memcpy(&full, r, r->struct_size < sizeof full ? r->struct_size : sizeof full);
    INFER_TRY(check(&full, n_vocab, ctx_size, err));
    infer_req *x = infer_req_alloc();
    if (!x)
        return infer_error_set(err, INFER_E_NO_MEMORY, "request: no host memory");
    x->user = full.user;
    x->flags = full.flags;
    x->priority = full.priority;
    x->slot = -1;
    x->min_tokens = full.min_tokens > 0 ? (uint64_t)full.min_tokens : 0;
    x->n_top = full.n_top_logprobs;
    x->on_row = full.flags & INFER_REQ_PROMPT_ROWS ? full.on_row : NULL;
    x->row_user = full.row_user;
    x->output = full.output;
    x->adapter = full.adapter;
    x->fork_of = full.fork_of;
    x->t_submit = infer_clock_ns();
    x->lane_record = infer_lane_create();
    infer_status s = !x->lane_record ? INFER_E_NO_MEMORY : copy_in(x, &full, tok, n_vocab, n_embd, ctx_size);
    if (s != INFER_OK) {
        infer_req_destroy(x);
        return infer_error_set(err, s, "request: no host memory");
    }
    if (full.beam_width && (s = infer_beams_create(x, &full, err)) != INFER_OK) {
        infer_req_destroy(x);
        return s;
    }
    *out = x;
    return INFER_OK;
}

void infer_req_destroy(infer_req *r)
{
    if (!r)
        return;
    infer_beams_destroy(r->beams);
    infer_detok_destroy(r->detok);
    if (r->spec)
        infer_draft_destroy(&r->spec->draft);
    infer_free(r->spec);
    infer_lane_destroy(r->lane_record);
    infer_free(r->places);
    infer_free(r->nodes);
    infer_buf_free(&r->held);
    for (uint32_t i = 0; i < r->n_stops; i++)
        infer_free(r->stops[i]);
    infer_free(r->stop_ids);
    infer_free(r->pooled);
    infer_free(r->sum);
    infer_free(r->counts);
    infer_free(r->bias);
    infer_free(r->tokens);
    infer_req_free(r);
}

int infer_req_is_end(const infer_req *r, const infer_tokenizer *tok, int32_t id)
{
    for (uint32_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id)
            return 1;
    return tok && !(r->flags & INFER_REQ_IGNORE_EOS) && infer_tokenizer_is_end(tok, id);
}

/* Drops the n leading bytes that the previous call gave out. */
static void drop_given(infer_buf *b, size_t n)
{
    memmove(b->p, b->p + n, b->n - n);
    b->n -= n;
    b->p[b->n] = 0;
}

/* The longest end of the held text that begins a stop string. */
static size_t may_begin_stop(const infer_req *r)
{
    size_t longest = 0;
    for (uint32_t i = 0; i < r->n_stops; i++) {
        size_t n = strlen(r->stops[i]);
        size_t k = n - 1 < r->held.n ? n - 1 : r->held.n;
        for (; k > longest; k--) {
            if (!memcmp(r->held.p + r->held.n - k, r->stops[i], k)) {
                longest = k;
                break;
            }
        }
    }
    return longest;
}

infer_status infer_req_text(infer_req *r, const char *text, size_t n_text, const char **p, size_t *n, int *stopped)
{
    infer_buf *b = &r->held;
    *stopped = 0;
    if (!r->n_stops) { /* nothing is ever held */
        *p = text;
        *n = n_text;
        return INFER_OK;
    }
    drop_given(b, b->n - r->n_held);
    infer_buf_append(b, text, n_text);
    if (b->failed) {
        b->failed = 0;
        return INFER_E_NO_MEMORY;
    }
    size_t give = b->n - may_begin_stop(r), first = 0, end = SIZE_MAX;
    /* The text ends where a stop string is complete first, however the text was cut into pieces. */
    for (uint32_t i = 0; i < r->n_stops; i++) {
        size_t len = strlen(r->stops[i]);
        char *at = memmem(b->p, b->n, r->stops[i], len);
        size_t start = at ? (size_t)(at - b->p) : 0;
        if (at && (start + len < end || (start + len == end && start < first))) {
            first = start;
            end = start + len;
        }
    }
    if (end != SIZE_MAX) {
        *stopped = 1;
        give = r->flags & INFER_REQ_ECHO_STOP ? end : first;
        b->n = give;
    }
    *p = b->p;
    *n = give;
    r->n_held = b->n - give;
    return INFER_OK;
}

void infer_req_flush(infer_req *r, const char *tail, size_t n_tail, const char **p, size_t *n)
{
    infer_buf *b = &r->held;
    const char *given;
    size_t n_given = 0;
    int stopped;
    if (!r->n_stops) {
        *p = tail;
        *n = n_tail;
        return;
    }
    if (!r->text_stopped && n_tail && infer_req_text(r, tail, n_tail, &given, &n_given, &stopped) == INFER_OK)
        r->n_held += n_given;
    drop_given(b, b->n - r->n_held);
    r->n_held = 0;
    *p = b->p;
    *n = b->n;
}
