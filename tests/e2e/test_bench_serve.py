#!/usr/bin/env python3
"""infer-bench serve: what it counts is what the server counted, and what a server answers wrong is told as such.

SPDX-License-Identifier: Apache-2.0
"""
import csv
import io
import json
import os
import random
import socket
import statistics
import threading
import xml.etree.ElementTree as xml

from harness import SLOWDOWN, TEMPLATE, TINY, Server, check, device, done, program, run, work

DEV = ["-dev", device()]
SMALL = ["-m", TINY, "--input-tokens", "24", "--output-tokens", "12", "-o", "json", "--samples"]
PROMPTS, MADE = "infer_prompt_tokens_total", "infer_generation_tokens_total"


def bench(*args, rc=0):
    r = run("infer-bench", "serve", *args)
    check(r.rc == rc, "infer-bench serve %s" % (args,), r)
    return json.loads(r.out) if r.out[:1] == "{" else r


def close_to(a, b):
    return abs(a - b) <= 1e-6 * max(abs(a), abs(b), 1e-3)


def percentile(values, p):
    values = sorted(values)
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[p - 1]


def check_figures(o):
    """The sums and percentiles are those of the samples."""
    good = [x for x in o["samples"] if x["failure"] is None]
    check(len(o["samples"]) == o["requests"] and len(good) == o["ok"], "as many samples as requests", o["ok"])
    check(o["requests"] - o["ok"] == sum(f["n"] for f in o["failures"]), "each failure has its kind", o["failures"])
    check(sum(x["prompt_tokens"] for x in good) == o["total_prompt_tokens"], "prompt tokens")
    check(sum(x["output_tokens"] for x in good) == o["total_output_tokens"], "output tokens")
    values = {"ttft_ms": [x["ttft_ms"] for x in good], "e2e_ms": [x["e2e_ms"] for x in good],
              "itl_ms": [g for x in good for g in x["itl_ms"]],
              "tpot_ms": [sum(x["itl_ms"]) / (x["output_tokens"] - 1) for x in good if x["output_tokens"] > 1]}
    for name, v in values.items():
        d = o[name]
        check(d["n"] == len(v), name + ": samples", d, len(v))
        if v:
            check(close_to(d["mean"], statistics.fmean(v)) and close_to(d["max"], max(v)), name + ": mean, max", d)
            check(all(close_to(d["p%d" % p], percentile(v, p)) for p in (50, 90, 99)), name + ": percentiles", d)
    if good:
        check(close_to(o["requests_per_s"], o["ok"] / o["duration_s"]), "requests a second", o["requests_per_s"])
        check(close_to(o["output_tokens_per_s"], o["total_output_tokens"] / o["duration_s"]), "tokens a second")
        total = o["total_output_tokens"] + o["total_prompt_tokens"]
        check(close_to(o["total_tokens_per_s"], total / o["duration_s"]), "total tokens a second")
        last = max(x["sent_ms"] + x["e2e_ms"] for x in o["samples"])
        check(last <= 1000 * o["duration_s"] + 1e-3, "the run lasts until the last end", last, o["duration_s"])
    for x in good:
        check(0 < x["ttft_ms"] <= x["e2e_ms"] and all(g >= 0 for g in x["itl_ms"]), "times rise", x)
        check(x["ttft_ms"] + sum(x["itl_ms"]) <= x["e2e_ms"] + 1e-6, "pieces come before the end", x)


# ---- The same list, through the server and through the engine: all counts agree.
dataset = os.path.join(work, "sharegpt.json")
random.seed(4)
with open(dataset, "w") as f:
    say = lambda: " ".join(random.choice(["ask", "tell", "why", "ünd"]) for _ in range(random.randrange(2, 6)))
    json.dump([{"id": str(i), "conversations": [
        {"from": "human" if k % 2 == 0 else "gpt", "value": say()} for k in range(random.choice((0, 1, 2, 4, 6)))]}
        for i in range(60)], f)

