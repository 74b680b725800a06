/*
 * The first load and probe of a module happen in a process of its own: a module that crashes, ends the process or hangs
 * is then known by name and step, and is left out. This guards against accidents, not against malice: a module that
 * passes is loaded into this process, with all its rights. It finds out nothing else: statuses and reasons come from
 * the load that follows.
 *
 * The verdict is kept in the user's cache under the file's identity (path, inode, size, times), this library's version
 * and the boot of the machine: a driver that a module depends on changes mostly with a boot, and infer-probe always
 * asks anew. That it hung is kept for ten minutes, as the machine may have been slow; that something else ended the
 * process (a signal that code does not cause by itself) is not kept.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/cache.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/hash.h"
#include "base/module.h"
#include "hal/module_check.h"

#define HELPER      "infer-check-module"
#define KEPT_BYTES  (PATH_MAX + 1024)
#define SLICE_MS    20 /* between looks at whether the process still runs */
#define NS_A_SECOND 1000000000u

extern char **environ;

enum { HANG_KEPT_S = 600 };

/* ---- What is kept ------------------------------------------------------------------------------------------- */

typedef struct kept {
    char folder[PATH_MAX], file[32];
    char identity[KEPT_BYTES]; /* one line; empty: nothing is kept */
} kept;

static void read_boot(char boot[64])
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, boot, 63);
    if (fd >= 0)
        close(fd);
    boot[n > 0 ? n : 0] = 0;
    boot[strcspn(boot, "\n")] = 0;
}

static void identify(const char *real, kept *k)
{
    struct stat st;
    char boot[64];
    k->identity[0] = 0;
    if (stat(real, &st) || strchr(real, '\n') || !infer_cache_folder("modules", k->folder, sizeof k->folder))
        return;
    read_boot(boot);
    int n = snprintf(k->identity, sizeof k->identity,
                     "%s %" PRIu64 ":%" PRIu64 " %" PRId64 " %" PRId64 ".%09ld %" PRId64 ".%09ld %s %s", real,
                     (uint64_t)st.st_dev, (uint64_t)st.st_ino, (int64_t)st.st_size, (int64_t)st.st_mtim.tv_sec,
                     st.st_mtim.tv_nsec, (int64_t)st.st_ctim.tv_sec, st.st_ctim.tv_nsec, INFER_VERSION_STRING, boot);
    if (n < 0 || (size_t)n >= sizeof k->identity) {
        k->identity[0] = 0;
        return;
    }
    snprintf(k->file, sizeof k->file, "%016" PRIx64, infer_hash_bytes(real, strlen(real), 0));
}

/* The second line of what is kept: "ok" or what happened; the third is the second since the epoch until which it holds,
 * 0: for good. 0: nothing is kept of this very file. */
static int recall(const kept *k, char *verdict, size_t cap)
{
    char text[KEPT_BYTES + 512];
    if (!k->identity[0] || !infer_cache_read(k->folder, k->file, text, sizeof text))
        return 0;
    char *second = strchr(text, '\n');
    if (!second)
        return 0;
    *second++ = 0;
    char *third = strchr(second, '\n');
    if (!third)
        return 0;
    *third++ = 0;
    const int64_t until = strtoll(third, NULL, 10), now = (int64_t)time(NULL);
    if (strcmp(text, k->identity) || !*second || (until && (now >= until || until - now > HANG_KEPT_S)))
        return 0;
    snprintf(verdict, cap, "%s", second);
    return 1;
}

static void keep(const kept *k, const char *verdict, int64_t seconds)
{
    char text[KEPT_BYTES + 512];
    if (!k->identity[0])
        return;
    snprintf(text, sizeof text, "%s\n%s\n%" PRId64 "\n", k->identity, verdict,
             seconds ? (int64_t)time(NULL) + seconds : 0);
    infer_cache_write(k->folder, k->file, text);
}

/* ---- The process -------------------------------------------------------------------------------------------- */

/* Beside the library's modules, or, in a build folder, above its libraries. It runs with our rights, so it must lie
 * where a module may. NULL: nowhere. Owned by the caller. */
static char *find_helper(void)
{
    char self[PATH_MAX], path[PATH_MAX + 64], *real;
    infer_error e = {0};
    if (infer_module_self_folder(self, sizeof self)) {
        size_t n = strlen(self);
        int build = n > 6 && !strcmp(self + n - 6, "/.libs");
        snprintf(path, sizeof path, build ? "%s/../" HELPER : "%s/infer/" HELPER, self);
        if (!infer_module_check(path, &real, &e))
            return real;
    }
    return infer_module_check(INFER_MODULE_DIR "/" HELPER, &real, &e) ? NULL : real;
}

