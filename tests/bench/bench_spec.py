#!/usr/bin/env python3
"""Speed of decoding with and without --speculative ngram, on text that copies its prompt and on text that does not.
Pairs of runs by turns; the tokens must be the same. SPDX-License-Identifier: Apache-2.0"""
import argparse
import http.client
import json
import math
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time

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

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
# name, path, prompt, sampling
CASES = [
    ("a class again, greedy", TEXT, EDIT, {"temperature": 0}),
    ("a class again, T = 0.8", TEXT, EDIT, {"temperature": 0.8}),
    ("rename a class, chat, greedy", CHAT, ASK, {"temperature": 0}),
    ("prose, T = 0.8", TEXT, PROSE, {"temperature": 0.8}),
    ("prose, T = 1.2", TEXT, PROSE, {"temperature": 1.2}),
]


class Server:
    def __init__(self, args, *flags):
        self.socket = os.path.join(tempfile.mkdtemp(), "bench.sock")
        self.process = subprocess.Popen([args.serve, "-m", args.model, "--host", self.socket, "-np", "1", *flags, *args.more],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while self.ask("GET", "/ready")[0] != 200:
            if self.process.poll() is not None:
                sys.exit("the server did not start")
            time.sleep(0.1)

    def ask(self, method, path, body=None):
        c = http.client.HTTPConnection("localhost")
        c.sock = socket.socket(socket.AF_UNIX)
        try:
            c.sock.connect(self.socket)
            c.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
            r = c.getresponse()
            return r.status, r.read().decode()
        except OSError:
            return 0, ""
        finally:
            c.close()

    def metric(self, name):
        text = self.ask("GET", "/metrics")[1]
        return float(re.search("^infer_spec_decode_num_" + name + r"_total\{.*\} (\S+)$", text, re.M).group(1))

    def timed(self, path, body):
        """The answer, and the seconds from its first piece to its end."""
        c = http.client.HTTPConnection("localhost")
        c.sock = socket.socket(socket.AF_UNIX)
        c.sock.connect(self.socket)
        c.request("POST", path, json.dumps(dict(body, stream=True)), {"Content-Type": "application/json"})
        r = c.getresponse()
        text, first = "", None
        for line in r:
            if line.startswith(b"data: {"):
                first = first or time.monotonic()
                choice = json.loads(line[6:])["choices"][0]
                text += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
        c.close()
        return text, time.monotonic() - first


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("serve", help="infer-serve")
    p.add_argument("model")
    p.add_argument("-n", "--tokens", type=int, default=256)
    p.add_argument("-r", "--pairs", type=int, default=9)
    p.add_argument("-k", "--most", type=int, default=0, help="--num-speculative-tokens")
    p.add_argument("-c", "--case", type=int, help="only this one")
    p.add_argument("more", nargs="*", help="more arguments for infer-serve, after --")
    args = p.parse_args()
    servers = (Server(args), Server(args, "--speculative", "ngram", "--num-speculative-tokens", str(args.most)))
    print("| text | tokens/s off | on | ratio | mean, 95 % | tried, right, of 100 |\n|---|---|---|---|---|---|")
    for i, (name, path, prompt, sampling) in enumerate(CASES):
        if args.case is not None and args.case != i:
            continue
        body = dict(sampling, max_tokens=args.tokens, ignore_eos=True)
        body.update({"messages": [{"role": "user", "content": prompt}]} if "chat" in path else {"prompt": prompt})
        before = [servers[1].metric(m) for m in ("draft_tokens", "accepted_tokens")]
        rates = ([], [])
        for k in range(-1, args.pairs): # the first one warms up
            texts = {}
            for on in (k % 2, 1 - k % 2):
                texts[on], seconds = servers[on].timed(path, dict(body, seed=k + 1))
                rates[on].append((args.tokens - 1) / seconds)
            if texts[0] != texts[1]:
                sys.exit(f"{name}, seed {k + 1}: another text with drafts than without")
        tried, right = (servers[1].metric(m) - b for m, b in zip(("draft_tokens", "accepted_tokens"), before))
        made = args.tokens * (args.pairs + 1) / 100
        ratios = [b / a for a, b in zip(*rates)][1:]
        logs = [math.log(r) for r in ratios]
        half = 2.1 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
        mean, low, high = (math.exp(statistics.mean(logs) + d) for d in (0, -half, half))
        print(f"| {name} | {statistics.median(rates[0]):.0f} | {statistics.median(rates[1]):.0f} | "
              f"{statistics.median(ratios):.2f} | {mean:.2f} {low:.2f}..{high:.2f} | {tried / made:.0f}, {right / made:.0f} |",
              flush=True)
    for s in servers:
        s.process.terminate()
        s.process.wait()


main()
