/* Read-only file mappings and whole-file reads. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_BASE_FILE_H
#define INFER_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include <infer/error.h>

/* A file mapped read-only and private. data is NULL for an empty file. */
typedef struct infer_map {
    const uint8_t *data;
    uint64_t size;
} infer_map;

/* Maps a regular file; INFER_E_IO (with path and cause), INFER_E_NOT_FOUND. Any thread. */
infer_status infer_map_open(const char *path, infer_map *out, infer_error *err);
void infer_map_close(infer_map *m);
/* Tells the kernel that [offset, offset+size) will not be read again: whole pages inside it leave the
 * process (they stay in the page cache). */
void infer_map_drop(const infer_map *m, uint64_t offset, uint64_t size);

/* Reads a whole file of at most max bytes into an owned, NUL-terminated buffer (infer_free). Path "-" is standard
 * input. */
infer_status infer_file_read(const char *path, uint64_t max, char **data, size_t *size, infer_error *err);

#endif