/* What the process told: the step that it reached, and the last line that it or the module printed. */
typedef struct told {
    char step[16];
    char said[120];
    char line[256];
    size_t n;
    int closed, back;
} told;

static void take_line(told *t)
{
    t->line[t->n] = 0;
    if (t->line[0] == HAL_MODULE_MARK) {
        snprintf(t->step, sizeof t->step, "%.15s", t->line + 1);
        t->back = !strcmp(t->step, "back");
    } else if (t->n) {
        snprintf(t->said, sizeof t->said, "%.119s", t->line);
    }
    t->n = 0;
}

static void take_bytes(told *t, int fd)
{
    char buf[1024];
    ssize_t n = read(fd, buf, sizeof buf);
    if (n <= 0) {
        t->closed = n == 0 || errno != EINTR;
        return;
    }
    for (ssize_t i = 0; i < n; i++) {
        if (buf[i] == '\n')
            take_line(t);
        else if (t->n < sizeof t->line - 1)
            t->line[t->n++] = buf[i] == HAL_MODULE_MARK || (buf[i] >= ' ' && buf[i] < 127) ? buf[i] : ' ';
    }
}

/* Listens until the module is back, the process is gone or the time is over. *status: its end, -1 where somebody else
 * has taken it. 0: the time is over. */
static int listen_to(told *t, int fd, pid_t pid, uint64_t limit_ns, int *status)
{
    const uint64_t begin = infer_clock_ns();
    int gone = 0;
    *status = -1;
    while (!t->back && !(gone && t->closed)) {
        struct pollfd p = {.fd = t->closed ? -1 : fd, .events = POLLIN};
        int ready = poll(&p, 1, SLICE_MS);
        if (ready > 0)
            take_bytes(t, fd);
        else if (gone) /* its pipe is held open by a process that it left behind */
            break;
        if (!gone && (ready <= 0 || t->closed)) {
            pid_t got = waitpid(pid, status, WNOHANG);
            if (got < 0 && errno == ECHILD)
                *status = -1;
            gone = got == pid || (got < 0 && errno != EINTR);
        }
        if (!gone && infer_clock_ns() - begin > limit_ns)
            break;
    }
    int in_time = t->back || gone;
    kill(-pid, SIGKILL); /* it leads a group of its own: nothing that a module started stays */
    /* One that hangs inside a driver's system call cannot be ended: it is left behind. */
    for (int i = 0; !gone && i < 1000 / SLICE_MS; i++) {
        pid_t got = waitpid(pid, status, WNOHANG);
        gone = got == pid || (got < 0 && errno != EINTR);
        if (!gone)
            poll(NULL, 0, i ? SLICE_MS : 1);
    }
    return in_time;
}

/* 0: it could not be started. The read end of its output in *fd. */
static pid_t start(const char *helper, const char *module, int *fd)
{
    int ends[2], s;
    pid_t pid = 0;
    sigset_t none, all;
    posix_spawnattr_t at;
    posix_spawn_file_actions_t fa;
    char *const argv[] = {(char *)(uintptr_t)helper, (char *)(uintptr_t)INFER_VERSION_STRING, (char *)(uintptr_t)module,
                          NULL};
    if (pipe2(ends, O_CLOEXEC))
        return 0;
    if (posix_spawnattr_init(&at))
        goto no_attr;
    if (posix_spawn_file_actions_init(&fa))
        goto no_actions;
    sigemptyset(&none);
    sigfillset(&all);
    s = posix_spawnattr_setflags(&at, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    s = s ? s : posix_spawnattr_setpgroup(&at, 0);
    s = s ? s : posix_spawnattr_setsigmask(&at, &none);
    s = s ? s : posix_spawnattr_setsigdefault(&at, &all);
    s = s ? s : posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDONLY, 0);
    s = s ? s : posix_spawn_file_actions_adddup2(&fa, ends[1], 1);
    s = s ? s : posix_spawn_file_actions_adddup2(&fa, ends[1], 2);
    if (!s && posix_spawn(&pid, helper, &fa, &at, argv, environ))
        pid = 0;
    posix_spawn_file_actions_destroy(&fa);
no_actions:
    posix_spawnattr_destroy(&at);
no_attr:
    close(ends[1]);
    if (pid)
        *fd = ends[0];
    else
        close(ends[0]);
    return pid;
}

