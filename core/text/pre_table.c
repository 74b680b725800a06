/* Pre-tokenizers by name: one row each, with the patterns as the models' own tokenizer.json files give them (where
 * those need time quadratic in the text, an equivalent that does not). A name that has no row is refused, never
 * approximated. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include "text/pretokenize.h"

/* Shared parts of the patterns. */
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL        "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
/* cl100k_base's children: they differ in the digits that form one word. */
#define CL100K(digits) CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL
/* o200k_base's children: words are cut where the case goes up. */
#define O200K_UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define O200K_LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define O200K_WORDS(upper, lower, suffix)                                                                              \
    "[^\\r\\n\\p{L}\\p{N}]?" upper "*" lower "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" upper "+" lower "*" suffix "|"
#define O200K(suffix, digits)                                                                                          \
    O200K_WORDS("[" O200K_UPPER "]", "[" O200K_LOWER "]", suffix) digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" TAIL
#define DEEPSEEK3                                                                                                      \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "              \
    "?[\\p{P}\\p{S}]+[\\r\\n]*" TAIL
#define BLOOM " ?[^(\\s|.,!?…。，、।۔،)]+"
/* A run of digits, cut before it comes here, into groups of three counted from the right. */
#define DIGITS_FROM_RIGHT "\\A\\d{1,2}(?=(?:\\d{3})++\\z)|\\d{3}"

/* The formatter counts these letters differently each time. */
/* clang-format off */
#define DEEPSEEK_LETTERS                                                                                                                            \
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽ"                                        \
    "ᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-"       \
    "Ίῠ-"                                                                                                                                       \
    "Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-" \
    "ꞇꞋ-"                                                                                                                                       \
    "ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
/* clang-format on */

const char infer_pre_gpt2[] = GPT2;

static const infer_pre_row rows[] = {
    {{"gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "jais", "trillion", "granite-docling", "exaone4"}, 0, {GPT2}},
    {{"mpt", "olmo"}, INFER_PRE_NFC, {GPT2}},
    {{"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"},
     0,
     {"\\p{N}", GPT2}},
    {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
     INFER_PRE_IGNORE_MERGES | INFER_PRE_ADD_BOS,
     {CL100K("\\p{N}{1,3}")}},
    {{"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"}, 0, {CL100K("\\p{N}{1,3}")}},
    {{"minicpm5"}, INFER_PRE_IGNORE_MERGES, {"\\p{N}{1,3}", CL100K("\\p{N}+")}},
    {{"qwen2", "deepseek-r1-qwen", "megrez", "kormo"}, INFER_PRE_NFC, {CL100K("\\p{N}")}},
    {{"stablelm2", "hunyuan", "solar-open", "grok-2"}, 0, {CL100K("\\p{N}")}},
    {{"laguna"}, 0, {"[^\\n]+|[\\n]+", CL100K("\\p{N}")}},
    {{"qwen35"},
     INFER_PRE_NFC,
     {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" TAIL}},
    {{"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"}, 0, {O200K(CONTRACTION "?", "\\p{N}{1,3}")}},
    {{"tekken"}, INFER_PRE_IGNORE_MERGES | INFER_PRE_ADD_BOS, {O200K("", "\\p{N}")}},
    {{"tiny_aya", "cohere2moe"}, 0, {"(?<!\\d)\\d++\\b", DIGITS_FROM_RIGHT, O200K(CONTRACTION "?", "\\p{N}{1,3}")}},
    {{"youtu"},
     INFER_PRE_IGNORE_MERGES,
     {"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
      O200K(CONTRACTION "?", "\\p{N}")}},
    /* The words leave out \p{Han}: no set difference here, so what must not be there is what the negated sets list. */
    {{"kimi-k2"},
     0,
     {"\\p{Han}+|" O200K_WORDS("[^\\p{Ll}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{Han}]",
                               "[^\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{Han}]",
                               CONTRACTION "?") "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL}},
    {{"deepseek-v3", "hunyuan-dense", "joyai-llm"}, 0, {"\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3}},
    {{"afmoe"},
     0,
     {"\\p{Nd}+", DIGITS_FROM_RIGHT,
      "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+",
      DEEPSEEK3}},
    {{"deepseek-llm"},
     0,
     {"[\\r\\n]", "\\s?[" DEEPSEEK_LETTERS "]+", "\\s?[!-/:-~！-／：-～‘-‟　-。]+", "(?<!\\s)\\s++$",
      "[一-龥ࠀ-一가-퟿]+", "\\p{N}+"}},
    {{"deepseek-coder"}, 0, {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[一-龥ࠀ-一가-퟿]+", "\\p{N}"}},
    {{"falcon"}, 0, {"[\\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {{"bailingmoe", "bailingmoe2", "llada-moe"},
     0,
     {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| "
      "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    {{"seed-coder"}, 0, {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+" TAIL}},
    {{"exaone-moe"},
     0,
     {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?(?>\\p{L}\\p{M}*+(?: \\p{L}\\p{M}*+)*+)++|\\p{N}| "
                  "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    {{"poro-chat", "bloom", "gpt3-finnish"}, 0, {BLOOM}},
    {{"viking"}, 0, {BLOOM, "\\p{N}"}},
    {{"chameleon"},
     INFER_PRE_ADD_BOS,
     {"<sentinel:[0-9]+>", "(?:IMGIMG)[A-I]{1,4}Z", "[\\t\\n]|    |  ", "\\p{N}", "[\\p{P}!-/:-@\\[-`{-~]", GPT2}},
    /* What files say that were written before the key existed: a mixture that no model was trained with, but a name
     * with a fixed meaning all the same. */
    {{"default"}, 0, {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};

const infer_pre_row *infer_pre_row_find(const char *name)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (const char *const *n = rows[i].names; *n; n++)
            if (strcmp(*n, name) == 0)
                return &rows[i];
    return NULL;
}
