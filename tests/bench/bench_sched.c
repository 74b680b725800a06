/*
 * What the scheduler costs a step, and what its block pool wastes: no device, every token is the pick of a generator.
 *   bench_sched [--running 256] [--waiting 0,1000,10000,100000] [--steps 2000] [--blocks N] [--tenants N] [--policy N]
 * Prompts and answers have log-normal lengths with means of 160 and 340 tokens (sigma 0.8), a quarter of the prompts
 * begin with the same 64 tokens. For each number of waiting requests a row: median and 99th percentile of the time
 * that building a step takes, and of what follows it (rows taken as computed, requests that ended taken out, new ones
 * queued in their place, so that as many go on waiting). Then KV slots that are allocated and hold nothing, as a part
 * of those allocated. Exit 1 when a request is lost, or the waste is 4 % or more. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "sched/private.h"
#include "unit/rng.h"

enum { VOCAB = 32000, CTX = 4096, BLOCK = 16, STEP_TOKENS = 2048, MEAN_IN = 160, MEAN_OUT = 340 };

typedef struct settings {
    uint32_t running, steps, blocks, tenants, policy;
} settings;

typedef struct bench {
    infer_sched s;
    infer_step_image im;
    infer_step st;
    infer_file file;
    infer_plan plan;
    rng random;
    settings set;
    uint64_t next_id, ended;
    uint64_t slots, slots_filled; /* sums over steps */
    int32_t common[64];
} bench;

static void die(const char *what)
{
    fprintf(stderr, "bench_sched: %s\n", what);
    exit(2);
}

static void *zeroed(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    if (!p)
        die("out of memory");
    return p;
}

static double uniform(rng *r)
{
    return ((double)(rng_next(r) >> 11) + 0.5) / 9007199254740992.0;
}

/* A log-normal length of this mean, 1 .. most. */
static uint32_t length(rng *r, double mean, uint32_t most)
{
    const double sigma = 0.8, pi = 3.14159265358979323846;
    double z = sqrt(-2 * log(uniform(r))) * cos(2 * pi * uniform(r));
    double x = exp(log(mean) - sigma * sigma / 2 + sigma * z);
    return x < 1 ? 1 : x > most ? most : (uint32_t)(x + 0.5);
}

/* Returns the nanoseconds that queueing it took. */
static uint64_t add_request(bench *b)
{
    static int32_t prompt[CTX / 2];
    infer_request q = {.struct_size = sizeof q, .prompt = prompt, .flags = INFER_REQ_IGNORE_EOS};
    infer_req *r;
    q.n_prompt = length(&b->random, MEAN_IN, CTX / 2);
    q.max_tokens = length(&b->random, MEAN_OUT, CTX / 2 - 1);
    for (uint64_t i = 0; i < q.n_prompt; i++)
        prompt[i] = (int32_t)rng_below(&b->random, VOCAB);
    if (rng_below(&b->random, 4) == 0)
        memcpy(prompt, b->common, (q.n_prompt < 64 ? q.n_prompt : 64) * sizeof *prompt);
    if (infer_req_create(&q, NULL, VOCAB, 1, CTX, &r, NULL) ||
        infer_kv_seq_init(b->s.pool, &r->seq, r->cap_tokens, NULL))
        die("out of memory");
    r->id = b->next_id++;
    r->tenant = rng_below(&b->random, b->set.tenants);
    const uint64_t t0 = infer_clock_ns();
    infer_sched_enqueue(&b->s, r);
    return infer_clock_ns() - t0;
}

