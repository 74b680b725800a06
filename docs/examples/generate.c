/* Loads a model and prints the continuation of a prompt: the whole engine API in one page.
 *   cc generate.c $(pkg-config --cflags --libs infer) && ./a.out model.gguf "Once upon a time"
 * SPDX-License-Identifier: Apache-2.0 */
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
    int32_t *ids = NULL;
    size_t n_ids = 0;
    uint64_t id;
    uint32_t n, finished = 0;
    infer_plan_options where = {
        .struct_size = sizeof where, .ctx_size = 256, .n_parallel = 1, .devices = argc > 3 ? argv[3] : NULL};
    infer_request req = {.struct_size = sizeof req, .max_tokens = 32};
    const infer_event *ev;
    if (argc < 3)
        return fprintf(stderr, "usage: generate MODEL PROMPT [DEVICES]\n"), 2;
    if (infer_runtime_create(NULL, &rt, &err) || infer_file_open(argv[1], &file, &err) ||
        infer_file_tokenizer(file, &tok, &err) || infer_plan_create(rt, file, &where, &plan, &err) ||
        infer_model_load(plan, NULL, NULL, &model, &err) || infer_engine_create(model, NULL, &engine, &err) ||
        infer_tokenizer_encode(tok, argv[2], strlen(argv[2]), INFER_ENCODE_ADD_SPECIAL, &ids, &n_ids, &err))
        goto out;
    req.prompt = ids;
    req.n_prompt = n_ids;
    if (infer_engine_submit(engine, &req, &id, &err))
        goto out;
    while (!finished && infer_engine_poll(engine, -1, &ev, &n) == INFER_OK)
        for (uint32_t i = 0; i < n; i++) {
            fwrite(ev[i].text, 1, ev[i].n_text, stdout);
            finished |= ev[i].type == INFER_EVENT_DONE;
        }
    puts("");
out:
    if (err.status)
        fprintf(stderr, "generate: %s\n", err.text);
    infer_ids_free(ids), infer_engine_destroy(engine), infer_model_destroy(model), infer_plan_destroy(plan);
    infer_file_destroy(file), infer_runtime_destroy(rt);
    return err.status ? 1 : 0;
}
