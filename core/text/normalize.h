/* Normalisation of text before it is cut into words: a list of steps, each a row. SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_TEXT_NORMALIZE_H
#define INFER_TEXT_NORMALIZE_H

#include <stddef.h>
#include <stdint.h>

#include <infer/error.h>

#include "base/buf.h"
#include "text/regex.h"

typedef enum infer_norm_kind {
    INFER_NORM_NFC,
    INFER_NORM_NFD,
    INFER_NORM_NFKC,
    INFER_NORM_NFKD,
    INFER_NORM_REPLACE, /* every `from` (text, or what `regex` matches) by `to` */
    INFER_NORM_PREPEND, /* `to` in front of a text that is not empty */
    INFER_NORM_LOWERCASE,
    INFER_NORM_STRIP,         /* white space at the ends chosen by strip_left and strip_right */
    INFER_NORM_STRIP_ACCENTS, /* combining marks go */
    INFER_NORM_SQUEEZE,       /* spaces: none at the ends, one where there were more */
} infer_norm_kind;

typedef struct infer_norm {
    infer_norm_kind kind;
    int strip_left, strip_right;
    infer_str from, to;
    infer_regex *regex;
} infer_norm;

/* Working memory of one thread, reused from call to call. Zero-initialise. */
typedef struct infer_norm_scratch {
    infer_buf buf[2];
    infer_buf points;
    infer_regex_scratch *regex;
    int lost_start;  /* out: the last text's first characters were removed */
    size_t max_text; /* bytes of the longest text that a caller will give: the result may be 32 times that */
} infer_norm_scratch;

/* Runs the steps over valid UTF-8. *out is `in` itself or in the scratch, until the next call. INFER_E_NO_MEMORY,
 * INFER_E_TOO_LARGE. */
infer_status infer_normalize(const infer_norm *steps, size_t n_steps, infer_norm_scratch *s, infer_str in,
                             infer_str *out, infer_error *err);
void infer_norm_scratch_free(infer_norm_scratch *s);

/* The scratch for regular expressions, made at its first use. */
infer_status infer_norm_scratch_regex(infer_norm_scratch *s, infer_regex_scratch **out, infer_error *err);

#endif
