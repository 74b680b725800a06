/*
 * Reads options from the command line, the environment, a file and the table's defaults. Knows no single option beside
 * --config, --help and --version.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opt.h"

/* ---- Words and rows ---------------------------------------------------------------------------------------- */

/* The next space-separated word of *s, NULL at the end. */
static const char *next_word(const char **s, size_t *n)
{
    const char *p = *s;
    while (p && *p == ' ')
        p++;
    if (!p || !*p)
        return NULL;
    *n = strcspn(p, " ");
    *s = p + *n;
    return p;
}

/* Whether a row is spelled `flag` on the command line; *value is false for a negating alias. */
static int row_spells(const opt_row *r, const char *flag, size_t n, int *value)
{
    *value = 1;
    if (n > 2 && flag[0] == '-' && flag[1] == '-' && strlen(r->name) == n - 2 && !memcmp(flag + 2, r->name, n - 2))
        return 1;
    const char *s = r->aliases, *w;
    size_t k;
    while ((w = next_word(&s, &k))) {
        int negates = *w == '!';
        if (k - (size_t)negates == n && !memcmp(w + negates, flag, n)) {
            *value = !negates;
            return 1;
        }
    }
    return 0;
}

static const opt_row *find_flag(uint32_t program, const char *flag, size_t n, int *value)
{
    for (size_t i = 0; i < opt_n_rows; i++)
        if ((opt_rows[i].programs & program) && row_spells(&opt_rows[i], flag, n, value))
            return &opt_rows[i];
    return NULL;
}

/* Is this long name known to any program (a shared file or environment may hold others' settings)? */
static int known_anywhere(const char *flag, size_t n)
{
    int value;
    return find_flag(UINT32_MAX, flag, n, &value) != NULL;
}

/* ---- Values ------------------------------------------------------------------------------------------------ */

static infer_status out_of_memory(infer_error *err)
{
    return infer_error_set(err, INFER_E_NO_MEMORY, "reading options: out of memory");
}

static int parse_bool(const char *s, int64_t *out)
{
    static const char *const yes[] = {"1", "on", "true", "yes", "enabled"};
    static const char *const no[] = {"0", "off", "false", "no", "disabled"};
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        if (!strcmp(s, yes[i]) || !strcmp(s, no[i])) {
            *out = !strcmp(s, yes[i]);
            return 1;
        }
    }
    return 0;
}

/* A whole number; with `units`, a suffix multiplies it. *end is where it stopped. */
static int parse_int(const char *s, int units, int64_t *out, const char **end)
{
    while (*s == ' ')
        s++;
    if (!isdigit((unsigned char)*s) && !((*s == '-' || *s == '+') && isdigit((unsigned char)s[1])))
        return 0;
    errno = 0;
    char *e;
    long long v = strtoll(s, &e, 10);
    if (errno)
        return 0;
    if (units && *e) {
        static const char suffix[] = "KMGT";
        const char *u = strchr(suffix, toupper((unsigned char)*e));
        if (u && *u) {
            int shift = 10 * (int)(u - suffix + 1);
            if (v > (LLONG_MAX >> shift) || v < 0)
                return 0;
            v <<= shift;
            e++;
            if (*e == 'i')
                e++;
            if (*e == 'B')
                e++;
        }
    }
    *out = v;
    *end = e;
    return 1;
}

static int parse_number(const char *s, double *out)
{
    char *e;
    errno = 0;
    *out = strtod(s, &e);
    return e != s && !*e && isfinite(*out) && !(errno == ERANGE && fabs(*out) > 1);
}

static infer_status bad_value(const opt_row *r, const char *spelled, const char *text, infer_error *err)
{
    switch (r->type) {
    case OPT_FLAG:
        return infer_error_set(err, INFER_E_INVALID, "%s: \"%s\" is neither true nor false", spelled, text);
    case OPT_CHOICE:
        return infer_error_set(err, INFER_E_INVALID, "%s: \"%s\" is none of %s", spelled, text, r->meta);
    case OPT_NUMBER:
        return infer_error_set(err, INFER_E_INVALID, "%s: \"%s\" is not a number from %g to %g", spelled, text, r->min,
                               r->max);
    case OPT_INTS:
        return infer_error_set(err, INFER_E_INVALID,
                               "%s: \"%s\" is not a comma-separated list of at most %d whole numbers from %.0f to %.0f",
                               spelled, text, OPT_MAX_INTS, r->min, r->max);
    default:
        return infer_error_set(err, INFER_E_INVALID, "%s: \"%s\" is not a whole number from %.0f to %.0f", spelled,
                               text, r->min, r->max);
    }
}

