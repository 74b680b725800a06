/*
 * Tables for people from the JSON that infer-probe makes.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <string.h>

#include "probe.h"

static const char *text(const json_t *o, const char *key, const char *otherwise)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s && *s ? s : otherwise;
}

/* "?" for a figure that is not known. */
static const char *bytes(const json_t *o, const char *key, char buf[32])
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? cli_bytes(buf, (uint64_t)json_number_value(v)) : "?";
}

static void print_machine(const json_t *t, FILE *f)
{
    char a[32];
    json_t *node;
    size_t i;
    if (!json_is_object(t))
        return;
    fprintf(f, "machine   %s, %lld cores, %lld threads, %s of memory\n", text(t, "cpu", "unknown processor"),
            (long long)json_integer_value(json_object_get(t, "cores")),
            (long long)json_integer_value(json_object_get(t, "threads")), bytes(t, "memory", a));
    double quota = json_number_value(json_object_get(t, "cpu_quota"));
    if (quota > 0)
        fprintf(f, "          the control group allows %.2f processors\n", quota);
    const json_t *nodes = json_object_get(t, "numa_nodes");
    if (json_array_size(nodes) > 1)
        json_array_foreach (nodes, i, node)
            fprintf(f, "          node %lld: %lld cores, %s\n",
                    (long long)json_integer_value(json_object_get(node, "node")),
                    (long long)json_integer_value(json_object_get(node, "cores")), bytes(node, "memory", a));
    fputc('\n', f);
}

static void print_backends(const json_t *list, FILE *f)
{
    json_t *b;
    size_t i;
    fprintf(f, "%-10s %-10s %-12s %s\n", "backend", "version", "loaded", "module or reason");
    json_array_foreach (list, i, b) {
        int ok = !strcmp(text(b, "status", ""), "ok");
        fprintf(f, "%-10s %-10s %-12s %s\n", text(b, "name", "?"), text(b, "version", "-"), ok ? "yes" : "no",
                ok ? text(b, "path", "built in") : text(b, "reason", text(b, "status", "?")));
        if (!ok && json_is_string(json_object_get(b, "path")))
            fprintf(f, "%34s %s\n", "", text(b, "path", ""));
    }
    if (!json_array_size(list))
        fprintf(f, "none\n");
    fputc('\n', f);
}

/* At most `most` words, then how many more. */
static void print_list(const json_t *list, const char *label, size_t most, FILE *f)
{
    json_t *v;
    size_t i;
    if (!json_array_size(list))
        return;
    fprintf(f, "%11s%s", "", label);
    json_array_foreach (list, i, v)
        if (i < most)
            fprintf(f, " %s", json_string_value(v));
    if (i > most)
        fprintf(f, " and %zu more", i - most);
    fputc('\n', f);
}

static void print_device(const json_t *d, FILE *f)
{
    char total[32], free_[32], node[24] = "-";
    const json_t *numa = json_object_get(d, "numa_node");
    if (json_is_integer(numa))
        snprintf(node, sizeof node, "%lld", (long long)json_integer_value(numa));
    int ok = !strcmp(text(d, "status", ""), "ok");
    fprintf(f, "%-10s %-9s %-5s %12s %12s  %-14s %s\n", text(d, "id", "?"), text(d, "kind", "?"), node,
            bytes(d, "memory_total", total), bytes(d, "memory_free", free_), text(d, "pci", text(d, "uuid", "-")),
            text(d, "name", "?"));
    fprintf(f, "%11s", "");
    const json_t *cores = json_object_get(d, "cores");
    if (json_is_integer(cores))
        fprintf(f, "workers %lld  ", (long long)json_integer_value(cores));
    static const char *const facts[][2] = {{"kernels", "isa"}, {"arch", "arch"}, {"driver", "driver"}};
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
        if (json_is_string(json_object_get(d, facts[i][1])))
            fprintf(f, "%s %s  ", facts[i][0], text(d, facts[i][1], ""));
    if (ok)
        fprintf(f, "status ok\n");
    else
        fprintf(f, "status %s: %s\n", text(d, "status", "?"), text(d, "reason", "no reason given"));
    if (json_is_string(json_object_get(d, "same_as")))
        fprintf(f, "%11sthe same device as %s, which is preferred\n", "", text(d, "same_as", ""));
    print_list(json_object_get(d, "dtypes"), "computes", INFER_FMT_COUNT, f);
    print_list(json_object_get(d, "ops_fallback"), "leaves to the host", 12, f);
}

void probe_print(const json_t *o, FILE *f)
{
    json_t *d, *l;
    size_t i;
    print_machine(json_object_get(o, "topology"), f);
    print_backends(json_object_get(o, "backends"), f);
    fprintf(f, "%-10s %-9s %-5s %12s %12s  %-14s %s\n", "device", "kind", "node", "memory", "free", "stable id",
            "name");
    json_array_foreach (json_object_get(o, "devices"), i, d)
        print_device(d, f);
    if (!i)
        fprintf(f, "none\n");
    json_array_foreach (json_object_get(o, "links"), i, l) {
        char a[32];
        if (!i)
            fprintf(f, "\n%-10s %-10s %-6s %14s\n", "from", "to", "path", "bytes/s");
        fprintf(f, "%-10s %-10s %-6s %14s  not measured\n", text(l, "from", "?"), text(l, "to", "?"),
                text(l, "path", "?"), bytes(l, "bytes_per_s", a));
    }
}

/* ---- Plans ------------------------------------------------------------------------------------------------- */

