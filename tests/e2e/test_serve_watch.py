#!/usr/bin/env python3
"""infer-serve watched: a step that hangs, the line of statistics, log lines as JSON, request ids.

SPDX-License-Identifier: Apache-2.0
"""
import json
import os
import re
import threading
import time

from harness import BUILD, SLOWDOWN, Server, check, device, done, make_model

TEXT = "/v1/completions"
greedy = {"prompt": "Hello", "max_tokens": 4, "temperature": 0}

# ---- Request ids: taken from the client when they are harmless, always answered and logged
s = Server("--log-format", "json", "--stats-interval", "1", "--api-key", "of-the-log-9")
s.key = "of-the-log-9"
for given, kept in (("abc-123_x.y:z/+=", True), ("a" * 131, True), ("a" * 132, False), ("", False), ('x"y', False), ("a b", False),
                    ("\x7f", False)):
    for path, body in ((TEXT, greedy), ("/nonsense", {}), ("/tokenize", b"{")):
        status, h, _ = s.request("POST", path, body, headers={"X-Request-Id": given})
        rid = h["x-request-id"]
        check(rid == given if kept else re.fullmatch(r"req-[0-9a-f]{32}", rid), "answered", repr(given), path, rid)
        end = time.time() + 5 * SLOWDOWN
        while not any('"id":"%s"' % rid in line for line in s.log) and time.time() < end:
            time.sleep(0.01)
        check(any('"id":"%s"' % rid in line for line in s.log), "logged", rid)
status, h, _ = s.request("POST", TEXT, dict(greedy, stream=True), headers={"X-Request-Id": "of-a-stream"})
check(h["x-request-id"] == "of-a-stream", "with a stream too")
s.request("GET", '/no"\\n%0ano%ff', headers={"X-Request-Id": "odd-path"})
check(any('"area":"stats"' in line for line in s.log) or time.sleep(2.5) is None, "a second has passed")
check(s.stop() == 0, "drain")
rows = []
for line in s.log:
    try:
        rows.append(json.loads(line))
    except ValueError:
        check(False, "every line is JSON", line)
check(all({"time", "level", "area", "msg"} <= set(r) for r in rows), "each has its members", rows[:2])
check("of-the-log-9" not in "\n".join(s.log), "no key is in it")
row = next(r for r in rows if r.get("id") == "of-a-stream")
check(row["msg"] == "POST " + TEXT and row["status"] == 200 and row["ms"] > 0 and row["prompt"] == 5 and
      row["generated"] == 4, "a request's line", row)
check(next(r for r in rows if r.get("id") == "odd-path")["status"] == 404, "a path with anything in it")
stats = [r for r in rows if r["area"] == "stats"]
NAMES = ["running", "waiting", "kv_usage", "prompt_tokens_per_s", "generation_tokens_per_s", "prefix_hit_rate", "steps_per_s",
         "step_ms", "finished", "cancelled", "failed", "preemptions"]
check(stats and all(list(r)[4:4 + len(NAMES)] == NAMES for r in stats), "lines of statistics", stats)
check(sum(r["finished"] for r in stats) == 8 and any(r["generation_tokens_per_s"] > 0 for r in stats), "their figures", stats)

# ---- In text: the same, as name=value; quiet when there is nothing to do
s = Server("--stats-interval", "1")
s.post(TEXT, greedy, headers={"X-Request-Id": "plain"})
time.sleep(5)
lines = [line for line in s.log if "area=stats" in line]
check(1 <= len(lines) <= 3, "an idle server says so once", lines)
check(re.search(r'msg="interval" ' + " ".join(n + r"=[0-9.e+-]+" for n in NAMES) + "$", lines[0]), "its form", lines)
check(any(re.search(r'msg="POST /v1/completions" status=200 ms=[0-9.]+ id=plain prompt=5 generated=4$', line)
          for line in s.log), "a request's line", s.log[-3:])