s = Server("-np", "8")
URL = ["--url", "http://127.0.0.1:%d" % s.port]
CASES = {
    "random": ["--requests", "40", "--length-sigma", "0.5"],
    "rate": ["--requests", "40", "--rate", "300", "--seed", "3"],
    "prefix": ["--workload", "prefix", "--prefix-tokens", "60", "--prefixes", "2", "--requests", "30"],
    "turns": ["--workload", "turns", "--turns", "3", "--requests", "32", "--input-tokens", "16"],
    "sharegpt": ["--dataset", dataset, "--requests", "20"],
    "sharegpt turns": ["--dataset", dataset, "--turns", "2", "--requests", "20", "--max-input-tokens", "30"],
    "sampled": ["--requests", "10", "--temp", "1.0", "--no-ignore-eos"],
}


def came_empty(o, name):
    """A sampled answer may begin with an end token, which is told as a failure: then it is asked for again."""
    return name == "sampled" and any(f["kind"] == "empty" for f in o["failures"])


for name, args in CASES.items():
    listed = [run("infer-bench", "serve", *SMALL, *args, "--print-requests").out for _ in range(2)]
    requests = [json.loads(line) for line in listed[0].splitlines()]
    check(listed[0] == listed[1] and requests, name + ": the same list each time")
    for endpoint in ("completions", "chat"):
        if endpoint == "chat" and name == "prefix":
            continue  # with the template's text it is too long for the tiny model
        more = args + ["--endpoint", endpoint, "--chat-template", TEMPLATE]
        h = None
        while not h or came_empty(h, name):
            before = s.metrics()
            h = bench(*SMALL, *more, *URL)
            after = s.metrics()
        what = name + ", " + endpoint
        check(h["ok"] == h["requests"] == len(requests) and not h["failures"], what + ": all go well", h["failures"])
        warm = h["warmup"]
        check(after[PROMPTS] - before[PROMPTS] == h["total_prompt_tokens"] + warm["prompt_tokens"],
              what + ": the server's prompt tokens", before[PROMPTS], after[PROMPTS], h)
        # An end token is made, but no part of an answer: the metric has it, usage has not.
        ends = 'infer_request_success_total{finished_reason="%s"}'
        ended = after[ends % "stop"] - before[ends % "stop"]  # with the first, which warms up
        check(ended - sum(x["finish_reason"] == "stop" for x in h["samples"]) in (0, 1), what + ": ends", ended)
        made = after[MADE] - before[MADE] - h["total_output_tokens"] - warm["output_tokens"]
        check(made == ended, what + ": the server's output tokens", made, ended, h["total_output_tokens"])
        count = sum(after[ends % why] - before[ends % why] for why in ("length", "stop"))
        check(count == h["requests"] + 1, what + ": the server's requests", count)
        check(h["counted_by"] == "the server's usage" and h["counted_by_pieces"] == 0, what + ": counted by usage", h)
        check_figures(h)
        check([x["asked"] for x in h["samples"]] == [r["output_tokens"] for r in requests], what + ": the list's lengths")
        e = None
        while not e or came_empty(e, name):
            e = bench(*SMALL, *more, *DEV)
        check_figures(e)
        check(e["counted_by"] == "the engine" and e["list_hash"] == h["list_hash"], what + ": the same list", e)
        check(e["ok"] == e["requests"], what + ": the engine does it all", e["failures"])
        if name != "sampled":
            check(h["sent_ignore_eos"] and h["shorter_than_asked"] == 0, what + ": ignore_eos", h)
            check(all(x["output_tokens"] == x["asked"] for x in h["samples"]), what + ": lengths as asked")
            # Also of later turns, whose prompts hold the answers before them.
            same = [(x["prompt_tokens"], x["output_tokens"]) for x in h["samples"]]
            check(same == [(x["prompt_tokens"], x["output_tokens"]) for x in e["samples"]], what + ": the same tokens", e)
        if name == "rate":
            check(all(x["sent_ms"] >= 1000 * r["due_s"] - 1e-3 for x, r in zip(h["samples"], requests)), "none is early")
            check(h["late_ms"]["n"] == 40 and h["concurrency"] == 0, "how late they were", h["late_ms"])
        if name == "random" and endpoint == "completions":
            check([x["prompt_tokens"] for x in h["samples"]] == [r["input_length"] for r in requests], "prompts as asked")
            check(len(set(x["prompt_tokens"] for x in h["samples"])) > 5, "of several lengths")
        if name == "prefix":
            check(h["total_cached_tokens"] >= 14 * 48, "shared beginnings are found", h["total_cached_tokens"])
            check(after["infer_prefix_cache_hits_total"] - before["infer_prefix_cache_hits_total"] -
                  h["total_cached_tokens"] in range(0, 16), "cached tokens as the server counts", h["total_cached_tokens"])
        if "turns" in name:
            by_turn = [[x["prompt_tokens"] for x in h["samples"] if x["turn"] == k] for k in range(2)]
            check(min(by_turn[1]) > min(by_turn[0]), "later turns hold the earlier ones", by_turn)
            ends_at = {}
            for x in h["samples"]:
                check(x["sent_ms"] >= ends_at.get(x["conversation"], 0), "a turn follows its answer", x)
                ends_at[x["conversation"]] = x["sent_ms"] + x["e2e_ms"]

