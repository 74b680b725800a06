#!/usr/bin/env python3
"""What each wrong request is answered: the table of docs/serving.md, a case for every row and a row for every case.

SPDX-License-Identifier: Apache-2.0
"""
import json
import os
import re
import time

from harness import BUILD, SLOWDOWN, SRC, Server, check, device, done, http_bytes, make_model, read_all

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
seen = set()


def error(status, data, want, code, what, kind=None):
    """An answer in OpenAI's form."""
    try:
        e = json.loads(data)["error"]
    except (ValueError, KeyError, TypeError):
        return check(False, "an error object", what, status, data[:300])
    check(status == want and e["code"] == code, what, status, e)
    types = {401: "invalid_request_error", 403: "permission_error", 429: "rate_limit_error", 501: "not_supported_error",
             503: "unavailable_error", 500: "server_error"}
    check(e["type"] == types.get(status, "invalid_request_error") and e["message"] and "param" in e, "its members", what, e)
    seen.add((want, code))
    return e


def refused(s, path, body, want, code, what, param=None, method="POST", **headers):
    status, h, data = s.request(method, path, body, headers={k.replace("_", "-"): v for k, v in headers.items()})
    e = error(status, data, want, code, what)
    if param and isinstance(e, dict):
        check(e["param"] == param, "which field", what, e)
    return h


def raw(s, data, what):
    """(status, body, whether the server closed) of bytes as they are; None: closed without an answer."""
    c = s.raw(timeout=8)
    try:
        c.sendall(data)
    except OSError:
        pass
    got = read_all(c)
    c.close()
    if not got:
        return None, b"", True
    head, _, body = got.partition(b"\r\n\r\n")
    return int(head.split()[1]), body, b"connection: close" in head.lower()


def rss(s):
    return s.metrics()["process_resident_memory_bytes"]


s = Server("--api-key", "k", "--client-timeout", "2", "-c", "128", "--served-model-name", "m")
s.key = "k"
auth = {"Authorization": "Bearer k"}

# ---- HTTP that is none: the library's answer, without JSON, or the end of the connection
for data in (b"GARBAGE\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01" + bytes(100), b"\xff\xfe\x00\x01\r\n\r\n", b"\r\n" * 50):
    status, body, closed = raw(s, data, "no HTTP")
    check(status in (None, 400) and closed, "no HTTP", data[:20], status)
seen.add((0, "closed"))
for data in (http_bytes("GET", "/health", A="b")[:-2] + b"no colon\r\n\r\n", http_bytes("POST", TEXT, b"", Content_Length="-5"),
             http_bytes("POST", TEXT, b"", Content_Length="5x"), http_bytes("POST", TEXT, b"", Transfer_Encoding="chunked") + b"zz\r\n"):
    status, body, closed = raw(s, data, "broken HTTP")
    check(status == 400 and b"{" not in body, "broken HTTP", data[:80], status, body[:80])
