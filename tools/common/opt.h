/*
 * Options of the programs: one typed table (opt_table.c) of every flag, its other spellings, default and help, read
 * from the command line, the environment (INFER_<NAME>), a --config file and the defaults, in this order of precedence.
 * It parses and checks values; what they mean is the programs' matter.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_TOOLS_OPT_H
#define INFER_TOOLS_OPT_H

#include <stddef.h>
#include <stdint.h>

#include <infer/error.h>

/* Programs, as bits of a row's `programs`. */
#define PROG_RUN      1u
#define PROG_SERVE    2u
#define PROG_BENCH    4u
#define PROG_EVAL     8u
#define PROG_PROBE    16u
#define PROG_CONFORM  32u
#define PROG_TOKENIZE 64u
#define PROG_TEMPLATE 128u
#define PROG_LOAD     256u /* infer-bench serve */
#define PROG_ALL      511u

/* A name per value; the rows of opt_table.c say what it is. Several rows may share an id for different programs. */
enum opt_id {
    OPT_NONE,
    OPT_HELP,
    OPT_VERSION,
    OPT_CONFIG,
    OPT_VERBOSE,
    OPT_LOG_FORMAT,
    OPT_LIST_DEVICES,
    /* model */
    OPT_MODEL,
    OPT_CTX_SIZE,
    OPT_LORA,
    OPT_CHAT_TEMPLATE,
    OPT_CHAT_TEMPLATE_FILE,
    /* placement and memory */
    OPT_DEVICE,
    OPT_N_GPU_LAYERS,
    OPT_TENSOR_SPLIT,
    OPT_SPLIT_MODE,
    OPT_OVERRIDE_TENSOR,
    OPT_CPU_MOE,
    OPT_N_CPU_MOE,
    OPT_NO_KV_OFFLOAD,
    OPT_PLAN,
    OPT_SAVE_PLAN,
    OPT_PARALLEL,
    OPT_MAX_BATCHED_TOKENS,
    OPT_PREFILL_CHUNK,
    OPT_BLOCK_SIZE,
    OPT_QUANTIZATION,
    OPT_CACHE_TYPE_K,
    OPT_CACHE_TYPE_V,
    OPT_KV_CACHE_DTYPE,
    OPT_KV_CACHE_MEMORY,
    OPT_MEMORY_UTILIZATION,
    OPT_PREFIX_CACHING,
    OPT_SPECULATIVE,
    OPT_DRAFT_TOKENS,
    OPT_DETERMINISTIC,
    OPT_THREADS,
    OPT_NUMA,
    OPT_BACKEND_PATH,
    OPT_BACKEND_OPTION,
    OPT_MODULE_CHECK,
    OPT_VALIDATE,
    OPT_TRACE_CALLS,
    OPT_ALLOW_CPU_FALLBACK,
    /* text and sampling */
    OPT_PROMPT,
    OPT_FILE,
    OPT_SYSTEM,
    OPT_RAW,
    OPT_INTERACTIVE,
    OPT_JSON,
    OPT_N_PREDICT,
    OPT_LOGPROBS,
    OPT_STOP,
    OPT_IGNORE_EOS,
    OPT_TEMPERATURE,
    OPT_TOP_K,
    OPT_TOP_P,
    OPT_MIN_P,
    OPT_REPETITION_PENALTY,
    OPT_PRESENCE_PENALTY,
    OPT_FREQUENCY_PENALTY,
    OPT_SEED,
    /* server */
    OPT_HOST,
    OPT_PORT,
    OPT_API_KEY,
    OPT_API_KEY_FILE,
    OPT_SERVED_MODEL_NAME,
    OPT_METRICS,
    OPT_METRICS_COMPAT,
    OPT_MAX_QUEUE,
    OPT_POLICY,
    OPT_TARGET_ITL,
    OPT_SWAP_SPACE,
    OPT_PREFIX_HOST,
    OPT_PREFIX_FILE,
    OPT_PREFIX_FILE_SIZE,
    OPT_PREEMPTION,
    OPT_MAX_BODY_SIZE,
    OPT_MAX_HEADER_SIZE,
    OPT_CLIENT_TIMEOUT,
    OPT_STEP_TIMEOUT,
    OPT_TRACE,
    OPT_STATS_INTERVAL,
    OPT_LIMIT_REQUESTS,
    OPT_LIMIT_TOKENS,
    OPT_CORS_ORIGIN,
    OPT_TLS_CERT,
    OPT_TLS_KEY,
    OPT_DRAIN_TIMEOUT,
    /* probe */
    OPT_MEASURE,
    OPT_MACHINE,
    OPT_CHECK_MODEL,
    /* bench */
    OPT_N_PROMPT,
    OPT_N_GEN,
    OPT_N_DEPTH,
    OPT_PARALLEL_LIST,
    OPT_REPETITIONS,
    OPT_OUTPUT,
    OPT_WARMUP,
    /* bench serve */
    OPT_URL,
    OPT_ENDPOINT,
    OPT_WORKLOAD,
    OPT_REQUESTS,
    OPT_CONCURRENCY,
    OPT_RATE,
    OPT_INPUT_TOKENS,
    OPT_OUTPUT_TOKENS,
    OPT_LENGTH_SIGMA,
    OPT_PREFIX_TOKENS,
    OPT_PREFIXES,
    OPT_TURNS,
    OPT_DATASET,
    OPT_MAX_INPUT,
    OPT_TIMEOUT,
    OPT_SVG,
    OPT_SAMPLES,
    OPT_PRINT_REQUESTS,
    /* eval */
    OPT_CHUNKS,
    OPT_SAVE_LOGITS,
    OPT_REF,
    OPT_REF_MODEL,
    OPT_REF_DEVICE,
    /* conform */
    OPT_BACKEND,
    OPT_PLUGIN,
    OPT_CASE,
    OPT_CASE_TIMEOUT,
    OPT_MAX_TIER,
    OPT_LISTS,
    OPT_SET,
    /* tokenize */
    OPT_TOKENIZER,
    OPT_TOKENIZER_CONFIG,
    OPT_PARSE_SPECIAL,
    OPT_ADD_SPECIAL,
    OPT_DECODE,
    /* template */
    OPT_TEMPLATE,
    OPT_DATE,
    OPT_N_IDS
};

