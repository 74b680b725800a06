/* The line protocol: one JSON object a line in, one a line out. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TOOLS_LINES_H
#define INFER_TOOLS_LINES_H

#include <jansson.h>

/* The answer (owned) to a line of n bytes without its line end; NULL without memory. Sets *bad where the exit code is
 * to say that something was wrong. */
typedef json_t *(*lines_answer_fn)(void *user, const char *line, size_t n, int *bad);

/* Answers every line of standard input that is not empty, each before the next is read. Returns the exit code. */
int lines_answer(lines_answer_fn answer, void *user);

#endif