static int choice_index(const char *words, const char *text, int64_t *out)
{
    size_t n = strlen(text);
    int64_t i = 0;
    for (const char *p = words; n; i++) {
        size_t k = strcspn(p, "|");
        if (k == n && !memcmp(p, text, n)) {
            *out = i;
            return 1;
        }
        if (!p[k])
            return 0;
        p += k + 1;
    }
    return 0;
}

static void drop_list(opt_value *v)
{
    for (size_t i = 0; v->list && i < v->n; i++)
        free(v->list[i]);
    free(v->list);
    free(v->ints);
    v->list = NULL;
    v->ints = NULL;
    v->n = 0;
}

static infer_status add_to_list(opt_value *v, const char *text, infer_error *err)
{
    char **list = realloc(v->list, (v->n + 1) * sizeof *list);
    if (!list)
        return out_of_memory(err);
    v->list = list;
    if (!(list[v->n] = strdup(text)))
        return out_of_memory(err);
    v->n++;
    return INFER_OK;
}

static infer_status set_ints(opt_value *v, const opt_row *r, const char *spelled, const char *text, infer_error *err)
{
    int64_t *ints = malloc(OPT_MAX_INTS * sizeof *ints);
    if (!ints)
        return out_of_memory(err);
    size_t n = 0;
    for (const char *p = text;; p++) {
        if (n == OPT_MAX_INTS || !parse_int(p, 0, &ints[n], &p) || (double)ints[n] < r->min ||
            (double)ints[n] > r->max || (*p && *p != ',')) {
            free(ints);
            return bad_value(r, spelled, text, err);
        }
        n++;
        if (!*p)
            break;
    }
    v->ints = ints;
    v->n = n;
    return INFER_OK;
}

/* Sets a row's value from text. A source of the same rank adds to lists and counts, a higher one replaces. Sources must
 * come in rising rank. */
static infer_status set_value(opts *o, const opt_row *r, enum opt_source source, const char *spelled, const char *text,
                              infer_error *err)
{
    opt_value *v = &o->v[r->id];
    const char *end;
    int64_t i = 0;
    double d = 0;
    if (r->refused) {
        if (r->type == OPT_FLAG && parse_bool(text, &i) && !i)
            return INFER_OK; /* switched off: as it is */
        return infer_error_set(err, INFER_E_INVALID, "%s: not built yet%s%s", spelled, *r->refused ? ": " : "",
                               r->refused);
    }
    switch (r->type) {
    case OPT_FLAG:
        if (!parse_bool(text, &i))
            return bad_value(r, spelled, text, err);
        break;
    case OPT_COUNT:
        if (!parse_bool(text, &i) && (!parse_int(text, 0, &i, &end) || *end || i < 0 || i > 9))
            return bad_value(r, spelled, text, err);
        if (v->source == source)
            i += v->i;
        break;
    case OPT_INT:
    case OPT_BYTES:
        if (!parse_int(text, r->type == OPT_BYTES, &i, &end) || *end || (double)i < r->min || (double)i > r->max)
            return bad_value(r, spelled, text, err);
        break;
    case OPT_NUMBER:
        if (!parse_number(text, &d) || d < r->min || d > r->max)
            return bad_value(r, spelled, text, err);
        break;
    case OPT_CHOICE:
        if (!choice_index(r->meta, text, &i))
            return bad_value(r, spelled, text, err);
        break;
    case OPT_INTS:
    case OPT_LIST:
    case OPT_STRING:
        break;
    }
    if (v->source != source || r->type == OPT_INTS)
        drop_list(v);
    infer_status s = INFER_OK;
    if (r->type == OPT_LIST)
        s = add_to_list(v, text, err);
    else if (r->type == OPT_INTS)
        s = set_ints(v, r, spelled, text, err);
    if (s < 0)
        return s;
    char *copy = strdup(text);
    if (!copy)
        return out_of_memory(err);
    free(v->text);
    v->text = copy;
    v->i = i;
    v->d = d;
    v->row = r;
    v->source = source;
    return INFER_OK;
}