/* ---- The verdict -------------------------------------------------------------------------------------------- */

/* Gives whether it was the module's own doing, so that it would happen again. */
static int describe(const told *t, int in_time, int status, unsigned seconds, char *out, size_t cap)
{
    static const struct {
        int number;
        const char *name;
    } signals[] = {{SIGSEGV, "a bad memory access"},
                   {SIGABRT, "an abort"},
                   {SIGBUS, "a bus error"},
                   {SIGILL, "a bad instruction"},
                   {SIGFPE, "an arithmetic error"}};
    char what[80];
    int own = 1;
    if (!in_time)
        snprintf(what, sizeof what, "does not come back within %u s", seconds);
    else if (status >= 0 && WIFSIGNALED(status)) {
        own = 0;
        snprintf(what, sizeof what, "is ended by signal %d", WTERMSIG(status));
        for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
            if (signals[i].number == WTERMSIG(status)) {
                own = 1;
                snprintf(what, sizeof what, "crashes with %s (signal %d)", signals[i].name, WTERMSIG(status));
            }
    } else if (status >= 0)
        snprintf(what, sizeof what, "ends the process with status %d", WEXITSTATUS(status));
    else
        snprintf(what, sizeof what, "ends the process");
    snprintf(out, cap, "tried in a process of its own, it %s, in the step \"%s\"%s%s%s", what, t->step,
             t->said[0] ? "; its last words: \"" : "", t->said, t->said[0] ? "\"" : "");
    return own;
}

static unsigned mode_of(unsigned asked)
{
    const char *env = asked == INFER_MODULE_CHECK_DEFAULT ? infer_env_get("INFER_MODULE_CHECK") : NULL;
    if (env)
        asked = !strcmp(env, "never")    ? INFER_MODULE_CHECK_NEVER
                : !strcmp(env, "always") ? INFER_MODULE_CHECK_ALWAYS
                                         : INFER_MODULE_CHECK_CACHED;
    return asked == INFER_MODULE_CHECK_DEFAULT ? INFER_MODULE_CHECK_CACHED : asked;
}

static unsigned time_limit(void)
{
    const char *s = infer_env_get("INFER_MODULE_TIMEOUT");
    long v = s ? strtol(s, NULL, 10) : 0;
    return v > 0 && v <= 3600 ? (unsigned)v : 30;
}

/* Allocated: it is too large for a small thread's stack. */
typedef struct check {
    kept k;
    told t;
    char verdict[400];
} check;

infer_status hal_module_check(const char *path, unsigned mode, infer_error *err)
{
    mode = mode_of(mode);
    if (mode == INFER_MODULE_CHECK_NEVER)
        return INFER_OK;
    infer_status s = INFER_OK;
    char *real = NULL, *helper = find_helper();
    check *c = helper ? infer_calloc(1, sizeof *c) : NULL;
    int fd = -1, status;
    if (!c || infer_module_check(path, &real, &(infer_error){0})) /* the load that follows says why */
        goto done;
    identify(real, &c->k);
    if (mode == INFER_MODULE_CHECK_CACHED && recall(&c->k, c->verdict, sizeof c->verdict)) {
        if (strcmp(c->verdict, "ok"))
            s = infer_error_set(err, INFER_E_ABI, "%s (seen before; infer-probe tries again)", c->verdict);
        goto done;
    }
    pid_t pid = start(helper, real, &fd);
    if (!pid)
        goto done;
    unsigned seconds = time_limit();
    int in_time = listen_to(&c->t, fd, pid, (uint64_t)seconds * NS_A_SECOND, &status);
    close(fd);
    if (!c->t.step[0] && in_time) /* it did not even begin: another version, or it does not run here */
        goto done;
    if (c->t.back) {
        keep(&c->k, "ok", 0);
        goto done;
    }
    if (describe(&c->t, in_time, status, seconds, c->verdict, sizeof c->verdict))
        keep(&c->k, c->verdict, in_time ? 0 : HANG_KEPT_S);
    s = infer_error_set(err, INFER_E_ABI, "%s", c->verdict);
done:
    infer_free(c);
    infer_free(real);
    infer_free(helper);
    return s;
}