# Many connections, and never more at once than asked.
o = bench(*SMALL, *URL, "--requests", "700", "--concurrency", "300", "--output-tokens", "4")
check(o["ok"] == 700, "300 connections", o["failures"])
check_figures(o)
o = bench(*SMALL, *URL, "--requests", "30", "--concurrency", "3")
edges = sorted([(x["sent_ms"], 1) for x in o["samples"]] + [(x["sent_ms"] + x["e2e_ms"], -1) for x in o["samples"]])
level = most = 0
for _, step in edges:
    level += step
    most = max(most, level)
check(most == 3, "three clients", most)
o = bench(*SMALL, "--dataset", dataset, *URL, "--requests", "1000")
check(0 < o["requests"] < 60 and o["left_out"] > 0, "a dataset that is too small is used once", o["requests"])

# ---- The report's forms
svg = os.path.join(work, "run.svg")
plain = ["-m", TINY, "--input-tokens", "8", "--output-tokens", "8", "--requests", "12", *URL]
r = bench(*plain, "--svg", svg)
lines = r.out.splitlines()
check("| went well              | 12 of 12 |" in lines and "counted by the server's usage" in r.out, "markdown", r)
check(sum(line.startswith("| ") and line.count("|") == 8 for line in lines) == 6, "the table of latencies", lines)
root = xml.parse(svg).getroot()
check(root.tag.endswith("svg"), "a picture", root.tag)
check(len(root.findall("{*}circle")) == 12 and len(root.findall("{*}polyline")) == 4, "a dot a request, four lines")
rows = list(csv.DictReader(io.StringIO(bench(*plain, "-o", "csv").out)))
check(len(rows) == 1 and rows[0]["ok"] == "12" and float(rows[0]["ttft_ms_p99"]) > 0, "csv", rows)
r = run("infer-bench", "serve", *plain, "--svg", "/nosuch/x.svg")
check(r.rc == 1 and "/nosuch/x.svg" in r.said[0], "a picture that cannot be written", r)
r = run("infer-bench", "serve", *plain[:-1], "http://127.0.0.1:%d/elsewhere" % s.port)
check(r.rc == 1 and "HTTP 404" in r.said[0] and r.out == "", "a path that is not there", r)
check(s.stop() == 0, "drain")
r = run("infer-bench", "serve", *plain)
check(r.rc == 1 and "refused" in r.said[0], "no server", r)

# ---- A full queue, a context that is too small, a key
s = Server("-np", "1", "--max-queue", "2", "--api-key", "open")
URL = ["--url", "http://127.0.0.1:%d/v1" % s.port]
s.key = "open"
r = run("infer-bench", "serve", *SMALL, *URL)
check(r.rc == 1 and "HTTP 401" in r.said[0], "a key is missing", r)
key = os.path.join(work, "key")
with open(key, "w") as f:
    f.write("open name=ours scope=infer\n")
