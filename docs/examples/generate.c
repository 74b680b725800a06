/* Prints the continuation of a prompt: the engine API in one page. SPDX-License-Identifier: Apache-2.0
 *   cc generate.c $(pkg-config --cflags --libs infer) && ./a.out model.gguf "Once upon a time"
 * Where infer is installed outside the linker's folders: PKG_CONFIG_PATH=PREFIX/lib/pkgconfig for the first command,
 * LD_LIBRARY_PATH=PREFIX/lib for the second. */
#include <stdio.h>
#include <string.h>
#include <infer/infer.h>

int main(int argc, char **argv)
{
    infer_error err = {0};
    infer_runtime *rt = NULL;
    infer_file *file = NULL;
    infer_plan *plan = NULL;
    infer_model *model = NULL;
    infer_engine *engine = NULL;
    const infer_tokenizer *tok;
    const infer_event *ev;
    int32_t *ids = NULL;
    infer_plan_options where = {.struct_size = sizeof where, .n_parallel = 1};
    infer_request req = {.struct_size = sizeof req, .max_tokens = 32};
    uint64_t id;
    size_t n_ids;
    if (argc != 3)
        return fprintf(stderr, "usage: generate MODEL PROMPT\n"), 2;
    if (!infer_runtime_create(NULL, &rt, &err) && !infer_file_open(argv[1], &file, &err) &&
        !infer_file_tokenizer(file, &tok, &err) && !infer_plan_create(rt, file, &where, &plan, &err) &&
        !infer_model_load(plan, NULL, NULL, &model, &err) && !infer_engine_create(model, NULL, &engine, &err) &&
        !infer_tokenizer_encode(tok, argv[2], strlen(argv[2]), INFER_ENCODE_ADD_SPECIAL, &ids, &n_ids, &err)) {
        req.prompt = ids, req.n_prompt = n_ids;
        infer_engine_submit(engine, &req, &id, &err);
        for (uint32_t n, done = err.status != 0; !done && !infer_engine_poll(engine, -1, &ev, &n);)
            for (uint32_t i = 0; i < n; done |= ev[i++].type == INFER_EVENT_DONE) {
                fwrite(ev[i].text, 1, ev[i].n_text, stdout);
                if (ev[i].status < 0) /* of a DONE: the request failed */
                    err.status = ev[i].status, snprintf(err.text, sizeof err.text, "%s", ev[i].error);
            }
        puts("");
    }
    if (err.status)
        fprintf(stderr, "generate: %s\n", err.text);
    infer_ids_free(ids), infer_engine_destroy(engine), infer_model_destroy(model), infer_plan_destroy(plan);
    infer_file_destroy(file), infer_runtime_destroy(rt);
    return err.status != 0;
}
