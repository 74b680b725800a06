/* Reading tokenizer.json: what its two source files share. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TEXT_TOKENIZER_JSON_H
#define INFER_TEXT_TOKENIZER_JSON_H

#include <jansson.h>

#include "text/tokenizer.h"

/* Where in the document the reader is, for messages. */
typedef struct infer_tj {
    infer_tokenizer *t;
    infer_error *err;
    char path[160];
    int decoder_fused;
} infer_tj;

/* "tokenizer.json: PATH.key: what" (key may be NULL); INFER_E_BAD_FILE or INFER_E_UNSUPPORTED. */
infer_status infer_tj_bad(infer_tj *j, const char *key, const char *what);
infer_status infer_tj_unsupported(infer_tj *j, const char *key, const char *what);

/* Members of an object. Absent and null leave *out as it is; another type is INFER_E_BAD_FILE. Texts are borrowed from
 * the document. */
infer_status infer_tj_bool(infer_tj *j, const json_t *o, const char *key, int *out);
infer_status infer_tj_text(infer_tj *j, const json_t *o, const char *key, infer_str *out);
/* An integer in [0, max]. */
infer_status infer_tj_int(infer_tj *j, const json_t *o, const char *key, int32_t max, int32_t *out);

/* The parts of the document around the model; each may be null. They fill t's norm, pre, prefix and suffix, decoder.
 * `post` needs the vocabulary. */
infer_status infer_tj_normalizer(infer_tj *j, json_t *o);
infer_status infer_tj_pre_tokenizer(infer_tj *j, json_t *o);
infer_status infer_tj_post_processor(infer_tj *j, json_t *o);
infer_status infer_tj_decoder(infer_tj *j, json_t *o);

#endif
