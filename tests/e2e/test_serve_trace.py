#!/usr/bin/env python3
"""infer-serve --trace: events are JSON that nests and agrees with the metrics; a kill, a full disk and a file that takes
nothing harm neither the file nor the server. SPDX-License-Identifier: Apache-2.0"""
import json
import os
import signal
import threading
import time

from harness import SLOWDOWN, Server, check, device, done, run, work, TINY

TEXT = "/v1/completions"
body = {"prompt": "Hello", "max_tokens": 6, "temperature": 0.5, "ignore_eos": True}


def load(path, whole=True):
    with open(path) as f:
        text = f.read()
    if not whole:  # as a viewer reads it: what is there, up to the last whole event
        text = text[:text.rindex("},") + 1] + "]"
    return json.loads(text)


def ns(e, k="ts"):
    return round(e[k] * 1000)


def nests(events):
    """Slices of a thread contain one another or lie apart; so do phases of one request. Returns the slices by thread."""
    threads, pairs = {}, {}
    for e in events:
        check(e["ph"] in "MXCbei" and e.get("pid") == 1, "an event", e)
        if e["ph"] == "X":
            threads.setdefault(e["tid"], []).append((ns(e), ns(e) + ns(e, "dur"), e))
        elif e["ph"] in "be":
            pairs.setdefault((e["cat"], e["id"]), []).append(e)
    for tid, slices in threads.items():
        stack = []
        for t0, t1, e in sorted(slices, key=lambda x: (x[0], -x[1])):
            while stack and stack[-1] <= t0:
                stack.pop()
            check(not stack or t1 <= stack[-1], "slices nest", tid, e)
            stack.append(t1)
    for key, phases in pairs.items():
        stack = []
        for e in sorted(phases, key=ns):  # stable: those of one instant stay in the file's order
            if e["ph"] == "b":
                stack.append(e["name"])
            else:
                check(stack and stack.pop() == e["name"], "phases nest", key, e)
        check(not stack, "every phase ends", key, stack)
    return threads, pairs


# ---- Two devices, some requests: what is in it
path = os.path.join(work, "trace.json")
devices = ["-dev", "%s,ref0" % device(), "-ts", "1,1"] if device() != "ref0" else []
s = Server("--trace", path, *devices)
ids = {}
threads = [threading.Thread(target=lambda i=i: ids.setdefault("req-%d" % i, s.request(
    "POST", TEXT, dict(body, prompt="Hello %d" % i, n=1 + i % 2, stream=i > 3), headers={"X-Request-Id": "req-%d" % i})))
    for i in range(6)]
for t in threads:
    t.start()
for t in threads:
    t.join()
check(all(r[0] == 200 for r in ids.values()), "served")
s.request("GET", '/no"<\\/script>', headers={"X-Request-Id": "odd"})
m = s.metrics()
check(s.stop() == 0, "drain")
events = load(path)
slices, pairs = nests(events)
names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
steps = [e for e in events if e["name"] == "step"]
check(len(steps) == m["infer_engine_steps_total"] == m["infer_iteration_tokens_total_count"], "each step is there", len(steps), m)
check(sum(e["args"]["tokens"] for e in steps) == m["infer_iteration_tokens_total_sum"], "their tokens")
check(sum(e["args"]["sampled"] for e in steps) == m["infer_generation_tokens_total"], "tokens made")
spans = sorted((ns(e), ns(e) + ns(e, "dur"), e["args"]["number"]) for e in steps)
check([n for _, _, n in spans] == list(range(1, len(spans) + 1)), "in order", spans)
check(all(a[1] <= b[0] for a, b in zip(spans, spans[1:])), "one runs at a time", spans)
planned = sorted((ns(e), ns(e) + ns(e, "dur")) for e in events if e["name"] == "schedule")
check(len(planned) == len(spans) and all(p[1] <= x[0] for p, x in zip(planned, spans)), "each was scheduled before")
check(any(p[0] < x[1] for p, x in zip(planned[1:], spans)), "some while the one before ran")
for tid, list_ in slices.items():
    for t0, t1, e in list_:
        if e["cat"] == "part":
            check(any(ns(x) <= t0 and t1 <= ns(x) + ns(x, "dur") for x in steps), "a part lies in a step", e)
            check(e["name"] in ("forward", "sample"), "its name", e)
        elif e["cat"] == "copy":
            check(any(a <= t0 and t1 <= b for a, b, x in list_ if x["cat"] == "part"), "a copy lies in a part", e)
