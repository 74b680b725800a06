#!/usr/bin/env python3
"""infer-serve under many clients: the same answers in company, clients that leave, a full queue, broken requests.

SPDX-License-Identifier: Apache-2.0
"""
import json
import random
import socket
import threading
import time

from harness import SLOWDOWN, Server, check, cpu_seconds, done, make_model

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RUNNING, WAITING = "infer_num_requests_running", "infer_num_requests_waiting"


def in_threads(n, fn):
    errors = []

    def guarded(i):
        try:
            fn(i)
        except Exception as e:  # a thread's failure is the test's
            errors.append("client %d: %r" % (i, e))
    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for e in errors:
        check(False, "a client thread", e)


def raw_request(path, body, stream):
    data = json.dumps(dict(body, stream=stream)).encode()
    return ("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path, len(data))).encode() + data


# ---- 16 clients at once, streams and not: each gets what it gets alone, and the stream is the whole.
s = Server("-np", "4")
bodies = [{"prompt": "client %d says %s" % (i, "la" * (i % 7)), "max_tokens": 40, "temperature": 1.2 if i % 3 else 0,
           "seed": i} for i in range(16)]
alone = [s.post(TEXT, b)[1]["choices"][0]["text"] for b in bodies]


def client(i):
    for turn in range(4):
        if (i + turn) % 2:
            text = s.post(TEXT, bodies[i])[1]["choices"][0]["text"]
        else:
            status, events, last = s.stream(TEXT, bodies[i])
            check(status == 200 and last, "a stream in company ends well")
            text = "".join(c["text"] for e in events for c in e["choices"])
        check(text == alone[i], "client %d: the same in company" % i, repr(text), repr(alone[i]))


in_threads(16, client)
check(s.wait_metric(RUNNING, 0) and s.wait_metric(WAITING, 0), "nothing is left")
check(s.metrics()["infer_kv_cache_usage_perc"] == 0, "no cache is left in use")

# One connection for many requests.
c = s.connect()
for i in range(20):
    c.request("POST", TEXT, json.dumps(bodies[i % 16]))
    r = c.getresponse()
    check(json.loads(r.read())["choices"][0]["text"] == alone[i % 16], "keep-alive")
c.close()

# ---- 200 broken bodies and some broken requests: each a refusal, and the server lives.
random.seed(5)
good = json.dumps({"messages": [{"role": "user", "content": "Hi \u00e4"}], "max_tokens": 3, "temperature": 0.5,
                   "stop": ["a", "b"], "logit_bias": {"5": 1.5}, "n": 1, "stream": False}).encode()
special = [b"", b"null", b"[]", b"5", b'"x"', b"{", b"{}", b"\x00", b"\xff\xfe{}", b'{"messages":' + b"[" * 5000,
           b'{"prompt":"\\u0000x","max_tokens":1}', b'{"prompt":"\\ud800","max_tokens":1}', b'{"seed":99999999999999999999}',
           b'{"temperature":1e999}', b"{" + b'"a":1,' * 10000 + b'"b":2}', b'{"messages":[{"role":"user","content":"x"}],'
           b'"messages":5}', b"\xef\xbb\xbf{}", b'{"prompt": "' + b"\xc3" + b'"}', b"{'prompt': 'x'}"]
statuses = {}
for i in range(200):
    if i < len(special):
        body = special[i]
    else:
        b = bytearray(good)
        for _ in range(random.choice((1, 1, 2, 5))):
            how, at = random.randrange(4), random.randrange(len(b))
            if how == 0:
                b[at] = random.randrange(256)
            elif how == 1:
                del b[at:at + random.randrange(1, 9)]
            elif how == 2:
                b[at:at] = bytes(random.choice(b'{}[]",:\\0-e') for _ in range(random.randrange(1, 4)))
            else:
                del b[at:]
            if not b:
                break
        body = bytes(b)
    status, headers, data = s.request("POST", CHAT if i % 2 else TEXT, body)
    statuses[status] = statuses.get(status, 0) + 1
    check(status in (200, 400), "broken body %d %.60r" % (i, body), status, data[:200])
    if status != 200:
        e = json.loads(data)["error"]
        check(e["type"] == "invalid_request_error" and e["message"], "its error", e)
check(statuses.get(400, 0) > 100, "most are refused", statuses)
for request in (b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\n\r\n",
                b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n", b"\x16\x03\x01" + bytes(100),
                b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20000 + b"\r\n"):
    c = socket.create_connection(("127.0.0.1", s.port))
    c.settimeout(5)
    try:
        c.sendall(request)
        c.shutdown(socket.SHUT_WR)
        c.recv(65536)
    except OSError:
        pass
    c.close()
check(s.post(TEXT, bodies[0])[1]["choices"][0]["text"] == alone[0], "alive and unchanged after all that")
check(s.stop() == 0, "drain", s.p.returncode)

# ---- Bodies that are too large, with and without a stated length
s = Server("--max-body-size", "10K")
status, headers, data = s.request("POST", TEXT, {"prompt": "x" * 20000})
check(status == 413 and json.loads(data)["error"]["code"] == "body_too_large", "413", status, data[:100])
c = s.connect()
c.request("POST", TEXT, iter([b'{"prompt": "' + b"x" * 5000] * 4), {"Transfer-Encoding": "chunked"}, encode_chunked=True)
check(c.getresponse().status == 413, "413 without a length")
c.close()
check(s.stop() == 0, "drain")

# ---- Clients that leave: what they asked for is cancelled, at every phase
model = make_model("long.gguf", "--ctx", "16384", "--layers", "4", "--dim", "256")
s = Server("-np", "2", "--max-queue", "3", "-c", "16384", model=model)
endless = {"prompt": "Hello", "max_tokens": 16000, "temperature": 0, "ignore_eos": True}
aborted = 'infer_request_success_total{finished_reason="abort"}'


def leave(path, body, stream, when):
    c = socket.create_connection(("127.0.0.1", s.port))
    c.settimeout(60 * SLOWDOWN)
    c.sendall(raw_request(path, body, stream))
    when(c)
    c.close()


def until_running(c):
    check(s.wait_metric(RUNNING, 1), "it runs")


def until_text(c):
    data = b""
    while b'"text":"' not in data:
        data += c.recv(4096)


gone = 0
for stream, when in ((False, until_running), (True, until_text), (True, lambda c: None), (False, lambda c: None)):
    leave(TEXT, endless, stream, when)
    gone += 1
    check(s.wait_metric(RUNNING, 0) and s.wait_metric(WAITING, 0), "a client that leaves frees its sequence", stream)
    check(s.wait_metric("infer_kv_cache_usage_perc", 0), "and its cache")
leave(TEXT, dict(endless, n=2), True, until_text)
check(s.wait_metric(RUNNING, 0) and s.wait_metric(WAITING, 0), "all choices are cancelled")
leave(TEXT, dict(endless, prompt="x" * 12000, max_tokens=1), False, until_running)
check(s.wait_metric(RUNNING, 0), "during the prompt")
# In the queue: two run, one waits, and the waiting one leaves.
a, b = (socket.create_connection(("127.0.0.1", s.port)) for _ in range(2))
for c in (a, b):
    c.sendall(raw_request(TEXT, endless, True))
check(s.wait_metric(RUNNING, 2), "two run")
leave(TEXT, endless, False, lambda c: check(s.wait_metric(WAITING, 1), "one waits"))
check(s.wait_metric(WAITING, 0), "the waiting one is gone")

# ---- A full queue: 429 with Retry-After, and those in it are served
waiting = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(3)]
for c in waiting:
    c.sendall(raw_request(TEXT, dict(endless, max_tokens=3), False))
