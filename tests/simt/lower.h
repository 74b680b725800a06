/* From an op's descriptor to launches of the CUDA kernels in the emulation, as a host would do it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef SIMT_LOWER_H
#define SIMT_LOWER_H

#include <infer/ops.h>

/* How ops are cut, where there is a choice. */
struct lower_how {
    int rows;     /* of a product's kernel: 1 2 4 8; 0: tiles */
    int tile_f16; /* tiles in f16, else in bf16 */
    int fused;    /* QKV and gate with up in one launch each, K and V in one */
    int split;    /* keys of a part of attention */
    int parts;    /* attention through scratch, this many blocks in x; 0: blocks walk */
    int heads;    /* at most this many query heads a block (1 2 4 8) */
    int threads;  /* of row reductions and attention */
    int few;      /* attention by the kernels for few rows, 4 * few queries at once; blocks: parts, spans: split */
    int many;     /* with few: sequences of so many rows and more by the kernel for many; 0: none */
};

/* data[i]: base and offset of operand i. 0: the kernels do not take this op. */
struct lower_place {
    unsigned char *base;
    uint64_t off;
};
int lower_run(const infer_op_desc *op, const lower_place *data, const lower_place *counts, const lower_how *how);

#endif
