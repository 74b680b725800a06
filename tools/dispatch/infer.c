/*
 * infer VERB …: runs infer-VERB from the folder that this program lies in. Knows the verbs only to list them.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *verb, *what;
} verbs[] = {
    {"run", "answer a prompt, or chat in the terminal"},
    {"serve", "offer an OpenAI-compatible HTTP interface"},
    {"probe", "show devices, check model files, explain placement"},
    {"bench", "measure speed"},
    {"eval", "measure quality: perplexity, KL divergence"},
    {"tokenize", "turn text to token ids and back"},
    {"template", "render a chat template"},
    {"conform", "run the conformance kit on a backend"},
};

static void help(FILE *f)
{
    fprintf(f, "usage: infer VERB [ARGUMENT]…\n\nRuns infer-VERB; each has --help and a manual page.\n\n");
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++)
        fprintf(f, "  %-10s %s\n", verbs[i].verb, verbs[i].what);
}

/* The end of a text for standard output: 0, or 1 when it could not be written. */
static int finish(void)
{
    int bad = ferror(stdout);
    if (fclose(stdout))
        bad = 1;
    if (bad)
        fprintf(stderr, "infer: write to standard output: %s\n", strerror(errno ? errno : EIO));
    return bad;
}

int main(int argc, char **argv)
{
    if (argc < 2 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        help(argc < 2 ? stderr : stdout);
        return argc < 2 ? 2 : finish();
    }
    if (!strcmp(argv[1], "--version")) {
        printf("infer %s\n", INFER_VERSION_STRING);
        return finish();
    }
    const char *verb = argv[1];
    if (!*verb || strlen(verb) > 64 || strspn(verb, "abcdefghijklmnopqrstuvwxyz0123456789-") != strlen(verb) ||
        *verb == '-') {
        fprintf(stderr, "infer: \"%.64s\": not a verb (see infer --help)\n", verb);
        return 2;
    }
    char path[PATH_MAX + 128];
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX);
    if (n < 0) {
        fprintf(stderr, "infer: finding my own folder: %s\n", strerror(errno));
        return 1;
    }
    path[n] = 0;
    char *slash = strrchr(path, '/');
    snprintf(slash + 1, sizeof path - (size_t)(slash + 1 - path), "infer-%s", verb);
    argv[1] = path;
    execv(path, argv + 1);
    int cause = errno;
    if (cause == ENOENT)
        fprintf(stderr, "infer: \"%s\": no such verb, there is no %s (see infer --help)\n", verb, path);
    else
        fprintf(stderr, "infer: %s: %s\n", path, strerror(cause));
    return cause == ENOENT ? 2 : 1;
}
