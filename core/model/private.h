/* The engine API's objects below requests, as core/model and core/sched see them. SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_MODEL_PRIVATE_H
#define INFER_MODEL_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include <infer/model.h>

#include "graph/graph.h"
#include "hal/hal.h"
#include "kv/kv.h"
#include "model/arch.h"

#define INFER_MODEL_MAX_PARTS 16u

struct infer_runtime {
    infer_hal *hal;
    char **settings; /* "backend.key=value", owned */
    uint32_t n_settings;
    _Atomic uint8_t *asked; /* for each: its backend has read it, or that it does not was said */
    int deterministic;
};

struct infer_file {
    infer_gguf *gguf;
    infer_hparams hp;
    infer_weight_list weights;
    char *path, *name, *type;
    uint64_t tensor_bytes, n_params;
    pthread_mutex_t lock; /* tokenizer is made on first use */
    infer_tokenizer *tokenizer;
};

/* One weight as it will lie on one device. */
typedef struct infer_weight_inst {
    int32_t dev;
    uint32_t ref;
    infer_op_id use; /* the op it was planned for */
    infer_weight_plan plan;
    int in_place, used;
    uint32_t part;   /* in place: which file part */
    uint64_t offset; /* in the device's weight buffer, or in the part */
    int32_t shares;  /* an earlier instance that is the same image, -1: none */
    int32_t next;    /* of the same weight on the same device, -1: none */
} infer_weight_inst;

typedef struct infer_plan_dev {
    infer_hal_dev *dev;
    uint64_t budget;
    uint64_t ledger[INFER_LEDGER_KINDS];
    uint64_t mapped;    /* bytes of the file bound in place */
    infer_kv_layout kv; /* n_layers 0: no cache here */
    infer_kv_answer kv_answer;
    uint64_t block_bytes[4];          /* of a block of one layer, by plane */
    uint64_t step_bytes, state_bytes; /* of its step block and of the sampler's state, 0: none here */
} infer_plan_dev;

struct infer_plan {
    infer_runtime *rt;
    infer_file *file;
    infer_plan_options opt; /* with defaults filled in; strings not kept */
    infer_plan_dev devs[INFER_GRAPH_MAX_DEVS];
    uint32_t n_devs, n_asked;           /* those asked for come first; then, perhaps, the host's reference device */
    int32_t *home, *kv_home, *kv_index; /* kv_index[layer]: its number among the layers cached on kv_home */
    uint32_t *kv_layout;                /* of each layer's planes */
    infer_graph_target target;
    infer_graph graph;
    infer_compiled compiled;
    infer_decoder_options dec;
    infer_decoder_outputs out;
    infer_quant recode; /* of weights that are recoded; format NONE: none are */
    infer_weight_inst *insts;
    uint32_t n_insts, cap_insts;
    int32_t *inst_of; /* [dev * weights + ref]: the newest instance, -1: none */
    uint32_t block_size, n_blocks;
    uint64_t block_limit; /* at most so many blocks, 0: no limit */
    int32_t sampler;      /* the device that runs it */
    uint64_t stage_bytes; /* host staging */
    char reasons[16][192];
    uint32_t n_reasons;
};

struct infer_model {
    infer_plan *plan;
    infer_hal_buf packed[INFER_GRAPH_MAX_DEVS];                        /* one a device */
    infer_hal_buf parts[INFER_GRAPH_MAX_DEVS][INFER_MODEL_MAX_PARTS];  /* file parts bound in place */
    _Atomic uint64_t booked[INFER_GRAPH_MAX_DEVS][INFER_LEDGER_KINDS]; /* by this model and its engine */
};

/* Entries of a step's bias list that one sampled row may take: what its request asks for, and ids forbidden before
 * min_tokens. */
#define INFER_MAX_BIAS     300u
#define INFER_MAX_STOP_IDS 256u
#define INFER_MAX_END_IDS  64u
#define INFER_ROW_BIAS     (INFER_MAX_BIAS + INFER_MAX_STOP_IDS + INFER_MAX_END_IDS)

/* The instance of a weight on a device that serves op `use`, NULL: the plan has none. */
infer_weight_inst *infer_plan_weight(const infer_plan *p, int32_t dev, uint64_t ref, infer_op_id use);
/* What an instance is made from: where it is recoded (infer_plan_recodes), what that gives. */
void infer_plan_weight_source(const infer_plan *p, const infer_weight_inst *x, infer_weight_desc *d);
/* Whether weight `ref` is recoded while it is loaded. */
int infer_plan_recodes(const infer_plan *p, uint32_t ref);
/* Loads such a weight: rows of the file to floats to codes, a few at a time. Any thread. */
infer_status infer_plan_load_recoded(const infer_plan *p, const infer_weight_inst *x, const infer_weight_desc *d,
                                     const infer_range *dst, infer_error *err);
/* infer_graph_target.weight_desc of a plan: makes the instance (one hal query) on first need. */
infer_status infer_plan_weight_desc(void *user, int32_t dev, uint64_t ref, infer_op_id use, infer_tensor_desc *desc,
                                    infer_error *err);
/* Device memory of a model, booked by device and kind; a size of 0 gives no buffer. */
infer_status infer_model_alloc(infer_model *m, uint32_t dev, uint64_t bytes, infer_ledger_kind kind, infer_hal_buf *out,
                               infer_error *err);
void infer_model_free(infer_model *m, uint32_t dev, infer_hal_buf *b);
/* Fills slot ranges (weights) and callbacks of a binding for one device of a loaded model. */
infer_status infer_model_bind(infer_model *m, int32_t dev, infer_graph_binding *b, infer_error *err);

/* A JSON string (jansson's json_t) of text from outside, ill-formed UTF-8 as U+FFFD; NULL without memory. */
struct json_t *infer_json_text(const char *s);

#endif
