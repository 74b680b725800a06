/*
 * Progress bars and figures for people. Nothing of it appears in a pipe.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

#define SECOND    UINT64_C(1000000000)
#define BAR_WIDTH 30

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * SECOND + (uint64_t)ts.tv_nsec;
}

void cli_progress_begin(cli_progress *p, const char *label, int bytes)
{
    memset(p, 0, sizeof *p);
    p->label = label;
    p->bytes = bytes;
    p->start_ns = now_ns();
    p->off = !isatty(STDERR_FILENO);
}

void cli_progress_update(cli_progress *p, uint64_t done, uint64_t total)
{
    if (p->off || !total)
        return;
    uint64_t now = now_ns();
    if (now - p->start_ns < SECOND || now - p->last_ns < SECOND / 10)
        return;
    p->last_ns = now;
    p->shown = 1;
    if (done > total)
        done = total;
    double part = (double)done / (double)total, seconds = (double)(now - p->start_ns) / SECOND;
    double left = part > 0 ? seconds / part - seconds : 0;
    char bar[BAR_WIDTH + 1], a[32], b[32];
    int full = (int)(part * BAR_WIDTH);
    memset(bar, ' ', BAR_WIDTH);
    memset(bar, '#', (size_t)full);
    bar[BAR_WIDTH] = 0;
    if (p->bytes) {
        cli_bytes(a, done);
        cli_bytes(b, total);
    } else {
        snprintf(a, sizeof a, "%llu", (unsigned long long)done);
        snprintf(b, sizeof b, "%llu", (unsigned long long)total);
    }
    fprintf(stderr, "\r%s [%s] %3.0f %%  %s of %s  %.0f s left\033[K", p->label, bar, part * 100, a, b, left);
    fflush(stderr);
}

void cli_progress_end(cli_progress *p)
{
    if (p->shown)
        fprintf(stderr, "\r\033[K");
    p->off = 1;
}

void cli_progress_load(void *user, uint64_t done, uint64_t total)
{
    cli_progress_update(user, done, total);
}

char *cli_bytes(char *buf, uint64_t n)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = (double)n;
    size_t u = 0;
    while (v >= 1024 && u + 1 < sizeof units / sizeof units[0]) {
        v /= 1024;
        u++;
    }
    snprintf(buf, 32, u ? "%.2f %s" : "%.0f %s", v, units[u]);
    return buf;
}

char *cli_count(char *buf, uint64_t n)
{
    static const struct {
        double unit;
        const char *name;
    } units[] = {{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "K"}};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if ((double)n >= units[i].unit) {
            snprintf(buf, 32, "%.2f %s", (double)n / units[i].unit, units[i].name);
            return buf;
        }
    }
    snprintf(buf, 32, "%llu", (unsigned long long)n);
    return buf;
}
