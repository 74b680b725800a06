#!/usr/bin/env python3
"""Clients that leave at random moments, over TCP and TLS: afterwards no request, cache block, connection or descriptor of
theirs is left. SPDX-License-Identifier: Apache-2.0"""
import json
import os
import random
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time

from harness import SLOWDOWN, Server, check, done, http_bytes, make_model, work

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SEED = int(os.environ.get("INFER_TEST_SEED", random.getrandbits(30)))
print("INFER_TEST_SEED=%d" % SEED)
model = make_model("leave.gguf", "--ctx", "4096", "--layers", "2")


def leave(s, r):
    """One client: what it asks and when it leaves are up to r. Returns how far it came."""
    body = {"max_tokens": r.choice((1, 20, 2000 // SLOWDOWN)), "temperature": 0, "ignore_eos": True, "stream": r.random() < 0.6,
            "n": r.choice((1, 1, 3)), "logprobs": None}
    path = r.choice((CHAT, TEXT, TEXT))
    text = r.choice(("Hi", "x" * 300, "y" * 1500)) + str(r.random())
    body["messages" if path == CHAT else "prompt"] = [{"role": "user", "content": text}] if path == CHAT else text
    if r.random() < 0.2:
        body["cache_salt"] = "salt"
    data = http_bytes("POST", path, json.dumps(body).encode(), Connection="close")
    head = data.index(b"\r\n\r\n") + 4
    phase = r.choice(("connect", "head", "body", "sent", "sent", "first", "some", "half-closed", "after"))
    c = socket.create_connection(("127.0.0.1", s.port), 30 * SLOWDOWN)
    if s.tls:
        if r.random() < 0.1:
            c.sendall(b"\x16\x03\x01")
            c.close()
            return "handshake"
        c = s.tls.wrap_socket(c, server_hostname="127.0.0.1")
    stop = {"connect": 0, "head": r.randrange(1, head), "body": r.randrange(head, len(data))}.get(phase, len(data))
    c.sendall(data[:stop])
    if phase == "sent":
        time.sleep(r.choice((0, 0.0005, 0.005, 0.05)))
    elif phase == "half-closed" and not s.tls:
        c.shutdown(socket.SHUT_WR)
        time.sleep(0.002)
    elif phase in ("first", "some"):
        want = 1 if phase == "first" else r.randrange(200, 20000)
        while want > 0:
            piece = c.recv(min(want, 4096))
            if not piece:
                break
            want -= len(piece)
    elif phase == "after" and body["max_tokens"] * body["n"] < 100:
        c.recv(1 << 20)
    if r.random() < 0.5:  # a reset instead of an end
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    c.close()
    return phase


def storm(s, what):
    check(s.post(TEXT, {"prompt": "warm", "max_tokens": 2})[0] == 200, "it serves")
    before = s.metrics()
    count, phases = [40 if SLOWDOWN == 1 else 10], {}

    def client(k):
        r = random.Random(SEED * 100 + k)
        for i in range(count[0]):
            try:
                phase = leave(s, r)
                phases[phase] = phases.get(phase, 0) + 1
            except (OSError, ssl.SSLError) as e:
                check(isinstance(e, (ConnectionError, ssl.SSLError)), "a client's own trouble", what, repr(e))

    threads = [threading.Thread(target=client, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    print(what, phases)
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        check(s.wait_metric("infer_" + name, 0), what, name)
    check(s.wait_metric("infer_http_connections", 1), what, "connections")
    check(s.wait_metric("process_open_fds", before["process_open_fds"]), what, "descriptors")
    after = s.metrics()
    ended = sum(v - before[k] for k, v in after.items() if k.startswith("infer_request_success_total"))
    check(after['infer_request_success_total{finished_reason="abort"}'] > 0 and ended > 5, what, "some were cut short", ended)
    check(after['infer_request_success_total{finished_reason="error"}'] == 0, what, "none failed")
    reply = s.post(TEXT, {"prompt": "warm", "max_tokens": 2, "temperature": 0})
    check(reply[0] == 200, what, "it serves on")
    check(s.stop() == 0, what, "drain")


args = ("-c", "4096", "-np", "3", "--max-queue", "6", "--client-timeout", "30")
storm(Server(*args, model=model), "TCP")
storm(Server(*args, "--no-enable-prefix-caching", "--kv-cache-memory", "1100K", model=model), "a small cache")
if shutil.which("openssl"):
    cert, key = os.path.join(work, "cert.pem"), os.path.join(work, "key.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
                   check=True, capture_output=True)
    os.chmod(key, 0o600)
    s = Server(*args, "--tls-cert", cert, "--tls-key", key, model=model)
    s.tls = ssl.create_default_context(cafile=cert)
    storm(s, "TLS")
done()
