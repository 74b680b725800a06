#!/usr/bin/env python3
"""Writes quant.bin: blocks with what the reference libraries unpack them to, and float data with what they pack to.

Needs numpy, the PyPI package `gguf` (block formats) and torch (8-bit floats). SPDX-License-Identifier: Apache-2.0

Layout, little-endian, records until the end of the file:
  name char[16], n_elems u32, n_bytes u32, n_pack u32, 0 u32
  packed u8[n_bytes]; unpacked f32[n_elems]
  where n_pack: source f32[n_pack], then the bytes the reference packs it to (n_pack elements' worth)
"""
import os
import struct
import warnings

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as T

rng = np.random.default_rng(20240711)
here = os.path.dirname(os.path.abspath(__file__))
records = []


def add(name, packed, unpacked, source=None, repacked=None):
    packed = np.ascontiguousarray(packed).view(np.uint8).reshape(-1)
    unpacked = np.ascontiguousarray(unpacked, dtype=np.float32).reshape(-1)
    n_pack = 0 if source is None else source.size
    records.append(struct.pack("<16s4I", name.encode(), unpacked.size, packed.size, n_pack, 0))
    records.append(packed.tobytes() + unpacked.tobytes())
    if n_pack:
        records.append(source.astype(np.float32).tobytes() + np.ascontiguousarray(repacked).tobytes())


# Blocks of random bits; the f16 fields at these offsets are made finite.
halves = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "MXFP4": []}
for name, offsets in halves.items():
    kind = T[name]
    elems, size = gguf.GGML_QUANT_SIZES[kind]
    count = 3 if elems == 256 else 8
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for at in offsets:
        scale = rng.normal(0, 1, count) * 10.0 ** rng.integers(-6, 3, count)
        blocks[:, at:at + 2] = scale.astype(np.float16).reshape(count, 1).view(np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = [0, 1, 2, 120, 127, 130, 250, 254]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = gguf.quants.dequantize(blocks, kind)
    source = repacked = None
    if elems == 32:
        source = rng.normal(0, 1, (4, 32)).astype(np.float32)
        source[1] *= np.float32(1e-3)
        source[2, 3:9] = 0
        source[3] = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            repacked = gguf.quants.quantize(source, kind)
    add(name.lower(), blocks, values, source, repacked)

edge = np.array([0, -0.0, 1e-8, 2.98e-8, 2.99e-8, 6e-8, 6.1e-5, 1, 1.0009765625, 1.00048828125, 65504, 65519.9, 65520,
                 1e30, np.inf, -np.inf, 447, 448, 463, 464, 465, 0.0009765625, 0.00146484375, 0.001953125, 57344,
                 61439, 61441, 3.0518e-05, 1.7e-5, 7.7e-6, 7.5e-6], dtype=np.float32)
floats = np.concatenate([edge, -edge, (rng.normal(0, 1, 200) * 10.0 ** rng.integers(-9, 6, 200)).astype(np.float32)])
floats = np.append(floats, np.float32(0)) if floats.size % 2 else floats

with np.errstate(over="ignore"):
    half = rng.integers(0, 65536, 256).astype(np.uint16)
    add("f16", half, half.view(np.float16).astype(np.float32), floats, floats.astype(np.float16))
    brain = rng.integers(0, 65536, 256).astype(np.uint16)
    add("bf16", brain, gguf.quants.dequantize(brain.view(np.uint8).reshape(1, -1), T.BF16), floats,
        gguf.quants.quantize(floats.reshape(1, -1), T.BF16))

codes = np.arange(256, dtype=np.uint8)
for name, kind in (("f8_e4m3", torch.float8_e4m3fn), ("f8_e5m2", torch.float8_e5m2)):
    values = torch.from_numpy(codes.copy()).view(kind).float().numpy()
    packed = torch.from_numpy(floats.copy())
    if kind == torch.float8_e4m3fn:
        packed = packed.clamp(-448, 448)  # the saturating mode
    add(name, codes, values, floats, packed.to(kind).view(torch.uint8).numpy())
values = np.append(np.ldexp(1.0, np.arange(255) - 127).astype(np.float32), np.float32(np.nan))
add("e8m0", codes, values)

with open(os.path.join(here, "quant.bin"), "wb") as f:
    f.write(b"".join(records))
