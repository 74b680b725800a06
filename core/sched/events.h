/* Events from the engine thread to the polling thread: two buffers that swap, so that a step that decodes allocates
 * nothing once they have grown. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_SCHED_EVENTS_H
#define INFER_SCHED_EVENTS_H

#include <pthread.h>

#include <infer/engine.h>

#include "base/buf.h"

typedef struct infer_event_page {
    infer_event *p; /* text, top and error hold offsets into `bytes` until the page is given out */
    uint32_t n, cap;
    infer_buf bytes;
} infer_event_page;

typedef struct infer_events {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    infer_event_page pages[2];
    int front; /* the page that the polling thread holds */
    int woken;
    infer_status fatal; /* given by poll once every event is delivered */
} infer_events;

infer_status infer_events_init(infer_events *q);
void infer_events_destroy(infer_events *q);
/* Copies an event with its text, alternatives and error text. Without memory for it the queue turns fatal. */
void infer_events_push(infer_events *q, const infer_event *ev);
void infer_events_fatal(infer_events *q, infer_status s);
/* As infer_engine_poll. */
infer_status infer_events_poll(infer_events *q, int32_t timeout_ms, const infer_event **events, uint32_t *n);
void infer_events_wake(infer_events *q);

#endif
