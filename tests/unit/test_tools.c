/* Option table, sources and their order, UTF-8 and string buffers of the programs. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <unistd.h>

#include "unit.h"

#include "cli.h"
#include "opt.h"
#include "sbuf.h"

static char *no_env[] = {NULL};

/* Parses words separated by blanks. */
static infer_status parse(opts *o, uint32_t program, const char *line, char **env, infer_error *err)
{
    static char text[1024];
    static char *argv[64];
    int argc = 1;
    argv[0] = text;
    snprintf(text, sizeof text, "%s", line);
    for (char *p = strtok(text, " "); p; p = strtok(NULL, " "))
        argv[argc++] = p;
    argv[argc] = NULL;
    return opts_parse(o, program, argc, argv, env, err);
}

static void assert_refused(uint32_t program, const char *line, char **env, const char *says)
{
    opts o;
    infer_error err = {0};
    assert_int_equal(parse(&o, program, line, env, &err), INFER_E_INVALID);
    if (!strstr(err.text, says))
        fail_msg("\"%s\" should say \"%s\"", err.text, says);
    opts_free(&o);
}

static void test_table(void **state)
{
    (void)state;
    /* Within a program every spelling means one thing, and every default is a value that its row takes. */
    for (uint32_t bit = 1; bit < PROG_ALL; bit <<= 1) {
        opts o;
        infer_error err = {0};
        if (parse(&o, bit, "", no_env, &err) != INFER_OK)
            fail_msg("defaults: %s", err.text);
        opts_free(&o);
        for (size_t i = 0; i < opt_n_rows; i++) {
            const opt_row *a = &opt_rows[i];
            if (!(a->programs & bit))
                continue;
            assert_true(a->refused || *a->help);
            assert_true(a->type == OPT_FLAG || a->type == OPT_COUNT || a->meta);
            for (size_t j = i + 1; j < opt_n_rows; j++) {
                const opt_row *b = &opt_rows[j];
                if (!(b->programs & bit))
                    continue;
                assert_int_not_equal(a->id, b->id);
                assert_string_not_equal(a->name, b->name);
                char aliases[256], all[512];
                snprintf(aliases, sizeof aliases, "%s", a->aliases);
                snprintf(all, sizeof all, " %s --%s ", b->aliases, b->name);
                for (char *p = strtok(aliases, " "); p; p = strtok(NULL, " ")) {
                    char word[80];
                    snprintf(word, sizeof word, " %s ", p);
                    assert_null(strstr(all, word));
                }
            }
        }
    }
}

static void test_spellings(void **state)
{
    (void)state;
    opts o;
    infer_error err = {0};
    assert_int_equal(parse(&o, PROG_SERVE,
                           "-m a.gguf -np 3 --max-model-len=77 --api-key x --api-key y --no-metrics -v -v", no_env,
                           &err),
                     INFER_OK);
    assert_string_equal(opt_str(&o, OPT_MODEL), "a.gguf");
    assert_int_equal(opt_int(&o, OPT_PARALLEL), 3);
    assert_int_equal(opt_int(&o, OPT_CTX_SIZE), 77);
    assert_int_equal(o.v[OPT_API_KEY].n, 2);
    assert_string_equal(o.v[OPT_API_KEY].list[0], "x");
    assert_string_equal(o.v[OPT_API_KEY].list[1], "y");
    assert_int_equal(opt_int(&o, OPT_METRICS), 0);
    assert_int_equal(opt_int(&o, OPT_VERBOSE), 2);
    assert_true(opt_set(&o, OPT_CTX_SIZE));
    assert_false(opt_set(&o, OPT_PORT));
    assert_int_equal(opt_int(&o, OPT_PORT), 8080);
    opts_free(&o);

    assert_int_equal(parse(&o, PROG_RUN, "-n -1 --temp 0 --stop a --stop b word -- -x", no_env, &err), INFER_OK);
    assert_int_equal(opt_int(&o, OPT_N_PREDICT), -1);
    assert_true(opt_num(&o, OPT_TEMPERATURE) == 0);
    assert_int_equal(o.v[OPT_STOP].n, 2);
    assert_int_equal(o.n_args, 2);
    assert_string_equal(o.args[1], "-x");
    opts_free(&o);

    assert_int_equal(parse(&o, PROG_BENCH, "-p 16,512 -np 1,8,32 -n 0 -o csv", no_env, &err), INFER_OK);
    assert_int_equal(o.v[OPT_N_PROMPT].n, 2);
    assert_int_equal(o.v[OPT_N_PROMPT].ints[1], 512);
    assert_int_equal(o.v[OPT_PARALLEL_LIST].ints[2], 32);
    assert_int_equal(opt_int(&o, OPT_OUTPUT), 2);
    opts_free(&o);

    assert_int_equal(parse(&o, PROG_SERVE, "--max-body-size 3M --kv-cache-memory 2GiB", no_env, &err), INFER_OK);
    assert_int_equal(opt_int(&o, OPT_MAX_BODY_SIZE), 3 << 20);
    assert_int_equal(opt_int(&o, OPT_KV_CACHE_MEMORY), INT64_C(2) << 30);
    opts_free(&o);

    /* Help goes before anything that is wrong. */
    assert_int_equal(parse(&o, PROG_RUN, "--help --nonsense", no_env, &err), INFER_OK);
    assert_true(opt_set(&o, OPT_HELP));
    opts_free(&o);
}

