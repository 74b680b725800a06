/* Status names and the error record. Does not log: who first knows a cause records it, the program prints it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"

infer_status infer_error_setv(infer_error *err, infer_status status, const char *fmt, va_list ap)
{
    if (err) {
        err->status = status;
        vsnprintf(err->text, sizeof err->text, fmt, ap);
    }
    return status;
}

infer_status infer_error_set(infer_error *err, infer_status status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    infer_error_setv(err, status, fmt, ap);
    va_end(ap);
    return status;
}

infer_status infer_error_prefix(infer_error *err, infer_status status, const char *fmt, ...)
{
    if (!err)
        return status;
    char tail[INFER_ERROR_TEXT];
    memcpy(tail, err->text, sizeof tail);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    size_t at = n < 0 ? 0 : (size_t)n < sizeof err->text ? (size_t)n : sizeof err->text - 1;
    const char *parts[] = {": ", tail};
    for (int i = 0; i < 2; i++) {
        size_t len = strlen(parts[i]), room = sizeof err->text - 1 - at;
        memcpy(err->text + at, parts[i], len < room ? len : room);
        at += len < room ? len : room;
    }
    err->text[at] = 0;
    return err->status;
}

const char *infer_status_name(infer_status s)
{
    static const struct {
        infer_status code;
        const char *name;
    } names[] = {
#define ROW(x) {x, #x}
        ROW(INFER_OK),          ROW(INFER_AGAIN),         ROW(INFER_PENDING),       ROW(INFER_REBUILD),
        ROW(INFER_E_INVALID),   ROW(INFER_E_UNSUPPORTED), ROW(INFER_E_NOT_FOUND),   ROW(INFER_E_NO_MEMORY),
        ROW(INFER_E_TOO_LARGE), ROW(INFER_E_IO),          ROW(INFER_E_BAD_FILE),    ROW(INFER_E_CANCELLED),
        ROW(INFER_E_NO_FIT),    ROW(INFER_E_ABI),         ROW(INFER_E_NO_DEVICE),   ROW(INFER_E_BUSY),
        ROW(INFER_E_PROGRAM),   ROW(INFER_E_QUEUE),       ROW(INFER_E_DEVICE_LOST), ROW(INFER_E_BACKEND_LOST),
        ROW(INFER_E_INTERNAL),
#undef ROW
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].code == s)
            return names[i].name;
    return "INFER_E_?";
}
