#!/usr/bin/env python3
"""Writes tiny-ARCH.gguf (random float32 models) and tiny-ARCH.logits.bin (what transformers computes with them).

Needs torch, transformers, numpy and the PyPI package `gguf`. README.md beside has the layouts.
SPDX-License-Identifier: Apache-2.0

The GGUF files are checked here by a second forward pass in float64, written from the GGUF conventions (names, q/k
order, rope style, rope_freqs) and reading the file back, against the logits of transformers.
"""
import os
import struct

import gguf
import numpy as np
import torch
from gguf import GGUFReader, GGUFWriter
from transformers import (LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM,
                          Qwen3MoeConfig, Qwen3MoeForCausalLM)

HERE = os.path.dirname(os.path.abspath(__file__))
VOCAB, N_IDS, EVERY = 264, 48, 4
COMMON = dict(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2, max_position_embeddings=256, hidden_act="silu",
              bos_token_id=0, eos_token_id=2, pad_token_id=None)
THETA = 10000.0
LLAMA3 = dict(rope_type="llama3", rope_theta=THETA, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
PLAIN = dict(rope_type="default", rope_theta=THETA)

MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig(
        **COMMON, intermediate_size=64, num_attention_heads=3, num_key_value_heads=1, rms_norm_eps=1e-5,
        rope_parameters=LLAMA3, tie_word_embeddings=False)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(
        **COMMON, intermediate_size=80, num_attention_heads=6, num_key_value_heads=2, rms_norm_eps=1e-6,
        rope_parameters=PLAIN, tie_word_embeddings=True)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(
        **COMMON, intermediate_size=56, num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6,
        rope_parameters=PLAIN, tie_word_embeddings=False)),
    "qwen3moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig(
        **COMMON, intermediate_size=64, moe_intermediate_size=24, num_experts=4, num_experts_per_tok=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=12, rms_norm_eps=1e-6, norm_topk_prob=True,
        decoder_sparse_step=1, mlp_only_layers=[], rope_parameters=PLAIN, tie_word_embeddings=True)),
}


