/* Writes seeds for fuzz_gguf into a folder. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>

#include "unit/gguf_build.h"

static int save(const char *folder, const char *name, infer_buf *b)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = b->failed ? NULL : fopen(path, "wb");
    int ok = f && fwrite(b->p, 1, b->n, f) == b->n;
    if (f && fclose(f) != 0)
        ok = 0;
    infer_buf_free(b);
    if (!ok)
        fprintf(stderr, "cannot write %s\n", path);
    return ok;
}

int main(int argc, char **argv)
{
    infer_buf b = {0};
    int ok = 1;
    if (argc != 2) {
        fprintf(stderr, "usage: gguf_seeds FOLDER\n");
        return 2;
    }
    for (uint32_t version = 2; version <= 3; version++) {
        build_good(&b, version);
        ok &= save(argv[1], version == 2 ? "v2" : "v3", &b);
    }
    for (uint16_t i = 0; i < 3; i++)
        build_part(&b, i, 3, i ? (i == 1 ? "a" : "b") : NULL, 2);
    ok &= save(argv[1], "split", &b);
    put_head(&b, 3, 0, 0);
    ok &= save(argv[1], "empty", &b);
    return ok ? 0 : 1;
}