enum opt_type {
    OPT_FLAG,   /* true or false; in the environment and files 1/on/true/yes/enabled and their opposites */
    OPT_COUNT,  /* how often it was given */
    OPT_STRING, /* text */
    OPT_LIST,   /* text, may be given several times; in the environment one, in files one a line */
    OPT_INT,    /* whole number within min..max */
    OPT_BYTES,  /* whole number of bytes with an optional K, M, G or T (powers of 1024) within min..max */
    OPT_NUMBER, /* number within min..max */
    OPT_INTS,   /* whole numbers within min..max, comma-separated, at most OPT_MAX_INTS */
    OPT_CHOICE  /* one of the words of `meta`, separated by | */
};

#define OPT_MAX_INTS 32

typedef struct opt_row {
    enum opt_id id;
    const char *name;    /* long name without dashes */
    const char *aliases; /* other spellings, space-separated; one that begins with ! (flags only) means false */
    uint32_t programs;   /* PROG_* */
    enum opt_type type;
    const char *meta; /* what the help calls the value; the words of a choice */
    const char *def;  /* default as the user would write it; NULL: none */
    double min, max;
    const char *group;
    const char *help;
    const char *refused; /* not NULL: known, not built yet, refused; why, or "" */
} opt_row;

extern const opt_row opt_rows[];
extern const size_t opt_n_rows;

enum opt_source { OPT_FROM_NOWHERE, OPT_FROM_DEFAULT, OPT_FROM_FILE, OPT_FROM_ENV, OPT_FROM_FLAG };

typedef struct opt_value {
    enum opt_source source;
    const opt_row *row;
    char *text;    /* the last text given */
    int64_t i;     /* FLAG, COUNT, INT, BYTES; CHOICE: the word's number */
    double d;      /* NUMBER */
    char **list;   /* LIST */
    int64_t *ints; /* INTS */
    size_t n;      /* of list or ints */
} opt_value;

typedef struct opts {
    uint32_t program;
    opt_value v[OPT_N_IDS];
    char **args; /* what is no flag, in order; borrowed from argv */
    size_t n_args;
} opts;

/* Reads argv[1..], env ("NAME=VALUE" strings, NULL-terminated) and the --config file. A usage error is INFER_E_INVALID
 * with one line that names the flag, variable or file line; a file that cannot be read INFER_E_IO. When --help or
 * --version is among the flags nothing else is checked. The caller runs opts_free in every case. */
infer_status opts_parse(opts *o, uint32_t program, int argc, char **argv, char **env, infer_error *err);
void opts_free(opts *o);

/* Values; 0, NULL or "" of the type when neither given nor defaulted (opt_set tells). */
int opt_set(const opts *o, enum opt_id id); /* given by the user, not by default */
const char *opt_str(const opts *o, enum opt_id id);
int64_t opt_int(const opts *o, enum opt_id id);
double opt_num(const opts *o, enum opt_id id);

/* Writes the help text of a program's flags to a stream (FILE *), grouped, then those refused. */
void opts_help(uint32_t program, void *stream);

#endif
