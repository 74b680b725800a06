#!/usr/bin/env python3
"""Logits of a GGUF llama model by transformers in float32, from the same de-quantized weights.

    infer-eval perplexity -m MODEL -f prose.txt --save-logits ids.logits     # windows and ids
    reference_logits.py MODEL ids.logits reference.logits
    infer-eval kld -m MODEL --ref reference.logits -dev ref0 -ctk f32 -ctv f32

Needs gguf, numpy, torch and transformers. The file's form is that of tools/eval/eval.h; every position of a window but the
last is counted, so 512-token windows of prose.txt give 2,044 positions. SPDX-License-Identifier: Apache-2.0
"""
import struct
import sys

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from transformers import LlamaConfig, LlamaForCausalLM

# Names in the file -> names in transformers; q and k have their rows reordered for neighbour rotation.
LAYER = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}


def load(path):
    reader = GGUFReader(path)
    tensors = {t.name: t for t in reader.tensors}

    def value(key):
        field = reader.fields["llama." + key]
        return field.parts[field.data[0]][0]

    def weight(name):
        t = tensors[name]
        return torch.from_numpy(np.ascontiguousarray(dequantize(t.data, t.tensor_type)).astype(np.float32))

    heads, kv_heads = int(value("attention.head_count")), int(value("attention.head_count_kv"))
    width = int(value("embedding_length"))
    config = LlamaConfig(
        hidden_size=width, num_hidden_layers=int(value("block_count")), num_attention_heads=heads,
        num_key_value_heads=kv_heads, intermediate_size=int(value("feed_forward_length")),
        vocab_size=int(tensors["token_embd.weight"].shape[1]), max_position_embeddings=int(value("context_length")),
        rms_norm_eps=float(value("attention.layer_norm_rms_epsilon")), rope_theta=float(value("rope.freq_base")),
        tie_word_embeddings="output.weight" not in tensors, attn_implementation="eager")
    state = {"model.embed_tokens.weight": weight("token_embd.weight"), "model.norm.weight": weight("output_norm.weight")}
    state["lm_head.weight"] = weight("output.weight") if "output.weight" in tensors else state["model.embed_tokens.weight"]
    for layer in range(config.num_hidden_layers):
        for ours, theirs in LAYER.items():
            w = weight(f"blk.{layer}.{ours}.weight")
            if ours in ("attn_q", "attn_k"):
                n = heads if ours == "attn_q" else kv_heads
                w = w.reshape(n, width // heads // 2, 2, -1).transpose(1, 2).reshape(w.shape)
            state[f"model.layers.{layer}.{theirs}.weight"] = w
    model = LlamaForCausalLM(config)
    model.load_state_dict(state)
    return model.float().eval()


def main(model_path, ids_path, out_path):
    with open(ids_path, "rb") as f:
        magic, version, n_vocab, n_ctx, n_windows, _, _ = struct.unpack("<8s6I", f.read(32))
        if magic != b"INFERLGT" or version != 1:
            sys.exit(f"{ids_path}: not a file of saved logits")
        ids = np.fromfile(f, "<i4", n_windows * n_ctx).reshape(n_windows, n_ctx)
    model = load(model_path)
    with open(out_path, "wb") as out, torch.no_grad():
        out.write(struct.pack("<8s6I", magic, version, n_vocab, n_ctx, n_windows, 0, n_ctx - 1))
        out.write(ids.astype("<i4").tobytes())
        for window in ids:
            logits = model(torch.from_numpy(window.astype(np.int64))[None]).logits[0, : n_ctx - 1]
            out.write(logits.numpy().astype("<f4").tobytes())


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