/* ---- Sources, lowest rank first ---------------------------------------------------------------------------- */

static infer_status read_defaults(opts *o, infer_error *err)
{
    for (size_t i = 0; i < opt_n_rows; i++) {
        const opt_row *r = &opt_rows[i];
        if (!(r->programs & o->program) || !r->def || r->refused)
            continue;
        infer_status s = set_value(o, r, OPT_FROM_DEFAULT, r->name, r->def, err);
        if (s < 0)
            return s;
    }
    return INFER_OK;
}

static char *trim(char *s)
{
    while (isspace((unsigned char)*s))
        s++;
    size_t n = strlen(s);
    while (n && isspace((unsigned char)s[n - 1]))
        s[--n] = 0;
    return s;
}

/* One line "name = value" of a file; a name alone is a flag that is on. */
static infer_status read_file_line(opts *o, char *line, const char *path, unsigned number, infer_error *err)
{
    char *name = trim(line);
    if (!*name || *name == '#')
        return INFER_OK;
    char *value = strchr(name, '=');
    char yes[] = "true";
    if (value) {
        *value = 0;
        value = trim(value + 1);
        size_t n = strlen(value);
        if (n >= 2 && value[0] == '"' && value[n - 1] == '"') {
            value[n - 1] = 0;
            value++;
        }
        name = trim(name);
    }
    char flag[80];
    int n = snprintf(flag, sizeof flag, "--%s", name), on;
    if (n < 3 || (size_t)n >= sizeof flag || !known_anywhere(flag, (size_t)n))
        return infer_error_set(err, INFER_E_INVALID, "%s: line %u: \"%.60s\" is not an option", path, number, name);
    const opt_row *r = find_flag(o->program, flag, (size_t)n, &on);
    if (!r)
        return INFER_OK;
    if (!value && r->type != OPT_FLAG && r->type != OPT_COUNT)
        return infer_error_set(err, INFER_E_INVALID, "%s: line %u: %s needs a value", path, number, name);
    char no[] = "false";
    if (!on) {
        int64_t b = 1;
        if (value && !parse_bool(value, &b))
            return infer_error_set(err, INFER_E_INVALID, "%s: line %u: %s is neither true nor false", path, number,
                                   name);
        value = b ? no : yes;
    }
    infer_status s = set_value(o, r, OPT_FROM_FILE, r->name, value ? value : yes, err);
    return s < 0 ? infer_error_prefix(err, s, "%s: line %u", path, number) : s;
}

static infer_status read_config(opts *o, const char *path, infer_error *err)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return infer_error_set(err, INFER_E_IO, "--config %s: %s", path, strerror(errno));
    char *line = NULL;
    size_t cap = 0;
    infer_status s = INFER_OK;
    for (unsigned number = 1; s >= 0 && getline(&line, &cap, f) >= 0; number++)
        s = read_file_line(o, line, path, number, err);
    if (s >= 0 && ferror(f))
        s = infer_error_set(err, INFER_E_IO, "--config %s: read: %s", path, strerror(errno));
    free(line);
    fclose(f);
    return s;
}

/* The value of INFER_<NAME> for a long spelling, or NULL; *var is the variable's name within env. */
static const char *env_of(char **env, const char *name, size_t n, const char **var)
{
    for (char **e = env; e && *e; e++) {
        if (strncmp(*e, "INFER_", 6))
            continue;
        const char *p = *e + 6;
        size_t i = 0;
        while (i < n && p[i] == (name[i] == '-' ? '_' : toupper((unsigned char)name[i])))
            i++;
        if (i == n && p[n] == '=') {
            *var = *e;
            return p + n + 1;
        }
    }
    return NULL;
}

static infer_status read_env_name(opts *o, const opt_row *r, const char *name, size_t n, int on, char **env,
                                  infer_error *err)
{
    const char *var, *text = env_of(env, name, n, &var);
    if (!text || !*text)
        return INFER_OK;
    int64_t b;
    char spelled[96];
    snprintf(spelled, sizeof spelled, "%.*s", (int)(text - var - 1), var);
    if (!on) {
        if (!parse_bool(text, &b))
            return infer_error_set(err, INFER_E_INVALID, "%s: \"%s\" is neither true nor false", spelled, text);
        text = b ? "false" : "true";
    }
    return set_value(o, r, OPT_FROM_ENV, spelled, text, err);
}

