/*
 * Status codes of the plugin ABI and of the engine API. Self-contained; valid C11 and C++11.
 * A code says what is damaged (its blast radius), not only what went wrong.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_STATUS_H
#define INFER_STATUS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 0 good; positive "not yet" (no error, call again); negative a failure. A failure's hundreds digit is
 * its blast radius: the largest thing that can no longer be used. */
typedef int32_t infer_status;

#define INFER_OK      0
#define INFER_AGAIN   1 /* back-pressure: try again after other work completed */
#define INFER_PENDING 2 /* not reached yet (a timeline query, a timed-out wait) */
#define INFER_REBUILD 3 /* prog_update: this change needs a new program */

/* Request: only this call or request failed; everything else goes on. */
#define INFER_E_INVALID     (-101) /* an argument is out of its documented range */
#define INFER_E_UNSUPPORTED (-102) /* valid, but not offered here */
#define INFER_E_NOT_FOUND   (-103)
#define INFER_E_NO_MEMORY   (-104) /* host or device memory; nothing was changed */
#define INFER_E_TOO_LARGE   (-105) /* beyond a stated limit; the text names the limit */
#define INFER_E_IO          (-106) /* the operating system refused a read, write or map */
#define INFER_E_BAD_FILE    (-107) /* a file's content is wrong; the text names field and offset */
#define INFER_E_CANCELLED   (-108)
#define INFER_E_NO_FIT      (-109) /* a plan does not fit the memory; the text has the numbers */
#define INFER_E_ABI         (-110) /* plugin and host do not speak a common ABI */
#define INFER_E_NO_DEVICE   (-111) /* no usable device, or not the one asked for */
#define INFER_E_BUSY        (-112) /* a queue is full (the server answers 429) */

#define INFER_E_PROGRAM      (-201) /* a program is unusable; its device goes on */
#define INFER_E_QUEUE        (-301) /* a queue is unusable; its device goes on */
#define INFER_E_DEVICE_LOST  (-401) /* a device is gone, with everything in its memory */
#define INFER_E_BACKEND_LOST (-501) /* every device of a backend is gone */
#define INFER_E_INTERNAL     (-601) /* an invariant of the process is broken */

/* The radius of a failure: 1 request, 2 program, 3 queue, 4 device, 5 backend, 6 process; 0 for no failure. */
static inline int32_t infer_status_radius(infer_status s)
{
    return s < 0 ? -s / 100 : 0;
}

#ifdef __cplusplus
}
#endif
#endif
