#!/usr/bin/env python3
"""Speed of decoding with and without --speculative ngram, on text that copies its prompt and on text that does not.
Pairs of runs by turns; the tokens must be the same. SPDX-License-Identifier: Apache-2.0"""
import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile

CLASS = '''class NAME:
    def __init__(self, name, capacity):
        self.name = name
        self.capacity = capacity
        self.items = {}

    def add_item(self, item, quantity):
        if item in self.items:
            self.items[item] += quantity
        else:
            self.items[item] = quantity
        if self.total() > self.capacity:
            raise ValueError("the NAME is full")

    def remove_item(self, item, quantity):
        if item not in self.items:
            raise KeyError(item)
        if self.items[item] < quantity:
            raise ValueError("not enough items")
        self.items[item] -= quantity
        if self.items[item] == 0:
            del self.items[item]

    def total(self):
        result = 0
        for item in self.items:
            result += self.items[item]
        return result

    def report(self):
        for item in sorted(self.items):
            print(item, self.items[item])

'''
FILE = CLASS.replace("NAME", "Inventory")
EDIT = ("# The class, for two kinds of stores.\n\n" + FILE +
        "\n".join(CLASS.replace("NAME", "Pantry").split("\n")[:5]) + "\n")
ASK = "Rename the class Inventory to Pantry. Answer with the whole file.\n\n" + FILE
PROSE = ("The harbour had been quiet since the storm. Fishermen mended their nets in silence, and the children who "
         "usually played between the boats had been called home early. Only the old lighthouse keeper, who had seen "
         "worse weather than any of them, walked along the pier as if nothing had happened. He")

# name, prompt, more arguments
CASES = [
    ("a class again, raw, greedy", EDIT, ["--raw", "--temp", "0"]),
    ("a class again, raw, T = 0.8", EDIT, ["--raw", "--temp", "0.8"]),
    ("rename a class, chat, greedy", ASK, ["--temp", "0"]),
    ("prose, raw, T = 0.8", PROSE, ["--raw", "--temp", "0.8"]),
    ("prose, raw, T = 1.2, all tokens", PROSE, ["--raw", "--temp", "1.2", "--top-k", "0", "--top-p", "1", "--min-p", "0"]),
]


def run(args, case, on, seed):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
        f.write(case[1])
        f.flush()
        command = [args.run, "-m", args.model, "-f", f.name, "-n", str(args.tokens), "--json", "--ignore-eos",
                   "--seed", str(seed), "--speculative", "ngram" if on else "off", *case[2], *args.more]
        if on and args.most:
            command += ["--num-speculative-tokens", str(args.most)]
        d = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    t = d["timings"]
    return d["ids"], t["predicted_n"] / t["predicted_ms"] * 1e3, t.get("draft_n", 0), t.get("draft_n_accepted", 0)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("run", help="infer-run")
    p.add_argument("model")
    p.add_argument("-n", "--tokens", type=int, default=256)
    p.add_argument("-r", "--pairs", type=int, default=5)
    p.add_argument("-k", "--most", type=int, default=0, help="--num-speculative-tokens")
    p.add_argument("-c", "--case", type=int, help="only this one")
    p.add_argument("more", nargs="*", help="more arguments for infer-run, after --")
    args = p.parse_args()
    print("| text | tokens/s off | on | ratio | mean ± 95 % | tried, right, of 100 |\n|---|---|---|---|---|---|")
    for i, case in enumerate(CASES):
        if args.case is not None and args.case != i:
            continue
        rates, tried, right, made = ([], []), 0, 0, 0
        for k in range(args.pairs):
            ids = {}
            for on in (k % 2, 1 - k % 2):
                ids[on], rate, n_tried, n_right = run(args, case, on, k)
                rates[on].append(rate)
                tried, right, made = tried + n_tried, right + n_right, made + (len(ids[on]) if on else 0)
            if ids[0] != ids[1]:
                sys.exit(f"{case[0]}, seed {k}: other tokens with drafts than without")
        ratios = [b / a for a, b in zip(*rates)]
        logs = [math.log(r) for r in ratios]
        half = 2.1 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
        mean, low, high = (math.exp(statistics.mean(logs) + d) for d in (0, -half, half))
        print(f"| {case[0]} | {statistics.median(rates[0]):.0f} | {statistics.median(rates[1]):.0f} | "
              f"{statistics.median(ratios):.2f} | {mean:.2f} {low:.2f}..{high:.2f} | {100 * tried / made:.0f}, {100 * right / made:.0f} |", flush=True)


main()
