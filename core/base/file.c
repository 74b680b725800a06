/* Read-only file mappings and whole-file reads. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"

static infer_status open_read(const char *path, int flags, int *fd, infer_error *err)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | flags);
    if (*fd < 0)
        return infer_error_set(err, errno == ENOENT ? INFER_E_NOT_FOUND : INFER_E_IO, "open %s: %s", path,
                               strerror(errno));
    return INFER_OK;
}

infer_status infer_map_open(const char *path, infer_map *out, infer_error *err)
{
    int fd;
    /* A pipe that nobody writes to is refused below, not waited for. */
    infer_status s = open_read(path, O_NONBLOCK, &fd, err);
    if (s != INFER_OK)
        return s;
    struct stat st;
    if (fstat(fd, &st) != 0) {
        s = infer_error_set(err, INFER_E_IO, "stat %s: %s", path, strerror(errno));
        goto out_fd;
    }
    if (!S_ISREG(st.st_mode)) {
        s = infer_error_set(err, INFER_E_IO, "open %s: not a regular file", path);
        goto out_fd;
    }
    infer_map m = {NULL, (uint64_t)st.st_size};
    if (m.size) {
        void *p = mmap(NULL, (size_t)m.size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            s = infer_error_set(err, INFER_E_IO, "map %s: %s", path, strerror(errno));
            goto out_fd;
        }
        m.data = p;
    }
    *out = m;
out_fd:
    close(fd);
    return s;
}

void infer_map_close(infer_map *m)
{
    if (m->data)
        munmap((void *)(uintptr_t)m->data, (size_t)m->size);
    *m = (infer_map){0};
}

void infer_map_drop(const infer_map *m, uint64_t offset, uint64_t size)
{
    long page = sysconf(_SC_PAGESIZE);
    if (!m->data || page <= 0 || offset > m->size || size > m->size - offset)
        return;
    uint64_t first = (offset + (uint64_t)page - 1) / (uint64_t)page * (uint64_t)page;
    uint64_t end = (offset + size) / (uint64_t)page * (uint64_t)page;
    if (offset + size == m->size)
        end = offset + size;
    if (first >= end)
        return;
    void *at = (void *)(uintptr_t)(m->data + first);
#ifdef MADV_NOHUGEPAGE
    /* Else one touch may bring two MiB back, where the page cache holds the file in pages of that size. */
    madvise(at, (size_t)(end - first), MADV_NOHUGEPAGE);
#endif
    madvise(at, (size_t)(end - first), MADV_DONTNEED);
}

infer_status infer_file_read(const char *path, uint64_t max, char **data, size_t *size, infer_error *err)
{
    int fd = STDIN_FILENO;
    int is_stdin = strcmp(path, "-") == 0;
    if (!is_stdin) {
        infer_status s = open_read(path, 0, &fd, err);
        if (s != INFER_OK)
            return s;
    }
    infer_status s = INFER_OK;
    char *p = NULL;
    size_t n = 0, cap = 0;
    for (;;) {
        if (n + 1 >= cap) {
            size_t want = cap ? cap * 2 : 16384;
            char *q = infer_realloc(p, want);
            if (!q) {
                s = infer_error_set(err, INFER_E_NO_MEMORY, "read %s: no memory for %zu bytes", path, want);
                goto fail;
            }
            p = q;
            cap = want;
        }
        ssize_t got = read(fd, p + n, cap - n - 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            s = infer_error_set(err, INFER_E_IO, "read %s: %s", path, strerror(errno));
            goto fail;
        }
        if (got == 0)
            break;
        n += (size_t)got;
        if (n > max) {
            s = infer_error_set(err, INFER_E_TOO_LARGE, "read %s: larger than %llu bytes", path,
                                (unsigned long long)max);
            goto fail;
        }
    }
    p[n] = 0;
    *data = p;
    *size = n;
    if (!is_stdin)
        close(fd);
    return INFER_OK;
fail:
    infer_free(p);
    if (!is_stdin)
        close(fd);
    return s;
}