seen.add((400, "library"))
for data, want in ((b"GET / HTTP/9.9\r\n\r\n", 505), (b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n", 414),
                   (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20000 + b"\r\n", 431)):
    status, body, closed = raw(s, data, "too much")
    check(status == want, "too much for the library", data[:30], status)
    seen.add((want, "library"))
status, body, closed = raw(s, http_bytes("POST", TEXT, b"", Transfer_Encoding="chunked", **auth) + b"ffffffffffffffffff\r\n", "chunk")
check(status == 413, "a chunk of any size", status)
seen.add((413, "library"))
refused(s, "/health", None, 431, "headers_too_large", "headers", method="GET", A="y" * 20000)

# ---- The length of a body that is stated twice: a proxy may have read the other
attack = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
for head in (b"Content-Length: 2\r\nContent-Length: 40\r\n", b"Content-Length: 2\r\nContent-Length: 2\r\n",
             b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
             b"Transfer-Encoding: gzip, chunked\r\n", b"Transfer-Encoding: xchunked\r\n"):
    data = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\n" + head + b"\r\n2\r\n{}\r\n0\r\n\r\n" + attack
    status, body, closed = raw(s, data, "two lengths")
    check(closed and body.count(b"HTTP/1.1") == 0, "what follows is no request", head, body)
    error(status, body, 400, "ambiguous_length", "two lengths")

# ---- Paths, methods, keys
for path in ("/nonsense", "/v1/completions/", "/V1/completions", "/%ff%00", "/a" * 500, "/..", "/v1/../metrics"):
    refused(s, path, {}, 404, None, "no such path")
for method, path in (("GET", TEXT), ("DELETE", "/v1/models"), ("PUT", TEXT), ("PATCH", "/metrics"), ("POST", "/health"),
                     ("OPTIONS", TEXT)):
    h = refused(s, path, None, 405, "method_not_supported", "no such method", method=method)
    check(h["Allow"] in ("GET", "POST"), "Allow", h)
refused(s, TEXT, {}, 401, "invalid_api_key", "key", Authorization="Bearer x")
refused(s, "/v1/embeddings", {}, 501, "not_built", "not built")
refused(s, TEXT, {"model": "other", "prompt": "x"}, 404, "model_not_found", "model", "model")
check(s.request("GET", "/v1/models/other")[0] == 404, "a model")

# ---- Bodies that are no JSON
good = json.dumps({"prompt": "Hello", "max_tokens": 2}).encode()
for body in (b"", b"{", b"[]", b"null", b"5", b'"x"', b"\x00", b"\xef\xbb\xbf{}", b"{'a': 1}", b'{"a": 1,}', b"{} {}", good + b"x",
             b'{"prompt": "\xc3\x28"}', b'{"prompt": "\xff"}', b'{"prompt": "\xed\xa0\x80"}', b'{"prompt": "\xf8\x88\x80\x80\x80"}',
             b'{"prompt": "\xc0\x80"}', b'{"prompt": "\\ud800"}', b'{"prompt": "a\nb"}', b'{"\xff": 1}', b'{"seed": 1e999}',
             b'{"seed": 99999999999999999999}', b"[" * 100000, b'{"a":' * 100000, b'{"messages": ' + b"[" * 100000 + b"]" * 100000 + b"}"):
    for path in (TEXT, CHAT, "/tokenize", "/detokenize", "/apply-template"):
        start = time.time()
        refused(s, path, body, 400, "invalid_json", "no JSON: %r" % body[:30])
        check(time.time() - start < 2 * SLOWDOWN, "at once", body[:30])
# Deep, but within what the parser takes: no crash, whatever it is good for.
for deep in ('{"a":' * 1500 + "1" + "}" * 1500, "[" * 1500 + "]" * 1500):
    for name in ("chat_template_kwargs", "messages", "tools", "stop", "prompt", "logit_bias", "unknown"):
        body = ('{"messages": [{"role": "user", "content": "x"}], "prompt": "x", "max_tokens": 1, "%s": %s}' % (name, deep)).encode()
        for path in (TEXT, CHAT, "/apply-template"):
            status, _, data = s.request("POST", path, body)
            check(status in (200, 400) and json.loads(data), "deep", name, path, status)

# ---- Types and values
wrong = {"a string": "x", "a number": 5, "an array": [], "an object": {}, "true": True}
types = [("prompt", {"prompt": {}}, TEXT), ("prompt", {"prompt": 5}, TEXT), ("prompt", {"prompt": [1, "x"]}, TEXT),
         ("prompt", {"prompt": [["x"]]}, TEXT), ("messages", {"messages": "x"}, CHAT), ("messages", {"messages": {}}, CHAT),
         ("tokens", {"tokens": "x"}, "/detokenize"), ("tokens", {"tokens": ["x"]}, "/detokenize"), ("tokens", {"tokens": [1.5]}, "/detokenize"),
         ("content", {"content": 5}, "/tokenize"), ("add_special", {"content": "x", "add_special": 1}, "/tokenize")]
for name, kinds in (("max_tokens", ("a string", "an array", "true")), ("temperature", ("a string", "an object", "true")),
                    ("top_p", ("a string",)), ("top_k", ("a string", "an array")), ("seed", ("a string", "true")), ("n", ("a string",)),
                    ("stream", ("a string", "a number")), ("stop_token_ids", ("a string", "an object")), ("logit_bias", ("a string", "an array")),
                    ("model", ("a number", "an array")), ("cache_salt", ("a number",)), ("echo", ("a number",))):
    for kind in kinds:
        types.append((name, {"prompt": "x", "max_tokens": 1, name: wrong[kind]}, TEXT))
types.append(("stop", {"prompt": "x", "stop": 5}, TEXT))
types.append(("stop", {"prompt": "x", "stop": ["a", 5]}, TEXT))
types.append(("stream_options", {"prompt": "x", "stream": True, "stream_options": 5}, TEXT))
for param, body, path in types:
    refused(s, path, body, 400, "invalid_type", "type of %s in %s" % (param, body), param)
for code, body, path, param in (
        ("missing_required_parameter", {}, TEXT, "prompt"), ("missing_required_parameter", {"prompt": None}, TEXT, "prompt"),
        ("missing_required_parameter", {}, CHAT, "messages"), ("missing_required_parameter", {}, "/tokenize", "content"),
        ("missing_required_parameter", {}, "/detokenize", "tokens"),
        ("invalid_value", {"prompt": ""}, TEXT, "prompt"), ("invalid_value", {"prompt": []}, TEXT, "prompt"),
        ("invalid_value", {"prompt": [10**9]}, TEXT, "prompt"), ("invalid_value", {"prompt": ["x"] * 129}, TEXT, "prompt"),
        ("invalid_value", {"tokens": [-1]}, "/detokenize", "tokens"), ("invalid_value", {"prompt": "x", "logit_bias": {"x": 1}}, TEXT, "logit_bias"),
        ("invalid_value", {"prompt": "x", "logit_bias": {"1": 101}}, TEXT, "logit_bias"),
        ("invalid_value", {"prompt": "x", "stop": "y" * 257}, TEXT, "stop"), ("invalid_value", {"prompt": "x", "cache_salt": ""}, TEXT, "cache_salt"),
        ("integer_below_min_value", {"prompt": "x", "max_tokens": -5}, TEXT, "max_tokens"), ("integer_above_max_value", {"prompt": "x", "n": 10**6}, TEXT, "n"),
        ("decimal_below_min_value", {"prompt": "x", "temperature": -1}, TEXT, "temperature"),
        ("decimal_above_max_value", {"prompt": "x", "temperature": 1e300}, TEXT, "temperature"),
        ("array_above_max_length", {"prompt": "x", "stop": ["a"] * 17}, TEXT, "stop"),
        ("array_above_max_length", {"prompt": "x", "stop_token_ids": [1] * 257}, TEXT, "stop_token_ids"),
        ("unsupported_parameter", {"prompt": "x", "guided_json": {}, "grammar": "x"}, TEXT, None),
        ("context_length_exceeded", {"prompt": "x" * 500}, TEXT, "prompt"),
        ("context_length_exceeded", {"messages": [{"role": "user", "content": "x" * 500}]}, CHAT, "messages")):
    refused(s, path, body, 400, code, "%s of %s" % (code, str(body)[:60]), param)

# ---- 100 MB: never held in memory, whether the length is stated or not
before = rss(s)
MB = b"x" * (1 << 20)
for chunked in (False, True):
    c = s.raw(timeout=30)
    head = http_bytes("POST", TEXT, b"", **auth, **({"Transfer_Encoding": "chunked"} if chunked else {"Content_Length": 100 << 20}))
    start, sent = time.time(), 0
    try:
        c.sendall(head)
        for i in range(100):
            c.sendall(b"100000\r\n" + MB + b"\r\n" if chunked else MB)
            sent += 1
        if chunked:
            c.sendall(b"0\r\n\r\n")
    except OSError:
        pass  # it closes rather than read all of it
    got = read_all(c)
    check(not got or b" 413 " in got.split(b"\r\n")[0], "100 MB", chunked, got[:100])
    check(time.time() - start < 20 * SLOWDOWN, "soon", time.time() - start, sent)
    c.close()
check(rss(s) - before < 24 << 20 or SLOWDOWN > 1, "memory", before, rss(s))
refused(s, TEXT, b'{"prompt": "' + b"x" * (8 << 20) + b'"}', 413, "body_too_large", "more than 8 MB")

# ---- Slow clients: cut off (test_serve_guard has every place where one can stop)
c = s.raw(http_bytes("POST", TEXT, b'{"pro', Content_Length=50, **auth))
check(read_all(c) == b"", "who stops in the middle gets no answer")
check(s.post(TEXT, {"prompt": "Hello", "max_tokens": 2})[0] == 200, "after all that it serves")
check(s.stop() == 0, "drain")

# ---- States of the server
f = os.path.join(BUILD, "tests", "plugins", ".libs", "infer-fault.so")
model = make_model("slow.gguf", "--ctx", "16384", "--layers", "4", "--dim", "256")
s = Server(model=model, wait=False)
status, h, data = s.request("POST", TEXT, good)
if status != 200:
    error(status, data, 503, "loading", "loading")
    check(h["Retry-After"], "when to try again")
    check(s.ready.wait(60 * SLOWDOWN), "it loads")
    s.stop()
seen.add((503, "loading"))  # a fast machine may have loaded it already
endless = {"prompt": "Hello", "max_tokens": 16000, "temperature": 0, "ignore_eos": True}
s = Server("-np", "1", "--max-queue", "1", "-c", "16384", "--limit-requests", "3", "--drain-timeout", "2", model=model)
held = []
for stream, metric in ((True, "running"), (False, "waiting")):  # one after the other: the queue has room for one
    held.append(s.raw(http_bytes("POST", TEXT, json.dumps(dict(endless, stream=stream)).encode())))
    check(s.wait_metric("infer_num_requests_" + metric, 1), "one", metric)
check(refused(s, TEXT, endless, 429, "queue_full", "queue")["Retry-After"], "when to try again")
check(refused(s, TEXT, endless, 429, "rate_limit_exceeded", "limit")["Retry-After"], "when to try again")
idle, ready = s.connect(), s.connect()
for c in (idle, ready):
    c.request("GET", "/version")
    c.getresponse().read()
s.p.terminate()
time.sleep(0.3)
for c, method, path, code in ((idle, "POST", TEXT, "unavailable"), (ready, "GET", "/ready", "draining")):
    c.request(method, path, good if method == "POST" else None)
    r = c.getresponse()
    error(r.status, r.read(), 503, code, "while it drains")
got = read_all(held[1])
check(b" 503 " in got.split(b"\r\n")[0], "cancelled by the deadline", got[:200])
error(503, got.partition(b"\r\n\r\n")[2], 503, "cancelled", "cancelled")
s.p.wait(20 * SLOWDOWN)
if device() == "cpu0" and os.path.exists(f):
    wrap = ["--backend-option", "fault.wrap=" + os.path.join(BUILD, ".libs", "infer-cpu.so"), "-dev", "fault0"]
    s = Server("--step-timeout", "1", "--backend-option", "fault.delay=signal:900000000000:10", *wrap)
    status, _, data = s.request("POST", TEXT, dict(endless, max_tokens=50))
    error(status, data, 503, None, "what ran when it hung")
    refused(s, TEXT, good, 503, "stalled", "a device that hangs")
    refused(s, "/ready", None, 503, "stalled", "not ready", method="GET")
    s.kill()
    s = Server("--backend-option", "fault.fail=signal:20:-201", *wrap)
    status, _, data = s.request("POST", TEXT, dict(endless, max_tokens=50))
    error(status, data, 500, None, "a step that fails")
    s.kill()
else:
    seen |= {(503, None), (503, "stalled"), (500, None)}
seen |= {(403, "insufficient_scope"), (503, "failed")}  # test_serve_guard, test_lost

# ---- The table has these rows and no others
rows = set()
with open(os.path.join(SRC, "docs", "serving.md")) as doc:
    table = doc.read().split("## Errors", 1)[1].split("\n## ", 1)[0]
for status, codes in re.findall(r"^\| (\d+|none) \| ([^|]*) \|", table, re.M):
    for code in re.findall(r"`(\w+)`", codes) or [None if codes.strip() == "null" else codes.strip()]:
        rows.add((0 if status == "none" else int(status), code))
check(not seen - rows, "what the table lacks", seen - rows)
check(not rows - seen, "what no case shows", rows - seen)
done()