def build(arch):
    """The model with weights large enough that attention and routing matter."""
    kind, config = MODELS[arch]
    config._attn_implementation = "eager"
    torch.manual_seed(20240711)
    model = kind(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.copy_(1 + 0.2 * torch.randn_like(p))
            elif name.endswith("bias"):
                p.copy_(0.3 * torch.randn_like(p))
            elif "embed_tokens" in name:
                p.copy_(torch.randn_like(p))
            else:
                p.copy_(torch.randn_like(p) * 1.5 / p.shape[-1] ** 0.5)
    return model, config


def to_interleaved(w, heads):
    """GGUF's llama rotates neighbours (2i, 2i + 1), transformers (i, i + half): rows of q and k are reordered."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def rope_divisors(p, dim):
    wavelength = 2 * np.pi * p["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    old, low, high, factor = (p["original_max_position_embeddings"], p["low_freq_factor"], p["high_freq_factor"],
                              p["factor"])
    smooth = (old / wavelength - low) / (high - low)
    middle = 1 / ((1 - smooth) / factor + smooth)
    return np.where(wavelength < old / high, 1, np.where(wavelength > old / low, factor, middle)).astype(np.float32)


def tensors(arch, model, config):
    """(GGUF name, array) in the order of the file."""
    sd = {k: v.detach().float().numpy() for k, v in model.state_dict().items()}
    yield "token_embd.weight", sd["model.embed_tokens.weight"]
    yield "output_norm.weight", sd["model.norm.weight"]
    if not config.tie_word_embeddings:
        yield "output.weight", sd["lm_head.weight"]
    if arch == "llama":
        yield "rope_freqs.weight", rope_divisors(LLAMA3, config.hidden_size // config.num_attention_heads)
    for i in range(config.num_hidden_layers):
        src, dst = f"model.layers.{i}.", f"blk.{i}."
        yield dst + "attn_norm.weight", sd[src + "input_layernorm.weight"]
        for p, heads in (("q", config.num_attention_heads), ("k", config.num_key_value_heads), ("v", 0)):
            for part in ("weight", "bias"):
                w = sd.get(src + f"self_attn.{p}_proj.{part}")
                if w is not None:
                    yield dst + f"attn_{p}.{part}", to_interleaved(w, heads) if arch == "llama" and heads else w
            if src + f"self_attn.{p}_norm.weight" in sd:
                yield dst + f"attn_{p}_norm.weight", sd[src + f"self_attn.{p}_norm.weight"]
        yield dst + "attn_output.weight", sd[src + "self_attn.o_proj.weight"]
        yield dst + "ffn_norm.weight", sd[src + "post_attention_layernorm.weight"]
        if arch == "qwen3moe":
            yield dst + "ffn_gate_inp.weight", sd[src + "mlp.gate.weight"]
            both = sd[src + "mlp.experts.gate_up_proj"]  # [experts][2 * ffn][dim]
            half = both.shape[1] // 2
            yield dst + "ffn_gate_exps.weight", both[:, :half]
            yield dst + "ffn_up_exps.weight", both[:, half:]
            yield dst + "ffn_down_exps.weight", sd[src + "mlp.experts.down_proj"]
        else:
            for p in ("gate", "up", "down"):
                yield dst + f"ffn_{p}.weight", sd[src + f"mlp.{p}_proj.weight"]


def byte_alphabet():
    same = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    return [chr(b) if b in same else chr(256 + sum(1 for c in range(b) if c not in same)) for b in range(256)]


def write_gguf(arch, model, config, path):
    w = GGUFWriter(path, arch)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    w.add_name("tiny-" + arch)
    w.add_file_type(gguf.LlamaFileType.ALL_F32)
    w.add_block_count(config.num_hidden_layers)
    w.add_context_length(config.max_position_embeddings)
    w.add_embedding_length(config.hidden_size)
    w.add_feed_forward_length(config.intermediate_size)
    w.add_head_count(config.num_attention_heads)
    w.add_head_count_kv(config.num_key_value_heads)
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    w.add_rope_dimension_count(head_dim)
    w.add_layer_norm_rms_eps(config.rms_norm_eps)
    w.add_rope_freq_base(THETA)
    w.add_vocab_size(VOCAB)
    if arch == "qwen3moe":
        w.add_expert_count(config.num_experts)
        w.add_expert_used_count(config.num_experts_per_tok)
        w.add_expert_feed_forward_length(config.moe_intermediate_size)
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] + byte_alphabet() + ["\u0120t", "he", "in", "\u0120the"]
    types = [3] * 3 + [1] * (len(tokens) - 3) + [5] * (VOCAB - len(tokens))
    tokens += [f"[PAD{i}]" for i in range(len(tokens), VOCAB)]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("llama-bpe" if arch == "llama" else "qwen2")
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(["\u0120 t", "h e", "i n", "\u0120t he"])
    w.add_bos_token_id(0)
    w.add_eos_token_id(2)
    w.add_add_bos_token(False)
    for name, a in tensors(arch, model, config):
        w.add_tensor(name, np.ascontiguousarray(a, dtype=np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def forward_gguf(path, ids):
    """Logits [len(ids)][vocab] in float64 from the file alone; also the least gap between a chosen and a refused
    expert."""
    r = GGUFReader(path)
    arch = r.fields["general.architecture"].contents()
    key = lambda k: r.fields[f"{arch}.{k}"].contents()
    t = {x.name: np.array(x.data, dtype=np.float64).reshape([int(n) for n in reversed(x.shape)]) for x in r.tensors}
    heads, kv_heads, d = key("attention.head_count"), key("attention.head_count_kv"), key("attention.key_length")
    eps, n, gap = key("attention.layer_norm_rms_epsilon"), len(ids), np.inf
    norm = lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w
    silu = lambda x: x / (1 + np.exp(-x))
    freq = key("rope.freq_base") ** (-np.arange(0, d, 2) / d) / t.get("rope_freqs.weight", 1.0)
    angle = np.arange(n)[:, None, None] * freq

    def rope(x):  # [n][heads][d]
        a, b = (x[..., 0::2], x[..., 1::2]) if arch == "llama" else (x[..., :d // 2], x[..., d // 2:])
        a, b = a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)
        return np.stack([a, b], -1).reshape(x.shape) if arch == "llama" else np.concatenate([a, b], -1)

    x = t["token_embd.weight"][ids]
    for i in range(key("block_count")):
        w = lambda name: t.get(f"blk.{i}.{name}")
        h = norm(x, w("attn_norm.weight"))
        qkv = {}
        for p, m in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            y = h @ w(f"attn_{p}.weight").T
            y = y + w(f"attn_{p}.bias") if w(f"attn_{p}.bias") is not None else y
            y = y.reshape(n, m, d)
            y = norm(y, w(f"attn_{p}_norm.weight")) if w(f"attn_{p}_norm.weight") is not None else y
            qkv[p] = y if p == "v" else rope(y)
        k, v = (np.repeat(qkv[p], heads // kv_heads, axis=1) for p in "kv")
        s = np.einsum("qhd,khd->hqk", qkv["q"], k) / np.sqrt(d) + np.triu(np.full((n, n), -np.inf), 1)
        s = np.exp(s - s.max(-1, keepdims=True))
        a = np.einsum("hqk,khd->qhd", s / s.sum(-1, keepdims=True), v).reshape(n, heads * d)
        x = x + a @ w("attn_output.weight").T
        h = norm(x, w("ffn_norm.weight"))
        if w("ffn_gate_inp.weight") is None:
            x = x + (silu(h @ w("ffn_gate.weight").T) * (h @ w("ffn_up.weight").T)) @ w("ffn_down.weight").T
            continue
        router = h @ w("ffn_gate_inp.weight").T
        order, used = np.argsort(-router, -1), key("expert_used_count")
        ranked = np.take_along_axis(router, order, -1)
        gap = min(gap, (ranked[:, used - 1] - ranked[:, used]).min())
        p = np.exp(ranked[:, :used] - ranked[:, :1])
        p /= p.sum(-1, keepdims=True)
        out = np.zeros_like(x)
        for row in range(n):
            for e, share in zip(order[row, :used], p[row]):
                g, u, dn = (w(f"ffn_{q}_exps.weight")[e] for q in ("gate", "up", "down"))
                out[row] += share * (dn @ (silu(g @ h[row]) * (u @ h[row])))
        x = x + out
    return norm(x, t["output_norm.weight"]) @ t.get("output.weight", t["token_embd.weight"]).T, gap


def main():
    ids = np.random.default_rng(7).integers(0, VOCAB, N_IDS).astype(np.int32)
    rows = np.arange(EVERY - 1, N_IDS, EVERY, dtype=np.uint32)
    for arch in MODELS:
        model, config = build(arch)
        path = os.path.join(HERE, f"tiny-{arch}.gguf")
        write_gguf(arch, model, config, path)
        with torch.no_grad():
            logits = model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].float().numpy()
        check, gap = forward_gguf(path, ids)
        scale = np.abs(check).max()
        worst = np.abs(logits - check).max() / scale
        top = (logits.argmax(-1) == check.argmax(-1)).mean()
        print(f"{arch}: largest logit {scale:.3f}, transformers f32 against float64 {worst:.2e} of it, "
              f"top-1 equal {top:.3f}, least router gap {gap:.2e}, {os.path.getsize(path)} bytes")
        assert worst < 1e-5 and top == 1 and gap > 1e-3
        with open(os.path.join(HERE, f"tiny-{arch}.logits.bin"), "wb") as f:
            f.write(struct.pack("<4sIII", b"LGT1", N_IDS, rows.size, VOCAB))
            f.write(ids.tobytes() + rows.tobytes() + np.ascontiguousarray(logits[rows]).tobytes())


main()
