/* The engine API's objects below requests, as core/model and core/sched see them. SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_MODEL_PRIVATE_H
#define INFER_MODEL_PRIVATE_H

#include <pthread.h>

#include <infer/model.h>

#include "graph/graph.h"
#include "hal/hal.h"
#include "kv/kv.h"
#include "model/arch.h"

struct infer_runtime {
    infer_hal *hal;
    char **settings; /* "backend.key=value", owned */
    uint32_t n_settings;
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
    int in_place;
    uint32_t part;   /* in place: which file part */
    uint64_t offset; /* in the device's weight buffer, or in the part */
} infer_weight_inst;

typedef struct infer_plan_dev {
    infer_hal_dev *dev;
    uint64_t budget;
    uint64_t ledger[INFER_LEDGER_KINDS];
    uint64_t mapped;     /* bytes of the file bound in place */
    int32_t first, last; /* layers [first, last) at home here */
    infer_kv_layout kv;  /* n_layers 0: no cache here */
    infer_kv_answer kv_answer;
    int kv_ok;
} infer_plan_dev;

struct infer_plan {
    infer_runtime *rt;
    infer_file *file;
    infer_plan_options opt; /* with defaults filled in; strings not kept */
    infer_plan_dev devs[INFER_GRAPH_MAX_DEVS];
    uint32_t n_devs;                    /* the last one is the host's reference device where `target.host` says so */
    int32_t *home, *kv_home, *kv_index; /* kv_index[layer]: its number among the layers cached on kv_home */
    infer_graph_target target;
    infer_graph graph;
    infer_compiled compiled;
    infer_decoder_options dec;
    infer_decoder_outputs out;
    infer_weight_inst *insts;
    uint32_t n_insts, cap_insts;
    uint32_t block_size, n_blocks;
    uint64_t stage_bytes; /* host staging */
    char reasons[16][192];
    uint32_t n_reasons;
};

struct infer_model {
    infer_plan *plan;
    infer_hal_buf packed[INFER_GRAPH_MAX_DEVS];    /* one a device */
    infer_hal_buf parts[INFER_GRAPH_MAX_DEVS][16]; /* file parts bound in place */
};

#define INFER_MODEL_MAX_PARTS 16u

/* Entries of a step's bias list that one sampled row may take: what its request asks for, and ids forbidden before
 * min_tokens. */
#define INFER_MAX_BIAS     300u
#define INFER_MAX_STOP_IDS 256u
#define INFER_MAX_END_IDS  64u
#define INFER_ROW_BIAS     (INFER_MAX_BIAS + INFER_MAX_STOP_IDS + INFER_MAX_END_IDS)

/* The instance of a weight on a device that serves op `use`; planned (one hal query) on first need. */
infer_status infer_plan_weight(infer_plan *p, int32_t dev, uint64_t ref, infer_op_id use, infer_weight_inst **out,
                               infer_error *err);
/* Fills slot ranges (weights) and callbacks of a binding for one device of a loaded model. */
infer_status infer_model_bind(infer_model *m, int32_t dev, infer_graph_binding *b, infer_error *err);

#endif
