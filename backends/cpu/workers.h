/*
 * A team of threads that share the chunks of one job at a time. Each worker starts with a run of neighbouring chunks,
 * as long as its share of the work lately, and takes from others' ends when its own are done: so it reads memory in
 * order, the same part of a job each time (and of a weight as it was packed), and one that is slow or lost its
 * processor holds nobody up. Results must not depend on who takes what. Between jobs workers watch for the next one for
 * a short while and then sleep, so an idle team uses no processor time. SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_CPU_WORKERS_H
#define INFER_CPU_WORKERS_H

#include <stdint.h>

#include <infer/backend.h>

typedef struct cpu_team cpu_team;
/* chunk: 0 .. n-1, each once; worker: 0 .. cpu_team_size-1, one thread each. */
typedef void (*cpu_chunk_fn)(void *ctx, int64_t chunk, uint32_t worker);

#define CPU_MAX_THREADS 256u
#define CPU_MAX_CHUNKS  ((int64_t)1 << 30)

/* To which processors of the host's list a worker is bound. Inside a set the scheduler can get out of the way of other
 * programs: with those running, a worker that has one processor of its own decodes a fifth slower. */
#define CPU_BIND_NONE 0u
#define CPU_BIND_NODE 1u /* those of one NUMA node; workers are spread over nodes as cores are, in order */
#define CPU_BIND_CORE 2u /* worker i to the i-th; worker 0 is the caller, whose thread is not ours to bind */

/* Where in a list of n_cpus processors (its first n_cores are of different cores) worker i of n_threads has its place:
 * spread over cores, or one after the other where there are fewer cores than threads. 0 for an empty list. */
uint32_t cpu_worker_place(uint32_t i, uint32_t n_threads, uint32_t n_cpus, uint32_t n_cores);

/* n_threads counts the thread that calls cpu_team_run. spin_ns: how long to watch before sleeping. Threads that cannot
 * be made are missing from the team's size, which is at least 1. */
infer_status cpu_team_create(const infer_host *host, uint32_t n_threads, uint32_t bind, uint64_t spin_ns,
                             cpu_team **out);
void cpu_team_destroy(cpu_team *t);
uint32_t cpu_team_size(const cpu_team *t);
/* Runs fn for every chunk and returns when all are done. The caller works too, as worker 0. n is at most
 * CPU_MAX_CHUNKS. A caller that finds the team at work (weights are packed while a queue runs) does all of its chunks
 * alone, as worker 0 too: what is kept for each worker must belong to the call, as scratch does, and not to the team.
 */
void cpu_team_run(cpu_team *t, int64_t n, cpu_chunk_fn fn, void *ctx);

#endif
