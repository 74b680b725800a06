/* Ids to text, one at a time or all at once: decode() is the stream run to its end. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <string.h>

#include "base/alloc.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

struct infer_detok {
    const infer_tokenizer *t;
    uint32_t flags;
    char held[4]; /* the beginning of a character */
    size_t n_held;
    uint32_t strip;  /* leading spaces that may still go */
    int any;         /* a token gave text, or could have */
    infer_buf piece; /* bytes of the token at hand */
    infer_buf out;
};

/* "<0xNN>" as a byte, else -1. */
static int byte_piece(infer_str s)
{
    if (s.n != 6 || memcmp(s.p, "<0x", 3) != 0 || s.p[5] != '>')
        return -1;
    int v = 0;
    for (int i = 3; i < 5; i++) {
        char c = s.p[i];
        if (!((c >= '0' && c <= '9') || (c >= 'A' && c <= 'F')))
            return -1;
        v = v * 16 + (c <= '9' ? c - '0' : c - 'A' + 10);
    }
    return v;
}

/* Appends the bytes that an id stands for; *single: it is one byte of byte fallback. */
static void token_bytes(const infer_tokenizer *t, int32_t id, infer_buf *b, int *single)
{
    const infer_decoder *d = &t->decoder;
    infer_str s = infer_pieces_get(&t->pieces, (uint32_t)id);
    *single = 0;
    if (d->byte_fallback) {
        int v = byte_piece(s);
        if (v >= 0) {
            infer_buf_putc(b, (char)v);
            *single = 1;
            return;
        }
    }
    if (d->byte_level) {
        char *to = infer_buf_reserve(b, s.n); /* a byte is one character or more */
        size_t n = 0;
        for (size_t i = 0; to && i < s.n;) {
            uint32_t cp;
            int k = infer_utf8_next(s.p + i, s.n - i, &cp);
            int v = k > 0 ? infer_char_to_byte(cp) : -1;
            if (v < 0) { /* not of the alphabet (an added token): the text itself */
                memcpy(to, s.p, s.n);
                n = s.n;
                break;
            }
            to[n++] = (char)v;
            i += (size_t)k;
        }
        if (to) {
            to[n] = 0;
            b->n += n;
        }
        return;
    }
    for (size_t i = 0; i < s.n;) {
        const char *at = d->from.n ? memmem(s.p + i, s.n - i, d->from.p, d->from.n) : NULL;
        size_t run = at ? (size_t)(at - s.p) - i : s.n - i;
        infer_buf_append(b, s.p + i, run);
        i += run;
        if (at) {
            infer_buf_append(b, d->to.p, d->to.n);
            i += d->from.n;
        }
    }
}

/* Whole characters to the output, less the leading spaces that go. */
static void put(infer_detok *d, const char *p, size_t n)
{
    while (d->strip && n) {
        if (*p != ' ') {
            d->strip = 0;
            break;
        }
        d->strip--;
        p++;
        n--;
    }
    infer_buf_append(&d->out, p, n);
}

/* Lets go of the beginning of a character that will not be finished: as one U+FFFD, or as one for each byte where
 * those came from single-byte tokens (there the reference library gives one for each token). */
static void give_up(infer_detok *d, int each)
{
    for (size_t i = 0; i < d->n_held; i = each ? i + 1 : d->n_held)
        put(d, INFER_UTF8_REPLACEMENT, 3);
    d->n_held = 0;
}

/* Feeds bytes; each: see give_up. */
static void feed(infer_detok *d, const char *p, size_t n, int each)
{
    size_t i = 0;
    while (d->n_held && i < n) { /* byte by byte until the held character is done */
        uint32_t cp;
        d->held[d->n_held] = p[i];
        int k = infer_utf8_next(d->held, d->n_held + 1, &cp);
        if (k < 0) { /* p[i] does not continue it */
            give_up(d, each);
            break;
        }
        d->n_held++;
        i++;
        if (k > 0) {
            put(d, d->held, d->n_held);
            d->n_held = 0;
        }
    }
    size_t from = i;
    while (i < n) {
        uint32_t cp;
        int k = infer_utf8_next(p + i, n - i, &cp);
        if (k > 0) {
            i += (size_t)k;
            continue;
        }
        put(d, p + from, i - from);
        size_t bad = k ? (size_t)-k : n - i;
        memcpy(d->held, p + i, bad);
        d->n_held = bad;
        if (k)
            give_up(d, each);
        i += bad;
        from = i;
    }
    put(d, p + from, i - from);
}

/* Room for any token, each byte of which may become a U+FFFD or a replacement, so that pushing asks for none. */
static size_t longest_bytes(const infer_tokenizer *t)
{
    return (size_t)t->pieces.longest * (t->decoder.to.n > 3 ? t->decoder.to.n : 3) + 16;
}

infer_status infer_detok_create(const infer_tokenizer *t, uint32_t flags, infer_detok **out)
{
    infer_detok *d = infer_calloc(1, sizeof *d);
    if (!d)
        return INFER_E_NO_MEMORY;
    d->t = t;
    d->flags = flags;
    d->strip = flags & INFER_DECODE_CONTINUE ? 0 : t->decoder.strip;
    d->any = flags & INFER_DECODE_CONTINUE ? 1 : 0;
    infer_buf_reserve(&d->piece, longest_bytes(t));
    infer_buf_reserve(&d->out, longest_bytes(t));
    if (d->piece.failed || d->out.failed) {
        infer_detok_destroy(d);
        return INFER_E_NO_MEMORY;
    }
    infer_buf_clear(&d->out); /* ends with 0, also where no id gives anything */
    *out = d;
    return INFER_OK;
}

