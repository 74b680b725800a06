/* Log records go to a sink that the program gives; the core never prints. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_BASE_LOG_H
#define INFER_BASE_LOG_H

#include <infer/error.h>

enum { INFER_LOG_ERROR = 0, INFER_LOG_WARN = 1, INFER_LOG_INFO = 2, INFER_LOG_DEBUG = 3 };

/* Receives one line without newline. `area` is a short constant such as "hal". Called from any thread, also
 * concurrently; must not call back into the object that logs. */
typedef void (*infer_log_fn)(void *user, int level, const char *area, const char *text);

typedef struct infer_log {
    infer_log_fn fn; /* NULL: silent */
    void *user;
    int level; /* records above it are dropped before formatting */
} infer_log;

/* Formats (up to 1 KiB, no allocation) and delivers; log may be NULL. */
void infer_log_write(const infer_log *log, int level, const char *area, const char *fmt, ...) INFER_PRINTF(4, 5);

#endif
