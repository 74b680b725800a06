/*
 * Mutants of a right backend: sim with one mistake, made from tables (op x kind, storage format x kind, slot x kind).
 * For the test of the conformance kit; one at a time in a process. SPDX-License-Identifier: Apache-2.0
 */
#ifndef INFER_MUTANT_H
#define INFER_MUTANT_H

#include <infer/backend.h>

#define MUTANT_MAX 1024u

typedef struct infer_mutant {
    char name[48];
    uint32_t tier;    /* that is to find it */
    char only[48];    /* pattern of the cases that are to find it */
    const char *what; /* the mistake in words */
    uint32_t group;   /* MUTANT_* below */
    uint32_t target;  /* op, format row, or slot mistake */
    uint32_t kind;
    uint32_t arg;
} infer_mutant;

enum { MUTANT_OP, MUTANT_FORMAT, MUTANT_FLOW, MUTANT_SLOT };

/* All mutants, in a fixed order; their number. The array is the module's. */
uint32_t infer_mutants(const infer_mutant **out);
/* The next backend that infer_mutant_query gives is this mutant (NULL: right). Clears the count of changes. */
void infer_mutant_choose(const infer_mutant *m);
/* How often the mistake really changed something since it was chosen: results, answers, effects of a call. */
uint64_t infer_mutant_changes(void);
const infer_plugin_desc *infer_mutant_query(const infer_host *host, const infer_abi_range *range);

/* ---- Between the files ------------------------------------------------------------------------------------ */

extern const infer_mutant *mutant_chosen; /* NULL: right */
extern infer_backend_ops mutant_inner;    /* sim's */
void mutant_changed(void);
/* Whether the chosen mutant is this slot mistake. */
int mutant_is(uint32_t slot_mistake);
uint32_t mutant_slots_list(infer_mutant *out, uint32_t cap);
void mutant_slots_install(infer_backend_ops *t);
const infer_host *mutant_host(const infer_host *given); /* the services as the mutated backend sees them */
void mutant_host_slots(infer_host *h, const infer_host *given);
void mutant_prog_install(infer_backend_ops *t);
/* Ops that read too early (mutant_early.c): at submission, after which early_submitted or early_dropped is called; and
 * when the op runs, for its operands and counts as they were then. */
int mutant_early(void);
void mutant_early_read(infer_queue *q, const infer_op_desc *op, const infer_op_args *args);
void mutant_early_submitted(infer_status s);
infer_status mutant_early_run(const infer_host *real, const infer_op_desc *op, void *const *data,
                              const int32_t *counts);

