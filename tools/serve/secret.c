/*
 * Reading files that hold keys. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include "cli.h"
#include "secret.h"

infer_status secret_read(const char *flag, const char *path, sbuf *b, infer_error *err)
{
    struct stat st;
    infer_status s = INFER_OK;
    FILE *f = fopen(path, "re");
    if (!f || fstat(fileno(f), &st) < 0) {
        s = infer_error_set(err, INFER_E_IO, "%s %s: %s", flag, path, strerror(errno));
    } else if (st.st_mode & S_IWOTH && S_ISREG(st.st_mode)) {
        s = infer_error_set(err, INFER_E_INVALID, "%s %s: everybody may write it; chmod o-w first", flag, path);
    } else {
        if (st.st_mode & S_IROTH && S_ISREG(st.st_mode))
            cli_log(1, "serve", "%s %s: everybody may read it; chmod 600 would keep it secret", flag, path);
        setvbuf(f, NULL, _IONBF, 0); /* no copy in a buffer that nobody wipes */
        if (sbuf_read(b, f) < 0)
            s = infer_error_set(err, INFER_E_IO, "%s %s: %s", flag, path, strerror(errno));
    }
    if (f)
        fclose(f);
    return s;
}

void secret_wipe(sbuf *b)
{
    if (b->p)
        explicit_bzero(b->p, b->cap);
    sbuf_free(b);
}
