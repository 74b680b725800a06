/*
 * infer-bench serve: requests under load. A list of requests is made first; a pacer says which of them may start when;
 * a driver sends them to a server or to an engine of this process and fills a record each; the records are summed up.
 * Nothing here is shared between threads. Times are nanoseconds of infer_engine_now (CLOCK_MONOTONIC).
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_TOOLS_BENCH_LOAD_H
#define INFER_TOOLS_BENCH_LOAD_H

#include <stdio.h>

#include <jansson.h>

#include <infer/infer.h>

#include "sbuf.h"

/* ---- The list (list.c, words.c, sharegpt.c) ---- The same spec gives the same list, whatever runs it. */

enum load_workload { LOAD_RANDOM, LOAD_PREFIX, LOAD_TURNS, LOAD_SHAREGPT };

typedef struct load_spec {
    enum load_workload workload;
    uint32_t n_requests;           /* at least 1 */
    uint32_t n_in, n_out;          /* mean lengths, at least 1. SHAREGPT: n_in is not used, n_out 0: as the file says */
    double sigma;                  /* 0: every length is the mean; else log-normal, this the deviation of the log */
    uint32_t n_prefix, n_prefixes; /* PREFIX: length of a shared beginning, and how many different ones there are */
    uint32_t n_turns;              /* of a conversation, at least 1; more than 1 only with TURNS and SHAREGPT */
    const char *dataset;           /* SHAREGPT: the file */
    uint32_t max_in;               /* SHAREGPT: conversations with a longer turn are left out */
    double rate;                   /* > 0: conversations begin at random times (Poisson), so many a second */
    uint64_t seed;
    const infer_tokenizer *tokenizer; /* lengths count its tokens; NULL: words, and in a dataset four bytes a token */
} load_spec;

typedef struct load_request {
    uint32_t conversation, turn; /* those of one conversation stand together, in order */
    uint32_t n_in;               /* length of text, as the spec counts */
    uint32_t n_out;              /* tokens to make */
    uint64_t due;                /* after the start; 0 without a rate and for later turns, which follow an answer */
    char *text;                  /* what this turn adds to the conversation; UTF-8, not empty; owned */
} load_request;

typedef struct load_list {
    load_request *r;
    uint32_t n, n_conversations;
    uint32_t n_left_out; /* conversations of the dataset that were passed over: no question with its answer, too long */
    uint64_t hash;       /* of all of it */
} load_list;

/* INFER_E_IO and INFER_E_BAD_FILE name the dataset and what is wrong; INFER_E_NO_MEMORY. A dataset may give fewer
 * requests than were asked for, but none is an error. */
infer_status load_list_make(const load_spec *spec, load_list *out, infer_error *err);
void load_list_free(load_list *l);
/* A JSON object a line. */
void load_list_print(const load_list *l, FILE *f);

/* SplitMix64; the numbers of a list come from nothing else. */
uint64_t load_random(uint64_t *state);
/* In (0, 1). */
double load_random_unit(uint64_t *state);
/* A length: mean where sigma is 0, else log-normal around it; at least 1. */
uint32_t load_random_length(uint64_t *state, uint32_t mean, double sigma);

/* Random words. */
typedef struct load_words load_words;
/* tok may be NULL: then a word counts 1. NULL without memory. */
load_words *load_words_create(const infer_tokenizer *tok);
void load_words_destroy(load_words *w);
/* Appends words of length n to a text that may hold some already (n counts the new ones). Exact where the tokenizer can
 * make such a length of these words, else the next below, but never nothing. Returns the length. */
uint32_t load_words_add(const load_words *w, uint64_t *random, uint32_t n, sbuf *to);
/* Length of a text. */
uint32_t load_words_count(const load_words *w, const char *text, size_t n);

/* SHAREGPT's part of load_list_make: appends requests without `due`. */
infer_status load_sharegpt_read(const load_spec *spec, const load_words *w, load_list *out, infer_error *err);
/* Appends a request; takes text (NULL: out of memory). */
infer_status load_list_add(load_list *l, const load_request *r, infer_error *err);

/* ---- Who may start (pacer.c) ---- */

typedef struct load_pacer load_pacer;
/* At most `concurrency` requests run at once (0: no bound); a conversation's next turn waits for the answer to the last
 * and starts before new conversations. NULL without memory. The list outlives it. */
load_pacer *load_pacer_create(const load_list *l, uint32_t concurrency);
void load_pacer_destroy(load_pacer *p);
/* The index of a request that is to start at `now` (after the start); it counts as running. -1: none; *wait is how long
 * until one is due, UINT64_MAX when one must end first or none is left. *due is since when it could have started. */
int64_t load_pacer_next(load_pacer *p, uint64_t now, uint64_t *due, uint64_t *wait);
/* A running request ended. Returns how many turns after it are given up, as it failed. */
uint32_t load_pacer_ended(load_pacer *p, uint32_t index, int ok, uint64_t now);
/* Every request ended or was given up. */
int load_pacer_done(const load_pacer *p);

/* ---- Records (record.c) ---- */

#define LOAD_KIND_CUT "cut"

enum load_counted { LOAD_NOT_COUNTED, LOAD_BY_ENGINE, LOAD_BY_USAGE, LOAD_BY_PIECES };

typedef struct load_record {
    uint64_t t_due, t_sent;          /* since when it could start; when its prompt was ready to go out */
    uint64_t t_first, t_last, t_end; /* first and last piece of the answer, its end; 0: never */
    uint64_t *gaps;                  /* between one piece and the next; owned */
    uint32_t n_pieces, cap_gaps;     /* n_pieces - 1 gaps */
    uint64_t n_prompt, n_cached, n_out;
    enum load_counted counted; /* how n_prompt and n_out are known; BY_PIECES: only n_out, as if a piece were a token */
    char finish[16];           /* "stop", "length" as the server says; "": never */
    char kind[32];             /* of failure; "": it went well (once ended) */
    char why[192];
} load_record;