static void print_stages(const json_t *list, FILE *f)
{
    json_t *s;
    size_t i;
    json_array_foreach (list, i, s) {
        long long first = json_integer_value(json_object_get(s, "layer_first"));
        long long n = json_integer_value(json_object_get(s, "n_layers"));
        fprintf(f, "  %-10s layers %lld to %lld%s%s\n", text(s, "device", "?"), first, first + n - 1,
                json_is_true(json_object_get(s, "embedding")) ? ", embedding" : "",
                json_is_true(json_object_get(s, "head")) ? ", head" : "");
    }
}

static void print_ledger(const json_t *list, FILE *f)
{
    static const char *const columns[] = {"weights",  "mapped",  "kv",      "activations", "workspace",
                                          "adapters", "context", "reserve", "budget"};
    json_t *row;
    size_t i;
    char a[32];
    fprintf(f, "\n  %-10s", "device");
    for (size_t k = 0; k < sizeof columns / sizeof columns[0]; k++)
        fprintf(f, " %12s", columns[k]);
    fputc('\n', f);
    json_array_foreach (list, i, row) {
        fprintf(f, "  %-10s", text(row, "device", "?"));
        for (size_t k = 0; k < sizeof columns / sizeof columns[0]; k++)
            fprintf(f, " %12s", bytes(row, columns[k], a));
        fputc('\n', f);
    }
}

static void print_predicted(const json_t *p, FILE *f)
{
    const json_t *ttft = json_object_get(p, "ttft_ms"), *rate = json_object_get(p, "decode_tok_s");
    fprintf(f, "\n  predicted ");
    if (json_is_number(ttft))
        fprintf(f, "first token after %.0f ms, ", json_number_value(ttft));
    if (json_is_number(rate))
        fprintf(f, "%.1f tokens a second ", json_number_value(rate));
    else
        fprintf(f, "nothing ");
    fprintf(f, "(%s)\n", text(p, "basis", "not measured"));
}

static const char *micros(const json_t *o, char buf[32])
{
    const json_t *v = json_object_get(o, "time_us");
    if (!json_is_number(v))
        return "not known";
    snprintf(buf, 32, "%.1f us", json_number_value(v));
    return buf;
}

/* What each token of one sequence costs: moved are the values that cross for the op, to the host and back. */
static void print_fallbacks(const json_t *list, FILE *f)
{
    json_t *v;
    size_t i;
    char a[32], b[32];
    double us = 0, moved = 0, moves = 0, count = 0;
    int known = 1, measured = 0, mixed = 0;
    if (!json_array_size(list))
        return;
    fprintf(f, "\n  what runs on the host, and what it costs a token of one sequence\n");
    fprintf(f, "  %-10s %-14s %6s %6s %12s %12s  %s\n", "device", "op", "times", "moves", "moved", "time", "why");
    json_array_foreach (list, i, v) {
        const json_t *t = json_object_get(v, "time_us");
        fprintf(f, "  %-10s %-14s %6lld %6lld %12s %12s  %s\n", text(v, "device", "?"), text(v, "op", "?"),
                (long long)json_integer_value(json_object_get(v, "count")),
                (long long)json_integer_value(json_object_get(v, "moves")), bytes(v, "bytes_moved", a), micros(v, b),
                text(v, "reason", "?"));
        int here = !strncmp(text(v, "time_basis", ""), "measured", 8);
        known &= json_is_number(t);
        measured |= here;
        mixed |= json_is_number(t) && !here;
        us += json_number_value(t);
        moved += json_number_value(json_object_get(v, "bytes_moved"));
        moves += json_number_value(json_object_get(v, "moves"));
        count += json_number_value(json_object_get(v, "count"));
    }
    fprintf(f, "  %-10s %-14s %6.0f %6.0f %12s %s%.1f us%s\n", "all", "", count, moves, cli_bytes(a, (uint64_t)moved),
            known ? "" : "at least ", us, measured ? mixed ? "  (some measured, some declared)" : "  (measured)" : "");
    fprintf(f, "  time is the op's own on the host%s; how long a move takes is not known\n",
            measured ? ", measured here with one row of zeros" : "");
}

void probe_print_plan(const json_t *plan, FILE *f)
{
    json_t *v;
    size_t i;
    fprintf(f, "\nplan\n");
    print_stages(json_object_get(plan, "stages"), f);
    const json_t *kv = json_object_get(plan, "kv");
    if (kv)
        fprintf(f, "  cache      %lld blocks of %lld tokens, keys %s, values %s; context %lld, %lld at once\n",
                (long long)json_integer_value(json_object_get(kv, "blocks")),
                (long long)json_integer_value(json_object_get(kv, "block_size")), text(kv, "k", "?"),
                text(kv, "v", "?"), (long long)json_integer_value(json_object_get(kv, "ctx_size")),
                (long long)json_integer_value(json_object_get(kv, "parallel")));
    print_ledger(json_object_get(plan, "ledger"), f);
    print_predicted(json_object_get(plan, "predicted"), f);
    json_array_foreach (json_object_get(plan, "reasons"), i, v)
        fprintf(f, "  reason     %s\n", json_string_value(v));
    print_fallbacks(json_object_get(plan, "fallbacks"), f);
    json_array_foreach (json_object_get(plan, "copies"), i, v) {
        char a[32];
        fprintf(f, "  copy       %s from %s to %s, %s a token, %s\n", text(v, "value", "?"), text(v, "from", "?"),
                text(v, "to", "?"), bytes(v, "row_bytes", a), text(v, "path", "?"));
    }
}
