/*
 * Windows of text, the logits of their counted positions, and statistics of them.
 *
 * A text is cut into windows of n_ctx tokens; the first token of each is BOS where the tokenizer adds one. Counted are
 * the positions n_ctx / 2 … n_ctx - 2: their logits predict the token after them. These are llama.cpp's rules, so that
 * figures can be compared.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_TOOLS_EVAL_H
#define INFER_TOOLS_EVAL_H

#include "session.h"

typedef struct windows {
    uint32_t n_ctx, n;
    uint32_t first, n_counted; /* of each window */
    int32_t *ids;              /* [n][n_ctx], owned */
} windows;

/* From a text; at most max_windows (< 0: all). INFER_E_INVALID when it is too short for one. */
infer_status windows_from_text(windows *w, const infer_tokenizer *tok, const char *text, size_t n, uint32_t n_ctx,
                               int64_t max_windows, infer_error *err);
void windows_free(windows *w);

/* Called in order for each counted position (0 … n_counted - 1) of a window; logits[n_vocab] predict `next`. On the
 * engine thread. A negative result ends the run. */
typedef infer_status (*window_fn)(void *user, uint32_t position, const float *logits, uint32_t n_vocab, int32_t next,
                                  infer_error *err);
infer_status windows_run(const session *s, const windows *w, uint32_t window, window_fn fn, void *user,
                         infer_error *err);

/* ---- Perplexity */
typedef struct ppl {
    double nll, nll2;
    uint64_t n;
} ppl;
/* nll: -log of the probability of one token. value: exp of the mean. */
void ppl_add(ppl *p, double nll);
double ppl_value(const ppl *p);
double ppl_error(const ppl *p); /* standard error of ppl_value */

/* ---- A comparison of two distributions at many positions */
typedef struct kld {
    float *values; /* [n], owned */
    uint64_t n, cap, n_same_top;
    ppl reference, tested;
} kld;
/* One position: both rows of logits, and the token that came (for the perplexities). INFER_E_INVALID: not finite. */
infer_status kld_add(kld *k, const float *reference, const float *tested, uint32_t n_vocab, int32_t next,
                     infer_error *err);
typedef struct kld_summary {
    double mean, mean_error, median, p90, p99, max, same_top, same_top_error;
} kld_summary;
/* Sorts the values. */
void kld_summarise(kld *k, kld_summary *s);
void kld_free(kld *k);

/* ---- Saved logits. A file is, all little-endian: "INFERLGT", u32 version (1), u32 n_vocab, u32 n_ctx, u32 windows,
 * u32 first, u32 counted; i32 ids[windows][n_ctx]; f32 logits[windows][counted][n_vocab]. */
typedef struct logits_file logits_file;
infer_status logits_create(const char *path, const windows *w, uint32_t n_vocab, logits_file **out, infer_error *err);
infer_status logits_append(logits_file *f, const float *logits, infer_error *err);
/* Fills w (owned by the caller) from the file. A wrong file is INFER_E_BAD_FILE. */
infer_status logits_open(const char *path, windows *w, logits_file **out, infer_error *err);
uint32_t logits_n_vocab(const logits_file *f);
/* A row, borrowed until the next call. */
infer_status logits_row(logits_file *f, uint32_t window, uint32_t position, const float **out, infer_error *err);
/* For a file being written: whether everything reached it. f may be NULL. */
infer_status logits_close(logits_file *f, infer_error *err);

#endif
