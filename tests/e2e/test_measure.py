#!/usr/bin/env python3
"""infer-probe, infer-bench and infer-eval: their objects, and figures that agree with each other.

SPDX-License-Identifier: Apache-2.0
"""
import csv
import glob
import io
import json
import math
import os
import random
import struct

from harness import SRC, TINY, Server, check, device, done, make_model, program, run, work

DEV = ["-dev", device()]

# ---- infer-probe
r = run("infer-probe", "--json")
check(r.rc == 0, "infer-probe --json", r)
o = json.loads(r.out)
for d in o["devices"]:
    need = {"id", "backend", "name", "kind", "pci", "uuid", "numa_node", "memory_total", "memory_free", "driver", "arch",
            "dtypes", "ops_fallback", "measured", "status", "reason"}
    check(need <= set(d), "a device has all fields", need - set(d))
    check(d["kind"] in ("cpu", "gpu", "igpu", "npu", "software"), "kind", d)
    check(d["status"] == "ok" or d["reason"], "a device that is not usable says why", d)
    check(isinstance(d["dtypes"], list) and isinstance(d["ops_fallback"], list) and isinstance(d["measured"], dict),
          "lists", d)
check("ref0" in [d["id"] for d in o["devices"]], "the reference path is there")
for link in o["links"]:
    check(set(link) >= {"from", "to", "bytes_per_s", "latency_us", "path"} and link["measured"] is False, "a link", link)
n = len([d for d in o["devices"] if d["status"] == "ok" and not d["same_as"]])
check(len(o["links"]) == n * (n - 1), "a link for every ordered pair", n, len(o["links"]))
check(o["topology"]["cores"] >= 1, "topology", o["topology"])
check("plan" not in o, "no plan without a model")
table = run("infer-probe").out
check(all(d["id"] in table for d in o["devices"]), "the table has every device")

r = run("infer-probe", "--json", "-m", TINY, *DEV, "-c", "128", "-np", "3")
plan = json.loads(r.out)["plan"]
check({"stages", "alternatives", "ledger", "predicted", "reasons"} <= set(plan), "the plan's fields", set(plan))
check(set(plan["predicted"]) >= {"ttft_ms", "decode_tok_s"}, "predicted", plan["predicted"])
for row in plan["ledger"]:
    check({"device", "owner", "weights", "kv", "activations", "workspace", "adapters", "context", "reserve"} <= set(row),
          "a ledger row", row)
check(sum(x["n_layers"] for x in plan["stages"]) == 2, "every layer has a home", plan["stages"])
check(plan["kv"]["ctx_size"] == 128 and plan["kv"]["parallel"] == 3, "-c and -np show in the plan", plan["kv"])
text = run("infer-probe", "-m", TINY, *DEV, "-ctk", "f32", "-ctv", "bf16").out
check("keys f32" in text and "values bf16" in text and "layers 0 to 1" in text, "the printed plan", text)
kv = json.loads(run("infer-probe", "--json", "-m", TINY, *DEV, "--kv-cache-dtype", "f32", "-ctv", "bf16").out)["plan"]["kv"]
check((kv["k"], kv["v"]) == ("f32", "bf16"), "--kv-cache-dtype is both, -ctv goes before it", kv)
# Every type by its names, keys and values apart: what the ledger books is what a token's rows take.
rows64 = make_model("rows64.gguf", "--vocab-size", "264", "--dim", "64", "--heads", "2", "--kv-heads", "1", "--head-dim",
                    "64", "--ffn", "96", "--layers", "3", "--ctx", "256", "--seed", "1")
TYPES = (("f32", 4 * 64, "fp32 float32"), ("f16", 2 * 64, "auto fp16 float16 F16"), ("bf16", 2 * 64, "bfloat16"),
         ("f8_e4m3", 64, "fp8 fp8_e4m3"), ("q8_0", 2 * 34, "int8 INT8"), ("q4_0", 2 * 18, "int4"))
