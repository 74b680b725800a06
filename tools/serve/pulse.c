/*
 * Once a second: late clients, the watchdog over steps, the line of statistics.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <math.h>

#include "conn.h"
#include "gen.h"
#include "pulse.h"

#define SECOND UINT64_C(1000000000)
/* Work that makes no step for this long makes the server not ready, though it may only be slow. */
#define SLOW (60 * SECOND)

/* ---- Watchdog ---------------------------------------------------------------------------------------------- */

static void watch_steps(server *s, pulse *p, const infer_engine_stats *st, uint64_t now)
{
    uint64_t limit = (uint64_t)opt_int(s->o, OPT_STEP_TIMEOUT) * SECOND;
    if (!p->began || st->steps != p->steps || (!st->n_running && !st->n_waiting && !st->under_way)) {
        p->began = 1;
        p->steps = st->steps;
        p->moved_ns = now;
    }
    uint64_t still = now - p->moved_ns;
    int was = atomic_load(&s->stall);
    int is = limit && still >= limit ? STALL_HUNG : still >= SLOW ? STALL_SLOW : STALL_NONE;
    atomic_store(&s->stall, is);
    if (is == was)
        return;
    if (!is) {
        cli_log(1, "serve", "steps are made again");
    } else {
        cli_log(is == STALL_HUNG ? 0 : 1, "serve", "no step was made for %llu s although requests wait%s",
                (unsigned long long)(still / SECOND), is == STALL_HUNG ? ": they are failed" : "");
    }
    if (is == STALL_HUNG && s->pump)
        pump_fail_all(s, "The device hangs: no step was made for --step-timeout seconds.");
}

/* ---- Statistics -------------------------------------------------------------------------------------------- */

static double per(double a, double b)
{
    return b > 0 ? round(a / b * 1000) / 1000 : 0;
}

static void say(server *s, pulse *p, const infer_engine_stats *st, uint64_t now)
{
    const infer_engine_stats *o = &p->said;
    uint64_t every = (uint64_t)opt_int(s->o, OPT_STATS_INTERVAL) * SECOND;
    if (!p->said_ns)
        p->said_ns = now;
    if (!every || now - p->said_ns < every)
        return;
    double t = (double)(now - p->said_ns) / 1e9, steps = (double)(st->steps - o->steps);
    int idle = !st->n_running && !st->n_waiting && st->steps == o->steps;
    /* Names and their order are for scripts: new ones go to the end. */
    const cli_field f[] = {
        {"running", NULL, st->n_running},
        {"waiting", NULL, st->n_waiting},
        {"kv_usage", NULL, per((double)st->blocks_used, (double)st->blocks_total)},
        {"prompt_tokens_per_s", NULL, per((double)(st->prompt_tokens - o->prompt_tokens), t)},
        {"generation_tokens_per_s", NULL, per((double)(st->generated_tokens - o->generated_tokens), t)},
        {"prefix_hit_rate", NULL,
         per((double)(st->prefix_hits - o->prefix_hits), (double)(st->prefix_queries - o->prefix_queries))},
        {"steps_per_s", NULL, per(steps, t)},
        {"step_ms", NULL, per((double)(st->step_ns - o->step_ns) / 1e6, steps)},
        {"finished", NULL, (double)(st->finished - o->finished)},
        {"cancelled", NULL, (double)(st->cancelled - o->cancelled)},
        {"failed", NULL, (double)(st->failed - o->failed)},
        {"preemptions", NULL, (double)(st->preemptions - o->preemptions)},
    };
    p->said_ns = now;
    p->said = *st;
    if (!idle || !p->said_idle)
        cli_log_fields(2, "stats", "interval", f, sizeof f / sizeof f[0]);
    p->said_idle = idle;
}

void pulse_beat(server *s, pulse *p, uint64_t now)
{
    if (now < p->next_ns)
        return;
    p->next_ns = now + SECOND;
    conn_reap(s, now);
    if (atomic_load(&s->state) == SERVER_LOADING)
        return;
    infer_engine_stats st = {.struct_size = sizeof st};
    infer_engine_get_stats(s->session.engine, &st);
    watch_steps(s, p, &st, now);
    say(s, p, &st, now);
}
