/*
 * A streamed completion, chat or text, from the bytes of its body to a record. SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_TOOLS_BENCH_ANSWER_H
#define INFER_TOOLS_BENCH_ANSWER_H

#include "http.h"
#include "load.h"

typedef struct load_answer { /* all zero but `record` and `keep_text` is a new one */
    load_record *record;
    void *owner;   /* the driver's */
    int keep_text; /* collect the answer's text */
    int done;      /* [DONE] came */
    sse_reader sse;
    sbuf text;
    sbuf body; /* of an answer that is no event stream; its beginning */
    uint64_t now;
} load_answer;

/* A part of the body that arrived at `now`. status: of the answer; event_stream: as its head says. */
void load_answer_body(load_answer *a, unsigned status, int event_stream, const char *p, size_t n, uint64_t now);
/* The answer's end. cut: NULL, or why it ended too early, of kind `kind`. Fails the record for a status that is not
 * 200, an answer that is no stream, an error within it, a missing [DONE], then ends it. */
void load_answer_end(load_answer *a, unsigned status, int event_stream, const char *kind, const char *cut,
                     uint64_t now);
void load_answer_free(load_answer *a);

#endif
