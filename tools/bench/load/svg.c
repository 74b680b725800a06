/*
 * A picture of a run. Three panels: first tokens over time, tokens a second over time, latencies' distributions.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "load.h"

enum {
    WIDTH = 960,
    PANEL = 220,
    LEFT = 80,
    RIGHT = 20,
    TOP = 60,
    GAP = 70,
    N_BINS = 100,
    N_PANELS = 3,
    MAX_DOTS = 5000
};

typedef struct panel {
    double y0; /* of its upper edge */
    double min_x, max_x, min_y, max_y;
    int log_x;
} panel;

static double at_x(const panel *p, double x)
{
    double part = p->log_x ? (log10(x) - log10(p->min_x)) / (log10(p->max_x) - log10(p->min_x))
                           : (x - p->min_x) / (p->max_x - p->min_x);
    part = part < 0 ? 0 : part > 1 ? 1 : part;
    return LEFT + part * (WIDTH - LEFT - RIGHT);
}

static double at_y(const panel *p, double y)
{
    double part = (y - p->min_y) / (p->max_y - p->min_y);
    return p->y0 + PANEL - part * PANEL;
}

static void put_text(FILE *f, const char *s)
{
    for (; *s; s++) {
        const unsigned char c = (unsigned char)*s;
        if (c == '<' || c == '>' || c == '&' || c == '"')
            fprintf(f, "&#%d;", c);
        else
            fputc(c < ' ' || c == 127 ? ' ' : c, f);
    }
}

/* A round step that cuts a range into about five. */
static double step_for(double range)
{
    double raw = range / 5, ten = pow(10, floor(log10(raw))), k = raw / ten;
    return ten * (k < 1.5 ? 1 : k < 3.5 ? 2 : k < 7.5 ? 5 : 10);
}

static void put_line(FILE *f, double x1, double y1, double x2, double y2, const char *color)
{
    fprintf(f, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", x1, y1, x2, y2, color);
}

static void put_label(FILE *f, double x, double y, const char *anchor, const char *fmt, ...) INFER_PRINTF(5, 6);
static void put_label(FILE *f, double x, double y, const char *anchor, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    put_text(f, text);
    fputs("</text>\n", f);
}

static void put_axes(FILE *f, const panel *p, const char *title, const char *x_title)
{
    const double right = WIDTH - RIGHT, bottom = p->y0 + PANEL;
    put_label(f, LEFT, p->y0 - 8, "start", "%s", title);
    put_label(f, right, bottom + 32, "end", "%s", x_title);
    double step = step_for(p->max_y - p->min_y);
    for (double v = p->min_y; v <= p->max_y * 1.0001; v += step) {
        put_line(f, LEFT, at_y(p, v), right, at_y(p, v), "#ddd");
        put_label(f, LEFT - 6, at_y(p, v) + 4, "end", "%g", v);
    }
    if (p->log_x) {
        for (double v = pow(10, ceil(log10(p->min_x) - 1e-9)); v <= p->max_x * 1.0001; v *= 10) {
            put_line(f, at_x(p, v), p->y0, at_x(p, v), bottom, "#ddd");
            put_label(f, at_x(p, v), bottom + 16, "middle", "%g", v);
        }
    } else {
        step = step_for(p->max_x - p->min_x);
        for (double v = p->min_x; v <= p->max_x * 1.0001; v += step)
            put_label(f, at_x(p, v), bottom + 16, "middle", "%g", v);
    }
    put_line(f, LEFT, p->y0, LEFT, bottom, "#333");
    put_line(f, LEFT, bottom, right, bottom, "#333");
}

static double at_least(double v, double least)
{
    return v > least ? v : least;
}

static void put_first_tokens(FILE *f, panel *p, const load_run *run, const load_summary *s)
{
    p->max_y = at_least(s->d[LOAD_TTFT].max * 1.05, 1e-3);
    put_axes(f, p, "time to first token, ms, by when the request was sent (failed ones red, at the bottom)",
             "seconds since the start");
    const uint32_t every = run->list->n / MAX_DOTS + 1;
    for (uint32_t i = 0; i < run->list->n; i += every) {
        const load_record *r = &run->records[i];
        if (!r->t_sent)
            continue;
        double y = *r->kind ? 0 : (double)(r->t_first - r->t_sent) / 1e6;
        fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\" fill=\"%s\"/>\n",
                at_x(p, (double)(r->t_sent - run->t_start) / 1e9), at_y(p, y), *r->kind ? "#c22" : "#27c");
    }
}