before = s.metrics()
o = bench(*SMALL, *URL, "--api-key-file", key, "--requests", "60", "--concurrency", "30", "--output-tokens", "60")
after = s.metrics()
check(o["ok"] and [f["kind"] for f in o["failures"]] == ["HTTP 429"], "a full queue is no success", o["failures"])
check("queue" in o["failures"][0]["first"], "and says why", o["failures"])
check(after[MADE] - before[MADE] == o["total_output_tokens"] + o["warmup"]["output_tokens"], "tokens of those served")
check(all(x["output_tokens"] == 0 for x in o["samples"] if x["failure"]), "none for the others")
check_figures(o)
r = run("infer-bench", "serve", *SMALL, *URL, "--api-key", "open", "--input-tokens", "300", "--requests", "5")
check(r.rc == 1 and r.said[-1].endswith("no request went well"), "nothing went well", r)
o = json.loads(r.out)
check(o["failures"] == [{"kind": "HTTP 400", "n": 5, "first": o["failures"][0]["first"]}], "too long", o["failures"])
o = bench(*SMALL, *DEV, "-np", "1", "--input-tokens", "300", "--requests", "5", rc=1)
check(o["ok"] == 0 and o["failures"][0]["n"] == 5, "too long for the engine", o["failures"])
o = bench(*SMALL, *URL, "--api-key", "open", "--workload", "turns", "--turns", "9", "--requests", "9",
          "--input-tokens", "60")
kinds = {f["kind"]: f["n"] for f in o["failures"]}
check(kinds.get("HTTP 400") == 1 and kinds["not sent"] == 8 - o["ok"] and o["ok"] >= 1, "the rest of a conversation", kinds)
s.stop()


# ---- A server that answers as it is told
def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(text=None, finish=None, **more):
    o = {"choices": [{"index": 0, "text": text or "", "finish_reason": finish}], **more}
    return b"data: " + json.dumps(o).encode() + b"\n\n"


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = event(finish="length") + b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\ndata: [DONE]\n\n'
GOOD = HEAD + chunk(event("a")) + chunk(event("b") + event("c")) + chunk(END) + b"0\r\n\r\n"
NO_USAGE = HEAD + chunk(event("a") + event("b") + event(finish="stop") + b"data: [DONE]\n\n") + b"0\r\n\r\n"


def whole(status, body):
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


class Fake:
    """Answers the n-th POST with the n-th of `answers` (then the last again): bytes, and what to do after them."""

    def __init__(self, answers, step=0):
        self.answers, self.step, self.bodies, self.n_connections = answers, step, [], 0
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = ["--url", "http://127.0.0.1:%d" % self.listener.getsockname()[1]]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                c, _ = self.listener.accept()
            except OSError:
                return
            self.n_connections += 1
            threading.Thread(target=self.talk, args=(c,), daemon=True).start()

    def talk(self, c):
        data = b""
        while True:
            while b"\r\n\r\n" not in data:
                piece = c.recv(65536)
                if not piece:
                    return c.close()
                data += piece
            head, data = data.split(b"\r\n\r\n", 1)
            if head.startswith(b"GET"):
                c.sendall(whole(b"200 OK", b'{"data":[{"id":"fake"}]}'))
                continue
            n = int([h for h in head.split(b"\r\n") if h.lower().startswith(b"content-length")][0].split(b":")[1])
            while len(data) < n:
                data += c.recv(65536)
            with self.lock:
                i = len(self.bodies)
                self.bodies.append(json.loads(data[:n]))
            data = data[n:]
            answer, after = self.answers[min(i, len(self.answers) - 1)]
            for k in range(0, len(answer), self.step or len(answer)):
                c.sendall(answer[k:k + (self.step or len(answer))])
            if after == "close":
                c.shutdown(socket.SHUT_RDWR)
                return c.close()
            if after == "hang":
                return

    def close(self):
        self.listener.close()


