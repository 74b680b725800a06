/* Loadable modules: finding, permission checks, loading. Knows nothing of what is in them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_BASE_MODULE_H
#define INFER_BASE_MODULE_H

#include <stddef.h>

#include "base/error.h"

/* Sorted paths FOLDER/infer-NAME.so of an absolute folder, owned by the caller (infer_module_list_free). A folder that
 * does not exist is an empty list. INFER_E_INVALID for a relative folder: modules never come from the working folder.
 */
infer_status infer_module_list(const char *folder, char ***paths, size_t *n, infer_error *err);
void infer_module_list_free(char **paths, size_t n);

/* NAME of a path ending in infer-NAME.so, copied into name (cap bytes); else the whole file name. */
void infer_module_name(const char *path, char *name, size_t cap);

/* Whether a file may be loaded: a regular file which, like its folder, belongs to root or to the user and which nobody
 * else may write; and no folder above can be exchanged by others. Symbolic links are followed first. INFER_E_IO with
 * what is wrong and how to mend it. *real: the resolved path, owned by the caller. */
infer_status infer_module_check(const char *path, char **real, infer_error *err);

/* Checks, loads for good (RTLD_NODELETE: never unmapped) and finds a symbol that is defined in this very file and not
 * in a library that it needs. INFER_E_IO, INFER_E_ABI (the symbol is missing). [any thread] */
infer_status infer_module_open(const char *path, const char *symbol, void **address, infer_error *err);

/* The folder of the file (library or program) that holds this code, without a slash at its end; 0 where it is not
 * known. A build folder's modules lie there. */
int infer_module_self_folder(char *buf, size_t cap);

#endif
