/*
 * The plugin interface's layout, as numbers: the place of every field of every struct and of every slot, and all sizes.
 * A change that moves something does not compile; one that appends adds lines here (tools/abi-check.py --write). Holds
 * assertions only.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stddef.h>

#include <infer/backend.h>

#define SIZE(type, bytes)          _Static_assert(sizeof(type) == (bytes), "size of " #type)
#define FIELD(type, field, offset) _Static_assert(offsetof(type, field) == (offset), "place of " #type "." #field)

_Static_assert(sizeof(void *) == 8, "the interface is defined for 64-bit processes");

/* ---- quant.h ---- */

SIZE(infer_quant, 24);
FIELD(infer_quant, format, 0);
FIELD(infer_quant, scale_format, 4);
FIELD(infer_quant, zero_format, 8);
FIELD(infer_quant, zero_value, 12);
FIELD(infer_quant, group_n, 16);
FIELD(infer_quant, group_k, 20);

/* ---- ops.h ---- */

SIZE(infer_ext, 16);
FIELD(infer_ext, id, 0);
FIELD(infer_ext, size, 4);
FIELD(infer_ext, next, 8);

SIZE(infer_tensor_desc, 104);
FIELD(infer_tensor_desc, format, 0);
FIELD(infer_tensor_desc, rank, 4);
FIELD(infer_tensor_desc, layout, 8);
FIELD(infer_tensor_desc, flags, 12);
FIELD(infer_tensor_desc, shape, 16);
FIELD(infer_tensor_desc, stride, 48);
FIELD(infer_tensor_desc, quant, 80);

SIZE(infer_attrs_scale, 16);
FIELD(infer_attrs_scale, struct_size, 0);
FIELD(infer_attrs_scale, scale, 4);
FIELD(infer_attrs_scale, bias, 8);
FIELD(infer_attrs_scale, reserved, 12);

SIZE(infer_attrs_act, 16);
FIELD(infer_attrs_act, struct_size, 0);
FIELD(infer_attrs_act, act, 4);
FIELD(infer_attrs_act, limit, 8);
FIELD(infer_attrs_act, act_format, 12);

SIZE(infer_attrs_norm, 16);
FIELD(infer_attrs_norm, struct_size, 0);
FIELD(infer_attrs_norm, eps, 4);
FIELD(infer_attrs_norm, weight_offset, 8);
FIELD(infer_attrs_norm, reserved, 12);

SIZE(infer_attrs_matmul, 16);
FIELD(infer_attrs_matmul, struct_size, 0);
FIELD(infer_attrs_matmul, act_format, 4);
FIELD(infer_attrs_matmul, scale, 8);
FIELD(infer_attrs_matmul, reserved, 12);

SIZE(infer_attrs_route, 24);
FIELD(infer_attrs_route, struct_size, 0);
FIELD(infer_attrs_route, k, 4);
FIELD(infer_attrs_route, scoring, 8);
FIELD(infer_attrs_route, normalise, 12);
FIELD(infer_attrs_route, scale, 16);
FIELD(infer_attrs_route, reserved, 20);

SIZE(infer_attrs_rope, 40);
FIELD(infer_attrs_rope, struct_size, 0);
FIELD(infer_attrs_rope, kind, 4);
FIELD(infer_attrs_rope, n_dims, 8);
FIELD(infer_attrs_rope, magnitude, 12);
FIELD(infer_attrs_rope, n_pos, 16);
FIELD(infer_attrs_rope, section, 20);
FIELD(infer_attrs_rope, reserved, 36);

SIZE(infer_attrs_kv, 40);
FIELD(infer_attrs_kv, struct_size, 0);
FIELD(infer_attrs_kv, layout, 4);
FIELD(infer_attrs_kv, k_format, 8);
FIELD(infer_attrs_kv, v_format, 12);
FIELD(infer_attrs_kv, n_kv_heads, 16);
FIELD(infer_attrs_kv, k_width, 20);
FIELD(infer_attrs_kv, v_width, 24);
FIELD(infer_attrs_kv, block_size, 28);
FIELD(infer_attrs_kv, n_blocks, 32);

SIZE(infer_attrs_rope_kv, 88);
FIELD(infer_attrs_rope_kv, struct_size, 0);
FIELD(infer_attrs_rope_kv, reserved, 4);
FIELD(infer_attrs_rope_kv, rope, 8);
FIELD(infer_attrs_rope_kv, kv, 48);