/* id, tier, pattern, what */
#define MUTANT_SLOTS(X)                                                                                                \
    X(buf_alloc_over, 0, "t0.mem.*", "buf_alloc: what does not fit gets a smaller buffer")                             \
    X(buf_alloc_zero, 0, "t0.mem.zero", "buf_alloc: zero bytes are allocated")                                         \
    X(buf_alloc_writes, 0, "t0.mem.*", "buf_alloc: a failure writes the output")                                       \
    X(buf_free_kept, 0, "t0.*", "buf_free: memory stays taken")                                                        \
    X(stats_ours, 0, "t0.heaps.*", "dev_heap_stats: own buffers are not counted")                                      \
    X(stats_heap, 0, "t0.heaps.*", "dev_heap_stats: any heap number is answered")                                      \
    X(heaps_count, 0, "t0.heaps.*", "dev_heaps: another number with room for none")                                    \
    X(heaps_align, 0, "t0.heaps.*", "dev_heaps: align is no power of two")                                             \
    X(props_size, 0, "t0.props.*", "dev_props: the whole struct into a shorter one")                                   \
    X(props_align, 0, "t0.props.*", "dev_props: buffer_align is no power of two")                                      \
    X(probe_count, 0, "t0.probe.*", "probe: another number with room for none")                                        \
    X(probe_index, 0, "t0.probe.*", "probe: two devices of one index")                                                 \
    X(open_index, 0, "t0.open.*", "dev_open: any index opens the first device")                                        \
    X(open_leak, 0, "t0.open.*", "dev_open: a block of host memory is lost")                                           \
    X(wait_ignored, 0, "t0.queue.*", "queue_wait: nothing waits")                                                      \
    X(wait_less, 0, "t0.queue.*", "queue_wait: for one less")                                                          \
    X(signal_early, 0, "t0.tl.*", "queue_signal: before a large copy is done")                                         \
    X(signal_past, 0, "t0.tl.*", "queue_signal: one more than asked")                                                  \
    X(copy_tail, 0, "t0.copy.*", "cmd_copy: bytes beyond whole words are lost")                                        \
    X(copy_more, 0, "t0.copy.*", "cmd_copy: one byte more")                                                            \
    X(copy_src_pitch, 0, "t0.copy.*", "cmd_copy: the source's pitch on both sides")                                    \
    X(copy_dst_pitch, 0, "t0.copy.*", "cmd_copy: the destination's pitch on both sides")                               \
    X(copy_rows, 0, "t0.copy.*", "cmd_copy: the last row is missing")                                                  \
    X(copy_src_offset, 0, "t0.copy.*", "cmd_copy: the source's offset is left out")                                    \
    X(copy_dst_offset, 0, "t0.copy.*", "cmd_copy: offsets in words")                                                   \
    X(copy_list, 0, "t0.copy.*", "cmd_copy: at most 1000 regions")                                                     \
    X(copy_first, 0, "t0.copy.*", "cmd_copy: the first region only")                                                   \
    X(copy_last, 0, "t0.copy.*", "cmd_copy: all but the last of several regions")                                      \
    X(fill_byte, 0, "t0.fill.*", "cmd_fill: patterns of one byte only")                                                \
    X(fill_short, 0, "t0.fill.*", "cmd_fill: the last pattern is missing")                                             \
    X(fill_long, 0, "t0.fill.*", "cmd_fill: one pattern too many")                                                     \
    X(fill_offset, 0, "t0.fill.*", "cmd_fill: from an offset in words")                                                \
    X(query_first, 0, "t0.query.*", "op_query: only the first of a batch")                                             \
    X(query_unknown, 0, "t0.query.*", "op_query: an unknown op is taken")                                              \
    X(query_bits, 0, "t0.query.*", "op_query: must-understand bits are not looked at")                                 \
    X(query_revision, 0, "t0.query.*", "op_query: the revision is not looked at")                                      \
    X(query_reason, 1, "t1.scale.*", "op_query: NO without a reason")                                                  \
    X(query_scratch, 1, "t1.matmul.*", "op_query: asks for less scratch than is used")                                 \
    X(query_epilogue, 1, "t1.matmul.*", "op_query: promises epilogues that are not done")                              \
    X(query_estimate, 1, "t1.add.*", "op_query: an estimate that is no number")                                        \
    X(op_dropped, 1, "t1.*", "cmd_op: every 20th is lost")                                                             \
    X(early_counts, 1, "t1.*.late", "cmd_op: the step counts as they are when it is submitted")                        \
    X(early_input, 1, "t1.*.late", "cmd_op: the first input as it is when it is submitted")                            \
    X(early_index, 1, "t1.*.late", "cmd_op: the first index operand as it is when it is submitted")                    \
    X(early_unwaited, 1, "t1.*.late", "cmd_op: counts at submission, on queues that cannot wait for the host")         \
    X(props_formats, 2, "t2.*.claim", "dev_props: a format that nothing takes")                                        \
    X(plan_unsteady, 2, "t2.q8_0.*", "weight_plan: another answer each time")                                          \
    X(plan_short, 2, "t2.q4_0.*", "weight_plan: an image shorter than what is packed")                                 \
    X(append_piece, 2, "t2.q8_0.*", "weight_append: only the first piece is packed")                                   \
    X(append_tail, 2, "t2.q8_0.*", "weight_append: a piece's bytes beyond whole blocks are lost")                      \
    X(append_small, 2, "t2.q4_k.*", "weight_append: pieces under 16 bytes are lost")                                   \
    X(append_swap, 2, "t2.q6_k.*", "weight_append: bytes of a word in the other order")                                \
    X(image_place, 2, "t2.*.moved", "weights: the image is found where it was packed, not where it is bound")          \
    X(begin_shard, 2, "t2.*.shards", "weights: a part along columns is packed as one along rows")                      \
    X(kv_bytes, 3, "t3.*", "kv_query: half the bytes of a block")                                                      \
    X(kv_multiple, 3, "t3.f16.*", "kv_query: no block_multiple")                                                       \
    X(kv_best, 3, "t3.f16.*", "kv_query: block_best is no multiple")                                                   \
    X(kv_plane, 3, "t3.attn.widths", "kv_query: the second plane has the first one's bytes")                           \
    X(prog_rebind, 4, "t4.*", "prog_update: nothing changes")                                                          \
    X(prog_rebind_first, 4, "t4.*", "prog_update: the operands of the first node only")                                \
    X(prog_all_execs, 4, "t4.*", "prog_update or instantiate: the newest ranges for all instances")                    \
    X(prog_skip, 4, "t4.*", "prog_submit: every 50th run is lost")                                                     \
    X(prog_twice, 4, "t4.*", "prog_submit: every 50th run is done twice")                                              \
    X(prog_counts, 4, "t4.*", "programs: the step counts of the first run for ever")                                   \
    X(prog_input, 4, "t4.*", "programs: the inputs of the first run for ever")                                         \
    X(prog_order, 4, "t4.*", "programs: the last two nodes in the other order")                                        \
    X(prog_last, 4, "t4.*", "programs: the last node is missing")                                                      \
    X(prog_bucket, 4, "t4.*", "programs: what was built first for every capacity")                                     \
    X(prog_load_any, 4, "t4.*", "prog_load: bytes that are not whole are taken")                                       \
    X(prog_load_other, 4, "t4.*", "prog_load: a program that lacks its last node")                                     \
    X(prog_save_none, 4, "t4.*", "prog_save: OK without bytes")                                                        \
    X(claim_range, 4, "t4.*", "prog_claim: set numbers below -1")                                                      \
    X(claim_unsteady, 4, "t4.*", "prog_claim: other sets each time")                                                   \
    X(edge_native, 5, "t5.*", "dev_edge: native, but peers' buffers are not reached")                                  \
    X(edge_import, 5, "t5.*", "dev_edge: by import, without the slots")                                                \
    X(edge_figures, 5, "t5.*", "dev_edge: a rate that is no number")                                                   \
    X(wait_foreign, 5, "t5.*", "queue_wait: another device's timeline is not waited for")                              \
    X(second_copies, 5, "t5.*", "cmd_copy: on the second device one byte less")                                        \
    X(second_op, 5, "t5.*", "cmd_op: lost on the second device")                                                       \
    X(comm_rank, 5, "t5.*", "collectives: each rank has its own data only")                                            \
    X(comm_swap, 5, "t5.*", "collectives: ranks in the other order")                                                   \
    X(alloc_leak, 6, "t6.alloc.*", "buf_alloc: a refused allocation loses a block")                                    \
    X(alloc_status, 6, "t6.alloc.*", "queue_create: no host memory is called a lost queue")                            \
    X(alloc_output, 6, "t6.alloc.*", "dev_open: a failure writes the output")                                          \
    X(op_allocates, 6, "t6.alloc.*", "cmd_op: takes host memory each time")                                            \
    X(close_leak, 6, "t6.*", "queue_destroy: its memory is lost when buffers are still there")                         \
    X(failed_wait, 6, "t6.timeline.*", "a queue goes past a wait on a timeline that failed")                           \
    X(full_fill, 6, "t6.heap.*", "cmd_fill: lost while the heap is full")

enum {
#define X(id, tier, only, what) MUT_##id,
    MUTANT_SLOTS(X)
#undef X
        MUT_N
};

#endif