static infer_status read_env(opts *o, char **env, infer_error *err)
{
    for (size_t i = 0; i < opt_n_rows; i++) {
        const opt_row *r = &opt_rows[i];
        if (!(r->programs & o->program) || r->id == OPT_HELP || r->id == OPT_VERSION)
            continue;
        const char *s = r->aliases, *w;
        size_t k;
        infer_status st = read_env_name(o, r, r->name, strlen(r->name), 1, env, err);
        while (st >= 0 && (w = next_word(&s, &k))) {
            int negates = *w == '!';
            if (k > (size_t)negates + 2 && !strncmp(w + negates, "--", 2))
                st = read_env_name(o, r, w + negates + 2, k - (size_t)negates - 2, !negates, env, err);
        }
        if (st < 0)
            return st;
    }
    return INFER_OK;
}

/* Walks the command line. With `config` only --config, --help and --version are looked for (the file has a lower rank
 * and must be read first). */
static infer_status read_args(opts *o, int argc, char **argv, int config, infer_error *err)
{
    int literal = 0;
    for (int i = 1; i < argc; i++) {
        char *a = argv[i];
        if (literal || a[0] != '-' || !a[1]) {
            if (!config)
                o->args[o->n_args++] = a;
            continue;
        }
        if (!strcmp(a, "--")) {
            literal = 1;
            continue;
        }
        size_t n = a[1] == '-' ? strcspn(a, "=") : strlen(a);
        int on;
        const opt_row *r = find_flag(o->program, a, n, &on);
        if (!r) {
            if (known_anywhere(a, n))
                return infer_error_set(err, INFER_E_INVALID, "%.*s: this program has no such flag (see --help)", (int)n,
                                       a);
            return infer_error_set(err, INFER_E_INVALID, "%.*s: unknown flag (see --help)", (int)n, a);
        }
        const char *text = a[n] ? a + n + 1 : NULL;
        if (r->type == OPT_FLAG || r->type == OPT_COUNT) {
            int64_t b = 1;
            if (text && !parse_bool(text, &b))
                return infer_error_set(err, INFER_E_INVALID, "%.*s: takes no value", (int)n, a);
            text = (b != 0) == (on != 0) ? "true" : "false";
        } else if (!text && !(r->refused && i + 1 == argc)) {
            if (++i == argc)
                return infer_error_set(err, INFER_E_INVALID, "%s: needs a value (%s)", a, r->meta);
            text = argv[i];
        }
        if (config && r->id != OPT_CONFIG && r->id != OPT_HELP && r->id != OPT_VERSION)
            continue;
        char spelled[64];
        snprintf(spelled, sizeof spelled, "%.*s", (int)n, a);
        infer_status s = set_value(o, r, OPT_FROM_FLAG, spelled, text ? text : "", err);
        if (s < 0)
            return s;
        if (r->id == OPT_HELP || r->id == OPT_VERSION)
            return INFER_OK;
    }
    return INFER_OK;
}

infer_status opts_parse(opts *o, uint32_t program, int argc, char **argv, char **env, infer_error *err)
{
    memset(o, 0, sizeof *o);
    o->program = program;
    o->args = calloc((size_t)(argc > 0 ? argc : 1), sizeof *o->args);
    if (!o->args)
        return out_of_memory(err);
    infer_status s = read_args(o, argc, argv, 1, err);
    if (s < 0 || opt_set(o, OPT_HELP) || opt_set(o, OPT_VERSION))
        return s;
    const char *var, *config = opt_str(o, OPT_CONFIG);
    char *path = config ? strdup(config) : NULL;
    if (!config && (config = env_of(env, "config", 6, &var)) && *config)
        path = strdup(config);
    s = read_defaults(o, err);
    if (s >= 0 && path)
        s = read_config(o, path, err);
    if (s >= 0)
        s = read_env(o, env, err);
    if (s >= 0)
        s = read_args(o, argc, argv, 0, err);
    free(path);
    return s;
}

void opts_free(opts *o)
{
    for (size_t i = 0; i < OPT_N_IDS; i++) {
        drop_list(&o->v[i]);
        free(o->v[i].text);
    }
    free(o->args);
    memset(o, 0, sizeof *o);
}

/* ---- Values out -------------------------------------------------------------------------------------------- */