SIZE(infer_attrs_attn, 72);
FIELD(infer_attrs_attn, struct_size, 0);
FIELD(infer_attrs_attn, mask, 4);
FIELD(infer_attrs_attn, kind, 8);
FIELD(infer_attrs_attn, window, 12);
FIELD(infer_attrs_attn, scale, 16);
FIELD(infer_attrs_attn, soft_cap, 20);
FIELD(infer_attrs_attn, n_heads, 24);
FIELD(infer_attrs_attn, reserved, 28);
FIELD(infer_attrs_attn, kv, 32);

SIZE(infer_attrs_sample, 16);
FIELD(infer_attrs_sample, struct_size, 0);
FIELD(infer_attrs_sample, n_top, 4);
FIELD(infer_attrs_sample, flags, 8);
FIELD(infer_attrs_sample, reserved, 12);

SIZE(infer_sample_row, 64);
FIELD(infer_sample_row, temperature, 0);
FIELD(infer_sample_row, top_p, 4);
FIELD(infer_sample_row, min_p, 8);
FIELD(infer_sample_row, top_k, 12);
FIELD(infer_sample_row, repetition_penalty, 16);
FIELD(infer_sample_row, presence_penalty, 20);
FIELD(infer_sample_row, frequency_penalty, 24);
FIELD(infer_sample_row, counts_row, 28);
FIELD(infer_sample_row, seed, 32);
FIELD(infer_sample_row, position, 40);
FIELD(infer_sample_row, bias_first, 48);
FIELD(infer_sample_row, bias_count, 52);
FIELD(infer_sample_row, flags, 56);
FIELD(infer_sample_row, reserved, 60);

SIZE(infer_sample_bias, 8);
FIELD(infer_sample_bias, id, 0);
FIELD(infer_sample_bias, bias, 4);

SIZE(infer_epilogue, 16);
FIELD(infer_epilogue, kind, 0);
FIELD(infer_epilogue, arg, 4);
FIELD(infer_epilogue, factor, 8);
FIELD(infer_epilogue, operand, 12);

SIZE(infer_op_desc, 88);
FIELD(infer_op_desc, struct_size, 0);
FIELD(infer_op_desc, flags, 4);
FIELD(infer_op_desc, next, 8);
FIELD(infer_op_desc, op, 16);
FIELD(infer_op_desc, revision, 20);
FIELD(infer_op_desc, must_understand, 24);
FIELD(infer_op_desc, rows_from, 32);
FIELD(infer_op_desc, rows_mul, 36);
FIELD(infer_op_desc, n_in, 40);
FIELD(infer_op_desc, n_out, 44);
FIELD(infer_op_desc, tensor_size, 48);
FIELD(infer_op_desc, attrs_size, 52);
FIELD(infer_op_desc, tensors, 56);
FIELD(infer_op_desc, attrs, 64);
FIELD(infer_op_desc, n_epilogue, 72);
FIELD(infer_op_desc, epilogue_size, 76);
FIELD(infer_op_desc, epilogue, 80);

/* ---- backend.h ---- */

SIZE(infer_range, 24);
FIELD(infer_range, buffer, 0);
FIELD(infer_range, offset, 8);
FIELD(infer_range, size, 16);

SIZE(infer_device_info, 456);
FIELD(infer_device_info, struct_size, 0);
FIELD(infer_device_info, kind, 4);
FIELD(infer_device_info, index, 8);
FIELD(infer_device_info, numa_node, 12);
FIELD(infer_device_info, name, 16);
FIELD(infer_device_info, pci, 112);
FIELD(infer_device_info, uuid, 136);
FIELD(infer_device_info, driver, 184);
FIELD(infer_device_info, arch, 232);
FIELD(infer_device_info, memory_total, 280);
FIELD(infer_device_info, status, 288);
FIELD(infer_device_info, reserved, 292);
FIELD(infer_device_info, reason, 296);

SIZE(infer_device_props, 128);
FIELD(infer_device_props, struct_size, 0);
FIELD(infer_device_props, flags, 4);
FIELD(infer_device_props, buffer_align, 8);
FIELD(infer_device_props, n_queues, 12);
FIELD(infer_device_props, formats, 16);
FIELD(infer_device_props, max_buffer, 24);
FIELD(infer_device_props, read_bytes_per_s, 32);
FIELD(infer_device_props, f32_flops, 40);
FIELD(infer_device_props, f16_flops, 48);
FIELD(infer_device_props, i8_ops, 56);
FIELD(infer_device_props, launch_ns, 64);
FIELD(infer_device_props, n_cores, 72);
FIELD(infer_device_props, simd_width, 76);
FIELD(infer_device_props, isa, 80);

