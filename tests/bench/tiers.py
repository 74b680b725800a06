#!/usr/bin/env python3
"""Time to the first event of a prompt whose beginning lies in the pool, in host memory, in a file, or nowhere.

tiers.py MODEL [ROUNDS] [FOLDER]: one server without tiers, one with each; in each round and server a prompt of 1,000
random tokens and 32 more, again with 32 others, three prompts that push it out, and once more with 32 others. The
servers take turns. Prints milliseconds. SPDX-License-Identifier: Apache-2.0
"""
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

MODEL, ROUNDS = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 9
BUILD = os.environ.get("INFER_BUILDDIR", os.getcwd())
folder = tempfile.mkdtemp(dir=sys.argv[3] if len(sys.argv) > 3 else None)
SERVERS = {"none": [], "host": ["--prefix-cache-host", "1G"],
           "file": ["--prefix-cache-file", folder, "--prefix-cache-file-size", "2G"]}
rng = random.Random(7)


def tokens(n):
    return [rng.randrange(100, 40000) for _ in range(n)]


class Server:
    def __init__(self, port, flags):
        self.port = port
        self.p = subprocess.Popen([os.path.join(BUILD, "infer-serve"), "-m", MODEL, "--port", str(port), "-c", "2048", "-np",
                                   "4", "--kv-cache-memory", "60M", "--swap-space", "0", *flags],
                                  stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                c.request("GET", "/ready")
                if c.getresponse().status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        sys.exit("no server")

    def ask(self, ids):
        """Milliseconds to the first event; prompt tokens that were found."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        body = {"prompt": ids, "max_tokens": 2, "temperature": 0, "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}}
        t0 = time.monotonic()
        c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        first, cached = None, 0
        for line in r:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            first = first or time.monotonic()
            usage = json.loads(line[6:]).get("usage")
            if usage:
                cached = usage["prompt_tokens_details"]["cached_tokens"]
        return (first - t0) * 1e3, cached


servers = {name: Server(18800 + i, flags) for i, (name, flags) in enumerate(SERVERS.items())}
times = {name: {"computed": [], "pool": [], "again": []} for name in servers}
found = {name: [] for name in servers}
for k in range(ROUNDS):
    names = list(servers)
    rng.shuffle(names)
    for name in names:
        s, head, t = servers[name], tokens(1000), times[name]
        t["computed"].append(s.ask(head + tokens(32))[0])
        t["pool"].append(s.ask(head + tokens(32))[0])
        for _ in range(3):
            t["computed"].append(s.ask(tokens(1032))[0])
        time.sleep(0.5)  # the file's thread is done
        ms, cached = s.ask(head + tokens(32))
        t["again"].append(ms)
        found[name].append(cached)
for name, t in times.items():
    for what, ms in t.items():
        print("%-5s %-9s median %7.1f ms, %7.1f to %7.1f, %d times%s" %
              (name, what, statistics.median(ms), min(ms), max(ms), len(ms),
               "; tokens found %s" % sorted(set(found[name])) if what == "again" else ""))
for s in servers.values():
    s.p.terminate()
    s.p.wait()
os.rmdir(folder)
