/* Folders of the user's cache, that nobody else can look into. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_BASE_CACHE_H
#define INFER_BASE_CACHE_H

#include <stddef.h>

/* The folder NAME in the cache (INFER_CACHE, else XDG_CACHE_HOME/infer, else HOME/.cache/infer; absolute paths only),
 * made with mode 0700 where it is not there, its parents too. 0 where there is none: no such variable, it cannot be
 * made, or it belongs to somebody else or others may read or write it. Whoever caches then goes without. */
int infer_cache_folder(const char *name, char *path, size_t cap);

/* Reads FOLDER/FILE, at most cap - 1 bytes, into text (NUL-terminated). 0 where it is not there, is longer, or is not a
 * regular file that only this user can write. */
int infer_cache_read(const char *folder, const char *file, char *text, size_t cap);
/* Writes it whole or not at all, with mode 0600. Failures are ignored: the next one writes it. */
void infer_cache_write(const char *folder, const char *file, const char *text);

#endif
