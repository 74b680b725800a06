#!/usr/bin/env python3
"""infer-serve's guards: keys with scopes and limits, other sites' pages, TLS, clients that are slow.

SPDX-License-Identifier: Apache-2.0
"""
import json
import os
import random
import shutil
import socket
import ssl
import subprocess
import time
import warnings

from harness import SLOWDOWN, Server, check, clean_env, done, http_bytes, make_model, program, read_all, run, work, TINY

TEXT = "/v1/completions"
greedy = {"prompt": "Hello", "max_tokens": 4, "temperature": 0}
greedy_tokens = 9  # of the prompt and the answer


def key_file(text, mode=0o600):
    path = os.path.join(work, "keys-%d" % random.getrandbits(40))
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, mode)
    return path


def bearer(key):
    return {"Authorization": "Bearer " + key}


# ---- Scopes: what a key may do, by the table of routes
f = key_file("all-of-it-1 name=root\nasker-key-2 name=asker scope=infer\n"
             "watch-key-3 scope=metrics name=w\u00e4chter # who watches\nboss-key-4 scope=admin,metrics name=boss\n")
s = Server("--api-key-file", f)
routes = {"infer": [("POST", TEXT), ("POST", "/v1/chat/completions"), ("POST", "/tokenize"), ("GET", "/v1/models"),
                    ("GET", "/props"), ("GET", "/version"), ("POST", "/v1/embeddings"), ("POST", "/api/chat")],
          "metrics": [("GET", "/metrics"), ("GET", "/slots")],
          "admin": [("POST", "/v1/load_lora_adapter"), ("POST", "/v1/unload_lora_adapter")]}
for key, scopes in (("all-of-it-1", "infer metrics admin"), ("asker-key-2", "infer"), ("watch-key-3", "metrics"),
                    ("boss-key-4", "metrics admin")):
    for scope, paths in routes.items():
        for method, path in paths:
            status, _, data = s.request(method, path, greedy if method == "POST" else None, headers=bearer(key))
            if scope in scopes.split():
                check(status not in (401, 403), "within the scope", key, path, status)
            else:
                e = json.loads(data)["error"]
                check(status == 403 and e["code"] == "insufficient_scope" and scope in e["message"], "outside", key, path, e)
s.key = "watch-key-3"
m = s.metrics()
check(m['infer_http_requests_rejected_total{reason="scope"}'] >= 20, "they are counted", m)
check(s.request("GET", "/metrics", headers={"Authorization": "Bearer watch-key-"})[0] == 401, "a part of a key")
check(s.request("GET", "/metrics", headers={"Authorization": "Bearer watch-key-3x"})[0] == 401, "more than a key")
check(s.request("GET", "/metrics", headers={"Authorization": "Bearer " + "w" * 5000})[0] == 401, "a long one")
check(s.stop() == 0, "drain")
text = "\n".join(s.log)
check("user=asker" in text and "user=w\u00e4chter" in text, "who asked is in the log", text[-600:])
for key in ("all-of-it", "asker-key", "watch-key", "boss-key"):
    check(key not in text, "no key is", key)

# ---- Key files: who may read and write them, and mistakes in them
for mode, warned, code in ((0o600, False, 0), (0o640, False, 0), (0o644, True, 0), (0o602, False, 2), (0o666, False, 2)):
    f = key_file("a-key-of-ours\n", mode)
    if code:
        r = run("infer-serve", "-m", TINY, "--port", "0", "--api-key-file", f)
        check(r.rc == code and len(r.said) == 1 and "chmod" in r.said[0], "mode %o" % mode, r)
    else:
        s = Server("--api-key-file", f)
        check(any("level=warn" in line and "chmod" in line for line in s.log) == warned, "mode %o" % mode, s.log[:3])
        check(s.stop() == 0, "drain")
for text in ("", "# none\n", "ours scope=\n", "ours scope=infer,all\n", "ours scope\n", "ours requests=many\n",
             "ours tokens=-1\n", "ours name=\n", "ours more\n", "x" * 257 + "\n", "ours\nours\n", "ours name=" + "n" * 64 + "\n"):
    r = run("infer-serve", "-m", TINY, "--port", "0", "--api-key-file", key_file(text))
    check(r.rc == 2 and len(r.said) == 1 and "ours" not in r.err, "a wrong file", repr(text[:40]), r)
r = run("infer-serve", "-m", TINY, "--port", "0", "--api-key-file", os.path.join(work, "absent"))
check(r.rc == 1 and len(r.said) == 1, "no file", r)

# ---- Limits: requests and tokens a minute, each key by itself
f = key_file("few-requests requests=3\nfew-tokens tokens=%d\nunlimited-key requests=0 tokens=0\ndefault-key\n"
             % (2 * greedy_tokens))
