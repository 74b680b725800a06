/*
 * From options to a running engine: runtime, model file, plan, weights, engine, tokenizer, and the chat template.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_TOOLS_SESSION_H
#define INFER_TOOLS_SESSION_H

#include <infer/infer.h>

#include "cli.h"
#include "opt.h"

typedef struct session {
    infer_runtime *runtime;
    infer_file *file;
    infer_plan *plan;
    infer_model *model;
    infer_engine *engine;
    const infer_tokenizer *tokenizer; /* the file's */
    infer_file_info info;
    uint64_t load_ns;                /* from the start of session_open to a ready engine */
    int shared_runtime, shared_file; /* another session's */
    char threads[48];                /* the runtime's settings */
    const char **settings;
} session;

/* What the program knows better than the options; zero: as the options say. */
typedef struct session_wish {
    const char *model;   /* instead of --model */
    const char *devices; /* instead of --device */
    uint32_t ctx_size, n_parallel, max_batched_tokens, max_logit_rows;
    uint32_t measure;                                         /* infer_plan_options.measure */
    void (*on_step)(void *user, const infer_step_info *step); /* infer_engine_options.on_step */
    void *step_user;
} session_wish;

enum session_stage { SESSION_RUNTIME, SESSION_FILE, SESSION_PLAN, SESSION_ENGINE };

/* Goes as far as `stage`. On a failure everything is undone, err has the cause, and *code the exit code that it leads
 * to. share (or NULL) is a session whose runtime and, if the model is the same, file are used and stay its own (it must
 * outlive this one). */
infer_status session_open(session *s, const opts *o, const session_wish *wish, enum session_stage stage,
                          const session *share, int *code, infer_error *err);
void session_close(session *s);

/* Prints the devices as a table for people. */
infer_status session_print_devices(infer_runtime *rt, FILE *f, infer_error *err);

/* For programs that start with a model: handles --list-devices and a missing --model. Returns -1 to go on, else the
 * exit code. */
int session_preflight(const opts *o);

#endif