SIZE(infer_heap_info, 32);
FIELD(infer_heap_info, struct_size, 0);
FIELD(infer_heap_info, flags, 4);
FIELD(infer_heap_info, size, 8);
FIELD(infer_heap_info, granularity, 16);
FIELD(infer_heap_info, align, 24);
FIELD(infer_heap_info, numa_node, 28);

SIZE(infer_known, 16);
FIELD(infer_known, value, 0);
FIELD(infer_known, quality, 8);
FIELD(infer_known, reserved, 12);

SIZE(infer_heap_stats, 88);
FIELD(infer_heap_stats, struct_size, 0);
FIELD(infer_heap_stats, reserved, 4);
FIELD(infer_heap_stats, total, 8);
FIELD(infer_heap_stats, budget, 24);
FIELD(infer_heap_stats, ours, 40);
FIELD(infer_heap_stats, others, 56);
FIELD(infer_heap_stats, largest_free, 72);

SIZE(infer_edge_info, 32);
FIELD(infer_edge_info, struct_size, 0);
FIELD(infer_edge_info, mode, 4);
FIELD(infer_edge_info, bytes_per_s, 8);
FIELD(infer_edge_info, latency_ns, 16);
FIELD(infer_edge_info, handle_kinds, 24);
FIELD(infer_edge_info, reserved, 28);

SIZE(infer_health, 176);
FIELD(infer_health, struct_size, 0);
FIELD(infer_health, state, 4);
FIELD(infer_health, status, 8);
FIELD(infer_health, reserved, 12);
FIELD(infer_health, reason, 16);

SIZE(infer_copy_end, 16);
FIELD(infer_copy_end, buffer, 0);
FIELD(infer_copy_end, host, 8);

SIZE(infer_copy_region, 48);
FIELD(infer_copy_region, src_offset, 0);
FIELD(infer_copy_region, dst_offset, 8);
FIELD(infer_copy_region, bytes, 16);
FIELD(infer_copy_region, rows, 24);
FIELD(infer_copy_region, src_pitch, 32);
FIELD(infer_copy_region, dst_pitch, 40);

SIZE(infer_op_args, 72);
FIELD(infer_op_args, struct_size, 0);
FIELD(infer_op_args, n_operands, 4);
FIELD(infer_op_args, operands, 8);
FIELD(infer_op_args, counts, 16);
FIELD(infer_op_args, scratch, 40);
FIELD(infer_op_args, comm, 64);

SIZE(infer_op_answer, 56);
FIELD(infer_op_answer, struct_size, 0);
FIELD(infer_op_answer, level, 4);
FIELD(infer_op_answer, why, 8);
FIELD(infer_op_answer, which, 12);
FIELD(infer_op_answer, n_epilogue, 16);
FIELD(infer_op_answer, row_invariant, 20);
FIELD(infer_op_answer, scratch_bytes, 24);
FIELD(infer_op_answer, scratch_align, 32);
FIELD(infer_op_answer, reserved, 36);
FIELD(infer_op_answer, est_ns, 40);
FIELD(infer_op_answer, est_bytes, 48);

SIZE(infer_shard, 16);
FIELD(infer_shard, axis, 0);
FIELD(infer_shard, first, 4);
FIELD(infer_shard, count, 8);
FIELD(infer_shard, of, 12);

SIZE(infer_weight_desc, 96);
FIELD(infer_weight_desc, struct_size, 0);
FIELD(infer_weight_desc, flags, 4);
FIELD(infer_weight_desc, next, 8);
FIELD(infer_weight_desc, quant, 16);
FIELD(infer_weight_desc, rank, 40);
FIELD(infer_weight_desc, use, 44);
FIELD(infer_weight_desc, shape, 48);
FIELD(infer_weight_desc, shard, 80);

SIZE(infer_weight_plan, 32);
FIELD(infer_weight_plan, struct_size, 0);
FIELD(infer_weight_plan, flags, 4);
FIELD(infer_weight_plan, layout, 8);
FIELD(infer_weight_plan, align, 12);
FIELD(infer_weight_plan, packed_bytes, 16);
FIELD(infer_weight_plan, format, 24);
FIELD(infer_weight_plan, reserved, 28);

