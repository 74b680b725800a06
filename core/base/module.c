/*
 * Loadable modules. A module runs with all rights of the process, so it is loaded only from where nobody else could
 * have put it. Does not search a path: the caller names folders.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/module.h"

static int is_module_name(const char *s)
{
    size_t n = strlen(s);
    return n > 9 && !strncmp(s, "infer-", 6) && !strcmp(s + n - 3, ".so");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

infer_status infer_module_list(const char *folder, char ***paths, size_t *n, infer_error *err)
{
    if (folder[0] != '/')
        return infer_error_set(err, INFER_E_INVALID, "backend folder \"%s\": not an absolute path", folder);
    DIR *dir = opendir(folder);
    if (!dir) {
        if (errno != ENOENT && errno != ENOTDIR)
            return infer_error_set(err, INFER_E_IO, "backend folder %s: %s", folder, strerror(errno));
        *paths = NULL;
        *n = 0;
        return INFER_OK;
    }
    infer_status st = INFER_OK;
    char **list = NULL;
    size_t count = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        if (!is_module_name(e->d_name))
            continue;
        char **more = infer_realloc_array(list, count + 1, sizeof *list);
        if (more)
            list = more;
        infer_buf path = {0};
        infer_buf_printf(&path, "%s/%s", folder, e->d_name);
        char *s = infer_buf_detach(&path);
        if (!more || !s) {
            infer_free(s);
            st = infer_error_set(err, INFER_E_NO_MEMORY, "backend folder %s: no memory", folder);
            break;
        }
        list[count++] = s;
    }
    closedir(dir);
    if (st) {
        infer_module_list_free(list, count);
        return st;
    }
    if (count)
        qsort(list, count, sizeof *list, by_name);
    *paths = list;
    *n = count;
    return INFER_OK;
}

void infer_module_list_free(char **paths, size_t n)
{
    for (size_t i = 0; i < n; i++)
        infer_free(paths[i]);
    infer_free(paths);
}

void infer_module_name(const char *path, char *name, size_t cap)
{
    const char *slash = strrchr(path, '/');
    const char *s = slash ? slash + 1 : path;
    size_t n = strlen(s);
    if (is_module_name(s)) {
        s += 6;
        n -= 9;
    }
    if (n >= cap)
        n = cap - 1;
    memcpy(name, s, n);
    name[n] = 0;
}

/* A folder above the module's may be writable by others only where the sticky bit keeps them from exchanging it. */
static infer_status check_one(const char *path, int is_parent, int want_dir, infer_error *err)
{
    struct stat st;
    if (stat(path, &st))
        return infer_error_set(err, errno == ENOENT ? INFER_E_NOT_FOUND : INFER_E_IO, "module %s: %s", path,
                               strerror(errno));
    if (want_dir ? !S_ISDIR(st.st_mode) : !S_ISREG(st.st_mode))
        return infer_error_set(err, INFER_E_IO, "module %s: not a regular file", path);
    int shared = st.st_mode & (S_IWGRP | S_IWOTH);
    if (is_parent) {
        if (shared && !(st.st_mode & S_ISVTX) && (st.st_mode & S_IWOTH))
            return infer_error_set(err, INFER_E_IO, "module folder %s: others can write it; chmod o-w %s", path, path);
        return INFER_OK;
    }
    if (shared)
        return infer_error_set(err, INFER_E_IO, "module %s: others can write it; chmod go-w %s", path, path);
    if (st.st_uid != 0 && st.st_uid != geteuid())
        return infer_error_set(err, INFER_E_IO, "module %s: belongs to user %lu, neither root nor this user", path,
                               (unsigned long)st.st_uid);
    return INFER_OK;
}

infer_status infer_module_check(const char *path, char **real, infer_error *err)
{
    char full[PATH_MAX], part[PATH_MAX];
    if (!realpath(path, full))
        return infer_error_set(err, errno == ENOENT ? INFER_E_NOT_FOUND : INFER_E_IO, "module %s: %s", path,
                               strerror(errno));
    INFER_TRY(check_one(full, 0, 0, err));
    memcpy(part, full, strlen(full) + 1);
    for (int depth = 0;; depth++) {
        char *slash = strrchr(part, '/');
        if (slash == part)
            slash[1] = 0;
        else
            *slash = 0;
        INFER_TRY(check_one(part, depth > 0, 1, err));
        if (!part[1])
            break;
    }
    char *copy = infer_strdup(full);
    if (!copy)
        return infer_error_set(err, INFER_E_NO_MEMORY, "module %s: no memory", path);
    *real = copy;
    return INFER_OK;
}

infer_status infer_module_open(const char *path, const char *symbol, void **address, infer_error *err)
{
    char *real = NULL;
    INFER_TRY(infer_module_check(path, &real, err));
    infer_status st = INFER_OK;
    void *handle = dlopen(real, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle) {
        const char *why = dlerror();
        st = infer_error_set(err, INFER_E_IO, "module %s: %s", real, why ? why : "dlopen failed");
        goto done;
    }
    void *p = dlsym(handle, symbol);
    /* dlsym also looks into the libraries that the module needs; one of these may export the same name. */
    struct link_map *own = NULL, *of_symbol = NULL;
    Dl_info info;
    if (!p || dlinfo(handle, RTLD_DI_LINKMAP, &own) || !dladdr1(p, &info, (void **)&of_symbol, RTLD_DL_LINKMAP) ||
        own != of_symbol) {
        dlclose(handle);
        st = infer_error_set(err, INFER_E_ABI, "module %s: defines no symbol %s", real, symbol);
        goto done;
    }
    *address = p;
done:
    infer_free(real);
    return st;
}

int infer_module_self_folder(char *buf, size_t cap)
{
    Dl_info info;
    char *real = NULL, *slash;
    int ok = 0;
    if (dladdr((void *)(uintptr_t)infer_module_self_folder, &info) && info.dli_fname)
        real = realpath(info.dli_fname, NULL);
    if (real && (slash = strrchr(real, '/')) && slash != real && (size_t)(slash - real) < cap) {
        *slash = 0;
        memcpy(buf, real, strlen(real) + 1);
        ok = 1;
    }
    free(real);
    return ok;
}
