/*
 * The list of requests of a load: lengths, texts, arrivals. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "load.h"

uint64_t load_random(uint64_t *state)
{
    uint64_t x = *state += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

double load_random_unit(uint64_t *state)
{
    return ((double)(load_random(state) >> 11) + 0.5) / 9007199254740992.0;
}

uint32_t load_random_length(uint64_t *state, uint32_t mean, double sigma)
{
    const double pi = 3.14159265358979323846, most = 1 << 30;
    if (!(sigma > 0))
        return mean ? mean : 1;
    double u = load_random_unit(state), v = load_random_unit(state);
    double normal = sqrt(-2 * log(u)) * cos(2 * pi * v); /* Box and Muller */
    double x = floor(exp(log((double)mean) - sigma * sigma / 2 + sigma * normal) + 0.5);
    return x < 1 ? 1 : x > most ? (uint32_t)most : (uint32_t)x;
}

infer_status load_list_add(load_list *l, const load_request *r, infer_error *err)
{
    if (r->text && !(l->n & (l->n - 1))) { /* a power of two: full */
        size_t cap = l->n ? 2 * (size_t)l->n : 1;
        load_request *p = realloc(l->r, cap * sizeof *p);
        if (p)
            l->r = p;
        else {
            free(r->text);
            return infer_error_set(err, INFER_E_NO_MEMORY, "making requests: out of memory");
        }
    }
    if (!r->text)
        return infer_error_set(err, INFER_E_NO_MEMORY, "making requests: out of memory");
    l->r[l->n++] = *r;
    if (r->conversation + 1 > l->n_conversations)
        l->n_conversations = r->conversation + 1;
    return INFER_OK;
}

/* A seed for a purpose (and its number), so that more of one thing leave the others as they are. */
static uint64_t sub_seed(uint64_t seed, uint64_t purpose, uint64_t number)
{
    uint64_t s = seed ^ purpose * UINT64_C(0xD6E8FEB86659FD93);
    load_random(&s);
    s ^= number * UINT64_C(0xA0761D6478BD642F);
    return load_random(&s);
}

enum { OF_REQUEST = 1, OF_PREFIX, OF_ARRIVALS };

static infer_status make_random(const load_spec *spec, const load_words *w, load_list *out, infer_error *err)
{
    const uint32_t n_turns = spec->workload == LOAD_TURNS ? spec->n_turns : 1;
    infer_status st = INFER_OK;
    for (uint32_t i = 0; i < spec->n_requests && st >= 0; i++) {
        load_request r = {.conversation = i / n_turns, .turn = i % n_turns};
        uint64_t random = sub_seed(spec->seed, OF_REQUEST, i);
        uint32_t n_in = load_random_length(&random, spec->n_in, spec->sigma);
        sbuf text = {0};
        r.n_out = load_random_length(&random, spec->n_out, spec->sigma);
        if (spec->workload == LOAD_PREFIX) {
            uint64_t of_prefix = sub_seed(spec->seed, OF_PREFIX, load_random(&random) % spec->n_prefixes);
            r.n_in = load_words_add(w, &of_prefix, spec->n_prefix, &text);
        }
        r.n_in += load_words_add(w, &random, n_in, &text);
        r.text = text.failed ? NULL : text.p;
        if (text.failed)
            sbuf_free(&text);
        st = load_list_add(out, &r, err);
    }
    return st;
}

static void set_arrivals(const load_spec *spec, load_list *l)
{
    uint64_t random = sub_seed(spec->seed, OF_ARRIVALS, 0);
    double t = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        if (l->r[i].turn)
            continue;
        t -= log(load_random_unit(&random)) / spec->rate;
        l->r[i].due = t < 1e9 ? (uint64_t)(t * 1e9) : UINT64_C(1000000000000000000);
    }
}

static uint64_t hash_bytes(uint64_t h, const void *p, size_t n) /* FNV-1a */
{
    const unsigned char *b = p;
    for (size_t i = 0; i < n; i++)
        h = (h ^ b[i]) * UINT64_C(0x100000001B3);
    return h;
}

static uint64_t hash_number(uint64_t h, uint64_t v)
{
    unsigned char b[8];
    for (int i = 0; i < 8; i++)
        b[i] = (unsigned char)(v >> 8 * i);
    return hash_bytes(h, b, sizeof b);
}

static uint64_t hash_list(const load_list *l)
{
    uint64_t h = UINT64_C(0xCBF29CE484222325);
    for (uint32_t i = 0; i < l->n; i++) {
        const load_request *r = &l->r[i];
        h = hash_number(hash_number(hash_number(h, r->conversation), r->n_out), r->due);
        h = hash_bytes(h, r->text, strlen(r->text) + 1);
    }
    return h;
}

infer_status load_list_make(const load_spec *spec, load_list *out, infer_error *err)
{
    *out = (load_list){0};
    load_words *w = load_words_create(spec->tokenizer);
    infer_status st;
    if (!w)
        return infer_error_set(err, INFER_E_NO_MEMORY, "making requests: out of memory");
    if (spec->workload == LOAD_SHAREGPT)
        st = load_sharegpt_read(spec, w, out, err);
    else
        st = make_random(spec, w, out, err);
    load_words_destroy(w);
    if (st < 0) {
        load_list_free(out);
        return st;
    }
    if (spec->rate > 0)
        set_arrivals(spec, out);
    out->hash = hash_list(out);
    return INFER_OK;
}

void load_list_free(load_list *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        free(l->r[i].text);
    free(l->r);
    *l = (load_list){0};
}

void load_list_print(const load_list *l, FILE *f)
{
    for (uint32_t i = 0; i < l->n; i++) {
        const load_request *r = &l->r[i];
        json_t *o = json_pack("{s:I, s:I, s:I, s:I, s:f, s:s}", "conversation", (json_int_t)r->conversation, "turn",
                              (json_int_t)r->turn, "input_length", (json_int_t)r->n_in, "output_tokens",
                              (json_int_t)r->n_out, "due_s", (double)r->due / 1e9, "text", r->text);
        if (o)
            json_dumpf(o, f, JSON_COMPACT | JSON_REAL_PRECISION(15));
        fputc('\n', f);
        json_decref(o);
    }
}