SIZE(infer_kv_plane, 16);
FIELD(infer_kv_plane, format, 0);
FIELD(infer_kv_plane, width, 4);
FIELD(infer_kv_plane, per_head, 8);
FIELD(infer_kv_plane, reserved, 12);

SIZE(infer_kv_spec, 96);
FIELD(infer_kv_spec, struct_size, 0);
FIELD(infer_kv_spec, kind, 4);
FIELD(infer_kv_spec, layer_first, 8);
FIELD(infer_kv_spec, n_layers, 12);
FIELD(infer_kv_spec, head_first, 16);
FIELD(infer_kv_spec, n_heads, 20);
FIELD(infer_kv_spec, n_planes, 24);
FIELD(infer_kv_spec, window, 28);
FIELD(infer_kv_spec, planes, 32);

SIZE(infer_kv_answer, 72);
FIELD(infer_kv_answer, struct_size, 0);
FIELD(infer_kv_answer, level, 4);
FIELD(infer_kv_answer, why, 8);
FIELD(infer_kv_answer, which, 12);
FIELD(infer_kv_answer, block_multiple, 16);
FIELD(infer_kv_answer, block_best, 20);
FIELD(infer_kv_answer, block_max, 24);
FIELD(infer_kv_answer, layout, 28);
FIELD(infer_kv_answer, align, 32);
FIELD(infer_kv_answer, reserved, 36);
FIELD(infer_kv_answer, block_bytes, 40);

SIZE(infer_slot_desc, 16);
FIELD(infer_slot_desc, kind, 0);
FIELD(infer_slot_desc, rebindable, 4);
FIELD(infer_slot_desc, size, 8);

SIZE(infer_operand, 24);
FIELD(infer_operand, slot, 0);
FIELD(infer_operand, flags, 4);
FIELD(infer_operand, offset, 8);
FIELD(infer_operand, size, 16);

SIZE(infer_node, 72);
FIELD(infer_node, op, 0);
FIELD(infer_node, operands, 8);
FIELD(infer_node, counts, 16);
FIELD(infer_node, scratch, 40);
FIELD(infer_node, comm, 64);

SIZE(infer_graph_view, 56);
FIELD(infer_graph_view, struct_size, 0);
FIELD(infer_graph_view, flags, 4);
FIELD(infer_graph_view, next, 8);
FIELD(infer_graph_view, nodes, 16);
FIELD(infer_graph_view, slots, 24);
FIELD(infer_graph_view, n_nodes, 32);
FIELD(infer_graph_view, node_size, 36);
FIELD(infer_graph_view, n_slots, 40);
FIELD(infer_graph_view, slot_size, 44);
FIELD(infer_graph_view, bucket, 48);
FIELD(infer_graph_view, reserved, 52);

SIZE(infer_program_info, 32);
FIELD(infer_program_info, struct_size, 0);
FIELD(infer_program_info, reserved, 4);
FIELD(infer_program_info, scratch_bytes, 8);
FIELD(infer_program_info, code_bytes, 16);
FIELD(infer_program_info, est_ns, 24);

SIZE(infer_prof_record, 72);
FIELD(infer_prof_record, name, 0);
FIELD(infer_prof_record, begin_ns, 48);
FIELD(infer_prof_record, end_ns, 56);
FIELD(infer_prof_record, queue, 64);
FIELD(infer_prof_record, reserved, 68);

SIZE(infer_host, 168);
FIELD(infer_host, struct_size, 0);
FIELD(infer_host, abi_major, 4);
FIELD(infer_host, abi_minor, 8);
FIELD(infer_host, reserved, 12);
FIELD(infer_host, ctx, 16);
FIELD(infer_host, log, 24);
FIELD(infer_host, status_detail, 32);
FIELD(infer_host, alloc, 40);
FIELD(infer_host, free, 48);
FIELD(infer_host, config_get, 56);
FIELD(infer_host, clock_ns, 64);
FIELD(infer_host, cpu_list, 72);
FIELD(infer_host, pci_numa_node, 80);
FIELD(infer_host, tl_advance, 88);
FIELD(infer_host, tl_fail, 96);
FIELD(infer_host, tl_wait, 104);
FIELD(infer_host, ref_op, 112);
FIELD(infer_host, unpack, 120);
FIELD(infer_host, pack, 128);
FIELD(infer_host, replay, 136);
FIELD(infer_host, op_check, 144);
FIELD(infer_host, view_keep, 152);
FIELD(infer_host, view_drop, 160);

