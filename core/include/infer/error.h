/*
 * A status with its cause, carried up to whoever prints it. Part of the engine API.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_ERROR_H
#define INFER_ERROR_H

#include <stdarg.h>
#include <infer/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define INFER_API          __attribute__((visibility("default")))
#define INFER_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define INFER_API
#define INFER_PRINTF(f, a)
#endif

#define INFER_ERROR_TEXT 512

/* Filled by the first function that knows the cause: one line, "what failed, on what, why[, what to do]".
 * A caller passes &err or NULL; on success it is left untouched. Plain data, no ownership. */
typedef struct infer_error {
    infer_status status;
    char text[INFER_ERROR_TEXT];
} infer_error;

/* Records status and text (truncated to fit) unless err is NULL; returns status, so that a caller can
 * write `return infer_error_set(err, INFER_E_IO, "open %s: %s", …)`. Any thread; err belongs to the caller. */
INFER_API infer_status infer_error_set(infer_error *err, infer_status status, const char *fmt, ...) INFER_PRINTF(3, 4);
INFER_API infer_status infer_error_setv(infer_error *err, infer_status status, const char *fmt, va_list ap);

/* Prefixes the text with more context ("load model.gguf: …"); returns err's status, or `status` where err is NULL. */
INFER_API infer_status infer_error_prefix(infer_error *err, infer_status status, const char *fmt, ...)
    INFER_PRINTF(3, 4);

/* The code's constant name, such as "INFER_E_NO_MEMORY"; "INFER_E_?" for an unknown one. Never NULL. */
INFER_API const char *infer_status_name(infer_status s);

#ifdef __cplusplus
}
#endif
#endif
