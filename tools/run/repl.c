/*
 * The chat loop of the terminal program: lines in, answers out, the conversation kept. No line editing of its own.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run.h"

static const char help[] = "/clear  forget the conversation\n"
                           "/exit   leave (so does Ctrl-D)\n"
                           "/help   this\n"
                           "A line that ends in \\ goes on in the next. Ctrl-C ends an answer.\n";

/* Reads one message; -1 at the end of the input. Nothing but the mark goes to the terminal. */
static int read_message(sbuf *b, int terminal)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    const char *mark = "> ";
    b->n = 0;
    for (;;) {
        if (terminal) {
            fputs(mark, stderr);
            fflush(stderr);
        }
        run_interrupted = 0;
        errno = 0;
        if ((n = getline(&line, &cap, stdin)) < 0) {
            if (errno == EINTR) {
                clearerr(stdin);
                fputs("\n(Ctrl-D or /exit leaves)\n", stderr);
                b->n = 0;
                mark = "> ";
                continue;
            }
            if (terminal)
                fputc('\n', stderr);
            break;
        }
        if (n && line[n - 1] == '\n')
            n--;
        int more = n && line[n - 1] == '\\';
        sbuf_add(b, line, (size_t)(n - more));
        if (!more)
            break;
        sbuf_puts(b, "\n");
        mark = "… ";
    }
    free(line);
    return n < 0 && !b->n ? -1 : 0;
}

static int add_message(json_t *messages, const char *role, const char *text, size_t n)
{
    return json_array_append_new(messages, json_pack("{s:s, s:o}", "role", role, "content", utf8_json_n(text, n)));
}

/* One turn: the messages so far, answered. The answer joins them; a failed turn takes the question back. */
static infer_status turn(runner *r, json_t *messages, infer_error *err)
{
    char *text = NULL;
    size_t n, n_ids;
    int32_t *ids = NULL;
    answer a = {0};
    infer_status st = chat_render(r->c, messages, NULL, 1, NULL, &text, &n, err);
    if (st >= 0)
        st = chat_encode(r->s->tokenizer, text, n, 1, 1, &ids, &n_ids, err);
    if (st >= 0)
        st = run_generate(r, ids, n_ids, &a, err);
    if (st >= 0) {
        if (!a.text.n || a.text.p[a.text.n - 1] != '\n')
            fputc('\n', r->stream);
        fflush(r->stream);
        if (add_message(messages, "assistant", a.text.p ? a.text.p : "", a.text.n) < 0)
            st = infer_error_set(err, INFER_E_NO_MEMORY, "keeping the answer: out of memory");
    } else {
        json_array_remove(messages, json_array_size(messages) - 1);
    }
    answer_free(&a);
    if (ids)
        infer_ids_free(ids);
    if (text)
        infer_text_free(text);
    return st;
}

static int start_over(const runner *r, json_t *messages)
{
    const char *system = opt_str(r->o, OPT_SYSTEM);
    json_array_clear(messages);
    return system ? add_message(messages, "system", system, strlen(system)) : 0;
}

int run_chat(runner *r, const char *first)
{
    int terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO), code = EXIT_DONE;
    sbuf line = {0};
    json_t *messages = json_array();
    if (!messages || start_over(r, messages) < 0) {
        code = cli_fail(EXIT_OTHER, "starting the chat: out of memory");
        goto done;
    }
    run_catch_interrupts();
    if (terminal && !first)
        fputs("Chat with the model; /help lists commands.\n", stderr);
    for (;;) {
        infer_error err = {0};
        if (first) {
            sbuf_puts(&line, first);
            first = NULL;
        } else if (read_message(&line, terminal) < 0) {
            break;
        }
        if (!line.n)
            continue;
        if (!strcmp(line.p, "/exit") || !strcmp(line.p, "/quit"))
            break;
        if (!strcmp(line.p, "/help")) {
            fputs(help, stderr);
            continue;
        }
        if (!strcmp(line.p, "/clear")) {
            start_over(r, messages);
            continue;
        }
        if (line.p[0] == '/' && line.n == 1 + strspn(line.p + 1, "abcdefghijklmnopqrstuvwxyz")) {
            fprintf(stderr, "%s: no such command (/help lists them)\n", line.p);
            continue;
        }
        run_interrupted = 0;
        infer_status st = line.failed || add_message(messages, "user", line.p, line.n) < 0
                              ? infer_error_set(&err, INFER_E_NO_MEMORY, "reading a message: out of memory")
                              : turn(r, messages, &err);
        if (st == INFER_OK)
            continue;
        code = cli_fail_err(&err);
        if (infer_status_radius(st) > 1 || st == INFER_E_IO)
            goto done;
        if (st == INFER_E_TOO_LARGE)
            fputs("(the conversation fills the context: /clear starts a new one)\n", stderr);
        code = EXIT_DONE;
    }
done:
    json_decref(messages);
    sbuf_free(&line);
    return code;
}
