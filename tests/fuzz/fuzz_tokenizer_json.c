/* libFuzzer target: tokenizer.json as a stranger may send it, then encoding and decoding with what was built. An input
 * is the document, optionally a NUL and a text. Seeds: tests/fuzz/corpus/tokenizer_json. SPDX-License-Identifier:
 * Apache-2.0 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include <infer/text.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What decoding gives at once is what the stream gives; encoding the same text twice gives the same ids. */
static void use(const infer_tokenizer *t, const char *text, size_t n, uint32_t flags)
{
    int32_t *ids, *again;
    size_t n_ids, n_again, len, at = 0, part_n;
    char *back;
    const char *part;
    infer_detok *d;
    if (infer_tokenizer_encode(t, text, n, flags, &ids, &n_ids, NULL) != INFER_OK)
        return;
    if (infer_tokenizer_encode(t, text, n, flags, &again, &n_again, NULL) != INFER_OK || n_again != n_ids ||
        (n_ids && memcmp(ids, again, n_ids * sizeof *ids) != 0))
        abort();
    if (infer_tokenizer_decode(t, ids, n_ids, 0, &back, &len, NULL) != INFER_OK ||
        infer_detok_create(t, 0, &d) != INFER_OK)
        abort();
    for (size_t i = 0; i <= n_ids; i++) {
        if ((i < n_ids ? infer_detok_push(d, ids[i], &part, &part_n) : infer_detok_flush(d, &part, &part_n)) !=
                INFER_OK ||
            part_n > len - at || (part_n && memcmp(part, back + at, part_n) != 0))
            abort();
        at += part_n;
    }
    if (at != len)
        abort();
    infer_detok_destroy(d);
    infer_text_free(back);
    infer_ids_free(again);
    infer_ids_free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char standard[] = "It's <s> a  \xC3\xA9 e\xCC\x81 12345\r\n\xE4\xB8\xAD \xF0\x9F\x98\x80\xFF hello";
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    const char *json = (const char *)data, *text = nul ? (const char *)nul + 1 : standard;
    size_t n = nul ? (size_t)(nul - data) : size, text_n = nul ? size - n - 1 : sizeof standard - 1;
    infer_tokenizer *t;
    infer_error err;
    if (infer_tokenizer_create_json(json, n, NULL, 0, &t, &err) != INFER_OK)
        return 0;
    if (text_n > 256)
        text_n = 256;
    use(t, text, text_n, INFER_ENCODE_ADD_SPECIAL | INFER_ENCODE_PARSE_SPECIAL);
    use(t, text, text_n, 0);
    char buf[8];
    for (int32_t id = 0; id < (int32_t)infer_tokenizer_n_tokens(t) && id < 64; id++) {
        infer_tokenizer_token_bytes(t, id, buf, sizeof buf);
        infer_tokenizer_is_end(t, id);
    }
    infer_tokenizer_destroy(t);
    return 0;
}
