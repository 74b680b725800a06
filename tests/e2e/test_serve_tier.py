#!/usr/bin/env python3
"""A prefix cache beyond the devices' memory, as a user sets it up: what the log, the figures and answers say.

SPDX-License-Identifier: Apache-2.0
"""
import os
import re

from harness import TINY, Server, check, device, done, run, work

folder = os.path.join(work, "tier")
os.mkdir(folder, 0o700)


def ask(s, i):
    prompt = [3 + (i * 31 + k * 7) % 250 for k in range(100)]
    status, r = s.post("/v1/completions", {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True})
    check(status == 200, "an answer", status, r)
    return r["choices"][0]["text"], r["usage"]["prompt_tokens_details"]["cached_tokens"]


def figures(s):
    text = s.request("GET", "/metrics")[2].decode()
    return {(name, tier): float(v) for name, tier, v in
            re.findall(r'infer_(kv_tier_\w+)\{.*tier="(\w+)".*\} (\S+)', text)}


s = Server("-v", "--kv-cache-memory", "64K", "-c", "128", "-np", "2", "--prefix-cache-host", "64K", "--prefix-cache-file",
           folder, "--prefix-cache-file-size", "1M")
check(os.listdir(folder) == [], "the file has no name")
check(any("host kv_blocks=" in line for line in s.log), "host memory is told", s.log)
first = [ask(s, i) for i in range(12)]
again = [ask(s, i) for i in range(12)]
check([t for t, _ in first] == [t for t, _ in again], "the same answers")
check(all(n == 0 for _, n in first), "nothing is known at first", first)
f = figures(s)
check(f["kv_tier_capacity_blocks", "host"] > 0 and f["kv_tier_capacity_blocks", "file"] > 0, "room", f)
check(f["kv_tier_stored_total", "host"] > 0, "stored", f)
found, back = sum(n for _, n in again), f["kv_tier_hits_total", "host"] + f["kv_tier_hits_total", "file"]
check(found > 0 or back == 0, "what came back is told as found", found, back)
check(s.stop() == 0, "drain")

os.chmod(folder, 0o777)
for args, text in ((("--prefix-cache-file", folder), "nobody else may write it"),
                   (("--prefix-cache-file", folder + "/none"), "No such file"),
                   (("--prefix-cache-file", work, "--prefix-cache-file-size", "4000T"), "bytes are free")):
    r = run("infer-serve", "-m", TINY, "-dev", device(), "--port", "0", *args)
    check(r.rc > 0 and any(text in line for line in r.said), "refused", args, r)
done()
