/* Tokens of a template, with Jinja2's white space rules (trim_blocks and lstrip_blocks on) already applied to the data
 * between tags. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TEXT_JINJA_LEX_H
#define INFER_TEXT_JINJA_LEX_H

#include "text/jinja_value.h"

typedef enum infer_jtok {
    T_EOF,
    T_DATA,
    T_VAR_BEGIN,
    T_VAR_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INT, /* the value may be J_BIG */
    T_FLOAT,
    T_ADD,
    T_SUB,
    T_MUL,
    T_DIV,
    T_FLOORDIV,
    T_MOD,
    T_POW,
    T_TILDE,
    T_EQ,
    T_NE,
    T_LT,
    T_LE,
    T_GT,
    T_GE,
    T_ASSIGN,
    T_DOT,
    T_COLON,
    T_PIPE,
    T_COMMA,
    T_SEMICOLON,
    T_LPAREN,
    T_RPAREN,
    T_LBRACKET,
    T_RBRACKET,
    T_LBRACE,
    T_RBRACE,
    T_N
} infer_jtok;

typedef struct infer_jtoken {
    infer_jtok type;
    uint32_t line;
    infer_jval val; /* data, name, string: J_STR; numbers */
} infer_jtoken;

/* What to call a token in a message. */
const char *infer_jtok_name(infer_jtok t);

/* Splits the source into an array that ends with T_EOF. Tokens lie in c's arena, strings in `keep`'s (they outlive the
 * tokens). INFER_E_BAD_FILE with the line; also for invalid UTF-8. */
int infer_jlex(infer_jctx *c, const char *src, size_t n, infer_jtoken **out);

#endif
