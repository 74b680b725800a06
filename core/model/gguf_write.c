/* Writer of GGUF files. It keeps no order of its own and checks no duplicate names. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "model/gguf_private.h"
#include "model/gguf_write.h"
#include "quant/quant.h"

enum { ALIGNMENT = 32 };

struct infer_gguf_writer {
    char *path, *part;
    int fd, late; /* late: a key or tensor came after data began */
    infer_buf keys, table;
    uint64_t n_kv, n_tensors;
    uint64_t *bytes; /* of each tensor */
    uint64_t next_offset, total;
    uint64_t current, left; /* tensor being written, its bytes still missing */
    int started;
};

infer_status infer_gguf_writer_create(const char *path, infer_gguf_writer **out, infer_error *err)
{
    infer_gguf_writer *w = infer_calloc(1, sizeof *w);
    infer_buf part = {0};
    infer_buf_printf(&part, "%s.part", path);
    if (w) {
        w->fd = -1;
        w->path = infer_strdup(path);
        w->part = infer_buf_detach(&part);
    }
    infer_buf_free(&part);
    if (!w || !w->path || !w->part) {
        infer_gguf_writer_destroy(w);
        return infer_error_set(err, INFER_E_NO_MEMORY, "write %s: no memory", path);
    }
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) { /* a device, say: it would be replaced */
        infer_gguf_writer_destroy(w);
        return infer_error_set(err, INFER_E_IO, "write %s: not a regular file", path);
    }
    w->fd = open(w->part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w->fd < 0) {
        infer_status s = infer_error_set(err, INFER_E_IO, "create %s: %s", w->part, strerror(errno));
        infer_gguf_writer_destroy(w);
        return s;
    }
    *out = w;
    return INFER_OK;
}

void infer_gguf_writer_destroy(infer_gguf_writer *w)
{
    if (!w)
        return;
    if (w->fd >= 0) {
        close(w->fd);
        unlink(w->part);
    }
    infer_buf_free(&w->keys);
    infer_buf_free(&w->table);
    infer_free(w->bytes);
    infer_free(w->path);
    infer_free(w->part);
    infer_free(w);
}

static void put_u32(infer_buf *b, uint32_t v)
{
    infer_buf_append(b, &v, 4);
}

static void put_u64(infer_buf *b, uint64_t v)
{
    infer_buf_append(b, &v, 8);
}

static void put_str(infer_buf *b, infer_str s)
{
    put_u64(b, s.n);
    infer_buf_append(b, s.p, s.n);
}

static void put_key(infer_gguf_writer *w, infer_str key, uint32_t type)
{
    w->late |= w->started;
    put_str(&w->keys, key);
    put_u32(&w->keys, type);
    w->n_kv++;
}

static void put_scalar(infer_gguf_writer *w, const char *key, uint32_t type, const void *v)
{
    put_key(w, infer_str_of(key, strlen(key)), type);
    infer_buf_append(&w->keys, v, gguf_type_size(type));
}

void infer_gguf_writer_u32(infer_gguf_writer *w, const char *key, uint32_t v)
{
    put_scalar(w, key, INFER_GGUF_U32, &v);
}

void infer_gguf_writer_f32(infer_gguf_writer *w, const char *key, float v)
{
    put_scalar(w, key, INFER_GGUF_F32, &v);
}

void infer_gguf_writer_bool(infer_gguf_writer *w, const char *key, int v)
{
    uint8_t b = v != 0;
    put_scalar(w, key, INFER_GGUF_BOOL, &b);
}

void infer_gguf_writer_string(infer_gguf_writer *w, const char *key, infer_str v)
{
    put_key(w, infer_str_of(key, strlen(key)), INFER_GGUF_STRING);
    put_str(&w->keys, v);
}

static void put_array_head(infer_gguf_writer *w, infer_str key, uint32_t type, uint64_t n)
{
    put_key(w, key, INFER_GGUF_ARRAY);
    put_u32(&w->keys, type);
    put_u64(&w->keys, n);
}

void infer_gguf_writer_strings(infer_gguf_writer *w, const char *key, const infer_text *v, uint64_t n)
{
    put_array_head(w, infer_str_of(key, strlen(key)), INFER_GGUF_STRING, n);
    for (uint64_t i = 0; i < n; i++)
        put_str(&w->keys, infer_str_of(v[i].p, (size_t)v[i].n));
}

void infer_gguf_writer_array(infer_gguf_writer *w, const char *key, uint32_t type, const void *v, uint64_t n)
{
    put_array_head(w, infer_str_of(key, strlen(key)), type, n);
    infer_buf_append(&w->keys, v, (size_t)n * gguf_type_size(type));
}

void infer_gguf_writer_copy(infer_gguf_writer *w, const infer_gguf_kv *kv)
{
    if (kv->type == INFER_GGUF_ARRAY)
        put_array_head(w, kv->key, kv->elem_type, kv->n);
    else
        put_key(w, kv->key, kv->type);
    if (kv->type == INFER_GGUF_STRING)
        put_u64(&w->keys, kv->n);
    infer_buf_append(&w->keys, kv->value, (size_t)kv->value_bytes);
}

