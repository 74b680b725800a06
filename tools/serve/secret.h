/* Files that hold secrets. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_SERVE_SECRET_H
#define INFER_SERVE_SECRET_H

#include <infer/error.h>

#include "sbuf.h"

/* Reads a file whose content only the server's user should know. One that others may write is refused
 * (INFER_E_INVALID), one that they may read is warned about; `flag` is how the user gave it. b is the caller's to wipe
 * in every case. */
infer_status secret_read(const char *flag, const char *path, sbuf *b, infer_error *err);
/* Overwrites what b holds and frees it. */
void secret_wipe(sbuf *b);

#endif