check(s.wait_metric(WAITING, 3), "three wait")
status, headers, data = s.request("POST", TEXT, dict(endless, max_tokens=3))
e = json.loads(data)["error"]
check(status == 429 and int(headers["Retry-After"]) >= 1 and e["type"] == "rate_limit_error", "429", status, data)
status, headers, data = s.request("POST", TEXT, dict(endless, max_tokens=3, n=2))
check(status == 429 and s.metrics()[WAITING] == 3, "429 for all of n")
a.close()
b.close()
for c in waiting:
    data = b""
    c.settimeout(60 * SLOWDOWN)
    while b"completion_tokens" not in data:
        piece = c.recv(65536)
        if not piece:
            break
        data += piece
    check(b" 200 OK" in data and b'"completion_tokens":3' in data, "a waiting request is served", data[:300])
    c.close()
check(s.wait_metric(RUNNING, 0), "nothing runs")

# ---- A client that does not read: the others go on, and its text waits for it
slow = socket.socket()
slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
slow.connect(("127.0.0.1", s.port))
long = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 600 if SLOWDOWN > 1 else 3000, "temperature": 0,
        "ignore_eos": True, "logprobs": True, "top_logprobs": 20}
slow.sendall(raw_request(CHAT, long, True))
check(s.post(TEXT, dict(endless, max_tokens=50))[0] == 200, "others go on")
check(s.wait_metric(RUNNING, 0, timeout=60), "its tokens are made although it does not read")
data = b""
slow.settimeout(30 * SLOWDOWN)
while not data.endswith(b"0\r\n\r\n"):
    piece = slow.recv(65536)
    if not piece:
        break
    data += piece
slow.close()
check(b"data: [DONE]" in data and b'"finish_reason":"length"' in data, "and it gets all of it", data[-200:])

# ---- An idle server sleeps
before = cpu_seconds(s.p.pid)
time.sleep(2)
used = cpu_seconds(s.p.pid) - before
check(used <= 0.03, "no processor time when idle", used)
rss = [s.metrics()["process_open_fds"]]
for _ in range(100):
    leave(TEXT, dict(endless, max_tokens=2), True, lambda c: None)
check(s.wait_metric(RUNNING, 0) and s.wait_metric("process_open_fds", rss[0]), "no descriptors are lost")
check(s.stop() == 0, "drain", s.p.returncode)
done()