static void start(bench *b, const settings *set, uint32_t waiting)
{
    memset(b, 0, sizeof *b);
    b->set = *set;
    b->next_id = 1;
    b->file.hp.n_embd = 2048;
    infer_plan *p = &b->plan;
    p->file = &b->file;
    p->opt = (infer_plan_options){
        .n_parallel = set->running, .max_batched_tokens = STEP_TOKENS, .max_logit_rows = set->running, .ctx_size = CTX};
    p->block_size = BLOCK;
    p->n_blocks = set->blocks;
    p->dec.step.max_blocks = CTX / BLOCK;
    infer_engine_options o = {.struct_size = sizeof o, .max_queue = waiting + set->running, .policy = set->policy};
    infer_error err = {0};
    if (infer_sched_create(&b->s, p, &o, &err) != INFER_OK)
        die(err.text);
    b->s.n_vocab = VOCAB;
    const size_t n = set->running;
    b->im = (infer_step_image){.counts = zeroed(INFER_COUNT_MAX, 4),
                               .ids = zeroed(STEP_TOKENS, 4),
                               .pos = zeroed(STEP_TOKENS, 4),
                               .slots = zeroed(STEP_TOKENS, 4),
                               .adapter_row = zeroed(STEP_TOKENS, 4),
                               .logit_rows = zeroed(n, 4),
                               .kv_len = zeroed(n, 4),
                               .q_start = zeroed(n + 1, 4),
                               .block_table = zeroed(n * (CTX / BLOCK), 4),
                               .sample_rows = zeroed(n, sizeof(infer_sample_row)),
                               .bias = zeroed(n * INFER_ROW_BIAS, sizeof(infer_sample_bias))};
    if (infer_step_create(&b->st, &b->s, 0, &b->im, &err) != INFER_OK)
        die(err.text);
    for (int i = 0; i < 64; i++)
        b->common[i] = i;
    for (uint32_t i = 0; i < waiting + set->running; i++)
        add_request(b);
}

