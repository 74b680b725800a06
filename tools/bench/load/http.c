/*
 * HTTP/1.1 answers and server-sent events, byte by byte. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <string.h>
#include <strings.h>

#include "http.h"

/* ---- Answers ----------------------------------------------------------------------------------------------- */

void http_answer_reset(http_answer *a)
{
    a->state = HTTP_STATUS;
    a->status = 0;
    a->keep_alive = a->event_stream = a->chunked = a->has_length = a->minor = 0;
    a->why = NULL;
    a->left = 0;
    a->n_line = a->n_head = 0;
}

static void bad(http_answer *a, const char *why)
{
    a->state = HTTP_BAD;
    a->keep_alive = 0;
    a->why = why;
}

static int digit(char c)
{
    return c >= '0' && c <= '9';
}

static void take_status(http_answer *a)
{
    const char *s = a->line;
    if (a->n_line < 12 || memcmp(s, "HTTP/1.", 7) || (s[7] != '0' && s[7] != '1') || s[8] != ' ' || !digit(s[9]) ||
        !digit(s[10]) || !digit(s[11]) || (a->n_line > 12 && s[12] != ' ') || s[9] == '0') {
        bad(a, "the status line is malformed");
        return;
    }
    a->minor = s[7] - '0';
    a->status = (unsigned)((s[9] - '0') * 100 + (s[10] - '0') * 10 + (s[11] - '0'));
    a->keep_alive = a->minor;
    a->state = HTTP_HEADER;
}

/* Whether a comma-separated list has a word. */
static int has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; *p;) {
        size_t skip = strspn(p, " \t,"), k = strcspn(p + skip, " \t,;");
        if (k == n && !strncasecmp(p + skip, word, n))
            return 1;
        p += skip + k;
        p += strcspn(p, ",");
    }
    return 0;
}

static void take_length(http_answer *a, const char *value)
{
    uint64_t v = 0;
    const char *p = value;
    for (; digit(*p); p++) {
        if (v > UINT64_MAX / 20) {
            bad(a, "Content-Length is too large");
            return;
        }
        v = 10 * v + (uint64_t)(*p - '0');
    }
    if (p == value || *p)
        bad(a, "Content-Length is no number");
    else if (a->has_length && v != a->left)
        bad(a, "two Content-Lengths differ");
    a->has_length = 1;
    a->left = v;
}

static void take_header(http_answer *a)
{
    static const char token[] = "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    size_t n = strspn(a->line, token);
    if (!n || a->line[n] != ':') {
        bad(a, "a header line is malformed");
        return;
    }
    a->line[n] = 0;
    char *value = a->line + n + 1, *end = a->line + a->n_line;
    value += strspn(value, " \t");
    while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
        *--end = 0;
    if (!strcasecmp(a->line, "content-length")) {
        take_length(a, value);
    } else if (!strcasecmp(a->line, "transfer-encoding")) {
        if (a->chunked || strcasecmp(value, "chunked"))
            bad(a, "a transfer encoding other than chunked");
        a->chunked = 1;
    } else if (!strcasecmp(a->line, "connection")) {
        if (has_word(value, "close"))
            a->keep_alive = 0;
        else if (has_word(value, "keep-alive"))
            a->keep_alive = 1;
    } else if (!strcasecmp(a->line, "content-type")) {
        size_t k = strcspn(value, " \t;");
        a->event_stream = k == 17 && !strncasecmp(value, "text/event-stream", 17);
    }
}

static void end_head(http_answer *a)
{
    if (a->status == 101) {
        bad(a, "an upgrade that nobody asked for");
    } else if (a->status < 200) {
        http_answer_reset(a);
    } else if (a->chunked && a->has_length) {
        bad(a, "both Content-Length and Transfer-Encoding"); /* how a proxy is tricked */
    } else if (a->chunked) {
        a->state = HTTP_CHUNK_SIZE;
    } else if (a->status == 204 || a->status == 304 || (a->has_length && !a->left)) {
        a->state = HTTP_DONE;
    } else {
        a->state = a->has_length ? HTTP_BODY : HTTP_BODY_CLOSE;
        a->keep_alive &= a->has_length;
    }
}

static void take_chunk_size(http_answer *a)
{
    uint64_t v = 0;
    const char *p = a->line;
    for (;; p++) {
        char c = *p;
        unsigned d = digit(c)               ? (unsigned)(c - '0')
                     : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a' + 10)
                     : c >= 'A' && c <= 'F' ? (unsigned)(c - 'A' + 10)
                                            : 16;
        if (d == 16)
            break;
        if (v >> 58) {
            bad(a, "a chunk is too large");
            return;
        }
        v = v << 4 | d;
    }
    const char *rest = p + strspn(p, " \t");
    if (p == a->line || (*rest && *rest != ';')) {
        bad(a, "a chunk's size is malformed");
        return;
    }
    a->left = v;
    a->n_head = 0;
    a->state = v ? HTTP_CHUNK : HTTP_TRAILER;
}

