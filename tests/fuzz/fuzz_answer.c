/* Fuzzes what a server may answer to the load generator: HTTP, its chunks, the events in it and their JSON. Cut in two
 * at any place it must give the same. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "bench/load/answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct reader {
    http_answer in;
    load_record record;
    load_answer answer;
} reader;

static void on_body(void *user, const char *p, size_t n)
{
    reader *r = user;
    load_answer_body(&r->answer, r->in.status, r->in.event_stream, p, n, 2);
}

static reader *read_all(const char *p, size_t n, size_t cut)
{
    reader *r = calloc(1, sizeof *r);
    if (!r)
        abort();
    r->record.t_sent = 1;
    r->answer = (load_answer){.record = &r->record, .keep_text = 1};
    http_answer_reset(&r->in);
    size_t used = http_answer_push(&r->in, p, cut, on_body, r);
    if (used == cut)
        http_answer_push(&r->in, p + cut, n - cut, on_body, r);
    http_answer_eof(&r->in);
    load_answer_end(&r->answer, r->in.status, r->in.event_stream, LOAD_KIND_CUT,
                    r->in.state == HTTP_DONE ? NULL : r->in.why, 3);
    return r;
}

static void drop(reader *r)
{
    load_answer_free(&r->answer);
    free(r->record.gaps);
    free(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *p = (const char *)data;
    const size_t cut = size ? (size_t)data[0] * 7 % size : 0;
    reader *a = read_all(p, size, 0), *b = read_all(p, size, cut);
    if (a->in.state != b->in.state || a->in.status != b->in.status || strcmp(a->record.kind, b->record.kind) ||
        a->record.n_pieces != b->record.n_pieces || a->record.n_out != b->record.n_out ||
        a->answer.text.n != b->answer.text.n)
        abort();
    if (!*a->record.kind && (a->in.status != 200 || !a->record.n_pieces))
        abort();
    drop(a);
    drop(b);
    return 0;
}