s = Server("--api-key-file", f, "--limit-requests", "2")
for key, n in (("few-requests", 3), ("few-tokens", 2), ("unlimited-key", 8), ("default-key", 2)):
    got = []
    for i in range(n + 1):
        status, headers, data = s.request("POST", TEXT, greedy, headers=bearer(key))
        got.append(status)
        if status == 429:
            e = json.loads(data)["error"]
            wait = int(headers["Retry-After"])
            what = "tokens" if key == "few-tokens" and i > 1 else "requests"
            check(e["code"] == "rate_limit_exceeded" and e["type"] == "rate_limit_error" and 1 <= wait <= 60, "429", e, wait)
            check(what in e["message"] or key == "few-tokens", "it says of what", key, e)
    check(got == [200] * n + ([200] if key == "unlimited-key" else [429]), "as many as allowed", key, got)
check(s.request("GET", "/v1/models", headers=bearer("few-requests"))[0] == 200, "what costs nothing is not counted")
check(s.request("POST", TEXT, b"{", headers=bearer("unlimited-key"))[0] == 400, "another key is not touched")
s.key = "unlimited-key"
check(s.metrics()['infer_http_requests_rejected_total{reason="limit"}'] == 3, "they are counted")
check(s.stop() == 0, "drain")
# They come back with time; without keys all clients share one.
s = Server("--limit-requests", "60")
for i in range(60):
    s.post(TEXT, dict(greedy, max_tokens=1))
status, headers, _ = s.request("POST", TEXT, greedy)
check(status in (200, 429), "full or just refilled")
while status == 200:
    status, headers, _ = s.request("POST", TEXT, greedy)
time.sleep(int(headers["Retry-After"]) + 0.1)
check(s.post(TEXT, greedy)[0] == 200, "after Retry-After it goes on")
check(s.stop() == 0, "drain")
# A stream's tokens count as they are made, so that many at once cannot run far past the limit.
f = key_file("streams tokens=30\n")
s = Server("--api-key-file", f)
s.key = "streams"
check(s.stream(TEXT, dict(greedy, max_tokens=60, ignore_eos=True))[0] == 200, "one that goes past the limit is served")
status, headers, _ = s.request("POST", TEXT, greedy)
check(status == 429 and 60 < int(headers["Retry-After"]) <= 80, "and paid back first", status, headers["Retry-After"])
check(s.stop() == 0, "drain")

# ---- Pages of other sites
s = Server("--cors-origin", "https://a.example", "--cors-origin", "http://localhost:3000", "--api-key", "k-of-cors")
ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, x-stainless-os"}
status, h, data = s.request("OPTIONS", TEXT, headers=dict(ask, Origin="https://a.example"))
check(status == 204 and h["Access-Control-Allow-Origin"] == "https://a.example" and "POST" in
      h["Access-Control-Allow-Methods"] and "x-stainless-os" in h["Access-Control-Allow-Headers"] and h["Vary"] == "Origin"
      and data == b"", "a browser may ask without a key", status, h)
status, h, _ = s.request("OPTIONS", TEXT, headers=dict(ask, Origin="https://b.example"))
check(status == 401 and not h["Access-Control-Allow-Origin"], "not for others", status, h)
status, h, _ = s.request("OPTIONS", TEXT, headers=dict(bearer("k-of-cors"), **ask, Origin="https://b.example"))
check(status == 405 and not h["Access-Control-Allow-Origin"], "nor with a key", status, h)
status, h, _ = s.request("OPTIONS", TEXT, headers=dict(ask, Origin="https://a.example",
                                                       **{"Access-Control-Request-Headers": "a:b<script>"}))
check(status == 204 and "script" not in h["Access-Control-Allow-Headers"], "what is no list of names is not repeated", h)
for origin, ok in (("https://a.example", True), ("http://localhost:3000", True), ("https://a.example.org", False), (None, False)):
    o = {"Origin": origin} if origin else {}
    for headers, want in ((bearer("k-of-cors"), 200), ({}, 401)):
        status, h, _ = s.request("POST", TEXT, greedy, headers=dict(headers, **o))
        check(status == want and (h["Access-Control-Allow-Origin"] == origin if ok else not h["Access-Control-Allow-Origin"]),
              "the reply, errors too", origin, status, h)
check(s.stop() == 0, "drain")
s = Server("--cors-origin", "*")
status, h, _ = s.request("POST", TEXT, greedy, headers={"Origin": "null"})
check(status == 200 and h["Access-Control-Allow-Origin"] == "*", "all sites", h)
check(s.stop() == 0, "drain")

