/*
 * Runtime (devices), model files, plans, and models on devices. Part of the engine API.
 *
 *   infer_runtime   what devices there are                       one or more a process
 *   infer_file      a checked model file, metadata only          immutable, shared
 *   infer_plan      where its layers and cache will lie, with the exact memory ledger; made before anything is loaded
 *   infer_model     the weights on a plan
 *   infer_engine    requests on a model (engine.h)
 *
 * Every object is created and destroyed explicitly and outlives what is made from it. Unless a comment says otherwise a
 * function may be called from any thread, one at a time per object. Option structs start with struct_size; zero in any
 * other field means the default.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_MODEL_H
#define INFER_MODEL_H

#include <infer/backend.h>
#include <infer/error.h>
#include <infer/text.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Runtime ----------------------------------------------------------------------------------------------- */

typedef struct infer_runtime infer_runtime;

/* Whether a module is first loaded and probed in a process of its own, so that one that crashes or hangs there is left
 * out with its reason. */
#define INFER_MODULE_CHECK_DEFAULT 0u /* what the environment's INFER_MODULE_CHECK says, else cached */
#define INFER_MODULE_CHECK_CACHED  1u /* once for each file and boot of the machine; the verdict is kept */
#define INFER_MODULE_CHECK_ALWAYS  2u /* anew, and kept */
#define INFER_MODULE_CHECK_NEVER   3u

typedef struct infer_runtime_options {
    uint32_t struct_size;
    int32_t log_level; /* 0 errors … 3 debug */
    /* Receives one line a record, from any thread; NULL: silent. */
    void (*log)(void *user, int level, const char *area, const char *text);
    void *user;
    const char *backend_path;   /* extra module folders, colon-separated */
    const char *allow_backends; /* comma-separated names; NULL: all */
    const char *deny_backends;
    const char *machine;         /* hwloc XML file or "synthetic:…" instead of this machine's topology */
    const char *const *settings; /* n_settings strings "BACKEND.KEY=VALUE", such as "cpu.threads=2" */
    uint32_t n_settings;
    uint32_t validate;       /* check every call to a plugin */
    uint32_t module_check;   /* INFER_MODULE_CHECK_* */
    const char *trace_calls; /* file that gets a line for each call to a plugin (PORTING.md), or NULL */
    /* 1: a request's results do not depend on what runs with it: backends get the setting "deterministic" as "1", and
     * plans leave an op to the host where the device cannot say so of it. */
    uint32_t deterministic;
} infer_runtime_options;

/* Reads the machine's topology and loads the backends (no device is touched). INFER_E_INVALID: a setting is not
 * "BACKEND.KEY=VALUE". A module that does not load is a row with its reason, not an error. */
INFER_API infer_status infer_runtime_create(const infer_runtime_options *opt, infer_runtime **out, infer_error *err);
INFER_API void infer_runtime_destroy(infer_runtime *rt);

typedef struct infer_backend_row {
    const char *name, *path, *version, *vendor;
    uint32_t abi_major, abi_minor;
    infer_status status; /* not OK: it did not load, and why */
    const char *reason;
} infer_backend_row;
/* Backends found, loaded or not. INFER_E_INVALID: no such row. Strings are borrowed from the runtime. */
INFER_API uint32_t infer_runtime_n_backends(const infer_runtime *rt);
INFER_API infer_status infer_runtime_backend(const infer_runtime *rt, uint32_t i, infer_backend_row *out);

typedef struct infer_device_row {
    const char *id;      /* "cpu0" */
    const char *backend; /* "cpu" */
    const infer_device_info *info;
    const char *same_as; /* id of the preferred row for the same physical device, or NULL */
} infer_device_row;
/* Probes on first use. Strings are borrowed from the runtime. */
INFER_API infer_status infer_runtime_probe(infer_runtime *rt, infer_error *err);
INFER_API uint32_t infer_runtime_n_devices(const infer_runtime *rt);
INFER_API infer_status infer_runtime_device(const infer_runtime *rt, uint32_t i, infer_device_row *out);

/* What only an opened device knows (opens and closes it). Ops that it refuses for lack of code are listed in
 * `refused`, comma-separated op names, owned (infer_text_free); may be NULL. */
typedef struct infer_device_detail {
    infer_device_props props;
    infer_heap_info heap;
    infer_heap_stats stats;
    char *refused;
} infer_device_detail;
INFER_API infer_status infer_runtime_device_detail(infer_runtime *rt, const char *id, infer_device_detail *out,
                                                   infer_error *err);

/* A format's lower-case name ("q4_0", "bf16"), NULL for an unknown id. Static. Any thread. */
INFER_API const char *infer_format_name(infer_format format);

/* Facts of the machine from hwloc as one JSON object, owned (infer_text_free). */
INFER_API infer_status infer_runtime_topology_json(const infer_runtime *rt, char **json, infer_error *err);

/* ---- Model files ------------------------------------------------------------------------------------------- */

typedef struct infer_file infer_file;

/* Opens and checks a model file completely: header, metadata, tensor table, architecture, tensor shapes. A wrong file
 * is INFER_E_BAD_FILE with field and offset; an architecture, tokenizer or tensor type not known INFER_E_UNSUPPORTED by
 * name. */
INFER_API infer_status infer_file_open(const char *path, infer_file **out, infer_error *err);
INFER_API void infer_file_destroy(infer_file *f);