for i, (name, size, aliases) in enumerate(TYPES):
    other, other_size = TYPES[(i + 2) % len(TYPES)][:2]
    for called in [name] + aliases.split():
        plan = json.loads(run("infer-probe", "--json", "-m", rows64, *DEV, "-c", "128", "-np", "2", "-ctk", called, "-ctv",
                              other).out)["plan"]
        check((plan["kv"]["k"], plan["kv"]["v"]) == (name, other), "-ctk " + called, plan["kv"])
        booked = sum(x["kv"] for x in plan["ledger"])
        check(booked == 2 * 128 * 3 * (size + other_size), "bytes of keys %s, values %s" % (name, other), booked)
for flag, what in (("-ctk", "keys"), ("-ctv", "values")):
    r = run("infer-probe", "-m", TINY, *DEV, flag, "int8")
    check(r.rc == 2 and "%s int8: the model's %s have 16 values a head" % (flag, what) in r.err, "heads of 16", r)

r = run("infer-probe", "--json", "-m", TINY, *DEV, "--kv-cache-memory", "100")
check(r.rc == 4 and json.loads(r.out)["plan"] is None and json.loads(r.out)["error"], "a plan that does not fit", r)

# ---- what runs on the host, and what it costs (two layers, embedding of 48 floats, 4 heads of 12, feed-forward of 64)
if "sim0" in [d["id"] for d in o["devices"]]:
    SIM = ["-m", TINY, "-dev", "sim0", "--backend-option"]
    rows = json.loads(run("infer-probe", "--json", *SIM, "sim.deny_ops=glu,sample").out)["plan"]["fallbacks"]
    check([(x["device"], x["op"], x["count"]) for x in rows] == [("sim0", "glu", 2), ("sim0", "sample", 1)], "rows", rows)
    glu, sample = rows
    check(glu["reason"] == "no such op there", "why", glu)
    # gate and up go, the product comes back: 64 floats each
    check((glu["moves"], glu["bytes_moved"]) == (6, 2 * 3 * 64 * 4), "what crosses for glu", glu)
    check(glu["time_us"] > 0 and glu["time_basis"].startswith("measured"), "a measured time", glu)
    check(sample["time_us"] is None and sample["time_basis"] == "not known", "unknown is said", sample)
    table = run("infer-probe", *SIM, "sim.deny_ops=matmul,gated_mlp,qkv").out
    check("not known" in table or "measured" in table, "a table", table)
    check("\n  all " in table and " matmul " in table, "its rows and sum", table)
    check(not json.loads(run("infer-probe", "--json", *SIM, "sim.epilogues=1").out)["plan"]["fallbacks"], "nothing refused")

r = run("infer-probe", "--json", "--check-model", TINY)
check(r.rc == 0 and json.loads(r.out)["ok"] is True, "--check-model --json", r)

# ---- infer-bench
args = ["-m", TINY, *DEV, "-p", "64,96", "-n", "8", "-d", "0,16", "-np", "1,2", "-r", "2"]
rows = json.loads(run("infer-bench", *args, "-o", "json").out)
names = [x["test"] for x in rows]
check(len(rows) == 12 and names[:3] == ["pp64", "pp96", "tg8"] and "tg8 x 2 @ d16" in names, "the tests", names)
for x in rows:
    check(len(x["samples_ts"]) == 2 and all(v > 0 for v in x["samples_ts"]), "samples", x)
    mean = sum(x["samples_ts"]) / 2
    sd = math.sqrt(sum((v - mean) ** 2 for v in x["samples_ts"]))
    check(abs(x["avg_ts"] - mean) < 1e-6 * mean and abs(x["stddev_ts"] - sd) < 1e-5 * mean, "mean and deviation", x)
    reads = x["read_bytes_per_s"], x["read_limit"]
    if x["n_gen"] and device() != "sim0":
        check(all(v > 0 for v in reads), "what was read, and what can be", x)
    if not x["n_gen"]:
        check(reads == (None, None), "a prompt is not bound by reading", x)
        check(x["host_s_per_step"] is None, "nor are its steps counted", x)
    check(x["model_type"].startswith("llama") and x["backends"] == device() and x["n_threads"] >= 1, "columns", x)