static void test_refusals(void **state)
{
    (void)state;
    assert_refused(PROG_RUN, "--nonsense", no_env, "--nonsense: unknown flag");
    assert_refused(PROG_RUN, "--port 1", no_env, "this program has no such flag");
    assert_refused(PROG_SERVE, "--port", no_env, "needs a value");
    assert_refused(PROG_SERVE, "--port 65536", no_env, "from 0 to 65535");
    assert_refused(PROG_SERVE, "--port 8o", no_env, "8o");
    assert_refused(PROG_SERVE, "--port 99999999999999999999", no_env, "--port");
    assert_refused(PROG_SERVE, "--metrics=maybe", no_env, "takes no value");
    assert_refused(PROG_SERVE, "--log-format xml", no_env, "text|json");
    assert_refused(PROG_SERVE, "--log-format tex", no_env, "text|json");
    assert_refused(PROG_RUN, "--temp nan", no_env, "--temp");
    assert_refused(PROG_RUN, "--temp -1", no_env, "--temp");
    assert_refused(PROG_BENCH, "-p 1,,2", no_env, "-p");
    assert_refused(PROG_BENCH, "-p 1,", no_env, "-p");
    assert_refused(PROG_BENCH, "-np 0", no_env, "-np");
    assert_refused(PROG_SERVE, "--kv-cache-memory 9999999T", no_env, "--kv-cache-memory");
    assert_refused(PROG_SERVE, "--max-body-size 3X", no_env, "3X");
    /* What is not built is refused by name, with or without its value; switching it off asks for nothing. */
    assert_refused(PROG_RUN, "--lora x", no_env, "--lora: not built yet");
    assert_refused(PROG_RUN, "--lora", no_env, "--lora: not built yet");
    assert_refused(PROG_SERVE, "-cmoe", no_env, "-cmoe: not built yet");
    assert_refused(PROG_PROBE, "--measure", no_env, "--measure: not built yet");
    char lora[] = "INFER_LORA=x";
    char *env[] = {lora, NULL};
    assert_refused(PROG_RUN, "", env, "INFER_LORA: not built yet");
    opts o;
    infer_error err = {0};
    char off[] = "INFER_DETERMINISTIC=false";
    char *env_off[] = {off, NULL};
    assert_int_equal(parse(&o, PROG_SERVE, "", env_off, &err), INFER_OK);
    opts_free(&o);
}

