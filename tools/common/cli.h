/*
 * What every program does the same way: start, leave, exit codes, one-line errors, log lines, progress.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_TOOLS_CLI_H
#define INFER_TOOLS_CLI_H

#include <stdint.h>
#include <stdio.h>

#include <infer/error.h>

#include "opt.h"

/* Exit codes (the same for all programs). */
enum {
    EXIT_DONE = 0,
    EXIT_OTHER = 1,
    EXIT_USAGE = 2,
    EXIT_NO_DEVICE = 3,
    EXIT_NO_FIT = 4,
    EXIT_BAD_MODEL = 5,
    EXIT_PLUGIN = 6,
    EXIT_BIND = 7,
    EXIT_DEVICE_LOST = 8
};

/* The exit code that a status leads to. */
int cli_exit_code(infer_status s);

typedef struct cli_program {
    const char *name;          /* "infer-run" */
    uint32_t bit;              /* PROG_* */
    const char *usage;         /* lines after "usage: ", without the last newline */
    const char *what;          /* one sentence */
    size_t min_args, max_args; /* what is no flag */
} cli_program;

/* Reads the options and sets logging up. Returns -1 to go on, else the exit code to leave with (--help, --version, a
 * usage error already printed). opts_free(o) is the caller's in every case. */
int cli_start(const cli_program *p, opts *o, int argc, char **argv);

/* Prints "infer-run: TEXT" as one line on stderr (control characters as blanks). Returns code, to be the exit code. */
int cli_fail(int code, const char *fmt, ...) INFER_PRINTF(2, 3);
/* The same from err, with the exit code of its status. */
int cli_fail_err(const infer_error *err);

/* Flushes and closes stdout: EXIT_OTHER with a message if what was printed could not be written, else code. */
int cli_finish(int code);

/* ---- Log ---- Levels as in the engine API: 0 error, 1 warning, 2 information, 3 debug. Any thread. */
extern int cli_log_level; /* records above it are dropped */
void cli_log(int level, const char *area, const char *fmt, ...) INFER_PRINTF(3, 4);
/* With named values behind the message: logfmt's name=value, or members of the JSON object. */
typedef struct cli_field {
    const char *name;
    const char *text; /* NULL: the number */
    double number;
} cli_field;
void cli_log_fields(int level, const char *area, const char *text, const cli_field *fields, size_t n);
/* For infer_runtime_options.log; user is not used. */
void cli_log_sink(void *user, int level, const char *area, const char *text);

/* ---- Progress ---- A bar on stderr, only on a terminal and only once a second has passed. One thread at a time. */
typedef struct cli_progress {
    const char *label;
    uint64_t start_ns, last_ns;
    int shown, off;
    int bytes; /* counts are bytes */
} cli_progress;
void cli_progress_begin(cli_progress *p, const char *label, int bytes);
void cli_progress_update(cli_progress *p, uint64_t done, uint64_t total);
void cli_progress_end(cli_progress *p);
/* For infer_model_load: user is a cli_progress. */
void cli_progress_load(void *user, uint64_t done, uint64_t total);

/* "1.23 GiB", "456 KiB" in buf of at least 32 bytes; returns buf. */
char *cli_bytes(char *buf, uint64_t n);
/* "134.52 M", "7.24 B" in buf of at least 32 bytes; returns buf. */
char *cli_count(char *buf, uint64_t n);

#endif
