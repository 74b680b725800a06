/*
 * What a step costs the engine thread besides the device: scheduling, texts, events, with requests that wait.
 *   bench_engine [--device sim0] [--running 256] [--waiting 0,1000,10000] [--steps 60]
 * A tiny model on a device whose speed does not matter. For each number of waiting requests a row: microseconds of
 * the engine thread's processor time a step, of the time between two steps, and of the step. Exit 1 when a request
 * fails. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <getopt.h>
#include <semaphore.h>

#include "e2e/rig.h"

typedef struct settings {
    const char *device;
    uint32_t running, steps;
} settings;

static sem_t go;

/* Holds the engine thread until all requests are there. */
static void hold(void *user, uint64_t pos, const float *row, uint32_t n)
{
    (void)user;
    (void)pos;
    (void)row;
    (void)n;
    sem_wait(&go);
}

static void run(const settings *set, uint32_t waiting)
{
    static const int32_t prompt[] = {10, 20, 30, 40};
    const uint32_t n = set->running + waiting;
    uint32_t live = n, k;
    rig r;
    rig_options o = {.model = rig_made("--tiny --vocab-size 264 --dim 32 --heads 1 --kv-heads 1 --head-dim 32 --ffn 32 "
                                       "--layers 1 --ctx 512 --type f32 --seed 3"),
                     .devices = set->device,
                     .ctx = 512,
                     .parallel = set->running,
                     .batched = 2 * set->running,
                     .queue = n};
    rig_open(&r, &o);
    sem_init(&go, 0, 0);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t id;
        infer_request q = {.struct_size = sizeof q, .flags = INFER_REQ_IGNORE_EOS, .prompt = prompt, .n_prompt = 4};
        q.max_tokens = i < set->running ? set->steps : 1;
        q.sampling.seed = i;
        q.sampling.temperature = 1;
        if (!i) {
            q.n_prompt = 1;
            q.flags |= INFER_REQ_PROMPT_ROWS;
            q.on_row = hold;
        }
        assert_int_equal(infer_engine_submit(r.engine, &q, &id, NULL), INFER_OK);
    }
    sem_post(&go);
    /* from when all run until the first of them ends */
    infer_engine_stats before = {0}, st = rig_stats(&r);
    const infer_event *ev;
    for (int end = 0; !end;) {
        assert_int_equal(infer_engine_poll(r.engine, -1, &ev, &k), INFER_OK);
        for (uint32_t i = 0; i < k; i++) {
            end |= ev[i].type == INFER_EVENT_DONE;
            live -= ev[i].type == INFER_EVENT_DONE;
        }
        const infer_engine_stats now = rig_stats(&r);
        if (!before.steps && now.n_running == set->running && now.n_waiting == waiting)
            before = now;
        if (now.n_running == set->running && now.n_waiting == waiting)
            st = now;
    }
    while (live) {
        assert_int_equal(infer_engine_poll(r.engine, -1, &ev, &k), INFER_OK);
        for (uint32_t i = 0; i < k; i++)
            live -= ev[i].type == INFER_EVENT_DONE && ev[i].finish == INFER_FINISH_LENGTH;
    }
    const double steps = (double)(st.steps - before.steps) * 1e3;
    printf("| %7u | %5.0f | %8.1f | %8.1f | %8.1f |\n", waiting, steps / 1e3,
           (double)(st.host_ns - before.host_ns) / steps, (double)(st.gap_ns - before.gap_ns) / steps,
           (double)(st.step_ns - before.step_ns) / steps);
    fflush(stdout);
    sem_destroy(&go);
    rig_close(&r);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"device", 1, NULL, 'd'},
                                            {"running", 1, NULL, 'r'},
                                            {"waiting", 1, NULL, 'w'},
                                            {"steps", 1, NULL, 's'},
                                            {NULL, 0, NULL, 0}};
    settings set = {.device = "sim0", .running = 256, .steps = 60};
    const char *waiting = "0,1000,10000";
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'd')
            set.device = optarg;
        else if (c == 'r')
            set.running = (uint32_t)atoi(optarg);
        else if (c == 'w')
            waiting = optarg;
        else if (c == 's')
            set.steps = (uint32_t)atoi(optarg);
        else
            return 2;
    }
    rig_watchdog(600);
    puts("| waiting | running |  host us |   gap us |  step us "
         "|\n|--------:|--------:|---------:|---------:|---------:|");
    for (const char *p = waiting; *p; p += *p == ',') {
        char *end;
        run(&set, (uint32_t)strtoul(p, &end, 10));
        if (end == p)
            return 2;
        p = end;
    }
    return 0;
}