hosts = [x["host_s_per_step"] for x in rows if x["n_gen"]]
check(all(v is None or 0 < v < 1 for v in hosts), "what a step costs the engine's thread", hosts)
for _ in range(5):  # all of a test's tokens may come at once where this machine is busy
    host = json.loads(run("infer-bench", "-m", TINY, *DEV, "-p", "0", "-n", "100", "-r", "1", "-o", "json").out)[0]["host_s_per_step"]
    if host:
        break
check(host and 1e-7 < host < 1, "what a step costs the engine's thread, in a longer test", host)
out = list(csv.DictReader(io.StringIO(run("infer-bench", *args, "-o", "csv").out)))
check([x["test"] for x in out] == names and all(float(x["avg_ts"]) > 0 for x in out), "csv", out[:1])
md = run("infer-bench", *args).out.splitlines()
check(len(md) == 14 and all(line.count("|") == 9 for line in md) and " ± " in md[2], "markdown", md)
if device() != "sim0":
    moe = os.path.join(SRC, "tests/golden/tiny-qwen3moe.gguf")
    rows = json.loads(run("infer-bench", "-m", moe, *DEV, "-p", "0", "-n", "4", "-np", "1,2", "-r", "1", "-o", "json").out)
    check([x["read_limit"] is None for x in rows] == [False, True], "what two sequences read of experts is not known", rows)
r = run("infer-bench", "-m", TINY, *DEV, "-p", "0", "-n", "0")
check(r.rc == 2, "nothing to measure", r)

# ---- infer-eval perplexity: the figure that the server's log-probabilities give
files = sorted(glob.glob(os.path.join(SRC, "core", "base", "*.[ch]")))
text = "".join(open(f).read() for f in files)[:6000]
path = os.path.join(work, "text")
with open(path, "w") as f:
    f.write(text)
saved = os.path.join(work, "logits")
r = run("infer-eval", "perplexity", "-m", TINY, *DEV, "-f", path, "-c", "64", "--json", "--save-logits", saved)
check(r.rc == 0, "perplexity", r)
p = json.loads(r.out)
s = Server()
ids = s.post("/tokenize", {"content": text, "add_special": True, "parse_special": False})[1]["tokens"]
windows = [ids[i:i + 64] for i in range(0, len(ids) - 63, 64)]
check(p["windows"] == len(windows) and p["tokens"] == 31 * len(windows), "windows and counted tokens", p)
nll = []
for w in windows:
    lp = s.post("/v1/completions", {"prompt": w, "max_tokens": 0, "echo": True, "logprobs": 0})[1]
    nll += [-x for x in lp["choices"][0]["logprobs"]["token_logprobs"][33:]]
check(s.stop() == 0, "drain")
mean = sum(nll) / len(nll)
var = sum(x * x for x in nll) / len(nll) - mean * mean
check(len(nll) == p["tokens"] and abs(math.exp(mean) - p["perplexity"]) < 1e-4 * p["perplexity"], "perplexity",
      math.exp(mean), p)
check(abs(math.sqrt(var / (len(nll) - 1)) * math.exp(mean) - p["error"]) < 1e-3 * p["error"], "its error", p)
text_form = run("infer-eval", "perplexity", "-m", TINY, *DEV, "-f", path, "-c", "64").out
check(text_form.startswith("perplexity %.4f ± " % p["perplexity"]), "text form", text_form)
few = json.loads(run("infer-eval", "perplexity", "-m", TINY, *DEV, "-f", path, "-c", "64", "--chunks", "3", "--json").out)
check(few["windows"] == 3, "--chunks", few)

# ---- infer-eval kld: nothing against itself; against changed logits what the definition says
with open(saved, "rb") as f:
    raw = f.read()
