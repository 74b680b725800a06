/* Timelines from inside: what the queues need of them. SPDX-License-Identifier: Apache-2.0 */
#ifndef OCL_TIMELINE_H
#define OCL_TIMELINE_H

#include "ocl.h"

/* A signal under way. */
typedef struct tl_signal {
    struct tl_signal *next;
    uint64_t value;
    cl_event event;
    infer_device *dev;      /* whose context the event is of */
    uint64_t queue, staged; /* what its transfers before the signal are (ocl_stage_land) */
} tl_signal;

struct infer_timeline {
    infer_device *dev;
    pthread_mutex_t mu;
    pthread_cond_t moved;
    /* under mu: */
    uint64_t value;
    infer_status failed;
    tl_signal *first, *last; /* in order of submission */
};

/* The timeline reaches value when event, of this queue, is complete. Takes the event over on success. */
infer_status ocl_tl_add(infer_timeline *tl, const infer_queue *queue, uint64_t value, cl_event event);
/* OK: reached. PENDING: not yet; *event is a reference to an event of dev's context that brings it, or NULL where there
 * is none (the host will signal, or another device does). Else the timeline's failure. */
infer_status ocl_tl_event(infer_timeline *tl, infer_device *dev, uint64_t value, cl_event *event);

#endif