check(s.stop() == 0, "drain")
s = Server("--stats-interval", "0")
s.post(TEXT, greedy)
time.sleep(2.5)
check(not any("area=stats" in line for line in s.log), "none when not wanted")
check(s.stop() == 0, "drain")

# ---- A step that hangs
fault = os.path.join(BUILD, "tests", "plugins", ".libs", "infer-fault.so")
inner = os.path.join(BUILD, ".libs", "infer-cpu.so")
if device() == "cpu0" and os.path.exists(fault) and os.path.exists(inner):
    def slow(seconds):  # one step, after some
        return ["--backend-option", "fault.wrap=" + inner, "--backend-option",
                "fault.delay=signal:%d:30" % (seconds * 10**9), "-dev", "fault0"]

    long = dict(greedy, max_tokens=50, ignore_eos=True)
    s = Server("--step-timeout", "2", *slow(6))
    results, threads = {}, []

    def ask(name, body):
        start = time.time()
        if body.get("stream"):
            results[name] = s.stream(TEXT, body) + (time.time() - start,)
        else:
            results[name] = s.post(TEXT, body) + (time.time() - start,)

    for name, body in (("whole", long), ("two", dict(long, n=2)), ("stream", dict(long, stream=True))):
        threads.append(threading.Thread(target=ask, args=(name, body)))
        threads[-1].start()
    check(s.get("/ready")[0] == 200, "ready at first")
    for t in threads:
        t.join()
    for name in ("whole", "two"):
        status, reply, seconds = results[name]
        check(status == 503 and "hangs" in reply["error"]["message"] and seconds < 5.5, "failed by the watchdog", name, results[name])
    status, events, last, seconds = results["stream"]
    told = events["error"] if status != 200 else events[-1].get("error", {})
    check("hangs" in told.get("message", "") and seconds < 5.5 and (status == 503 or last), "the stream too", results["stream"])
    status, reply = s.get("/ready")
    check(status == 503 and reply["error"]["code"] == "stalled", "not ready", status, reply)
    check(s.get("/health")[0] == 200, "but alive")
    check(s.get("/metrics")[0] == 200 and s.metrics()["infer_engine_stalled"] == 2, "and it says so", s.metrics())
    status, h, data = s.request("POST", TEXT, greedy)
    check(status == 503 and json.loads(data)["error"]["code"] == "stalled" and h["Retry-After"], "new ones are refused", status)
    check(s.wait_metric("infer_engine_stalled", 0), "the step ends at last")
    check(s.wait_metric("infer_num_requests_running", 0) and s.wait_metric("infer_kv_cache_usage_perc", 0),
          "what was failed is gone from the engine")
    check(s.get("/ready")[0] == 200, "ready again")
    m = s.metrics()
    check(m['infer_request_success_total{finished_reason="error"}'] == 4, "each is counted once", m)
    check(s.stop() == 0, "drain")
    check(sum("they are failed" in line for line in s.log) >= 1 and any("made again" in line for line in s.log), "the log")

    # One that does not end: the server leaves all the same.
    s = Server("--step-timeout", "1", "--drain-timeout", "30", *slow(900))
    t = threading.Thread(target=ask, args=("never", long))
    t.start()
    t.join()
    check(results["never"][0] == 503, "failed", results["never"])
    start = time.time()
    check(s.stop() == 0 and time.time() - start < 5 * SLOWDOWN, "a device that hangs does not hold up the end")
    # While it hangs and nobody looks, a drain waits for the watchdog and not for ever.
    s = Server("--step-timeout", "2", "--drain-timeout", "60", *slow(900))
    t = threading.Thread(target=ask, args=("late", long))
    t.start()
    check(s.wait_metric("infer_num_requests_running", 1), "it runs")
    check(s.stop() == 0, "the drain ends")
    t.join()
    check(results["late"][0] == 503 and "hangs" in results["late"][1]["error"]["message"], "told why", results["late"])
done()
