/* Log records. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>

#include "base/log.h"

void infer_log_write(const infer_log *log, int level, const char *area, const char *fmt, ...)
{
    if (!log || !log->fn || level > log->level)
        return;
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    log->fn(log->user, level, area, line);
}