/* A line is complete in a->line, without its end. */
static void take_line(http_answer *a)
{
    if (memchr(a->line, 0, a->n_line) || memchr(a->line, '\r', a->n_line)) {
        bad(a, "a control character in a line");
        return;
    }
    switch (a->state) {
    case HTTP_STATUS:
        take_status(a);
        break;
    case HTTP_HEADER:
        if (a->n_line)
            take_header(a);
        else
            end_head(a);
        break;
    case HTTP_CHUNK_SIZE:
        take_chunk_size(a);
        break;
    case HTTP_CHUNK_END:
        if (a->n_line)
            bad(a, "a chunk is longer than its size");
        else
            a->state = HTTP_CHUNK_SIZE;
        break;
    default: /* HTTP_TRAILER */
        if (!a->n_line)
            a->state = HTTP_DONE;
        break;
    }
}

/* One byte of a line. */
static void push_line(http_answer *a, char c)
{
    if (c == '\n') {
        if (!a->n_line || a->line[a->n_line - 1] != '\r') {
            bad(a, "a line does not end with CR LF");
            return;
        }
        a->line[--a->n_line] = 0;
        take_line(a);
        a->n_line = 0;
        return;
    }
    if (a->n_line + 1 >= sizeof a->line || ++a->n_head > HTTP_MAX_HEAD) {
        bad(a, "a line or the head is too long");
        return;
    }
    a->line[a->n_line++] = c;
}

size_t http_answer_push(http_answer *a, const char *p, size_t n, http_body_fn body, void *user)
{
    size_t i = 0;
    while (i < n && a->state != HTTP_DONE && a->state != HTTP_BAD) {
        if (a->state != HTTP_BODY && a->state != HTTP_BODY_CLOSE && a->state != HTTP_CHUNK) {
            push_line(a, p[i++]);
            continue;
        }
        size_t k = a->state == HTTP_BODY_CLOSE || a->left > n - i ? n - i : (size_t)a->left;
        body(user, p + i, k);
        i += k;
        if (a->state == HTTP_BODY_CLOSE)
            continue;
        a->left -= k;
        if (!a->left)
            a->state = a->state == HTTP_CHUNK ? HTTP_CHUNK_END : HTTP_DONE;
    }
    return i;
}

void http_answer_eof(http_answer *a)
{
    if (a->state == HTTP_BODY_CLOSE)
        a->state = HTTP_DONE;
    else if (a->state != HTTP_DONE && a->state != HTTP_BAD)
        bad(a, "the connection was closed before the answer's end");
    a->keep_alive = 0;
}

/* ---- Events ------------------------------------------------------------------------------------------------ */

static void end_line(sse_reader *r, sse_event_fn event, void *user)
{
    const char *s = r->line.p ? r->line.p : "";
    size_t n = r->line.n;
    r->line.n = 0;
    if (!r->began && n >= 3 && !memcmp(s, "\xEF\xBB\xBF", 3)) {
        s += 3;
        n -= 3;
    }
    r->began = 1;
    if (!n) {
        if (r->has_data)
            event(user, r->data.p ? r->data.p : "", r->data.n);
        r->data.n = 0;
        r->has_data = 0;
        return;
    }
    size_t k = 0;
    while (k < n && s[k] != ':')
        k++;
    if (k != 4 || memcmp(s, "data", 4))
        return; /* a comment, or a field that says nothing here */
    if (k < n)
        k++;
    if (k < n && s[k] == ' ')
        k++;
    if (r->has_data)
        sbuf_add(&r->data, "\n", 1);
    sbuf_add(&r->data, s + k, n - k);
    r->has_data = 1;
}

void sse_reader_push(sse_reader *r, const char *p, size_t n, sse_event_fn event, void *user)
{
    for (size_t i = 0; i < n && !r->bad;) {
        if (r->after_cr && p[i] == '\n') {
            r->after_cr = 0;
            i++;
            continue;
        }
        r->after_cr = 0;
        size_t k = i;
        while (k < n && p[k] != '\n' && p[k] != '\r')
            k++;
        sbuf_add(&r->line, p + i, k - i);
        r->bad = r->line.failed || r->data.failed || r->line.n + r->data.n > SSE_MAX_EVENT;
        if (k < n && !r->bad) {
            end_line(r, event, user);
            r->after_cr = p[k] == '\r';
        }
        i = k + 1;
    }
}

void sse_reader_reset(sse_reader *r)
{
    r->line.n = r->data.n = 0;
    r->has_data = r->after_cr = r->began = r->bad = 0;
}

void sse_reader_free(sse_reader *r)
{
    sbuf_free(&r->line);
    sbuf_free(&r->data);
    *r = (sse_reader){0};
}