# ---- TLS
if shutil.which("openssl"):
    cert, key = os.path.join(work, "cert.pem"), os.path.join(work, "key.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert], check=True,
                   capture_output=True)
    os.chmod(key, 0o600)
    s = Server("--tls-cert", cert, "--tls-key", key, "--client-timeout", "2")
    s.tls = ssl.create_default_context(cafile=cert)
    check(any("https://" in line for line in s.log), "it says so", s.log[:3])
    check(s.post(TEXT, greedy)[0] == 200 and s.stream(TEXT, greedy)[2], "over TLS")
    c = s.connect()
    for i in range(5):
        c.request("POST", TEXT, json.dumps(dict(greedy, prompt="x" * 20 * i or "y")))
        check(c.getresponse().read(), "one connection, many requests")
    check(c.sock.version() in ("TLSv1.2", "TLSv1.3"), "its version", c.sock.version())
    c.close()
    warnings.simplefilter("ignore")
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    try:
        old.wrap_socket(s.raw())
        check(False, "an old version is refused")
    except (ssl.SSLError, OSError):
        pass
    data = read_all(s.raw(http_bytes("GET", "/health")))
    check(b"200" not in data, "plain HTTP is refused", data)
    c = s.raw()  # shakes no hands
    check(read_all(c) == b"", "who never begins is cut off")
    check(s.post(TEXT, greedy)[0] == 200 and s.stop() == 0, "and it goes on")
    for args in (["--tls-cert", cert], ["--tls-key", key], ["--tls-cert", key, "--tls-key", key],
                 ["--tls-cert", cert, "--tls-key", cert], ["--tls-cert", TINY, "--tls-key", key]):
        r = run("infer-serve", "-m", TINY, "--port", "0", *args)
        check(r.rc == 2 and len(r.said) == 1, "wrong files", args, r)

# ---- Clients that are slow: cut off, wherever they stop, and others are not
s = Server("--client-timeout", "2")
body = json.dumps(greedy).encode()
whole = http_bytes("POST", TEXT, body)
start = time.time()
slow = {"says nothing": s.raw(), "half a line": s.raw(b"POST /v1/comp"), "half the headers": s.raw(whole[:40]),
        "headers without a body": s.raw(whole[:-len(body)]), "half a body": s.raw(whole[:-5]),
        "half a chunk": s.raw(http_bytes("POST", TEXT, b"", Transfer_Encoding="chunked") + b"10\r\nabc"),
        "after a request": s.raw(http_bytes("GET", "/health"))}
for name, c in slow.items():
    data = read_all(c)
    check((b"200 OK" in data) == (name == "after a request"), name, data[:200])
check(1.5 < time.time() - start < 8 * SLOWDOWN, "in time", time.time() - start)
dribble = s.raw(b"POST /v1/completions HTTP/1.1\r\n")  # a byte now and then does not keep it
start = time.time()
try:
    while time.time() - start < 10 * SLOWDOWN:
        dribble.sendall(b"x")
        time.sleep(0.1)
    check(False, "a byte now and then keeps a connection")
except OSError:
    check(time.time() - start < 8 * SLOWDOWN, "it does not keep it", time.time() - start)
check(s.wait_metric("infer_http_slow_clients_total", 8) and s.wait_metric("infer_http_connections", 1), "all are counted")
check(s.stop() == 0, "drain")

# A reply that is not read: when its client takes nothing for long its request ends, also one that is made still (too many
# tokens to fill the sockets on an emulated processor).
if SLOWDOWN == 1:
    model = make_model("long.gguf", "--ctx", "16384", "--layers", "4", "--dim", "256")
    s = Server("--client-timeout", "2", "-c", "16384", model=model)
    wide = {"prompt": "Hello", "max_tokens": 16000, "temperature": 0, "ignore_eos": True, "logprobs": 5, "n": 2, "stream": True}
    c = socket.socket()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    c.connect(("127.0.0.1", s.port))
    c.sendall(http_bytes("POST", TEXT, json.dumps(wide).encode()))
    check(s.wait_metric("infer_num_requests_running", 2), "it runs")
    check(s.wait_metric("infer_http_slow_clients_total", 1, timeout=60), "who does not read is cut off")
    check(s.wait_metric("infer_num_requests_running", 0) and s.wait_metric("infer_kv_cache_usage_perc", 0), "and its request ends")
    c.close()
    # While an answer is made its client is not slow, however long that takes.
    status, reply = s.post(TEXT, {"prompt": "x" * 9000, "max_tokens": 200, "temperature": 0, "ignore_eos": True})
    check(status == 200 and reply["usage"]["completion_tokens"] == 200, "a long answer", status)
    check(s.stop() == 0, "drain")
done()
