/*
 * Files of saved logits (eval.h has the form). Written in order, read by position.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "eval.h"

#define MAGIC        "INFERLGT"
#define HEADER_BYTES 32u

struct logits_file {
    FILE *f;
    char *path;
    uint32_t n_vocab;
    windows w;   /* without ids */
    uint64_t at; /* of the first row */
    float *row;
    uint64_t next; /* the row that follows the one read last */
    int writing;
};

static void put_u32(unsigned char *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (unsigned char)(v >> 8 * i);
}

static uint32_t get_u32(const unsigned char *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* 32-bit words in this machine's order to or from little-endian, in place. */
static void swap_words(void *data, size_t n)
{
    static const union {
        uint32_t word;
        unsigned char first;
    } probe = {1};
    unsigned char *p = data;
    if (probe.first)
        return;
    for (size_t i = 0; i < n; i++, p += 4) {
        uint32_t v;
        memcpy(&v, p, 4);
        put_u32(p, v);
    }
}

static logits_file *new_file(const char *path, const char *mode, infer_error *err)
{
    logits_file *f = calloc(1, sizeof *f);
    if (f)
        f->path = strdup(path);
    if (!f || !f->path) {
        free(f);
        infer_error_set(err, INFER_E_NO_MEMORY, "open %s: out of memory", path);
        return NULL;
    }
    if (!(f->f = fopen(path, mode))) {
        infer_error_set(err, INFER_E_IO, "open %s: %s", path, strerror(errno));
        free(f->path);
        free(f);
        return NULL;
    }
    return f;
}

static infer_status write_failed(const logits_file *f, infer_error *err)
{
    return infer_error_set(err, INFER_E_IO, "write %s: %s", f->path, strerror(errno));
}

infer_status logits_create(const char *path, const windows *w, uint32_t n_vocab, logits_file **out, infer_error *err)
{
    logits_file *f = new_file(path, "wbe", err);
    if (!f)
        return err ? err->status : INFER_E_IO;
    f->writing = 1;
    f->n_vocab = n_vocab;
    unsigned char head[HEADER_BYTES] = MAGIC;
    const uint32_t words[] = {1, n_vocab, w->n_ctx, w->n, w->first, w->n_counted};
    for (size_t i = 0; i < 6; i++)
        put_u32(head + 8 + 4 * i, words[i]);
    size_t n = (size_t)w->n * w->n_ctx;
    int32_t *ids = malloc(n * sizeof *ids);
    f->row = malloc(n_vocab * sizeof *f->row);
    if (ids && f->row) {
        memcpy(ids, w->ids, n * sizeof *ids);
        swap_words(ids, n);
    }
    infer_status st = INFER_OK;
    if (!ids || !f->row)
        st = infer_error_set(err, INFER_E_NO_MEMORY, "write %s: out of memory", path);
    else if (fwrite(head, 1, sizeof head, f->f) != sizeof head || fwrite(ids, sizeof *ids, n, f->f) != n)
        st = write_failed(f, err);
    free(ids);
    if (st < 0) {
        logits_close(f, NULL);
        return st;
    }
    *out = f;
    return INFER_OK;
}

infer_status logits_append(logits_file *f, const float *logits, infer_error *err)
{
    memcpy(f->row, logits, f->n_vocab * sizeof *logits);
    swap_words(f->row, f->n_vocab);
    return fwrite(f->row, sizeof *f->row, f->n_vocab, f->f) == f->n_vocab ? INFER_OK : write_failed(f, err);
}

static infer_status bad(const logits_file *f, const char *what, infer_error *err)
{
    return infer_error_set(err, INFER_E_BAD_FILE, "%s: %s", f->path, what);
}

static infer_status read_ids(logits_file *f, windows *w, infer_error *err)
{
    size_t n = (size_t)w->n * w->n_ctx;
    if (!(w->ids = malloc(n * sizeof *w->ids)) || !(f->row = malloc(f->n_vocab * sizeof *f->row)))
        return infer_error_set(err, INFER_E_NO_MEMORY, "read %s: out of memory", f->path);
    if (fread(w->ids, sizeof *w->ids, n, f->f) != n)
        return bad(f, "ids: the file ends within them", err);
    swap_words(w->ids, n);
    for (size_t i = 0; i < n; i++)
        if (w->ids[i] < 0 || (uint32_t)w->ids[i] >= f->n_vocab)
            return bad(f, "ids: one is out of range", err);
    return INFER_OK;
}

infer_status logits_open(const char *path, windows *w, logits_file **out, infer_error *err)
{
    unsigned char head[HEADER_BYTES];
    struct stat st;
    infer_status s = INFER_OK;
    memset(w, 0, sizeof *w);
    logits_file *f = new_file(path, "rbe", err);
    if (!f)
        return err ? err->status : INFER_E_IO;
    if (fread(head, 1, sizeof head, f->f) != sizeof head || memcmp(head, MAGIC, 8) || fstat(fileno(f->f), &st) < 0) {
        s = bad(f, "byte 0: not a file of saved logits", err);
        goto fail;
    }
    f->n_vocab = get_u32(head + 12);
    w->n_ctx = get_u32(head + 16);
    w->n = get_u32(head + 20);
    w->first = get_u32(head + 24);
    w->n_counted = get_u32(head + 28);
    /* Limits that keep every product below 2^63. */
    if (get_u32(head + 8) != 1)
        s = bad(f, "byte 8: a version other than 1", err);
    else if (!f->n_vocab || f->n_vocab > 1u << 24 || w->n_ctx < 2 || w->n_ctx > 1u << 20 || !w->n || w->n > 1u << 20 ||
             w->first >= w->n_ctx - 1 || w->n_counted != w->n_ctx - 1 - w->first)
        s = bad(f, "byte 12: counts that make no sense", err);
    if (s < 0)
        goto fail;
    f->at = HEADER_BYTES + (uint64_t)w->n * w->n_ctx * 4;
    if ((uint64_t)st.st_size / 4 / f->n_vocab < (uint64_t)w->n * w->n_counted ||
        (uint64_t)st.st_size != f->at + (uint64_t)w->n * w->n_counted * f->n_vocab * 4) {
        s = bad(f, "its size is not what its header says", err);
        goto fail;
    }
    if ((s = read_ids(f, w, err)) < 0)
        goto fail;
    f->w = *w;
    f->w.ids = NULL;
    *out = f;
    return INFER_OK;
fail:
    windows_free(w);
    logits_close(f, NULL);
    return s;
}

uint32_t logits_n_vocab(const logits_file *f)
{
    return f->n_vocab;
}

infer_status logits_row(logits_file *f, uint32_t window, uint32_t position, const float **out, infer_error *err)
{
    uint64_t row = (uint64_t)window * f->w.n_counted + position;
    if (row != f->next || !row) {
        if (fseeko(f->f, (off_t)(f->at + row * f->n_vocab * 4), SEEK_SET) < 0)
            return infer_error_set(err, INFER_E_IO, "read %s: %s", f->path, strerror(errno));
    }
    if (fread(f->row, sizeof *f->row, f->n_vocab, f->f) != f->n_vocab)
        return infer_error_set(err, INFER_E_IO, "read %s: row %llu: %s", f->path, (unsigned long long)row,
                               ferror(f->f) ? strerror(errno) : "the file ends");
    f->next = row + 1;
    swap_words(f->row, f->n_vocab);
    *out = f->row;
    return INFER_OK;
}

infer_status logits_close(logits_file *f, infer_error *err)
{
    infer_status st = INFER_OK;
    if (!f)
        return st;
    if (f->f && fclose(f->f) && f->writing)
        st = write_failed(f, err);
    free(f->path);
    free(f->row);
    free(f);
    return st;
}
