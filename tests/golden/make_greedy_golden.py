#!/usr/bin/env python3
"""Greedy continuations of 20 prompts by transformers in float32, from a GGUF llama model's de-quantized weights.

    make_greedy_golden.py SmolLM2-135M-Instruct.Q4_1.gguf smollm-greedy.bin path/to/infer-tokenize

Needs gguf, numpy, torch and transformers. The file's form is in README.md.
SPDX-License-Identifier: Apache-2.0
"""
import json
import struct
import subprocess
import sys

import torch

from reference_logits import load

PROMPTS = [
    "The capital of France is", "Once upon a time there was a", "def fibonacci(n):\n", "Water boils at",
    "The three primary colours are", "In 1969, the first human", "Dear Sir or Madam,\n\n", "To make bread, you need",
    "The mitochondria is", "SELECT name FROM", "She opened the door and", "The difference between weather and climate is",
    "List of planets:\n1. Mercury\n2.", "import numpy as np\n\nx =", "A haiku about autumn:\n", "The speed of light is",
    "Q: What is 7 times 8?\nA:", "Photosynthesis is the process by which", "The old man said to the boy:", "Translate to French: Good morning ->",
]
N_GEN, N_TOP = 64, 4


def main(model_path, out_path, tokenize):
    model = load(model_path)
    with open(out_path, "wb") as out, torch.no_grad():
        out.write(struct.pack("<4s3I", b"GRD1", len(PROMPTS), N_GEN, N_TOP))
        for prompt in PROMPTS:
            line = json.dumps({"text": prompt, "add_special": False}) + "\n"
            told = subprocess.run([tokenize, "-m", model_path, "--json"], input=line.encode(), check=True, capture_output=True)
            ids = json.loads(told.stdout)["ids"]
            n_prompt, tops, given, cache = len(ids), [], ids, None
            for _ in range(N_GEN):
                told = model(torch.tensor([given]), past_key_values=cache, use_cache=True)
                cache, top = told.past_key_values, torch.topk(told.logits[0, -1], N_TOP)
                tops.append((top.indices.tolist(), top.values.tolist()))
                given = [tops[-1][0][0]]
                ids = ids + given
            out.write(struct.pack("<I", n_prompt))
            out.write(struct.pack(f"<{len(ids)}i", *ids))
            for i, v in tops:
                out.write(struct.pack(f"<{N_TOP}i{N_TOP}f", *i, *v))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
