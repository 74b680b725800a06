#!/usr/bin/env python3
"""infer-serve's life: keys, answers while loading, drain, deadline, second signal. SPDX-License-Identifier: Apache-2.0"""
import http.client
import json
import os
import signal
import socket
import threading
import time

from harness import SANITIZED, SLOWDOWN, Server, check, clean_env, done, make_model, work

TEXT = "/v1/completions"
greedy = {"prompt": "Hello", "max_tokens": 4, "temperature": 0}

# ---- Keys guard every route but two
keys = os.path.join(work, "keys")
with open(keys, "w") as f:
    f.write("# ours\nfile-key\n  spaced-key \r\n\n")
os.chmod(keys, 0o600)
s = Server("--api-key", "flag-key", "--api-key-file", keys)
guarded = [("POST", p) for p in ("/v1/chat/completions", TEXT, "/tokenize", "/detokenize", "/apply-template",
                                 "/v1/embeddings", "/api/chat", "/nonsense")]
guarded += [("GET", p) for p in ("/v1/models", "/v1/models/x", "/metrics", "/props", "/version", "/slots", "/nonsense",
                                 "/api/tags", "//health", "/health/", "/HEALTH")]
for method, path in guarded:
    for h in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "flag-key"}, {"Authorization": "Bearer "},
              {"Authorization": "Basic flag-key"}, {"x-api-key": "flag-ke"}, {"Authorization": "Bearer flag-keyy"}):
        status, headers, data = s.request(method, path, {} if method == "POST" else None, headers=h)
        e = json.loads(data)["error"]
        check(status == 401 and e["code"] == "invalid_api_key" and headers["WWW-Authenticate"], "guarded", path, h, status)
for path in ("/health", "/ready"):
    check(s.get(path)[0] == 200, "public", path)
check(s.get("/")[0] == 501, "the page itself is public")
for h in ({"Authorization": "Bearer flag-key"}, {"authorization": "bearer file-key"}, {"x-api-key": "spaced-key"}):
    check(s.post(TEXT, greedy, headers=h)[0] == 200, "a key opens", h)
    check(s.get("/v1/models", headers=h)[0] == 200, "a key opens", h)
check(not any("key" in line for line in s.log), "no key is logged", s.log)
check(s.stop() == 0, "drain")
s = Server(env=clean_env(INFER_API_KEY="env-key"))
check(s.post(TEXT, greedy)[0] == 401 and s.post(TEXT, greedy, headers={"Authorization": "Bearer env-key"})[0] == 200,
      "a key from the environment")
check(s.stop() == 0, "drain")

# ---- Unix socket
path = os.path.join(work, "x.sock")
s = Server("--host", path)
c = http.client.HTTPConnection("unix")
c.sock = socket.socket(socket.AF_UNIX)
c.sock.connect(path)
c.request("POST", TEXT, json.dumps(greedy))
check(c.getresponse().status == 200, "a Unix socket")
c.close()
check(s.stop() == 0 and not os.path.exists(path), "it is gone afterwards")

# ---- While it loads: it listens, and says so
model = make_model("slow.gguf", "--ctx", "16384", "--layers", "4", "--dim", "256")
fifo_seen = 0
for attempt in range(5):
    s = Server(model=model, wait=False)
    status, headers, data = s.request("POST", TEXT, greedy)
    if status == 503:
        fifo_seen += 1
        check(json.loads(data)["error"]["type"] == "unavailable_error" and headers["Retry-After"], "503", data)
    else:
        check(status == 200, "loading or loaded", status)
    check(s.ready.wait(60 * SLOWDOWN) and s.get("/health")[0] == 200, "then it is there")
    check(s.stop() == 0, "drain")
if not SANITIZED:  # leaving then abandons the loading thread, which a thread sanitizer reports
    for sig in (signal.SIGTERM, signal.SIGINT):
        s = Server(model=model, wait=False)
        check(s.stop(sig) == 0, "a signal while loading", s.p.returncode)
print("seen while loading: %d of 5" % fifo_seen)

