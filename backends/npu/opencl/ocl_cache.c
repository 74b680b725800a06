/*
 * Compiled programs on disk: one file a key in a folder that only its owner can enter. A file holds a head, the whole
 * key and the driver's binary, with a check sum; whatever does not match is as good as absent. What is loaded from here
 * runs on the device, so folder and file must be the user's own. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ocl.h"

#define MAGIC     0x314C434F52464E49u /* "INFROCL1" */
#define MAX_BYTES (256u << 20)

typedef struct cache_head {
    uint64_t magic, key_bytes, bytes, sum; /* sum: of key and binary */
} cache_head;

/* The folder, made where it is missing; -1: none that is ours alone. */
static int open_folder(const infer_device *dev)
{
    struct stat st;
    if (!dev->cache_dir)
        return -1;
    if (mkdir(dev->cache_dir, 0700) && errno == ENOENT) { /* the folder above, once */
        char above[512];
        snprintf(above, sizeof above, "%s", dev->cache_dir);
        char *slash = strrchr(above, '/');
        if (!slash || slash == above)
            return -1;
        *slash = 0;
        (void)mkdir(above, 0700);
        (void)mkdir(dev->cache_dir, 0700);
    }
    int fd = open(dev->cache_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && (fstat(fd, &st) || st.st_uid != geteuid() || st.st_mode & 077)) {
        dev->host->log(dev->host->ctx, 1, "the cache folder is not the user's alone (mode 0700): it is not used");
        close(fd);
        return -1;
    }
    return fd;
}

static void file_name(const char *key, char out[32])
{
    snprintf(out, 32, "%016llx.clbin", (unsigned long long)ocl_hash(OCL_HASH_START, key, strlen(key)));
}

static int read_all(int fd, void *p, uint64_t n)
{
    for (uint64_t done = 0; done < n;) {
        ssize_t got = read(fd, (char *)p + done, (size_t)(n - done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return 0;
        done += (uint64_t)got;
    }
    return 1;
}

static int write_all(int fd, const void *p, uint64_t n)
{
    for (uint64_t done = 0; done < n;) {
        ssize_t put = write(fd, (const char *)p + done, (size_t)(n - done));
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return 0;
        done += (uint64_t)put;
    }
    return 1;
}

int ocl_cache_read(infer_device *dev, const char *key, void **data, uint64_t *bytes)
{
    const infer_host *host = dev->host;
    cache_head head;
    struct stat st;
    char name[32];
    uint64_t key_bytes = strlen(key);
    uint8_t *body = NULL;
    int folder = open_folder(dev), fd = -1, good = 0;
    if (folder < 0)
        return 0;
    file_name(key, name);
    fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid())
        goto out;
    if (!read_all(fd, &head, sizeof head) || head.magic != MAGIC || head.key_bytes != key_bytes ||
        head.bytes > MAX_BYTES || (uint64_t)st.st_size != sizeof head + key_bytes + head.bytes)
        goto out;
    body = host->alloc(host->ctx, key_bytes + head.bytes + 1, 16);
    if (!body || !read_all(fd, body, key_bytes + head.bytes) || memcmp(body, key, key_bytes) != 0 ||
        ocl_hash(OCL_HASH_START, body, key_bytes + head.bytes) != head.sum)
        goto out;
    memmove(body, body + key_bytes, head.bytes);
    *data = body;
    *bytes = head.bytes;
    good = 1;
out:
    if (!good)
        host->free(host->ctx, body);
    if (fd >= 0)
        close(fd);
    close(folder);
    return good;
}

void ocl_cache_write(infer_device *dev, const char *key, const void *data, uint64_t bytes)
{
    uint64_t key_bytes = strlen(key);
    cache_head head = {.magic = MAGIC, .key_bytes = key_bytes, .bytes = bytes};
    char name[32], fresh[64];
    int folder = open_folder(dev);
    if (folder < 0)
        return;
    head.sum = ocl_hash(ocl_hash(OCL_HASH_START, key, key_bytes), data, bytes);
    file_name(key, name);
    snprintf(fresh, sizeof fresh, "%s.%ld", name, (long)getpid());
    int fd = openat(folder, fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0) {
        int good = write_all(fd, &head, sizeof head) && write_all(fd, key, key_bytes) && write_all(fd, data, bytes);
        good = !close(fd) && good;
        if (!good || renameat(folder, fresh, folder, name)) /* whole, or not at all */
            (void)unlinkat(folder, fresh, 0);
    }
    close(folder);
}