int opt_set(const opts *o, enum opt_id id)
{
    return o->v[id].source > OPT_FROM_DEFAULT;
}

const char *opt_str(const opts *o, enum opt_id id)
{
    return o->v[id].text;
}

int64_t opt_int(const opts *o, enum opt_id id)
{
    return o->v[id].i;
}

double opt_num(const opts *o, enum opt_id id)
{
    return o->v[id].d;
}

/* ---- Help -------------------------------------------------------------------------------------------------- */

/* Columns that n bytes of UTF-8 take on a terminal, as far as this file's table goes: one a character. */
static int columns(const char *s, size_t n)
{
    int k = 0;
    for (size_t i = 0; i < n; i++)
        k += ((unsigned char)s[i] & 0xc0) != 0x80;
    return k;
}

/* Prints text wrapped at column 100, continuation lines indented. */
static void wrap(FILE *f, const char *s, int indent)
{
    const char *w, *between = "";
    int column = indent;
    size_t n;
    while ((w = next_word(&s, &n))) {
        int width = columns(w, n);
        if (column > indent && column + 1 + width > 100) {
            fprintf(f, "\n%*s", indent, "");
            column = indent;
            between = "";
        }
        column += fprintf(f, "%s", between) + width;
        fprintf(f, "%.*s", (int)n, w);
        between = " ";
    }
    fputc('\n', f);
}

static void help_row(FILE *f, const opt_row *r)
{
    char left[256] = "  ";
    const char *s = r->aliases, *w;
    size_t k, n = 2;
    while ((w = next_word(&s, &k)))
        if (*w != '!' && w[1] != '-' && n + k + 2 < sizeof left)
            n += (size_t)snprintf(left + n, sizeof left - n, "%.*s, ", (int)k, w);
    n += (size_t)snprintf(left + n, sizeof left - n, "--%s", r->name);
    s = r->aliases;
    while ((w = next_word(&s, &k)))
        if ((*w == '!' || w[1] == '-') && n + k + 2 < sizeof left)
            n += (size_t)snprintf(left + n, sizeof left - n, ", %.*s", (int)(k - (*w == '!')), w + (*w == '!'));
    if (r->meta)
        n += (size_t)snprintf(left + n, n < sizeof left ? sizeof left - n : 0, " %s", r->meta);
    char text[1024];
    int with_default = r->def && r->type != OPT_COUNT;
    snprintf(text, sizeof text, "%s%s%s%s", r->help, with_default ? " (default " : "", with_default ? r->def : "",
             with_default ? ")" : "");
    int width = columns(left, strlen(left));
    if (width > 34)
        fprintf(f, "%s\n%36s", left, "");
    else
        fprintf(f, "%s%*s", left, 36 - width, "");
    wrap(f, text, 36);
}

void opts_help(uint32_t program, void *stream)
{
    FILE *f = stream;
    int refused = 0;
    for (size_t i = 0; i < opt_n_rows; i++) {
        const opt_row *g = &opt_rows[i];
        int seen = 0;
        for (size_t j = 0; j < i; j++)
            seen |= opt_rows[j].programs & program && !strcmp(opt_rows[j].group, g->group) && !opt_rows[j].refused;
        if (seen || !(g->programs & program) || g->refused)
            continue;
        fprintf(f, "\n%s:\n", g->group);
        for (size_t j = i; j < opt_n_rows; j++)
            if ((opt_rows[j].programs & program) && !opt_rows[j].refused && !strcmp(opt_rows[j].group, g->group))
                help_row(f, &opt_rows[j]);
    }
    char list[1024] = "";
    size_t n = 0;
    for (size_t i = 0; i < opt_n_rows; i++)
        if ((opt_rows[i].programs & program) && opt_rows[i].refused && n + strlen(opt_rows[i].name) + 4 < sizeof list)
            n += (size_t)snprintf(list + n, sizeof list - n, "%s--%s", refused++ ? ", " : "", opt_rows[i].name);
    if (refused) {
        fprintf(f, "\nNot built yet, refused when given:\n  ");
        wrap(f, list, 2);
    }
    fprintf(f,
            "\nEvery flag has an environment variable INFER_<NAME> (INFER_%s) and a line in a --config file\n"
            "(%s = …). The order is flag, environment, file, default.\n",
            "CTX_SIZE", "ctx-size");
}