/* One token, appended to d->out. */
static void push(infer_detok *d, int32_t id)
{
    if ((d->flags & INFER_DECODE_SKIP_SPECIAL) && infer_tokenizer_is_special(d->t, id))
        return;
    int single;
    infer_buf_clear(&d->piece);
    token_bytes(d->t, id, &d->piece, &single);
    if (!d->t->decoder.byte_level && !single)
        give_up(d, 1);
    if (d->t->decoder.spaced && d->any)
        put(d, " ", 1);
    d->any = 1;
    feed(d, d->piece.p, d->piece.n, single);
    if (!d->t->decoder.byte_level && !single)
        give_up(d, 0); /* a piece is text by itself */
}

infer_status infer_tokenizer_make_whole(infer_tokenizer *t)
{
    const uint32_t n = t->pieces.n;
    if (t->decoder.spaced || !n)
        return INFER_OK;
    infer_buf b = {0};
    infer_buf_reserve(&b, longest_bytes(t));
    infer_whole *whole = b.failed ? NULL : infer_alloc_aligned(n * sizeof *whole, 64);
    for (uint32_t id = 0; whole && id < n; id++) {
        int single;
        infer_buf_clear(&b);
        token_bytes(t, (int32_t)id, &b, &single);
        whole[id] = (infer_whole){.n = INFER_WHOLE_NOT};
        if (single || infer_tokenizer_is_special(t, (int32_t)id) || b.n >= sizeof whole->text ||
            !infer_utf8_valid(b.p, b.n))
            continue;
        memcpy(whole[id].text, b.p, b.n);
        whole[id].n = (uint8_t)b.n;
    }
    infer_buf_free(&b);
    t->whole = whole;
    return whole ? INFER_OK : INFER_E_NO_MEMORY;
}

void infer_tokenizer_foresee(const infer_tokenizer *t, int32_t id)
{
    if (t->whole && id >= 0 && (uint32_t)id < t->pieces.n)
        __builtin_prefetch(&t->whole[id]);
}

void infer_detok_foresee(const infer_detok *d)
{
    __builtin_prefetch(d);
}

infer_status infer_detok_push(infer_detok *d, int32_t id, const char **text, size_t *n)
{
    if (id < 0 || (uint32_t)id >= d->t->pieces.n)
        return INFER_E_INVALID;
    const infer_whole *w = d->t->whole ? &d->t->whole[id] : NULL; /* then `any` makes no difference */
    if (w && w->n != INFER_WHOLE_NOT && !d->n_held && !d->strip) {
        *text = w->text;
        *n = w->n;
        return INFER_OK;
    }
    infer_buf_clear(&d->out);
    push(d, id);
    if (d->out.failed || d->piece.failed)
        return INFER_E_NO_MEMORY;
    *text = d->out.p;
    *n = d->out.n;
    return INFER_OK;
}

infer_status infer_detok_flush(infer_detok *d, const char **text, size_t *n)
{
    infer_buf_clear(&d->out);
    give_up(d, !d->t->decoder.byte_level);
    if (d->out.failed)
        return INFER_E_NO_MEMORY;
    d->strip = d->flags & INFER_DECODE_CONTINUE ? 0 : d->t->decoder.strip;
    d->any = d->flags & INFER_DECODE_CONTINUE ? 1 : 0;
    *text = d->out.p;
    *n = d->out.n;
    return INFER_OK;
}

void infer_detok_destroy(infer_detok *d)
{
    if (!d)
        return;
    infer_buf_free(&d->piece);
    infer_buf_free(&d->out);
    infer_free(d);
}

infer_status infer_tokenizer_decode(const infer_tokenizer *t, const int32_t *ids, size_t n_ids, uint32_t flags,
                                    char **text, size_t *n, infer_error *err)
{
    infer_detok *d;
    infer_status s = infer_detok_create(t, flags, &d);
    if (s != INFER_OK)
        return infer_error_set(err, s, "decode: no memory");
    for (size_t i = 0; i < n_ids; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= t->pieces.n) {
            s = infer_error_set(err, INFER_E_INVALID, "decode: id %d is not in [0, %u)", ids[i], t->pieces.n);
            goto out;
        }
        push(d, ids[i]);
    }
    give_up(d, !t->decoder.byte_level);
    size_t len = d->out.n;
    char *p = d->piece.failed ? NULL : infer_buf_detach(&d->out);
    if (!p) {
        s = infer_error_set(err, INFER_E_NO_MEMORY, "decode: no memory for the text");
        goto out;
    }
    *text = p;
    *n = len;
out:
    infer_detok_destroy(d);
    return s;
}

void infer_text_free(char *p)
{
    infer_free(p);
}

size_t infer_tokenizer_token_bytes(const infer_tokenizer *t, int32_t id, char *buf, size_t cap)
{
    if (id < 0 || (uint32_t)id >= t->pieces.n)
        return 0;
    char local[256];
    infer_buf b = {.p = local, .cap = sizeof local, .limit = sizeof local - 1};
    int single;
    token_bytes(t, id, &b, &single);
    if (b.failed) { /* a long piece */
        b = (infer_buf){0};
        token_bytes(t, id, &b, &single);
    }
    size_t n = b.failed ? 0 : b.n;
    if (n && cap)
        memcpy(buf, b.p, n < cap ? n : cap);
    if (b.p != local)
        infer_buf_free(&b);
    return n;
}