static void stop(bench *b)
{
    while (b->s.n_running) {
        infer_req *r = b->s.running[b->s.n_running - 1];
        infer_sched_remove(&b->s, r);
        infer_req_destroy(r);
        b->ended++;
    }
    for (infer_req *r; (r = infer_queue_head(&b->s.queue));) {
        infer_sched_remove(&b->s, r);
        infer_req_destroy(r);
        b->ended++;
    }
    infer_step_destroy(&b->st);
    infer_sched_destroy(&b->s);
    void *all[] = {b->im.counts,      b->im.ids,         b->im.pos,    b->im.slots,
                   b->im.adapter_row, b->im.logit_rows,  b->im.kv_len, b->im.q_start,
                   b->im.block_table, b->im.sample_rows, b->im.bias};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

/* What follows a step; those that ended come back in `ended`. */
static uint32_t after(bench *b, infer_req **ended)
{
    infer_sched *s = &b->s;
    uint32_t n = 0;
    infer_sched_begin(s, &b->st);
    for (uint32_t i = 0; i < b->st.n_batch; i++) {
        infer_batch_entry *e = &b->st.batch[i];
        infer_req *r = e->r;
        if (e->samples) {
            r->tokens[e->token_at] = (int32_t)rng_below(&b->random, VOCAB);
            r->n_made = e->token_at + 1;
        }
        infer_sched_finish(s, &b->st, e);
        if (r->n_made == r->cap_tokens)
            ended[n++] = r;
    }
    for (uint32_t i = 0; i < n; i++)
        infer_sched_remove(s, ended[i]);
    return n;
}

static void count_slots(bench *b)
{
    for (uint32_t i = 0; i < b->s.n_running; i++) {
        b->slots += (uint64_t)b->s.running[i]->seq.n_blocks * BLOCK;
        b->slots_filled += b->s.running[i]->seq.n_tokens;
    }
}

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static double percentile(uint64_t *v, uint32_t n, double p)
{
    qsort(v, n, sizeof *v, by_value);
    return (double)v[(uint32_t)(p * (n - 1))] / 1e3;
}

/* A row; the part of the slots that was wasted. */
static double run(const settings *set, uint32_t waiting)
{
    static bench b;
    uint64_t *build = zeroed(set->steps, 8), *follow = zeroed(set->steps, 8), rows = 0, seqs = 0;
    infer_req **ended = zeroed(set->running, sizeof *ended);
    start(&b, set, waiting);
    const uint32_t warm = set->steps / 4 + 1;
    for (uint32_t i = 0; i < set->steps + warm; i++) {
        const uint64_t t0 = infer_clock_ns();
        const uint32_t n_rows = infer_sched_build(&b.s, &b.st, t0);
        const uint64_t t1 = infer_clock_ns();
        count_slots(&b);
        const uint64_t t2 = infer_clock_ns();
        const uint32_t n = after(&b, ended);
        uint64_t queueing = 0;
        const uint64_t t3 = infer_clock_ns();
        for (uint32_t k = 0; k < n; k++) {
            infer_req_destroy(ended[k]);
            b.ended++;
            queueing += add_request(&b);
        }
        if (i < warm)
            continue;
        build[i - warm] = t1 - t0;
        follow[i - warm] = t3 - t2 + queueing;
        rows += n_rows;
        seqs += b.s.n_running;
    }
    printf("| %7u | %6.1f | %6.1f | %8.1f | %8.1f | %8.1f | %8.1f | %6llu |\n", waiting, (double)seqs / set->steps,
           (double)rows / set->steps, percentile(build, set->steps, 0.5), percentile(build, set->steps, 0.99),
           percentile(follow, set->steps, 0.5), percentile(follow, set->steps, 0.99),
           (unsigned long long)b.s.preemptions);
    fflush(stdout);
    stop(&b);
    const double waste = 1 - (double)b.slots_filled / (double)b.slots;
    if (b.ended != b.next_id - 1)
        die("a request is lost");
    free(build);
    free(follow);
    free(ended);
    return waste;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"running", 1, NULL, 'r'}, {"waiting", 1, NULL, 'w'}, {"steps", 1, NULL, 's'}, {"blocks", 1, NULL, 'b'},
        {"tenants", 1, NULL, 't'}, {"policy", 1, NULL, 'p'},  {NULL, 0, NULL, 0}};
    settings set = {.running = 256, .steps = 2000, .tenants = 1};
    const char *waiting = "0,1000,10000,100000";
    double waste = 0;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'w')
            waiting = optarg;
        else if (c == 'r')
            set.running = (uint32_t)atoi(optarg);
        else if (c == 's')
            set.steps = (uint32_t)atoi(optarg);
        else if (c == 'b')
            set.blocks = (uint32_t)atoi(optarg);
        else if (c == 't')
            set.tenants = (uint32_t)atoi(optarg);
        else if (c == 'p')
            set.policy = (uint32_t)atoi(optarg);
        else
            return 2;
    }
    if (!set.running || !set.steps || !set.tenants)
        die("--running, --steps and --tenants must be at least 1");
    if (!set.blocks) /* what all running ones need on average, and half as much */
        set.blocks = set.running * (MEAN_IN + MEAN_OUT) / BLOCK * 3 / 2;
    if (set.blocks < CTX / BLOCK)
        set.blocks = CTX / BLOCK;
    printf("%u blocks of %d tokens, %u at once, %u tenants, policy %s; microseconds a step\n\n", set.blocks, BLOCK,
           set.running, set.tenants, infer_policy_get(set.policy) ? infer_policy_get(set.policy)->name : "?");
    puts("| waiting |    run |   rows |    build |      p99 |    after |      p99 | preem. |\n"
         "|--------:|-------:|-------:|---------:|---------:|---------:|---------:|-------:|");
    for (const char *p = waiting; *p; p += *p == ',') {
        char *end;
        const double w = run(&set, (uint32_t)strtoul(p, &end, 10));
        if (end == p)
            die("--waiting: numbers with commas between");
        waste = w > waste ? w : waste;
        p = end;
    }
    printf("\nKV slots allocated but not filled: %.2f %% at most\n", 100 * waste);
    return waste < 0.04 ? 0 : 1;
}
