/* A backend inside the test program, whose table and behaviour a test bends. Copies from host memory are carried out at
 * the next signal, as on a real queue. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TESTS_FAKE_BACKEND_H
#define INFER_TESTS_FAKE_BACKEND_H

#include <stdatomic.h>

#include <infer/backend.h>

enum { FAKE_BACKENDS = 3, FAKE_ROWS = 4 };

/* What a query function shows. fake_reset fills both with a plain backend "fakeN" of one device. */
typedef struct fake_plugin {
    infer_plugin_desc desc;
    infer_backend_ops ops;
    infer_device_info rows[FAKE_ROWS];
    uint32_t n_rows;
    const char *decline; /* not NULL: logs this and returns NULL */
} fake_plugin;

typedef struct fake_behaviour {
    _Atomic int devices, queues, timelines, inits; /* alive */
    _Atomic int64_t buffers, bytes;                /* alive */
    infer_status open_status, probe_status, copy_status, alloc_status, prop_status;
    int again;           /* how many submissions are answered AGAIN first */
    uint32_t prop_flags; /* INFER_PROP_* */
    uint64_t granularity, max_buffer;
    infer_status wait_status;          /* of queue_wait */
    _Atomic int waits, signals, drawn; /* calls */
    infer_comm *comm;                  /* of the last op */
    /* weight stream */
    uint8_t packed[4096];
    uint64_t n_packed, largest_append;
    /* programs */
    _Atomic int programs, execs, rebuilds;
    int rebuild; /* prog_update answers REBUILD */
    int capture; /* prog_build keeps the view, prog_instantiate replays it, prog_submit does nothing */
    infer_op_id last_op;
    uint64_t last_offset; /* of the last op's last operand */
} fake_behaviour;

extern fake_plugin fake_plugins[FAKE_BACKENDS];
extern fake_behaviour fake;
extern const infer_plugin_query_fn fake_queries[FAKE_BACKENDS];

void fake_reset(void);
/* Adds the optional groups to a plugin's table. */
void fake_add_timelines(fake_plugin *p);
void fake_add_weights(fake_plugin *p);
void fake_add_programs(fake_plugin *p);

#endif
