/*
 * Start, leave, exit codes, one-line errors and log lines of the programs. Holds the program's name and log settings as
 * process-wide state, which only cli_start writes.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli.h"
#include "sbuf.h"

static const char *program_name = "infer";
static int log_json;
int cli_log_level = 1;

int cli_exit_code(infer_status s)
{
    static const struct {
        infer_status status;
        int code;
    } rows[] = {
        {INFER_OK, EXIT_DONE},
        {INFER_E_INVALID, EXIT_USAGE},
        {INFER_E_NO_DEVICE, EXIT_NO_DEVICE},
        {INFER_E_NO_FIT, EXIT_NO_FIT},
        {INFER_E_BAD_FILE, EXIT_BAD_MODEL},
        {INFER_E_ABI, EXIT_PLUGIN},
        {INFER_E_DEVICE_LOST, EXIT_DEVICE_LOST},
        {INFER_E_BACKEND_LOST, EXIT_DEVICE_LOST},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].status == s)
            return rows[i].code;
    return EXIT_OTHER;
}

static void print_line(const char *text)
{
    char line[2048];
    size_t n = (size_t)snprintf(line, sizeof line - 1, "%s: %s", program_name, text);
    if (n > sizeof line - 2)
        n = sizeof line - 2;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)line[i] < 32 || line[i] == 127)
            line[i] = ' ';
    line[n++] = '\n';
    fflush(stdout);
    fwrite(line, 1, n, stderr);
}

int cli_fail(int code, const char *fmt, ...)
{
    char text[1536];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    print_line(text);
    return code;
}

int cli_fail_err(const infer_error *err)
{
    print_line(err->text);
    return cli_exit_code(err->status);
}

int cli_finish(int code)
{
    int bad = ferror(stdout);
    if (fclose(stdout))
        bad = 1;
    if (bad && !code)
        return cli_fail(EXIT_OTHER, "write to standard output: %s", strerror(errno ? errno : EIO));
    return code;
}

/* A standard stream that was closed must not be the next file or connection that is opened: text would go there. What
 * takes its place cannot be read or written, as before. */
static void occupy_standard_streams(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", fd ? O_RDONLY : O_WRONLY) < 0)
            return;
}

int cli_start(const cli_program *p, opts *o, int argc, char **argv)
{
    extern char **environ;
    infer_error err = {0};
    program_name = p->name;
    occupy_standard_streams();
    infer_status s = opts_parse(o, p->bit, argc, argv, environ, &err);
    if (s < 0) {
        cli_fail_err(&err);
        return s == INFER_E_INVALID ? EXIT_USAGE : EXIT_OTHER;
    }
    if (opt_set(o, OPT_HELP)) {
        printf("usage: %s\n\n%s\n", p->usage, p->what);
        opts_help(p->bit, stdout);
        return cli_finish(EXIT_DONE);
    }
    if (opt_set(o, OPT_VERSION)) {
        printf("%s %s\n", p->name, INFER_VERSION_STRING);
        return cli_finish(EXIT_DONE);
    }
    if (o->n_args > p->max_args)
        return cli_fail(EXIT_USAGE, "\"%s\": not expected here (see --help)", o->args[p->max_args]);
    if (o->n_args < p->min_args)
        return cli_fail(EXIT_USAGE, "an argument is missing (see --help)");
    log_json = opt_int(o, OPT_LOG_FORMAT) == 1;
    cli_log_level = 1 + (int)opt_int(o, OPT_VERBOSE);
    return -1;
}

/* ---- Log --------------------------------------------------------------------------------------------------- */

/* Appends s to line as the inside of a quoted string; for both forms of log line the same escapes do. */
static size_t put_quoted(char *line, size_t n, size_t cap, const char *s)
{
    size_t left = strlen(s), k;
    for (; left && n + 8 < cap; s += k, left -= k) {
        unsigned char c = (unsigned char)*s;
        k = utf8_char(s, left);
        if (c == '"' || c == '\\') {
            line[n++] = '\\';
            line[n++] = (char)c;
        } else if (c < 32 || c == 127) {
            n += (size_t)snprintf(line + n, cap - n, "\\u%04x", c);
        } else if (k) {
            memcpy(line + n, s, k);
            n += k;
        } else {
            line[n++] = '?';
            k = 1;
        }
    }
    return n;
}

static size_t put_field(char *line, size_t n, size_t cap, const cli_field *f)
{
    size_t name = strlen(f->name), most = f->text ? 6 * strlen(f->text) : 32;
    if (n + name + most + 16 > cap) /* a long text is left out whole */
        return n;
    n += (size_t)snprintf(line + n, cap - n, log_json ? ",\"%s\":" : " %s=", f->name);
    if (!f->text)
        return n + (size_t)snprintf(line + n, cap - n, "%.10g", f->number);
    int plain = !log_json && *f->text && !f->text[strcspn(f->text, " \t\"\\=")] && utf8_valid(f->text, strlen(f->text));
    for (const char *s = f->text; plain && *s; s++)
        plain = (unsigned char)*s > 32 && *s != 127;
    if (plain)
        return n + (size_t)snprintf(line + n, cap - n, "%s", f->text);
    line[n++] = '"';
    n = put_quoted(line, n, cap, f->text);
    line[n++] = '"';
    return n;
}

static void log_line(int level, const char *area, const char *text, const cli_field *fields, size_t n_fields)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    enum { TEXT = 2048, WHOLE = 4096 };
    struct timespec ts;
    struct tm tm;
    char when[32], line[WHOLE];
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
    const char *name = names[level < 0 ? 0 : level > 3 ? 3 : level];
    int n = snprintf(line, TEXT,
                     log_json ? "{\"time\":\"%s.%03ldZ\",\"level\":\"%s\",\"area\":\"%s\",\"msg\":\""
                              : "time=%s.%03ldZ level=%s area=%s msg=\"",
                     when, ts.tv_nsec / 1000000, name, area);
    if (n < 0 || n >= TEXT)
        return;
    size_t end = put_quoted(line, (size_t)n, TEXT, text);
    line[end++] = '"';
    for (size_t i = 0; i < n_fields; i++)
        end = put_field(line, end, WHOLE - 2, &fields[i]);
    if (log_json)
        line[end++] = '}';
    line[end++] = '\n';
    fwrite(line, 1, end, stderr);
}

void cli_log_sink(void *user, int level, const char *area, const char *text)
{
    (void)user;
    if (level <= cli_log_level)
        log_line(level, area, text, NULL, 0);
}

void cli_log(int level, const char *area, const char *fmt, ...)
{
    if (level > cli_log_level)
        return;
    char text[1536];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    log_line(level, area, text, NULL, 0);
}

void cli_log_fields(int level, const char *area, const char *text, const cli_field *fields, size_t n)
{
    if (level <= cli_log_level)
        log_line(level, area, text, fields, n);
}