/* Tokens are spread over the pieces of their request: a piece may hold several. */
static void bin_tokens(const load_run *run, double seconds, double *bins)
{
    for (uint32_t i = 0; i < run->list->n; i++) {
        const load_record *r = &run->records[i];
        if (!r->n_pieces)
            continue;
        const double each = (double)r->n_out / r->n_pieces;
        uint64_t t = r->t_first;
        for (uint32_t k = 0; k < r->n_pieces; k++) {
            int bin = (int)((double)(t - run->t_start) / 1e9 / seconds * N_BINS);
            bins[bin < 0 ? 0 : bin >= N_BINS ? N_BINS - 1 : bin] += each / (seconds / N_BINS);
            t += k + 1 < r->n_pieces ? r->gaps[k] : 0;
        }
    }
}

static void put_rate(FILE *f, panel *p, const load_run *run, double seconds)
{
    double bins[N_BINS] = {0}, most = 1;
    bin_tokens(run, seconds, bins);
    for (int i = 0; i < N_BINS; i++)
        most = bins[i] > most ? bins[i] : most;
    p->max_y = most * 1.05;
    put_axes(f, p, "output tokens a second", "seconds since the start");
    fputs("<polyline fill=\"none\" stroke=\"#27c\" points=\"", f);
    for (int i = 0; i < N_BINS; i++)
        fprintf(f, "%.1f,%.1f %.1f,%.1f ", at_x(p, seconds * i / N_BINS), at_y(p, bins[i]),
                at_x(p, seconds * (i + 1) / N_BINS), at_y(p, bins[i]));
    fputs("\"/>\n", f);
}

static void put_distributions(FILE *f, panel *p, const load_summary *s)
{
    enum { POINTS = 400 };
    static const struct {
        enum load_measure m;
        const char *name, *color;
    } lines[] = {
        {LOAD_ITL, "inter-token", "#27c"}, {LOAD_TTFT, "first token", "#c62"}, {LOAD_E2E, "end to end", "#2a6"}};
    enum { N_LINES = sizeof lines / sizeof lines[0] };
    const double floor_ms = 1e-3;
    p->min_x = 1e9;
    p->max_x = floor_ms;
    for (int i = 0; i < N_LINES; i++) {
        const load_dist *d = &s->d[lines[i].m];
        if (!d->n)
            continue;
        p->min_x = d->v[0] < p->min_x ? at_least(d->v[0], floor_ms) : p->min_x;
        p->max_x = at_least(d->max, p->max_x);
    }
    if (p->min_x > p->max_x)
        p->min_x = floor_ms;
    p->min_x = pow(10, floor(log10(p->min_x)));
    p->max_x = at_least(pow(10, ceil(log10(p->max_x))), p->min_x * 10);
    p->max_y = 100;
    p->log_x = 1;
    put_axes(f, p, "part of the samples that took at most so long, %", "milliseconds");
    for (int i = 0; i < N_LINES; i++) {
        const load_dist *d = &s->d[lines[i].m];
        const double y = p->y0 + 16 + 16 * i;
        fprintf(f, "<rect x=\"%d\" y=\"%.1f\" width=\"10\" height=\"10\" fill=\"%s\"/>\n", LEFT + 10, y - 9,
                lines[i].color);
        put_label(f, LEFT + 26, y, "start", "%s: p50 %.3g ms, p99 %.3g ms", lines[i].name, d->p50, d->p99);
        if (!d->n)
            continue;
        fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" points=\"", lines[i].color);
        const size_t n = d->n < POINTS ? d->n : POINTS;
        for (size_t k = 0; k < n; k++) {
            const size_t at = n > 1 ? k * (d->n - 1) / (n - 1) : 0;
            fprintf(f, "%.1f,%.1f ", at_x(p, at_least(d->v[at], p->min_x)),
                    at_y(p, 100.0 * (double)(at + 1) / (double)d->n));
        }
        fputs("\"/>\n", f);
    }
}

infer_status load_svg_write(const char *path, const load_title *t, const load_run *run, const load_summary *s,
                            infer_error *err)
{
    FILE *f = fopen(path, "we");
    if (!f)
        return infer_error_set(err, INFER_E_IO, "%s: %s", path, strerror(errno));
    const int height = TOP + N_PANELS * (PANEL + GAP);
    const double seconds = at_least(s->seconds, 1e-6);
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            WIDTH, height, WIDTH, height);
    put_label(f, LEFT, 20, "start", "%s, %s, %s: %u of %u requests went well, %.2f requests/s, %.1f output tokens/s",
              t->target, t->endpoint, t->workload, s->n_ok, s->n, s->requests_per_s, s->out_per_s);
    panel p[N_PANELS];
    for (int i = 0; i < N_PANELS; i++)
        p[i] = (panel){.y0 = TOP + i * (PANEL + GAP), .max_x = seconds, .max_y = 1};
    put_first_tokens(f, &p[0], run, s);
    put_rate(f, &p[1], run, seconds);
    put_distributions(f, &p[2], s);
    fputs("</svg>\n", f);
    int bad = ferror(f);
    if (fclose(f) || bad)
        return infer_error_set(err, INFER_E_IO, "%s: %s", path, strerror(errno ? errno : EIO));
    return INFER_OK;
}