/* On for whoever answers, off for whoever measures; a flag says otherwise. */
static void test_opt_prefix_caching(void **state)
{
    (void)state;
    const struct {
        uint32_t program;
        const char *flags;
        int on;
    } rows[] = {
        {PROG_SERVE, "", 1},
        {PROG_RUN, "", 1},
        {PROG_BENCH, "", 0},
        {PROG_BENCH, "--enable-prefix-caching", 1},
        {PROG_SERVE, "--no-enable-prefix-caching", 0},
        {PROG_SERVE, "--no-enable-prefix-caching --enable-prefix-caching", 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        opts o;
        assert_int_equal(parse(&o, rows[i].program, rows[i].flags, no_env, NULL), INFER_OK);
        assert_int_equal(opt_int(&o, OPT_PREFIX_CACHING), rows[i].on);
        opts_free(&o);
    }
}

static char file_name[] = "/tmp/infer-test-opt-XXXXXX";

static void write_config(const char *text)
{
    FILE *f = fopen(file_name, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void test_order(void **state)
{
    (void)state;
    int fd = mkstemp(file_name);
    assert_true(fd >= 0);
    close(fd);
    char line[256], config[128];
    char port[] = "INFER_PORT=2", host[] = "INFER_HOST=envhost", np[] = "INFER_MAX_NUM_SEQS=9",
         off[] = "INFER_NO_METRICS=1", empty[] = "INFER_MODEL=";
    char *env[] = {port, host, np, off, empty, NULL};
    opts o;
    infer_error err = {0};
    write_config(
        "# a comment\n\n port = 1\nhost = filehost\nctx-size=11\nmodel = \"my model.gguf\"\nallow-cpu-fallback\n"
        "api-key = a\napi-key = b\nn-gen = 5\n");
    snprintf(line, sizeof line, "--port 3 --config %s", file_name);
    if (parse(&o, PROG_SERVE, line, env, &err) != INFER_OK)
        fail_msg("%s", err.text);
    assert_int_equal(opt_int(&o, OPT_PORT), 3);                   /* flag */
    assert_string_equal(opt_str(&o, OPT_HOST), "envhost");        /* environment */
    assert_int_equal(opt_int(&o, OPT_PARALLEL), 9);               /* environment, by an alias */
    assert_int_equal(opt_int(&o, OPT_METRICS), 0);                /* environment, negated */
    assert_int_equal(opt_int(&o, OPT_CTX_SIZE), 11);              /* file */
    assert_string_equal(opt_str(&o, OPT_MODEL), "my model.gguf"); /* file, quoted; an empty variable is none */
    assert_int_equal(opt_int(&o, OPT_ALLOW_CPU_FALLBACK), 1);     /* file, bare */
    assert_int_equal(o.v[OPT_API_KEY].n, 2);                      /* file, a list */
    assert_int_equal(opt_int(&o, OPT_DRAIN_TIMEOUT), 30);         /* default */
    opts_free(&o);

    /* A list from a higher source replaces. */
    snprintf(line, sizeof line, "--api-key z --config=%s", file_name);
    assert_int_equal(parse(&o, PROG_SERVE, line, env, &err), INFER_OK);
    assert_int_equal(o.v[OPT_API_KEY].n, 1);
    assert_string_equal(o.v[OPT_API_KEY].list[0], "z");
    opts_free(&o);

    /* The file may be named by the environment. */
    snprintf(config, sizeof config, "INFER_CONFIG=%s", file_name);
    char *env2[] = {config, NULL};
    assert_int_equal(parse(&o, PROG_SERVE, "", env2, &err), INFER_OK);
    assert_int_equal(opt_int(&o, OPT_PORT), 1);
    opts_free(&o);

    snprintf(line, sizeof line, "--config %s", file_name);
    write_config("port = 1\nbogus = 2\n");
    assert_refused(PROG_SERVE, line, no_env, "line 2: \"bogus\" is not an option");
    write_config("port = one\n");
    assert_refused(PROG_SERVE, line, no_env, "line 1");
    write_config("port\n");
    assert_refused(PROG_SERVE, line, no_env, "needs a value");
    unlink(file_name);
    assert_int_equal(parse(&o, PROG_SERVE, line, no_env, &err), INFER_E_IO);
    opts_free(&o);
}

static void test_exit_codes(void **state)
{
    (void)state;
    assert_int_equal(cli_exit_code(INFER_OK), 0);
    assert_int_equal(cli_exit_code(INFER_E_IO), 1);
    assert_int_equal(cli_exit_code(INFER_E_INVALID), 2);
    assert_int_equal(cli_exit_code(INFER_E_NO_DEVICE), 3);
    assert_int_equal(cli_exit_code(INFER_E_NO_FIT), 4);
    assert_int_equal(cli_exit_code(INFER_E_BAD_FILE), 5);
    assert_int_equal(cli_exit_code(INFER_E_ABI), 6);
    assert_int_equal(cli_exit_code(INFER_E_DEVICE_LOST), 8);
    assert_int_equal(cli_exit_code(INFER_E_BACKEND_LOST), 8);
    assert_int_equal(cli_exit_code(INFER_E_INTERNAL), 1);
}

static void test_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *in;
        const char *out;
    } rows[] = {
        {"plain", "plain"},
        {"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"},
        {"a\x80z", "a\xEF\xBF\xBDz"},
        {"\xC0\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD"},                                 /* overlong */
        {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},                 /* a surrogate */
        {"\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"}, /* above U+10FFFF */
        {"\xF0\x9F\x98", "\xEF\xBF\xBD"},                                         /* cut short: one replacement */
        {"\xE2\x82z", "\xEF\xBF\xBDz"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        sbuf b = {0};
        sbuf_add_utf8(&b, rows[i].in, strlen(rows[i].in));
        assert_string_equal(b.p, rows[i].out);
        assert_int_equal(utf8_valid(rows[i].in, strlen(rows[i].in)), !strcmp(rows[i].in, rows[i].out));
        assert_true(utf8_valid(b.p, b.n));
        sbuf_free(&b);
    }
    sbuf b = {0};
    for (int i = 0; i < 1000; i++)
        sbuf_printf(&b, "%d,", i);
    assert_false(b.failed);
    assert_int_equal(b.n, strlen(b.p));
    assert_int_equal(b.n, 10 * 2 + 90 * 3 + 900 * 4);
    sbuf_free(&b);
}

static void test_figures(void **state)
{
    (void)state;
    char b[32];
    assert_string_equal(cli_bytes(b, 512), "512 B");
    assert_string_equal(cli_bytes(b, 1536), "1.50 KiB");
    assert_string_equal(cli_bytes(b, UINT64_C(3) << 30), "3.00 GiB");
    assert_string_equal(cli_count(b, 134515008), "134.52 M");
    assert_string_equal(cli_count(b, 7), "7");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opt_prefix_caching),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_exit_codes),
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_figures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