keep = "keep"
WRONG = [
    (whole(b"429 Too Many Requests", b'{"error":{"message":"slow down"}}'), keep, "HTTP 429"),
    (whole(b"500 Oh", b'{"error":{"message":"broken"}}'), keep, "HTTP 500"),
    (whole(b"503 No", b"<html>"), "close", "HTTP 503"),
    (whole(b"200 OK", b'{"choices":[{"text":"abc","finish_reason":"stop"}]}'), keep, "no stream"),
    (HEAD + chunk(event("a")), "close", "cut"),
    (HEAD + chunk(event("a") + END)[:-30], "close", "cut"),
    (HEAD + chunk(event("a")) + b"0\r\n\r\n", keep, "cut"),
    (HEAD + chunk(event("a") + event(finish="length")) + b"0\r\n\r\n", keep, "cut"),
    (HEAD + chunk(event("a") + b'data: {"error":{"message":"lost"}}\n\ndata: [DONE]\n\n') + b"0\r\n\r\n", keep,
     "error in stream"),
    (HEAD + chunk(event("a") + b"data: {nonsense}\n\n" + END) + b"0\r\n\r\n", keep, "stream"),
    (HEAD + chunk(END) + b"0\r\n\r\n", keep, "empty"),
    (HEAD + chunk(event("a")) + b"zz\r\n", keep, "protocol"),
    (b"SSH-2.0-nothing\r\n", keep, "protocol"),
    (b"HTTP/1.1 200 OK\r\nContent-Le", "close", "cut"),
    (HEAD + chunk(event("a")), "hang", "timeout"),
]
plain = ["--concurrency", "1", "-o", "json", "--samples", "--input-tokens", "5", "--output-tokens", "3"]
for step in (0, 1):
    answers = [(GOOD, keep)]
    for answer, after, _ in WRONG:
        answers += [(answer, after), (GOOD, keep)]
    f = Fake(answers, step)
    o = bench(*plain, *f.url, "--requests", str(2 * len(WRONG)), "--timeout", "3" if SLOWDOWN == 1 else "10")
    f.close()
    got = [x["failure"] for x in o["samples"]]
    want = [kind for w in WRONG for kind in (w[2], None)]
    check(got == want, "what is wrong is told by its kind", [(a, b) for a, b in zip(got, want) if a != b])
    check(o["ok"] == len(WRONG) and o["total_output_tokens"] == 3 * len(WRONG), "and is no success", o["failures"])
    check_figures(o)
    b = f.bodies[1]
    check(b["model"] == "fake" and b["stream"] is True and b["stream_options"] == {"include_usage": True} and
          b["ignore_eos"] is True and b["min_tokens"] == b["max_tokens"] == 3 and b["temperature"] == 0, "the request", b)

# Kept connections that the server closes without a word are replaced; those that say so, too.
for answer, after in ((GOOD, "close"), (GOOD.replace(b"\r\n", b"\r\nConnection: close\r\n", 1), "close"), (GOOD, keep)):
    f = Fake([(answer, after)])
    o = bench(*plain, *f.url, "--requests", "20")
    f.close()
    check(o["ok"] == 20 and (f.n_connections < 5) == (after == keep), "connections", o["failures"], f.n_connections)

# A server without usage: pieces are counted, and that is said.
f = Fake([(NO_USAGE, keep)])
o = bench(*plain, *f.url, "--requests", "4")
f.close()
check(o["ok"] == 4 and o["counted_by_pieces"] == 4 and o["total_output_tokens"] == 8, "pieces", o)
check(o["counted_by"] == "pieces of the stream" and o["shorter_than_asked"] == 4, "and it is said", o)
# Servers that refuse what OpenAI's interface does not have.
refusal = (whole(b"400 Bad", b'{"error":{"message":"unknown field"}}'), keep)
for n, fields in ((1, {"stream_options"}), (2, set())):
    f = Fake([refusal] * n + [(GOOD, keep)])
    r = run("infer-bench", "serve", *plain, *f.url, "--requests", "2")
    f.close()
    o = json.loads(r.out)
    check(o["ok"] == 2 and o["sent_include_usage"] == bool(fields) and not o["sent_ignore_eos"], "left out", o)
    check("ignore_eos" in r.err and ("stream_options" in r.err) == (not fields), "which is said", r)
    check({"stream_options", "ignore_eos", "min_tokens"} & set(f.bodies[-1]) == fields, "the request", f.bodies[-1])
f = Fake([refusal])
r = run("infer-bench", "serve", *plain, *f.url)
f.close()
check(r.rc == 1 and "unknown field" in r.said[-1] and len(f.bodies) == 3, "refused for good", r)
done()
