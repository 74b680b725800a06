/* The user's cache. Keeps no list and removes nothing. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cache.h"
#include "base/env.h"

/* mkdir -p, new folders with mode 0700. */
static int make_folders(char *path)
{
    for (char *p = path + 1;; p++) {
        if (*p && *p != '/')
            continue;
        char c = *p;
        *p = 0;
        int bad = mkdir(path, 0700) && errno != EEXIST;
        *p = c;
        if (bad || !c)
            return !bad;
    }
}

int infer_cache_folder(const char *name, char *path, size_t cap)
{
    static const char *const from[][2] = {{"INFER_CACHE", ""}, {"XDG_CACHE_HOME", "/infer"}, {"HOME", "/.cache/infer"}};
    for (size_t i = 0; i < sizeof from / sizeof from[0]; i++) {
        const char *base = infer_env_get(from[i][0]);
        if (!base || base[0] != '/')
            continue;
        int n = snprintf(path, cap, "%s%s/%s", base, from[i][1], name);
        struct stat st;
        return n > 0 && (size_t)n < cap && make_folders(path) && !lstat(path, &st) && S_ISDIR(st.st_mode) &&
               st.st_uid == geteuid() && !(st.st_mode & 077);
    }
    return 0;
}

int infer_cache_read(const char *folder, const char *file, char *text, size_t cap)
{
    char path[4096];
    struct stat st;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, file) >= sizeof path)
        return 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK), ok = 0;
    if (fd < 0)
        return 0;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 022) && st.st_size > 0 &&
        (size_t)st.st_size < cap) {
        ssize_t n = read(fd, text, cap - 1);
        ok = n == st.st_size;
        if (ok)
            text[n] = 0;
    }
    close(fd);
    return ok;
}

void infer_cache_write(const char *folder, const char *file, const char *text)
{
    char path[4096], fresh[4096 + 32];
    size_t n = strlen(text);
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, file) >= sizeof path)
        return;
    snprintf(fresh, sizeof fresh, "%s.%ld", path, (long)getpid());
    int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return;
    int ok = write(fd, text, n) == (ssize_t)n;
    if (close(fd) || !ok || rename(fresh, path))
        unlink(fresh);
}
