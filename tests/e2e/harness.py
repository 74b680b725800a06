"""What the end-to-end tests share: programs, models, a server under test, checks. Python's standard library only.

SPDX-License-Identifier: Apache-2.0
"""
import atexit
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

BUILD = os.environ.get("INFER_BUILDDIR", os.getcwd())
SRC = os.environ.get("INFER_SRCDIR", os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
TINY = os.path.join(SRC, "tests", "golden", "tiny-llama.gguf")  # 264 tokens, context 256
with open(os.path.join(BUILD, "config.h")) as f:
    SANITIZED = '#define INFER_SANITIZER "none"' not in f.read()
SLOWDOWN = 10 if SANITIZED or os.environ.get("INFER_TEST_SLOW") else 1
# ChatML, which the tiny tokenizer has no tokens for: good enough to see that the template was used.
TEMPLATE = ("{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}[assistant]{% endif %}")

work = tempfile.mkdtemp(prefix="infer-e2e-")
atexit.register(shutil.rmtree, work, True)
checks = failures = 0


def skip(why):
    print("skipped:", why)
    sys.exit(77)


def check(ok, what, *detail):
    """Counts a failure and goes on."""
    global checks, failures
    checks += 1
    if not ok:
        failures += 1
        frame = sys._getframe(1)
        print("FAIL %s:%d: %s" % (os.path.basename(frame.f_code.co_filename), frame.f_lineno, what), *detail)
    return ok


def done():
    print("%d checks, %d failures" % (checks, failures))
    sys.exit(1 if failures or not checks else 0)


def program(name):
    return os.path.join(BUILD, name)


def clean_env(**more):
    """The environment without settings of ours but those of the test suite."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("INFER_") or k == "INFER_BACKEND_PATH"}
    env["INFER_CACHE"] = os.path.join(work, "cache")
    env.update(more)
    return env


class Result:
    def __init__(self, rc, out, err):
        self.rc, self.out, self.err = rc, out, err
        # Log lines aside: what a program says of its own failure.
        self.said = [line for line in err.splitlines() if not line.startswith(("time=", '{"time"'))]

    def __repr__(self):
        return "rc %d, stdout %r, stderr %r" % (self.rc, self.out[-300:], self.err[-500:])


def run(name, *args, stdin=None, env=None, timeout=120):
    p = subprocess.run([program(name), *map(str, args)], input=stdin, capture_output=True, timeout=timeout * SLOWDOWN,
                       env=env or clean_env(), stdin=None if stdin is not None else subprocess.DEVNULL)
    return Result(p.returncode, p.stdout.decode("utf-8", "replace"), p.stderr.decode("utf-8", "replace"))


_device = None


def device():
    """The fast device where there is one, else the reference path."""
    global _device
    if _device is None:
        rows = json.loads(run("infer-probe", "--json").out)["devices"]
        ids = [d["id"] for d in rows if d["status"] == "ok"]
        _device = "cpu0" if "cpu0" in ids else "ref0"
    return _device


def make_model(name, *args):
    """A tiny random model with a longer context."""
    path = os.path.join(work, name)
    r = subprocess.run([program("tools/mkmodel"), "--tiny", *args, path], capture_output=True)
    if r.returncode:
        print("mkmodel:", r.stderr.decode())
        sys.exit(1)
    return path


def real_model():
    """SmolLM2 where the test suite's set-up has put it, or None."""
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "infer")
    cache = os.environ.get("INFER_CACHE") or cache
    for path in (os.environ.get("INFER_TEST_MODEL"), os.path.join(cache, "SmolLM2-135M-Instruct.Q4_1.gguf")):
        if path and os.path.exists(path):
            return path
    return None