SIZE(infer_backend_ops, 416);
FIELD(infer_backend_ops, struct_size, 0);
FIELD(infer_backend_ops, reserved, 4);
FIELD(infer_backend_ops, probe, 8);
FIELD(infer_backend_ops, dev_open, 16);
FIELD(infer_backend_ops, dev_close, 24);
FIELD(infer_backend_ops, dev_props, 32);
FIELD(infer_backend_ops, dev_heaps, 40);
FIELD(infer_backend_ops, dev_heap_stats, 48);
FIELD(infer_backend_ops, buf_alloc, 56);
FIELD(infer_backend_ops, buf_free, 64);
FIELD(infer_backend_ops, queue_create, 72);
FIELD(infer_backend_ops, queue_destroy, 80);
FIELD(infer_backend_ops, queue_wait, 88);
FIELD(infer_backend_ops, queue_signal, 96);
FIELD(infer_backend_ops, cmd_copy, 104);
FIELD(infer_backend_ops, cmd_fill, 112);
FIELD(infer_backend_ops, op_query, 120);
FIELD(infer_backend_ops, cmd_op, 128);
FIELD(infer_backend_ops, backend_init, 136);
FIELD(infer_backend_ops, backend_fini, 144);
FIELD(infer_backend_ops, dev_edge, 152);
FIELD(infer_backend_ops, dev_health, 160);
FIELD(infer_backend_ops, buf_map, 168);
FIELD(infer_backend_ops, buf_unmap, 176);
FIELD(infer_backend_ops, buf_import_host, 184);
FIELD(infer_backend_ops, buf_export, 192);
FIELD(infer_backend_ops, buf_import, 200);
FIELD(infer_backend_ops, weight_plan, 208);
FIELD(infer_backend_ops, weight_begin, 216);
FIELD(infer_backend_ops, weight_append, 224);
FIELD(infer_backend_ops, weight_finish, 232);
FIELD(infer_backend_ops, weight_destroy, 240);
FIELD(infer_backend_ops, tl_create, 248);
FIELD(infer_backend_ops, tl_destroy, 256);
FIELD(infer_backend_ops, tl_query, 264);
FIELD(infer_backend_ops, tl_wait, 272);
FIELD(infer_backend_ops, tl_signal_host, 280);
FIELD(infer_backend_ops, cmd_update, 288);
FIELD(infer_backend_ops, kv_query, 296);
FIELD(infer_backend_ops, prog_claim, 304);
FIELD(infer_backend_ops, prog_build, 312);
FIELD(infer_backend_ops, prog_instantiate, 320);
FIELD(infer_backend_ops, prog_update, 328);
FIELD(infer_backend_ops, prog_submit, 336);
FIELD(infer_backend_ops, exec_destroy, 344);
FIELD(infer_backend_ops, prog_destroy, 352);
FIELD(infer_backend_ops, prog_save, 360);
FIELD(infer_backend_ops, prog_load, 368);
FIELD(infer_backend_ops, comm_unique_id, 376);
FIELD(infer_backend_ops, comm_create, 384);
FIELD(infer_backend_ops, comm_destroy, 392);
FIELD(infer_backend_ops, prof_begin, 400);
FIELD(infer_backend_ops, prof_read, 408);

SIZE(infer_plugin_desc, 152);
FIELD(infer_plugin_desc, struct_size, 0);
FIELD(infer_plugin_desc, abi_major, 4);
FIELD(infer_plugin_desc, abi_minor, 8);
FIELD(infer_plugin_desc, min_host_minor, 12);
FIELD(infer_plugin_desc, name, 16);
FIELD(infer_plugin_desc, vendor, 24);
FIELD(infer_plugin_desc, version, 32);
FIELD(infer_plugin_desc, build_id, 40);
FIELD(infer_plugin_desc, device_prefix, 48);
FIELD(infer_plugin_desc, visibility, 56);
FIELD(infer_plugin_desc, features, 64);
FIELD(infer_plugin_desc, rank, 72);
FIELD(infer_plugin_desc, sanitizer, 76);
FIELD(infer_plugin_desc, ops, 80);
FIELD(infer_plugin_desc, reserved, 88);

SIZE(infer_abi_range, 16);
FIELD(infer_abi_range, struct_size, 0);
FIELD(infer_abi_range, major, 4);
FIELD(infer_abi_range, minor_min, 8);
FIELD(infer_abi_range, minor_max, 12);