infer_status infer_gguf_writer_tensor(infer_gguf_writer *w, const char *name, infer_format format, uint32_t rank,
                                      const uint64_t *dims, infer_error *err)
{
    const infer_format_info *f = infer_format_get(format);
    uint64_t n = 1, bytes, next;
    int ok = f && f->gguf_type >= 0 && rank >= 1 && rank <= 4 && dims[0] % f->block_elems == 0 && !w->started;
    for (uint32_t i = 0; ok && i < rank; i++)
        ok = dims[i] && infer_mul_u64(n, dims[i], &n);
    if (!ok || infer_format_bytes(format, n, &bytes) != INFER_OK || !infer_round_up_u64(bytes, ALIGNMENT, &next) ||
        !infer_add_u64(w->next_offset, next, &next))
        return infer_error_set(err, INFER_E_INVALID,
                               "write %s: tensor %s cannot have this shape in format %s (row length %llu)", w->path,
                               name, f ? f->name : "?", (unsigned long long)dims[0]);
    uint64_t *sizes = infer_realloc_array(w->bytes, (size_t)w->n_tensors + 1, sizeof *sizes);
    if (!sizes)
        return infer_error_set(err, INFER_E_NO_MEMORY, "write %s: no memory", w->path);
    w->bytes = sizes;
    sizes[w->n_tensors++] = bytes;
    put_str(&w->table, infer_str_of(name, strlen(name)));
    put_u32(&w->table, rank);
    for (uint32_t i = 0; i < rank; i++)
        put_u64(&w->table, dims[i]);
    put_u32(&w->table, (uint32_t)f->gguf_type);
    put_u64(&w->table, w->next_offset);
    w->next_offset = next;
    w->total += bytes;
    return INFER_OK;
}

uint64_t infer_gguf_writer_total(const infer_gguf_writer *w)
{
    return w->total;
}

static infer_status write_all(infer_gguf_writer *w, const void *p, size_t n, infer_error *err)
{
    const char *at = p;
    while (n) {
        ssize_t done = write(w->fd, at, n < (1u << 30) ? n : 1u << 30);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return infer_error_set(err, INFER_E_IO, "write %s: %s", w->part, strerror(errno));
        at += done;
        n -= (size_t)done;
    }
    return INFER_OK;
}

static infer_status write_padding(infer_gguf_writer *w, uint64_t written, infer_error *err)
{
    static const char zeros[ALIGNMENT];
    return write_all(w, zeros, (size_t)((ALIGNMENT - written % ALIGNMENT) % ALIGNMENT), err);
}

/* The metadata, once. */
static infer_status start(infer_gguf_writer *w, infer_error *err)
{
    if (w->started)
        return INFER_OK;
    infer_buf head = {0};
    infer_buf_append(&head, "GGUF", 4);
    put_u32(&head, 3);
    put_u64(&head, w->n_tensors);
    put_u64(&head, w->n_kv);
    infer_status s = INFER_OK;
    if (head.failed || w->keys.failed || w->table.failed)
        s = infer_error_set(err, INFER_E_NO_MEMORY, "write %s: no memory for the metadata", w->path);
    if (s == INFER_OK)
        s = write_all(w, head.p, head.n, err);
    if (s == INFER_OK)
        s = write_all(w, w->keys.p, w->keys.n, err);
    if (s == INFER_OK)
        s = write_all(w, w->table.p, w->table.n, err);
    if (s == INFER_OK && w->n_tensors)
        s = write_padding(w, head.n + w->keys.n + w->table.n, err);
    infer_buf_free(&head);
    w->started = 1;
    w->left = w->n_tensors ? w->bytes[0] : 0;
    return s;
}

infer_status infer_gguf_writer_data(infer_gguf_writer *w, const void *p, size_t n, infer_error *err)
{
    INFER_TRY(start(w, err));
    const char *at = p;
    while (n) {
        if (w->current >= w->n_tensors)
            return infer_error_set(err, INFER_E_INVALID, "write %s: %zu bytes after the last tensor", w->path, n);
        size_t now = n < w->left ? n : (size_t)w->left;
        INFER_TRY(write_all(w, at, now, err));
        at += now;
        n -= now;
        w->left -= now;
        if (!w->left) {
            INFER_TRY(write_padding(w, w->bytes[w->current], err));
            w->current++;
            w->left = w->current < w->n_tensors ? w->bytes[w->current] : 0;
        }
    }
    return INFER_OK;
}

infer_status infer_gguf_writer_finish(infer_gguf_writer *w, infer_error *err)
{
    INFER_TRY(start(w, err));
    if (w->late || w->current < w->n_tensors)
        return infer_error_set(err, INFER_E_INVALID, "write %s: %s", w->path,
                               w->late ? "a key came after the data began" : "data of some tensors are missing");
    int fd = w->fd;
    w->fd = -1;
    if (close(fd) != 0 || rename(w->part, w->path) != 0) {
        infer_status s = infer_error_set(err, INFER_E_IO, "write %s: %s", w->path, strerror(errno));
        unlink(w->part);
        return s;
    }
    return INFER_OK;
}