if devices:
    check({device(), "ref0"} <= set(names.values()), "both devices have a thread", names)
    link = 'infer_link_bytes_total{src="%s",dst="ref0"}' % device()
    sent = [e for e in events if e["name"] == "send to ref0"]
    got = [e for e in events if e["name"] == "receive from " + device()]
    check(sent and sum(e["args"]["bytes"] for e in sent) == sum(e["args"]["bytes"] for e in got) == m[link] > 0,
          "copies, and their bytes", len(sent), len(got), m.get(link))
for tid, name in names.items():
    key = 'infer_device_busy_seconds_total{device="%s"}' % name
    busy = sum(t1 - t0 for t0, t1, e in slices.get(tid, []) if e["cat"] == "part") / 1e9
    if busy:
        check(abs(busy - m[key]) < 1e-6 * (1 + len(steps)), "busy time", name, busy, m.get(key))
requests = [p[0] for k, p in pairs.items() if k[0] == "request"]
check(len(requests) == 9, "a request each choice", len(requests))
for k, p in pairs.items():
    if k[0] == "request":
        check([e["name"] for e in p if e["ph"] == "b"] == ["request", "queue", "prefill", "decode"], "its phases", p)
        check(p[0]["args"]["request_id"] in ids and p[0]["args"]["generated"] == 6 and p[0]["args"]["finish"] == "length",
              "what it was", p[0])
calls = {p[0]["args"]["request_id"]: p[0]["args"] for k, p in pairs.items() if k[0] == "http"}
check(set(ids) <= set(calls) and calls["odd"]["status"] == 404 and calls["req-0"]["path"] == TEXT, "calls", calls)
check(events[-1]["name"] == "end", "the end")

# ---- Killed: what was written is good
s = Server("--trace", path)
for i in range(20):
    s.post(TEXT, body)
end = time.time() + 10 * SLOWDOWN
while os.path.getsize(path) < 4000 and time.time() < end:
    time.sleep(0.05)
s.p.send_signal(signal.SIGKILL)
s.p.wait()
events = load(path, whole=False)
nests(events)
check(any(e["name"] == "step" for e in events), "steps up to the end", len(events))

# ---- Nowhere to write: at the start that is an error, later it is said once and the server goes on
for path in (os.path.join(work, "no", "such"), "/dev/full"):
    r = run("infer-serve", "-m", TINY, "--port", "0", "--trace", path)
    check(r.rc == 1 and len(r.said) == 1 and "--trace" in r.said[0], "a file that cannot be written", path, r)
pipe = os.path.join(work, "pipe")
os.mkfifo(pipe)
reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
s = Server("--trace", pipe)
os.close(reader)
for i in range(5):
    check(s.post(TEXT, body)[0] == 200, "served")
    time.sleep(0.2)
check(sum("area=trace" in line for line in s.log) == 1, "said once", s.log)
check(s.stop() == 0, "drain")

# ---- A file that takes nothing for long: events are dropped and counted, memory stays
fifo = os.path.join(work, "fifo")
os.mkfifo(fifo)
reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
s = Server("--trace", fifo)
s.post(TEXT, dict(body, max_tokens=200))
before = s.metrics()["process_resident_memory_bytes"]
for i in range(40 if SLOWDOWN == 1 else 12):
    check(s.post(TEXT, dict(body, max_tokens=200))[0] == 200, "served")
grown = s.metrics()["process_resident_memory_bytes"] - before
check(grown < 4 << 20 or SLOWDOWN > 1, "memory is bounded", grown)
s.p.send_signal(signal.SIGTERM)
os.set_blocking(reader, True)
data = b""
while True:
    piece = os.read(reader, 65536)
    if not piece:
        break
    data += piece
check(s.p.wait(20 * SLOWDOWN) == 0, "drain")
events = json.loads(data)
nests(events) if not any(e["name"] == "events dropped" for e in events) else None
check(any(e["name"] == "events dropped" and e["args"]["count"] > 0 for e in events) or SLOWDOWN > 1, "dropped ones are counted")
done()