typedef struct infer_file_info {
    const char *path, *arch, *name; /* name: general.name or the file's */
    const char *type;               /* such as "Q4_1" or "mixed": the commonest type among matrices, upper case */
    uint64_t bytes, tensor_bytes, n_params;
    uint32_t n_tensors, n_layers, n_vocab, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_experts, n_experts_used;
    uint32_t n_ctx_train;
} infer_file_info;
/* Strings are borrowed from the file. */
INFER_API void infer_file_get_info(const infer_file *f, infer_file_info *out);
/* Made on first use, owned by the file. */
INFER_API infer_status infer_file_tokenizer(infer_file *f, const infer_tokenizer **out, infer_error *err);
/* The tokenizer of a GGUF file alone, owned by the caller (infer_tokenizer_destroy): of the rest of the file only the
 * container is checked, so that its architecture need not be known. Errors as for infer_file_open. */
INFER_API infer_status infer_tokenizer_open(const char *path, infer_tokenizer **out, infer_error *err);

/* What a GGUF file says for chats: the source of its chat template and of the one named "tool_use", and the texts of
 * BOS and EOS. Owned, NUL-terminated, with their lengths; NULL where the file has none. */
typedef struct infer_chat_source {
    char *source, *tool_use, *bos, *eos;
    size_t source_n, tool_use_n, bos_n, eos_n;
} infer_chat_source;
/* Of the rest of the file only the container is checked, as by infer_tokenizer_open. */
INFER_API infer_status infer_chat_source_open(const char *path, infer_chat_source *out, infer_error *err);
INFER_API void infer_chat_source_free(infer_chat_source *s);
/* The source of the file's chat template, or of the named one; NULL: none. Borrowed; *n its length. */
INFER_API const char *infer_file_chat_template(const infer_file *f, const char *name, size_t *n);

/* ---- Plans ------------------------------------------------------------------------------------------------- */

typedef struct infer_plan infer_plan;

typedef struct infer_plan_options {
    uint32_t struct_size;
    uint32_t ctx_size;           /* tokens a request may hold; 0: the model's, at most 4096 */
    uint32_t n_parallel;         /* sequences that may run at once; 0: 8 */
    uint32_t max_batched_tokens; /* rows of a step; 0: 512 */
    uint32_t max_logit_rows;     /* rows whose logits a step may give; at least n_parallel, also for 0 */
    uint32_t block_size;         /* tokens a cache block; 0: what the devices prefer */
    uint32_t n_gpu_layers_set;   /* 1: n_gpu_layers holds */
    int32_t n_gpu_layers;        /* layers on accelerators; -1: all */
    const char *devices;      /* "cpu0,sim0": ids in the order of layers; NULL: chosen. "ref0" is the reference path */
    const char *tensor_split; /* "3,1": shares of layers, one a device; NULL: by what fits */
    /* "f16" (default, also "auto"), "f32", "bf16", "f8_e4m3" ("fp8"), "q8_0" ("int8"), "q4_0" ("int4"); any case. Heads
     * must be whole blocks of 32 for the last two: else INFER_E_INVALID. */
    const char *cache_type_k, *cache_type_v;
    uint64_t kv_cache_memory;  /* bytes of KV over all devices; 0: ctx_size x n_parallel tokens, or what fits */
    double memory_utilization; /* of a device's budget that may be used; 0: 0.9 */
    uint32_t allow_cpu_fallback;
    uint32_t measure; /* 1: infer_plan_json times the ops that run on the host for a device that refuses them */
    /* Matrices of the blocks (not the tables of tokens, experts' router, norms) are recoded when they are loaded: "fp8"
     * (f8_e4m3, a scale a row), "int8" (q8_0), "int4" (u4 with a zero point, groups of 128). NULL: as the file has
     * them. From f32, f16 and bf16 only: else INFER_E_INVALID by name. */
    const char *quantization;
} infer_plan_options;

/* Decides and accounts; loads nothing. INFER_E_NO_DEVICE, INFER_E_NO_FIT (the text has the smallest change that would
 * fit), INFER_E_INVALID (an option). */
INFER_API infer_status infer_plan_create(infer_runtime *rt, infer_file *f, const infer_plan_options *opt,
                                         infer_plan **out, infer_error *err);
INFER_API void infer_plan_destroy(infer_plan *p);
/* {stages[], ledger[], predicted{}, reasons[], fallbacks[], kv{}} as one JSON object, owned (infer_text_free). A row of
 * fallbacks[] is an op that runs on the host for a device that refuses it for one reason: device, op, count (times a
 * step), reason, and of one token of one sequence: moves and bytes_moved (values that cross for it), time_us (null: not
 * known) and time_basis. */
INFER_API infer_status infer_plan_json(const infer_plan *p, char **json, infer_error *err);

/* ---- Models ------------------------------------------------------------------------------------------------ */

typedef struct infer_model infer_model;

/* Loads the weights as planned. progress (may be NULL) is called from the calling thread with bytes done and total.
 * The plan and file may be destroyed afterwards only when the model is. */
INFER_API infer_status infer_model_load(infer_plan *p, void (*progress)(void *user, uint64_t done, uint64_t total),
                                        void *user, infer_model **out, infer_error *err);
INFER_API void infer_model_destroy(infer_model *m);
/* The file that it was loaded from, borrowed. */
INFER_API infer_file *infer_model_file(const infer_model *m);

/* Bytes booked on the model's devices now, against the plan's ledger. */
typedef struct infer_memory_row {
    char device[32];
    char kind[16]; /* "weights", "kv", "activations", "workspace", "adapters", "context", "reserve" */
    uint64_t planned, booked;
} infer_memory_row;
/* Writes up to cap rows, returns how many there are. */
INFER_API uint32_t infer_model_memory(const infer_model *m, infer_memory_row *rows, uint32_t cap);

#ifdef __cplusplus
}
#endif
#endif