class Server:
    """A server on a free port, with its stderr kept."""

    def __init__(self, *args, model=TINY, wait=True, env=None, template=TEMPLATE):
        if not os.path.exists(program("infer-serve")):
            skip("this build has no server")
        self.args = [program("infer-serve"), "-m", model, "--port", "0", "-dev", device(), *map(str, args)]
        if template:
            self.args += ["--chat-template", template]
        self.p = subprocess.Popen(self.args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  env=env or clean_env())
        self.log, self.port, self.key, self.tls = [], None, None, None
        self.listening = threading.Event()
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        atexit.register(self.kill)
        if not self.listening.wait(30 * SLOWDOWN):
            raise SystemExit("the server does not listen:\n" + "\n".join(self.log))
        if wait and not self.ready.wait(60 * SLOWDOWN):
            raise SystemExit("the server is not ready:\n" + "\n".join(self.log))

    def _read(self):
        for line in self.p.stderr:
            line = line.decode("utf-8", "replace").rstrip("\n")
            self.log.append(line)
            m = re.search(r"listening on (https?://.*:(\d+)|.*\.sock)", line)
            if m:
                self.port = int(m.group(2)) if m.group(2) else None
                self.listening.set()
            if "ready: model=" in line:
                self.ready.set()
        self.listening.set()
        self.ready.set()

    def kill(self):
        if self.p.poll() is None:
            self.p.kill()
            self.p.wait()

    def stop(self, sig=signal.SIGTERM, timeout=60):
        """Signals and waits; the exit code."""
        self.p.send_signal(sig)
        rc = self.p.wait(timeout * SLOWDOWN)
        self.reader.join(10)
        return rc

    def connect(self, timeout=120):
        if self.tls:  # an ssl.SSLContext
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout * SLOWDOWN, context=self.tls)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * SLOWDOWN)

    def raw(self, data=b"", timeout=20):
        """A connected socket on which data was sent."""
        c = socket.create_connection(("127.0.0.1", self.port), timeout * SLOWDOWN)
        if data:
            c.sendall(data)
        return c

    def request(self, method, path, body=None, headers=None, timeout=120):
        """(status, headers, bytes)."""
        c = self.connect(timeout)
        try:
            h = {"Content-Type": "application/json"}
            if self.key:
                h["Authorization"] = "Bearer " + self.key
            h.update(headers or {})
            data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            c.request(method, path, data, h)
            r = c.getresponse()
            return r.status, r.headers, r.read()
        finally:
            c.close()

    def get(self, path, **kw):
        status, _, data = self.request("GET", path, **kw)
        return status, json.loads(data) if data[:1] in b"{[" and data else data

    def post(self, path, body, **kw):
        status, _, data = self.request("POST", path, body, **kw)
        return status, json.loads(data)

    def stream(self, path, body, **kw):
        """(status, list of decoded events, whether [DONE] came last)."""
        status, headers, data = self.request("POST", path, dict(body, stream=True), **kw)
        if status != 200:
            return status, json.loads(data), False
        check(headers["Content-Type"].startswith("text/event-stream"), "stream content type", headers)
        events = sse(data)
        return status, [json.loads(e) for e in events if e != "[DONE]"], bool(events) and events[-1] == "[DONE]"

    def metrics(self):
        """{'name{labels}': value} without the common labels."""
        status, _, data = self.request("GET", "/metrics")
        check(status == 200, "/metrics", status)
        out = {}
        for line in data.decode().splitlines():
            if line.startswith("#") or not line:
                continue
            name, value = line.rsplit(" ", 1)
            name = re.sub(r'model_name="[^"]*",engine="0",?', "", name).replace("{}", "")
            out[name] = float(value)
        return out

    def wait_metric(self, name, value, timeout=20):
        end = time.time() + timeout * SLOWDOWN
        while time.time() < end:
            got = self.metrics().get(name)
            if got == value:
                return True
            time.sleep(0.02)
        print("metric", name, "is", got, "instead of", value)
        return False


def sse(data):
    """The payloads of server-sent events; every event must be one data line."""
    events = []
    for block in data.decode("utf-8").split("\n\n"):
        if not block:
            continue
        check(block.startswith("data: ") and "\n" not in block, "an event is one data line", repr(block))
        events.append(block[6:])
    return events


def http_bytes(method, path, body=b"", **headers):
    """A request as it goes over the line."""
    lines = ["%s %s HTTP/1.1" % (method, path), "Host: x"]
    lines += ["%s: %s" % (k.replace("_", "-"), v) for k, v in headers.items()]
    if body and "Content_Length" not in headers:
        lines.append("Content-Length: %d" % len(body))
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def read_all(c):
    """What a socket gives until its end."""
    data = b""
    try:
        while True:
            piece = c.recv(1 << 20)
            if not piece:
                return data
            data += piece
    except (ConnectionError, socket.timeout):
        return data


def cpu_seconds(pid):
    with open("/proc/%d/stat" % pid) as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
