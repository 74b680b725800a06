/*
 * Answers of HTTP/1.1 servers and server-sent events, read as their bytes come. What is malformed is an error, never
 * guessed at. No sockets here. SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_TOOLS_BENCH_HTTP_H
#define INFER_TOOLS_BENCH_HTTP_H

#include <stddef.h>
#include <stdint.h>

#include "sbuf.h"

#define HTTP_MAX_LINE 8192  /* of head, chunk size or trailer */
#define HTTP_MAX_HEAD 65536 /* all lines of the head, or of the trailer */

enum http_state {
    HTTP_STATUS,
    HTTP_HEADER,
    HTTP_BODY,       /* `left` bytes more */
    HTTP_BODY_CLOSE, /* until the connection ends */
    HTTP_CHUNK_SIZE,
    HTTP_CHUNK,
    HTTP_CHUNK_END,
    HTTP_TRAILER,
    HTTP_DONE,
    HTTP_BAD
};

typedef struct http_answer {
    enum http_state state;
    unsigned status;  /* 0: not yet known */
    int keep_alive;   /* the connection may be used again once DONE */
    int event_stream; /* Content-Type is text/event-stream */
    const char *why;  /* of BAD */
    int chunked, has_length, minor;
    uint64_t left;
    size_t n_line, n_head;
    char line[HTTP_MAX_LINE];
} http_answer;

/* Bytes of the body as they come. */
typedef void (*http_body_fn)(void *user, const char *p, size_t n);

void http_answer_reset(http_answer *a);
/* Takes n bytes; returns how many were this answer's (all, unless it is DONE or BAD before). HEAD's answers and
 * upgrades are not known here. Interim answers (1xx) are passed over. */
size_t http_answer_push(http_answer *a, const char *p, size_t n, http_body_fn body, void *user);
/* The connection ended: DONE where that ends the answer, else BAD. */
void http_answer_eof(http_answer *a);

#define SSE_MAX_EVENT (16u << 20)

/* n bytes of the joined data lines of an event that has any. */
typedef void (*sse_event_fn)(void *user, const char *data, size_t n);

typedef struct sse_reader { /* all zero is a new one */
    sbuf line, data;
    int has_data, after_cr, began;
    int bad; /* an event over the bound, or no memory */
} sse_reader;

void sse_reader_push(sse_reader *r, const char *p, size_t n, sse_event_fn event, void *user);
/* Forgets what is unfinished; the memory stays. */
void sse_reader_reset(sse_reader *r);
void sse_reader_free(sse_reader *r);

#endif
