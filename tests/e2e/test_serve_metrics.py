#!/usr/bin/env python3
"""/metrics: Prometheus' text form, every name that users rely on, and a dashboard that uses no others.

SPDX-License-Identifier: Apache-2.0
"""
import json
import math
import os
import re

from harness import SRC, Server, check, done

TEXT = "/v1/completions"
# What documentation and dashboards of others promise: vLLM's suffixes, and our own by device.
PROMISED = """num_requests_running num_requests_waiting kv_cache_usage_perc prompt_tokens_total generation_tokens_total
prefix_cache_queries_total prefix_cache_hits_total num_preemptions_total spec_decode_num_drafts_total
spec_decode_num_draft_tokens_total spec_decode_num_accepted_tokens_total time_to_first_token_seconds
inter_token_latency_seconds request_time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds
request_prefill_time_seconds request_decode_time_seconds request_inference_time_seconds request_prompt_tokens
request_generation_tokens request_max_num_generation_tokens request_params_n request_params_max_tokens
request_success_total iteration_tokens_total cache_config_info request_prefill_kv_computed_tokens
device_memory_bytes device_healthy device_busy_seconds_total link_bytes_total fallback_ops_total
kv_tier_blocks kv_tier_capacity_blocks kv_tier_hits_total kv_tier_stored_total kv_tier_evicted_total kv_tier_lost_total
plan_predicted_tokens_per_second""".split()


def parse(text):
    """{name: type}, {name: [(labels, value)]}; checks the form on the way."""
    types, samples, last = {}, {}, None
    for line in text.splitlines():
        m = re.fullmatch(r"# (HELP|TYPE) (\S+) (.+)", line)
        if m:
            if m.group(1) == "TYPE":
                check(m.group(2) not in types and m.group(3) in ("counter", "gauge", "histogram"), "one type a name", line)
                types[m.group(2)] = m.group(3)
            last = m.group(2)
            continue
        m = re.fullmatch(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\})? (NaN|[-+0-9.e]+)', line)
        if not check(m, "a sample", line):
            continue
        name, labels = m.group(1), tuple(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', m.group(2) or ""))
        family = re.sub("_(bucket|sum|count)$", "", name) if types.get(last) == "histogram" else name
        check(family == last, "samples stand behind their type", line)
        check((labels, m.group(3)) not in samples.get(name, []), "each once", line)
        samples.setdefault(name, []).append((labels, float(m.group(3))))
    return types, samples


s = Server("--metrics-compat", "vllm")
for i in range(3):
    s.post(TEXT, {"prompt": "Hello", "max_tokens": 4 + i, "n": 2, "ignore_eos": True, "temperature": 0})
status, headers, data = s.request("GET", "/metrics")
check(headers["Content-Type"].startswith("text/plain; version=0.0.4"), "its type", headers)
types, samples = parse(data.decode())
for name in PROMISED:
    check("infer_" + name in types and "vllm:" + name in types, "promised", name)
    rows = samples.get("infer_" + name, samples.get("infer_" + name + "_count"))
    check(rows or name == "link_bytes_total", "with a value", name)
    for labels, _ in rows or []:
        check(dict(labels)["model_name"] == "tiny-llama" and dict(labels)["engine"] == "0", "its labels", name, labels)
for name, kind in types.items():
    check(kind != "counter" or name.endswith("_total"), "a counter's name", name)
    if kind != "histogram":
        continue
    rows = samples[name + "_bucket"]
    counts = [v for _, v in rows]
    bounds = [float(dict(labels)["le"]) for labels, _ in rows]
    check(counts == sorted(counts) and bounds == sorted(bounds) and bounds[-1] == math.inf, "a histogram rises", name)
    check(counts[-1] == samples[name + "_count"][0][1], "its count", name)


def value(name):
    return samples["infer_" + name][0][1]


check(value("request_max_num_generation_tokens_sum") == 15 and value("request_max_num_generation_tokens_count") == 3,
      "the longest choice of each request")
check(value("request_generation_tokens_sum") == 30 and value("request_prefill_kv_computed_tokens_sum") <= 30, "tokens")
check(value("ready") == 1 and value("engine_stalled") == 0, "state")
check(value("spec_decode_num_drafts_total") == 0, "no drafts unless asked for")
info = dict(samples["infer_cache_config_info"][0][0])
check(int(info["block_size"]) > 0 and int(info["num_gpu_blocks"]) > 0, "the cache's shape", info)

# ---- The dashboard
with open(os.path.join(SRC, "docs", "grafana.json")) as f:
    board = json.load(f)
known = {n for n in samples} | {n for n in types}
labels = {k for rows in samples.values() for row, _ in rows for k, _ in row} | {"instance", "src", "dst"}
used = set()
ids = [p["id"] for p in board["panels"]]
check(len(ids) == len(set(ids)), "panels have ids of their own")
for panel in board["panels"]:
    if panel["type"] == "row":
        continue
    check(panel["targets"] and panel["title"], "a panel", panel["id"])
    for t in panel["targets"]:
        names = set(re.findall(r"\b((?:infer|process)_\w+)", t["expr"]))
        check(names and names <= known, "a panel uses what there is", panel["title"], names - known)
        for name in re.findall(r"([a-z_]+)=~?\"", t["expr"]) + re.findall(r"\{\{(\w+)\}\}", t["legendFormat"]):
            check(name in labels, "its labels", panel["title"], name)
        for by in re.findall(r"by \(([^)]*)\)", t["expr"]):
            check(set(by.replace(" ", "").split(",")) <= labels, "what it sums by", panel["title"], by)
        check(t["expr"].count("(") == t["expr"].count(")"), "an expression", t["expr"])
        for name in names:
            rate = re.search(r"(?:rate|increase)\(" + name, t["expr"])
            kind = types.get(re.sub("_(bucket|sum|count)$", "", name), types.get(name))
            check(bool(rate) == (kind in ("counter", "histogram")), "rates of what rises", t["expr"])
        used |= names
for v in board["templating"]["list"]:
    for name in re.findall(r"infer_\w+", str(v.get("query"))):
        check(name in known, "a variable", v)
missing = {n for n in types if n.startswith("infer_device") or n.startswith("infer_http")} - used
check(not missing, "what it leaves out", missing)
check(s.stop() == 0, "drain")

# ---- Drafts: the same answers, and counted
asks = [{"prompt": "abcabcabcabcabc", "max_tokens": 60, "ignore_eos": True, "temperature": t, "seed": 5, "logprobs": 2,
         "logit_bias": {"97": 12, "98": 12, "99": 12}} for t in (0, 0.5, 1)]
said = []
for flags in ((), ("--speculative", "ngram", "--num-speculative-tokens", "4")):
    s = Server(*flags)
    said.append([s.post(TEXT, a)[1]["choices"][0] for a in asks for _ in range(8)])
    _, samples = parse(s.request("GET", "/metrics")[2].decode())
    check(s.stop() == 0, "drain")
check(said[0] == said[1], "the same with drafts", said)
drafts, tried, right = (value("spec_decode_num_%s_total" % n) for n in ("drafts", "draft_tokens", "accepted_tokens"))
check(0 < drafts <= tried <= 4 * drafts and 0 < right <= tried, "drafts are counted", (drafts, tried, right))
check(value("generation_tokens_total") == 60 * 24, "and so are tokens", value("generation_tokens_total"))
done()
