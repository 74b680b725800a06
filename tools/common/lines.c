/* The line protocol. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdlib.h>
#include <sys/types.h>

#include "cli.h"
#include "lines.h"

int lines_answer(lines_answer_fn answer, void *user)
{
    char *line = NULL;
    size_t cap = 0;
    int bad = 0;
    for (ssize_t n; (n = getline(&line, &cap, stdin)) >= 0;) {
        if (n && line[n - 1] == '\n')
            n--;
        if (!n)
            continue;
        json_t *out = answer(user, line, (size_t)n, &bad);
        int written = out && json_dumpf(out, stdout, JSON_COMPACT | JSON_ENSURE_ASCII) == 0;
        json_decref(out);
        if (!written) {
            free(line);
            return cli_fail(EXIT_OTHER, "answering a line: out of memory or a closed output");
        }
        putchar('\n');
        fflush(stdout); /* the other side may wait for this answer before it asks again */
    }
    free(line);
    return bad ? EXIT_OTHER : EXIT_DONE;
}
