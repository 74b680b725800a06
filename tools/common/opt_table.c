/*
 * Every flag of every program: a row each. Names and meanings are those of the project's interface description; man
 * pages say more.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include "opt.h"

#define ENGINE (PROG_RUN | PROG_SERVE | PROG_BENCH | PROG_EVAL)
#define LOADS  (ENGINE | PROG_PROBE)
#define TALKS  (PROG_RUN | PROG_SERVE)

#define G_GENERAL "General"
#define G_MODEL   "Model"
#define G_PLACE   "Placement and memory"
#define G_TEXT    "Prompt and answer"
#define G_SAMPLE  "Sampling"
#define G_SERVER  "Server"
#define G_PROBE   "Probing"
#define G_BENCH   "Measurement"
#define G_EVAL    "Evaluation"
#define G_CONFORM "Conformance"

#define I31 2147483647.0
#define I53 9007199254740991.0
#define I63 9223372036854775807.0

/* id, name, aliases, programs, type, meta, default, min, max, group, help, refused */
const opt_row opt_rows[] = {
    {OPT_HELP, "help", "-h", PROG_ALL, OPT_FLAG, 0, 0, 0, 0, G_GENERAL, "print this help and leave", 0},
    {OPT_VERSION, "version", "", PROG_ALL, OPT_FLAG, 0, 0, 0, 0, G_GENERAL, "print the version and leave", 0},
    {OPT_CONFIG, "config", "", PROG_ALL, OPT_STRING, "FILE", 0, 0, 0, G_GENERAL,
     "read options from FILE: lines \"name = value\", # for comments", 0},
    {OPT_VERBOSE, "verbose", "-v", PROG_ALL, OPT_COUNT, 0, 0, 0, 0, G_GENERAL, "log more; twice: debug", 0},
    {OPT_LOG_FORMAT, "log-format", "", PROG_ALL, OPT_CHOICE, "text|json", "text", 0, 0, G_GENERAL,
     "form of log lines on stderr", 0},
    {OPT_LIST_DEVICES, "list-devices", "", PROG_RUN | PROG_SERVE | PROG_BENCH, OPT_FLAG, 0, 0, 0, 0, G_GENERAL,
     "list the devices and leave", 0},

    {OPT_MODEL, "model", "-m", LOADS, OPT_STRING, "FILE", 0, 0, 0, G_MODEL, "model file (GGUF)", 0},
    {OPT_CTX_SIZE, "ctx-size", "-c --max-model-len", PROG_RUN | PROG_SERVE | PROG_PROBE, OPT_INT, "N", "0", 0, I31,
     G_MODEL, "tokens that one request may hold, prompt and answer together; 0: the model's own, at most 4096", 0},
    {OPT_CTX_SIZE, "ctx-size", "-c --max-model-len", PROG_EVAL, OPT_INT, "N", "512", 8, 1 << 20, G_MODEL,
     "tokens of a window", 0},
    {OPT_CHAT_TEMPLATE, "chat-template", "", TALKS, OPT_STRING, "JINJA", 0, 0, 0, G_MODEL,
     "chat template to use instead of the model's", 0},
    {OPT_CHAT_TEMPLATE_FILE, "chat-template-file", "", TALKS, OPT_STRING, "FILE", 0, 0, 0, G_MODEL,
     "the same, from a file", 0},
    {OPT_LORA, "lora", "", LOADS, OPT_LIST, "PATH[:SCALE]", 0, 0, 0, G_MODEL, "adapter", ""},

    {OPT_DEVICE, "device", "-dev", LOADS, OPT_STRING, "ID[,ID…]", 0, 0, 0, G_PLACE,
     "devices to use, in the order of layers (infer-probe lists them); ref0 is the slow reference path", 0},
    {OPT_N_GPU_LAYERS, "n-gpu-layers", "-ngl --gpu-layers", LOADS, OPT_STRING, "N|auto|all", "auto", 0, 0, G_PLACE,
     "layers on accelerators", 0},
    {OPT_TENSOR_SPLIT, "tensor-split", "-ts", LOADS, OPT_STRING, "A,B…", 0, 0, 0, G_PLACE,
     "shares of the layers, one for each device", 0},
    {OPT_SPLIT_MODE, "split-mode", "-sm", LOADS, OPT_CHOICE, "layer|tensor", "layer", 0, 0, G_PLACE,
     "how a model is cut over devices (tensor is not built yet)", 0},
    {OPT_OVERRIDE_TENSOR, "override-tensor", "-ot", LOADS, OPT_LIST, "REGEX=DEVICE", 0, 0, 0, G_PLACE, "", ""},
    {OPT_CPU_MOE, "cpu-moe", "-cmoe", LOADS, OPT_FLAG, 0, 0, 0, 0, G_PLACE, "", ""},
    {OPT_N_CPU_MOE, "n-cpu-moe", "-ncmoe", LOADS, OPT_INT, "N", 0, 0, I31, G_PLACE, "", ""},
    {OPT_NO_KV_OFFLOAD, "no-kv-offload", "-nkvo", LOADS, OPT_FLAG, 0, 0, 0, 0, G_PLACE, "", ""},
    {OPT_PLAN, "plan", "", LOADS, OPT_STRING, "FILE", 0, 0, 0, G_PLACE, "", ""},
    {OPT_SAVE_PLAN, "save-plan", "", LOADS, OPT_STRING, "FILE", 0, 0, 0, G_PLACE, "", ""},
    {OPT_PARALLEL, "parallel", "-np --max-num-seqs", PROG_SERVE | PROG_PROBE, OPT_INT, "N", "8", 1, 65536, G_PLACE,
     "sequences that may run at once", 0},
    {OPT_PARALLEL, "parallel", "-np --max-num-seqs", PROG_RUN, OPT_INT, "N", "1", 1, 65536, G_PLACE,
     "sequences that the cache has room for", 0},
    {OPT_MAX_BATCHED_TOKENS, "max-num-batched-tokens", "-b --batch-size", LOADS, OPT_INT, "N", "512", 1, 1 << 20,
     G_PLACE, "tokens of one step", 0},
    {OPT_PREFILL_CHUNK, "prefill-chunk", "--long-prefill-token-threshold", ENGINE, OPT_INT, "N", "0", 0, I31, G_PLACE,
     "most prompt tokens of one request in a step; 0: the whole step", 0},
    {OPT_BLOCK_SIZE, "block-size", "", LOADS, OPT_INT, "N", "0", 0, 65536, G_PLACE,
     "tokens of a cache block; 0: what the devices prefer", 0},
    {OPT_CACHE_TYPE_K, "cache-type-k", "-ctk", LOADS, OPT_STRING, "TYPE", 0, 0, 0, G_PLACE,
     "type of cached keys: f32, f16, bf16, q8_0, q4_0, f8_e4m3 (default f16)", 0},
    {OPT_CACHE_TYPE_V, "cache-type-v", "-ctv", LOADS, OPT_STRING, "TYPE", 0, 0, 0, G_PLACE,
     "type of cached values (default f16)", 0},
    {OPT_KV_CACHE_DTYPE, "kv-cache-dtype", "", LOADS, OPT_STRING, "TYPE", 0, 0, 0, G_PLACE, "both of these", 0},
    {OPT_KV_CACHE_MEMORY, "kv-cache-memory", "", LOADS, OPT_BYTES, "BYTES", "0", 0, I53, G_PLACE,
     "bytes of cache over all devices (K, M and G may follow); 0: context times parallel, or what fits", 0},
    {OPT_MEMORY_UTILIZATION, "gpu-memory-utilization", "", LOADS, OPT_NUMBER, "X", "0.9", 0.01, 1, G_PLACE,
     "part of a device's memory that may be used", 0},
    {OPT_PREFIX_CACHING, "enable-prefix-caching", "!--no-enable-prefix-caching", LOADS, OPT_FLAG, 0, 0, 0, 0, G_PLACE,
     "", ""},
    {OPT_DETERMINISTIC, "deterministic", "", LOADS, OPT_FLAG, 0, 0, 0, 0, G_PLACE, "",
     "no accelerator to make so; results on cpu devices never depend on the batch"},
    {OPT_THREADS, "threads", "-t", LOADS, OPT_INT, "N", "0", 0, 4096, G_PLACE,
     "worker threads of the cpu backend; 0: one for each core", 0},
    {OPT_NUMA, "numa", "", LOADS, OPT_STRING, "MODE", 0, 0, 0, G_PLACE, "", ""},
    {OPT_BACKEND_PATH, "backend-path", "", LOADS, OPT_STRING, "DIR[:DIR…]", 0, 0, 0, G_PLACE,
     "more folders with backend modules", 0},
    {OPT_ALLOW_CPU_FALLBACK, "allow-cpu-fallback", "", LOADS, OPT_FLAG, 0, 0, 0, 0, G_PLACE,
     "run on the processor when an asked device is absent", 0},

    {OPT_PROMPT, "prompt", "-p", PROG_RUN, OPT_STRING, "TEXT", 0, 0, 0, G_TEXT, "prompt", 0},
    {OPT_FILE, "file", "-f", PROG_RUN, OPT_STRING, "FILE", 0, 0, 0, G_TEXT, "prompt from a file, - for standard input",
     0},
    {OPT_SYSTEM, "system", "-sys --system-prompt", PROG_RUN, OPT_STRING, "TEXT", 0, 0, 0, G_TEXT,
     "system message put before the conversation", 0},
    {OPT_RAW, "raw", "", PROG_RUN, OPT_FLAG, 0, 0, 0, 0, G_TEXT, "continue the prompt as it is, without chat template",
     0},
    {OPT_INTERACTIVE, "interactive", "-i", PROG_RUN, OPT_FLAG, 0, 0, 0, 0, G_TEXT,
     "chat; the default on a terminal without a prompt", 0},
    {OPT_JSON, "json", "", PROG_RUN, OPT_FLAG, 0, 0, 0, 0, G_TEXT,
     "print one JSON object: text, ids, prompt_ids, logprobs, timings, finish_reason", 0},
    {OPT_N_PREDICT, "n-predict", "-n --max-tokens", PROG_RUN, OPT_INT, "N", "-1", -1, I31, G_TEXT,
     "most tokens to make; -1: until the model ends or the context is full", 0},
    {OPT_LOGPROBS, "logprobs", "", PROG_RUN, OPT_INT, "K", 0, 0, 20, G_TEXT,
     "with --json: log-probabilities of each token and of its K likeliest alternatives", 0},
    {OPT_STOP, "stop", "", PROG_RUN, OPT_LIST, "TEXT", 0, 0, 0, G_TEXT,
     "end the answer before TEXT; may be given 16 times", 0},
    {OPT_IGNORE_EOS, "ignore-eos", "", PROG_RUN, OPT_FLAG, 0, 0, 0, 0, G_TEXT, "do not end at end tokens", 0},
    {OPT_TEMPERATURE, "temp", "--temperature", PROG_RUN, OPT_NUMBER, "T", "0.8", 0, 100, G_SAMPLE,
     "temperature; 0: always the likeliest token", 0},
    {OPT_TOP_K, "top-k", "", PROG_RUN, OPT_INT, "K", "40", 0, I31, G_SAMPLE, "only the K likeliest tokens; 0: all", 0},
    {OPT_TOP_P, "top-p", "", PROG_RUN, OPT_NUMBER, "P", "0.95", 0, 1, G_SAMPLE,
     "only the likeliest tokens that together reach probability P", 0},
    {OPT_MIN_P, "min-p", "", PROG_RUN, OPT_NUMBER, "P", "0.05", 0, 0.9999, G_SAMPLE,
     "only tokens with at least P times the likeliest one's probability", 0},
    {OPT_REPETITION_PENALTY, "repeat-penalty", "--repetition-penalty", PROG_RUN, OPT_NUMBER, "X", "1", 0.01, 100,
     G_SAMPLE, "divide the logits of tokens seen; 1: off", 0},
    {OPT_PRESENCE_PENALTY, "presence-penalty", "", PROG_RUN, OPT_NUMBER, "X", "0", -100, 100, G_SAMPLE,
     "subtract X from the logits of tokens made", 0},
    {OPT_FREQUENCY_PENALTY, "frequency-penalty", "", PROG_RUN, OPT_NUMBER, "X", "0", -100, 100, G_SAMPLE,
     "subtract X for each time that a token was made", 0},
    {OPT_SEED, "seed", "", PROG_RUN, OPT_INT, "N", 0, -I63, I63, G_SAMPLE,
     "random seed; the same seed gives the same answer (default: another each time)", 0},
    {OPT_SEED, "seed", "", PROG_SERVE, OPT_INT, "N", 0, -I63, I63, G_SERVER,
     "seed of requests that state none (default: another for each)", 0},
    {OPT_SEED, "seed", "", PROG_BENCH, OPT_INT, "N", "1", -I63, I63, G_BENCH, "seed of the random prompts", 0},

    {OPT_HOST, "host", "", PROG_SERVE, OPT_STRING, "ADDR", "127.0.0.1", 0, 0, G_SERVER,
     "address to listen on; a name that ends in .sock is a Unix socket", 0},
    {OPT_PORT, "port", "", PROG_SERVE, OPT_INT, "N", "8080", 0, 65535, G_SERVER, "port; 0: any free one", 0},
    {OPT_API_KEY, "api-key", "", PROG_SERVE, OPT_LIST, "KEY", 0, 0, 0, G_SERVER,
     "key that clients must show; may be given several times (others can see it: rather use a file)", 0},
    {OPT_API_KEY_FILE, "api-key-file", "", PROG_SERVE, OPT_STRING, "FILE", 0, 0, 0, G_SERVER,
     "file of keys, one a line", 0},
    {OPT_SERVED_MODEL_NAME, "served-model-name", "-a --alias", PROG_SERVE, OPT_STRING, "NAME", 0, 0, 0, G_SERVER,
     "the model's id for clients; requests for another are then refused (default: the file's name, and any is taken)",
     0},
    {OPT_METRICS, "metrics", "!--no-metrics", PROG_SERVE, OPT_FLAG, 0, "true", 0, 0, G_SERVER,
     "offer /metrics for Prometheus", 0},
    {OPT_METRICS_COMPAT, "metrics-compat", "", PROG_SERVE, OPT_CHOICE, "none|vllm", "none", 0, 0, G_SERVER,
     "also emit the metrics under another server's names", 0},
    {OPT_MAX_QUEUE, "max-queue", "", PROG_SERVE, OPT_INT, "N", "1024", 1, 1 << 20, G_SERVER,
     "requests that may wait; more are answered 429", 0},
    {OPT_MAX_BODY_SIZE, "max-body-size", "", PROG_SERVE, OPT_BYTES, "BYTES", "8M", 1024, 1 << 30, G_SERVER,
     "largest request body", 0},
    {OPT_DRAIN_TIMEOUT, "drain-timeout", "", PROG_SERVE, OPT_INT, "SECONDS", "30", 0, 86400, G_SERVER,
     "how long running requests may go on after SIGTERM or SIGINT", 0},

    {OPT_JSON, "json", "", PROG_PROBE, OPT_FLAG, 0, 0, 0, 0, G_PROBE, "print one JSON object", 0},
    {OPT_CHECK_MODEL, "check-model", "", PROG_PROBE, OPT_STRING, "FILE", 0, 0, 0, G_PROBE,
     "check a model file completely and leave: exit 0, or 5 with field and offset", 0},
    {OPT_MEASURE, "measure", "", PROG_PROBE, OPT_FLAG, 0, 0, 0, 0, G_PROBE, "", ""},
    {OPT_MACHINE, "machine", "", PROG_PROBE, OPT_STRING, "FILE", 0, 0, 0, G_PROBE, "", ""},

    {OPT_N_PROMPT, "n-prompt", "-p", PROG_BENCH, OPT_INTS, "N[,N…]", "512", 0, I31, G_BENCH,
     "prompt lengths to measure (ppN)", 0},
    {OPT_N_GEN, "n-gen", "-n", PROG_BENCH, OPT_INTS, "N[,N…]", "128", 0, I31, G_BENCH,
     "numbers of tokens to make (tgN)", 0},
    {OPT_N_DEPTH, "n-depth", "-d", PROG_BENCH, OPT_INTS, "N[,N…]", "0", 0, I31, G_BENCH,
     "tokens already in the context", 0},
    {OPT_PARALLEL_LIST, "parallel", "-np --max-num-seqs", PROG_BENCH, OPT_INTS, "N[,N…]", "1", 1, 65536, G_BENCH,
     "sequences at once", 0},
    {OPT_REPETITIONS, "repetitions", "-r", PROG_BENCH, OPT_INT, "N", "5", 1, 10000, G_BENCH, "times each is measured",
     0},
    {OPT_OUTPUT, "output", "-o", PROG_BENCH, OPT_CHOICE, "md|json|csv", "md", 0, 0, G_BENCH, "form of the table", 0},
    {OPT_WARMUP, "warmup", "!--no-warmup", PROG_BENCH, OPT_FLAG, 0, "true", 0, 0, G_BENCH,
     "run each test once before it is measured", 0},

    {OPT_FILE, "file", "-f", PROG_EVAL, OPT_STRING, "FILE", 0, 0, 0, G_EVAL, "text to read, - for standard input", 0},
    {OPT_CHUNKS, "chunks", "", PROG_EVAL, OPT_INT, "N", "-1", -1, I31, G_EVAL, "windows to evaluate; -1: all", 0},
    {OPT_JSON, "json", "", PROG_EVAL, OPT_FLAG, 0, 0, 0, 0, G_EVAL, "print one JSON object", 0},
    {OPT_SAVE_LOGITS, "save-logits", "", PROG_EVAL, OPT_STRING, "FILE", 0, 0, 0, G_EVAL,
     "write the logits of the counted positions, for kld --ref", 0},
    {OPT_REF, "ref", "", PROG_EVAL, OPT_STRING, "FILE", 0, 0, 0, G_EVAL, "kld: logits to compare with", 0},
    {OPT_REF_MODEL, "ref-model", "", PROG_EVAL, OPT_STRING, "FILE", 0, 0, 0, G_EVAL,
     "kld: model to compare with (default: the same)", 0},
    {OPT_REF_DEVICE, "ref-device", "", PROG_EVAL, OPT_STRING, "ID[,ID…]", 0, 0, 0, G_EVAL,
     "kld: devices of the model to compare with, such as ref0", 0},

    {OPT_BACKEND, "backend", "", PROG_CONFORM, OPT_STRING, "NAME", 0, 0, 0, G_CONFORM, "installed backend to test", 0},
    {OPT_PLUGIN, "plugin", "", PROG_CONFORM, OPT_STRING, "FILE", 0, 0, 0, G_CONFORM, "module file to test", 0},
    {OPT_DEVICE, "device", "-dev", PROG_CONFORM, OPT_STRING, "ID", 0, 0, 0, G_CONFORM,
     "device to test (default: the backend's first usable one)", 0},
    {OPT_BACKEND_PATH, "backend-path", "", PROG_CONFORM, OPT_STRING, "DIR[:DIR…]", 0, 0, 0, G_CONFORM,
     "more folders with backend modules", 0},
    {OPT_SET, "set", "", PROG_CONFORM, OPT_LIST, "KEY=VALUE", 0, 0, 0, G_CONFORM,
     "a setting of the backend; may be given several times", 0},
    {OPT_MAX_TIER, "max-tier", "", PROG_CONFORM, OPT_CHOICE, "T0|T1", "T1", 0, 0, G_CONFORM, "highest tier to run", 0},
    {OPT_CASE, "case", "", PROG_CONFORM, OPT_STRING, "PATTERN", 0, 0, 0, G_CONFORM,
     "run only cases whose name matches, such as 't1.rope.*'", 0},
    {OPT_SEED, "seed", "", PROG_CONFORM, OPT_INT, "N", "1", 0, I63, G_CONFORM, "seed of all random data", 0},
    {OPT_LISTS, "lists", "", PROG_CONFORM, OPT_STRING, "DIR", 0, 0, 0, G_CONFORM,
     "folder with exclusion lists BACKEND.never and BACKEND.notyet", 0},
    {OPT_JSON, "json", "", PROG_CONFORM, OPT_FLAG, 0, 0, 0, 0, G_CONFORM, "print one JSON object", 0},
};
const size_t opt_n_rows = sizeof opt_rows / sizeof opt_rows[0];