/* A piece of the answer arrived. */
void load_record_piece(load_record *r, uint64_t now);
/* The first failure stays. */
void load_record_fail(load_record *r, const char *kind, const char *fmt, ...) INFER_PRINTF(3, 4);
/* Ends it: without finish and a piece it failed. */
void load_record_end(load_record *r, uint64_t now);
void load_records_free(load_record *r, uint32_t n);

/* ---- A run (run.c) ---- */

typedef struct load_dialog { /* a conversation so far, in the form that is sent */
    json_t *messages;        /* chat */
    sbuf text;               /* completions */
} load_dialog;

typedef struct load_run {
    const load_list *list;
    int chat;
    double temperature;
    int ignore_eos;
    load_pacer *pacer;
    load_record *records;            /* of list->r */
    load_dialog *dialogs;            /* of the conversations */
    uint64_t t_start, t_end, cpu_ns; /* cpu_ns: what the driver's thread used between them */
    uint32_t n_ended;
    /* What the driver knows of its target. */
    int sent_ignore_eos, sent_usage; /* the server took ignore_eos and min_tokens, stream_options */
    uint32_t n_reconnects;           /* a kept connection was found closed: sent anew on another */
    load_record warmup;
} load_run;

/* INFER_E_NO_MEMORY. Takes l by reference; chat, temperature and ignore_eos are the caller's to set before. */
infer_status load_run_create(load_run *run, const load_list *l, uint32_t concurrency, infer_error *err);
void load_run_destroy(load_run *run);
/* Sets the clocks. */
void load_run_start(load_run *run);
void load_run_stop(load_run *run);
/* The next request to start, its dialog ready to send, or -1 with *wait as load_pacer_next has it. */
int64_t load_run_next(load_run *run, uint64_t *wait);
/* A request ended (load_record_end was called); text is its answer, for the next turn. */
void load_run_ended(load_run *run, uint32_t index, const char *text, size_t n);
/* A dialog's text is its next part; 0 without memory. */
int load_dialog_say(load_dialog *d, int chat, const char *role, const char *text, size_t n);
void load_dialog_clear(load_dialog *d);

/* ---- Drivers ---- */

typedef struct load_target {
    const char *url;     /* http://HOST[:PORT][/PATH]; without a path /v1 */
    const char *api_key; /* or NULL */
    const char *model;   /* NULL: the first that the server lists, if it lists any */
    uint32_t timeout_s;  /* without a byte */
} load_target;

/* Runs all of it against a server (drive_http.c), after one request that is not counted, which finds out what the
 * server takes. Failures of requests are in the records; a status is returned only for what stops the whole:
 * INFER_E_INVALID (the address), INFER_E_IO (no connection), INFER_E_UNSUPPORTED (it refused the first request). */
infer_status load_drive_http(load_run *run, const load_target *t, infer_error *err);

struct chat_format;
/* The same in this process (drive_engine.c). */
infer_status load_drive_engine(load_run *run, infer_engine *engine, const infer_tokenizer *tok,
                               const struct chat_format *chat, infer_error *err);

/* ---- Statistics (stats.c) ---- */

typedef struct load_dist {
    double *v; /* sorted; owned */
    size_t n;
    double mean, p50, p90, p99, max; /* 0 where n is 0 */
} load_dist;

/* The p-th part (0 to 1) of n > 0 sorted values, linear between the two nearest. */
double load_percentile(const double *sorted, size_t n, double p);

enum load_measure { LOAD_TTFT, LOAD_TPOT, LOAD_ITL, LOAD_E2E, LOAD_LATE, LOAD_N_MEASURES };

typedef struct load_failure {
    char kind[32], why[192]; /* why: the first of them */
    uint32_t n;
} load_failure;

typedef struct load_summary {
    uint32_t n, n_ok;
    double seconds;                     /* from the start to the last end */
    uint64_t n_prompt, n_cached, n_out; /* of those that went well */
    uint32_t n_by_pieces;               /* of those, how many the server gave no counts for */
    uint32_t n_short;                   /* of those, how many made fewer tokens than were asked for */
    double requests_per_s, out_per_s, total_per_s;
    double client_busy;           /* part of the time that the driver's thread worked */
    load_dist d[LOAD_N_MEASURES]; /* milliseconds, of requests that went well; LATE of all that started */
    load_failure *failures;       /* by number, then name; owned */
    uint32_t n_kinds;
} load_summary;

infer_status load_summary_make(const load_run *run, load_summary *out, infer_error *err);
void load_summary_free(load_summary *s);

/* ---- What is told (report.c, svg.c) ---- */

enum load_form { LOAD_MD, LOAD_JSON, LOAD_CSV };

typedef struct load_title {
    const char *target;   /* address, or "engine" with model and devices */
    const char *endpoint; /* completions, chat */
    const char *workload; /* its name */
    const load_spec *spec;
    uint32_t concurrency;
} load_title;

/* samples: JSON with every request's own figures. 0, or -1 without memory. */
int load_report_print(enum load_form form, const load_title *t, const load_run *run, const load_summary *s, int samples,
                      FILE *f);
/* A picture of the run: time to first token and tokens a second over time, and how the latencies are distributed.
 * INFER_E_IO, INFER_E_NO_MEMORY. */
infer_status load_svg_write(const char *path, const load_title *t, const load_run *run, const load_summary *s,
                            infer_error *err);

/* The verb: infer-bench serve. Returns the exit code; argv[0] is the program's name. */
int load_main(int argc, char **argv);

#endif