# ---- SIGTERM: running requests end in order, new ones are turned away, exit 0
long = {"prompt": "Hello", "max_tokens": 600, "temperature": 0, "ignore_eos": True}
for sig in (signal.SIGTERM, signal.SIGINT):
    s = Server("-c", "16384", "--drain-timeout", "900", model=model)
    results = {}

    def ask(kind, body):
        try:
            if kind == "stream":
                status, events, last = s.stream(TEXT, body)
                results[kind] = (status, last, sum(len(e["choices"]) for e in events))
            else:
                status, reply = s.post(TEXT, body)
                results[kind] = (status, reply["usage"]["completion_tokens"])
        except Exception as e:
            results[kind] = repr(e)
    idle = s.connect()
    idle.request("GET", "/health")
    idle.getresponse().read()
    both = False
    for tokens in (600, 1200, 2400, 4800, 9600, 16000):  # until both are seen to run, however fast that is
        threads = [threading.Thread(target=ask, args=(k, dict(long, max_tokens=tokens))) for k in ("stream", "whole")]
        for t in threads:
            t.start()
        while not both and any(t.is_alive() for t in threads):
            both = s.metrics()["infer_num_requests_running"] == 2
        if both:
            break
        for t in threads:
            t.join()
    check(both, "two run")
    s.p.send_signal(sig)
    time.sleep(0.1)
    try:
        socket.create_connection(("127.0.0.1", s.port), 2).close()
        check(False, "no new connections while draining")
    except OSError:
        pass
    try:  # a connection from before may still ask
        idle.request("POST", TEXT, json.dumps(greedy))
        r = idle.getresponse()
        check(r.status == 503, "no new requests while draining", r.status)
    except (http.client.HTTPException, OSError):
        pass
    for t in threads:
        t.join()
    check(s.p.wait(60 * SLOWDOWN) == 0, "exit 0 after a complete drain", s.p.returncode)
    check(results.get("stream", ())[:2] == (200, True) and results.get("whole") == (200, tokens), "both were served", results)

# ---- Clients that stopped in the middle of a request, or left there, do not hold up the end
s = Server()
stuck = []
for gone in (False, True):
    for part in (b"POST /v1/completions HT", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{\"pro"):
        for i in range(20):
            k = socket.create_connection(("127.0.0.1", s.port))
            k.sendall(part)
            if gone:
                k.close()
            stuck.append(k)
check(s.get("/health")[0] == 200, "half requests hold up nobody")
check(s.stop(timeout=15) == 0, "half requests do not hold up the end")

# ---- A drain that takes too long is cut short; so it is by a second signal
endless = dict(long, max_tokens=16000)
for sig, code, second in ((signal.SIGTERM, 143, False), (signal.SIGINT, 130, False), (signal.SIGTERM, 143, True),
                          (signal.SIGINT, 130, True)):
    s = Server("-c", "16384", "--drain-timeout", "300" if second else "0", model=model)
    c = socket.create_connection(("127.0.0.1", s.port))
    body = json.dumps(dict(endless, stream=True)).encode()
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    data = []

    def read(c=c, data=data):  # all along: a client whose buffers are full cannot be told anything
        try:
            while data[-1:] != [b""]:
                data.append(c.recv(65536))
        except OSError:
            pass

    reader = threading.Thread(target=read)
    reader.start()
    check(s.wait_metric("infer_num_requests_running", 1), "it runs")
    start = time.time()
    s.p.send_signal(sig)
    if second:
        time.sleep(0.3)
        check(s.p.poll() is None, "it drains")
        s.p.send_signal(sig)
    rc = s.p.wait(60 * SLOWDOWN)
    check(rc == code, "cut short: exit code", rc, code)
    check(time.time() - start < 5 * SLOWDOWN, "at once", time.time() - start)
    reader.join(10 * SLOWDOWN)
    if not second:  # the stream is told why
        data = b"".join(data)
        check(b'"code":"cancelled"' in data and b"data: [DONE]" in data, "the stream ends with the cause", data[-300:])
    c.close()

# ---- A reader who is far behind gets larger pieces, and the same text (too many tokens for an emulated processor)
if SLOWDOWN == 1:
    s = Server("-c", "16384", model=model)
    TOKENS, CHOICES = 1200, 10  # with log-probabilities far more bytes than the sockets hold
    ask = dict(long, max_tokens=TOKENS)
    whole = s.post("/v1/completions", ask)[1]["choices"][0]["text"]
    c = socket.socket()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    c.connect(("127.0.0.1", s.port))
    body = json.dumps(dict(ask, stream=True, logprobs=5, n=CHOICES)).encode()
    c.sendall(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    c.settimeout(60 * SLOWDOWN)
    time.sleep(0.2)
    check(s.wait_metric("infer_num_requests_running", 0, timeout=60), "it ended, unread")
    data = b""
    while not data.endswith(b"data: [DONE]\n\n"):
        piece = c.recv(1 << 20)
        if not piece:
            break
        data += piece
    c.close()
    pieces = [json.loads(line[6:])["choices"][0] for line in data.split(b"\n") if line.startswith(b"data: {")]
    for k in range(CHOICES):
        text = "".join(p["text"] for p in pieces if p["index"] == k)
        check(text == whole, "the text of a late reader", k, len(whole), len(text))
    check(len(pieces) < TOKENS * CHOICES * 3 // 4, "pieces of a late reader", len(pieces), len(data))
    check(s.stop() == 0, "end")

# ---- The address is free again at once
s = Server()
port = s.port
s.post(TEXT, greedy)
check(s.stop() == 0, "drain")
s = Server("--port", port)
check(s.port == port and s.get("/health")[0] == 200, "the same port again")
check(s.stop() == 0, "drain")
done()
