/*
 * --trace FILE: what the engine, its devices and the requests did, in Chrome's trace format (an array of events;
 * Perfetto and chrome://tracing open it, also when its end is missing).
 *
 *   thread "engine"    a slice a step; scheduling of the next one mostly within it
 *   a thread a device  a slice a program, within it what was sent, waited for and received
 *   request/N          asynchronous: queue, prefill, decode of one choice
 *   http/N             asynchronous: a call from its headers to its last byte
 *
 * Lines wait in a buffer of fixed size that a thread writes out; what does not fit is dropped and counted in the file.
 * A trace that is NULL is off. SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_SERVE_TRACE_H
#define INFER_SERVE_TRACE_H

#include <infer/infer.h>

typedef struct trace trace;

/* *out is NULL without a path. */
infer_status trace_open(const char *path, trace **out, infer_error *err);
/* Writes what is left and the array's end; what comes later is dropped. */
void trace_finish(trace *t);
/* The same, and frees it. No other call may be under way. */
void trace_close(trace *t);

/* The engine thread only. */
void trace_step(trace *t, const infer_step_info *step);
/* A choice that ended. Any thread. */
void trace_request(trace *t, const infer_event *done, const char *request_id, uint32_t index);
/* A call that ended. Any thread. */
void trace_call(trace *t, const char *method, const char *path, const char *request_id, unsigned status, uint64_t start,
                uint64_t end);

#endif