magic, version, n_vocab, n_ctx, n, first, counted = struct.unpack("<8s6I", raw[:32])
check((magic, version, n_ctx, n, first, counted) == (b"INFERLGT", 1, 64, len(windows), 32, 31), "the saved header")
check(list(struct.unpack("<%di" % (64 * n), raw[32:32 + 256 * n])) == sum(windows, []), "the saved ids")
at = 32 + 256 * n
logits = list(struct.unpack("<%df" % (n * counted * n_vocab), raw[at:]))
same = json.loads(run("infer-eval", "kld", "-m", TINY, *DEV, "--ref", saved, "--json").out)
check(same["mean"] == same["max"] == 0 and same["top1_agreement"] == 1 and same["tokens"] == p["tokens"], "itself", same)
check(abs(same["perplexity"]["value"] - p["perplexity"]) < 1e-9 * p["perplexity"], "its perplexity", same)
random.seed(3)
changed = [x + random.gauss(0, 0.5) for x in logits]
other = os.path.join(work, "changed")
with open(other, "wb") as f:
    f.write(raw[:at] + struct.pack("<%df" % len(changed), *changed))
changed = struct.unpack("<%df" % len(changed), struct.pack("<%df" % len(changed), *changed))


def log_softmax(x):
    m = max(x)
    z = m + math.log(sum(math.exp(v - m) for v in x))
    return [v - z for v in x]


values, agree = [], 0
for i in range(0, len(logits), n_vocab):
    ref, own = log_softmax(changed[i:i + n_vocab]), log_softmax(logits[i:i + n_vocab])
    values.append(sum(math.exp(a) * (a - b) for a, b in zip(ref, own)))
    agree += ref.index(max(ref)) == own.index(max(own))
values.sort()
k = json.loads(run("infer-eval", "kld", "-m", TINY, *DEV, "--ref", other, "--json").out)
check(abs(k["mean"] - sum(values) / len(values)) < 1e-5 * k["mean"], "mean divergence", k, sum(values) / len(values))
check(abs(k["max"] - values[-1]) < 1e-4 * values[-1] and abs(k["median"] - values[len(values) // 2]) < 0.01, "quantiles", k)
check(values[int(0.98 * len(values))] <= k["p99"] <= values[-1], "p99", k)
check(abs(k["top1_agreement"] - agree / len(values)) < 1e-9, "agreement", k, agree / len(values))
two = json.loads(run("infer-eval", "kld", "-m", TINY, *DEV, "--ref-device", "ref0", "-f", path, "-c", "64", "--json").out)
check(two["mean"] < 1e-6 and two["top1_agreement"] > 0.99, "this device against the reference path", two)
qwen = os.path.join(SRC, "tests", "golden", "tiny-qwen2.gguf")
two = json.loads(run("infer-eval", "kld", "-m", TINY, *DEV, "--ref-model", qwen, "-f", path, "-c", "64", "--json").out)
check(two["mean"] > 0.1 and two["top1_agreement"] < 0.5, "another model is another model", two)

# Broken files of logits.
for name, data in {"cut": raw[:-4], "short": raw[:20], "magic": b"x" + raw[1:], "more": raw + b"\0\0\0\0",
                   "huge": raw[:20] + struct.pack("<I", 0xFFFFFFFF) + raw[24:],
                   "ids": raw[:32] + struct.pack("<i", 1 << 20) + raw[36:]}.items():
    bad = os.path.join(work, name)
    with open(bad, "wb") as f:
        f.write(data)
    r = run("infer-eval", "kld", "-m", TINY, *DEV, "--ref", bad)
    check(r.rc == 1 and len(r.said) == 1 and bad in r.said[0] and r.out == "", "broken logits: " + name, r)
r = run("infer-eval", "kld", "-m", qwen, *DEV, "--ref", saved)
check(r.rc in (0, 2), "another vocabulary is refused, the same compared", r)
r = run("infer-eval", "perplexity", "-m", TINY, *DEV, "-f", path, "-c", "64", "--save-logits", "/dev/full")
check(r.rc == 1 and "No space" in r.err and r.out == "", "a full disk is told", r)
with open(os.path.join(work, "tiny"), "w") as f:
    f.write("too short")
r = run("infer-eval", "perplexity", "-m", TINY, *DEV, "-f", os.path.join(work, "tiny"), "-c", "64")
check(r.rc == 2 and "few" in r.said[0], "a short text", r)
done()
