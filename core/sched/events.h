/* Events from the engine thread to the polling thread: two pages that swap, so that a step that decodes allocates
 * nothing once they have grown. Every live request has room for its last event set aside when it is submitted, so that
 * its end is always told. SPDX-License-Identifier: Apache-2.0 */
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
    infer_event_page spare; /* takes the place of the page that the polling thread holds, when that is too small */
    int front;              /* the page that the polling thread holds */
    uint32_t reserved;      /* last events that are still to come */
    int woken;
    infer_status fatal; /* given by poll once every event is delivered */
} infer_events;

/* A zeroed queue with its lock; destroy when nobody polls or pushes any more. */
void infer_events_init(infer_events *q);
void infer_events_destroy(infer_events *q);
/* Sets room aside for one more request's DONE event. INFER_E_NO_MEMORY: nothing changed. [any thread] */
infer_status infer_events_reserve(infer_events *q);
/* Gives it back: the request will not be told of. */
void infer_events_unreserve(infer_events *q);
/* The engine thread has events to push. From here to infer_events_tell other threads' polls, wakes and submissions
 * wait, and it may itself call nothing of these but infer_events_push. */
void infer_events_hold(infer_events *q);
/* Between infer_events_hold and infer_events_tell. Copies an event with its text, alternatives and error text.
 * INFER_E_NO_MEMORY: a TOKEN event was dropped. A DONE event uses the room set aside and cannot fail (text and error
 * are cut to INFER_EVENT_DONE_BYTES in all). */
infer_status infer_events_push(infer_events *q, const infer_event *ev);
/* No more events for now; a waiting poll returns if there are any. */
void infer_events_tell(infer_events *q);
/* No more events come: poll returns s once all are delivered. */
void infer_events_fatal(infer_events *q, infer_status s);
/* As infer_engine_poll. */
infer_status infer_events_poll(infer_events *q, int32_t timeout_ms, const infer_event **events, uint32_t *n);
/* Makes a waiting poll return. [any thread] */
void infer_events_wake(infer_events *q);

/* More than the longest text that can be held back, or than an error's text. */
#define INFER_EVENT_DONE_BYTES 640u

#endif
