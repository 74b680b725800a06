#!/usr/bin/env python3
"""Usage, exit codes, and where options come from. SPDX-License-Identifier: Apache-2.0"""
import json
import os
import socket
import subprocess
import time

from harness import BUILD, SLOWDOWN, TINY, check, clean_env, device, done, program, run, work

DEV = device()
PROGRAMS = ["infer-run", "infer-serve", "infer-probe", "infer-bench", "infer-eval"]
PROGRAMS = [p for p in PROGRAMS if os.path.exists(program(p))]
VERB = {"infer-eval": ["perplexity"]}


def refuses(rc, says, name, *args, **kw):
    r = run(name, *args, **kw)
    check(r.rc == rc, "%s %s: exit code" % (name, args), r)
    check(r.out == "", "%s %s: stdout is for text" % (name, args), r)
    check(len(r.said) == 1 and r.said[0].startswith(name + ": ") and says in r.said[0],
          "%s %s: one line with %r" % (name, args, says), r.said)


for p in PROGRAMS:
    r = run(p, "--help")
    check(r.rc == 0 and r.out.startswith("usage: " + p) and r.err == "", p + " --help", r)
    for line in r.out.split("\n"):
        check(line == line.rstrip() and len(line) <= 110, p + " --help: the form of a line", line)
        if line.startswith("  -") and len(line) > 36 and "  " in line[2:]:
            check(line[34:36] == "  " and line[36] != " ", p + " --help: descriptions in one column", line)
    r = run(p, "--version")
    check(r.rc == 0 and r.out.startswith(p + " ") and r.out.count("\n") == 1, p + " --version", r)
    verb = VERB.get(p, [])
    refuses(2, "--nonsense", p, *verb, "--nonsense")
    refuses(2, "not built yet", p, *verb, "-m", TINY, "--lora", "x.gguf")
    refuses(2, "not built yet", p, *verb, "-m", TINY, "--cpu-moe")
    refuses(2, "BACKEND.KEY=VALUE", p, *verb, "-m", TINY, "-f" if verb else "-v", *([TINY] if verb else []), "--backend-option", "cpu") if p != "infer-serve" else None
    refuses(2, "not built yet", p, *verb, "-m", TINY, env=clean_env(INFER_PLAN="x"))
    refuses(2, "--config", p, *verb, "--config") if p else None
    if p != "infer-probe":
        refuses(2, "-m FILE", p, *verb)

# Files: absent, no model, broken.
text = os.path.join(work, "text")
with open(text, "w") as f:
    f.write("no model " * 1000)
broken = os.path.join(work, "broken.gguf")
with open(TINY, "rb") as f:
    whole = f.read()
with open(broken, "wb") as f:
    f.write(whole[: len(whole) // 2])
pipe = os.path.join(work, "pipe.gguf")
os.mkfifo(pipe)
for p, more in (("infer-run", ["--raw", "-p", "x"]), ("infer-bench", []), ("infer-eval", ["perplexity", "-f", text])):
    refuses(1, "No such file", p, "-m", os.path.join(work, "absent.gguf"), *more)
    refuses(5, "byte 0", p, "-m", text, *more)
    refuses(1, "not a regular file", p, "-m", pipe, *more, timeout=10)
    refuses(5, "broken.gguf", p, "-m", broken, *more)
    refuses(3, "nosuch0", p, "-m", TINY, "-dev", "nosuch0", *more)
    refuses(2, "q9", p, "-m", TINY, "-dev", DEV, "-ctk", "q9", *more)
    refuses(2, "not built yet", p, "-m", TINY, "-dev", DEV, "-sm", "tensor", *more)
# Without a key that every model has, or without a tokenizer: a bad file, named once.
for key in ("general.architecture", "llama.block_count", "llama.attention.layer_norm_rms_epsilon", "tokenizer.ggml.model",
            "tokenizer.ggml.tokens"):
    lacks = os.path.join(work, "lacks.gguf")
    with open(lacks, "wb") as f:
        f.write(whole.replace(key.encode(), key.encode()[:-1] + b"_", 1))
    refuses(5, "infer-run: %s: no key '%s'" % (lacks, key), "infer-run", "-m", lacks, "--raw", "-p", "x", "-dev", DEV)
    if key.startswith("tokenizer") and os.path.exists(program("infer-tokenize")):
        refuses(5, "infer-tokenize: %s: no key '%s'" % (lacks, key), "infer-tokenize", "-m", lacks, "-p", "x")

# A matrix of fewer rows than the tokenizer has tokens cannot take every prompt.
with open(os.path.join(os.path.dirname(TINY), "tiny-qwen2.gguf"), "rb") as f:  # its output matrix is the same one
    tied = f.read()
with open(broken, "wb") as f:
    at = tied.index(b"token_embd.weight") + 17 + 4 + 8  # rank, first dimension
    f.write(tied[:at] + (64).to_bytes(8, "little") + tied[at + 8:])
refuses(5, "tokens, token_embd.weight only 64 rows", "infer-run", "-m", broken, "--raw", "-p", "x", "-dev", DEV)
refuses(5, "only 64 rows", "infer-probe", "--check-model", broken)

# Weights that are no numbers are not the caller's fault.
with open(broken, "wb") as f:
    f.write(whole[:-100000] + b"\xff" * 100000)
refuses(1, "no logit is a number", "infer-run", "-m", broken, "--raw", "-p", "x", "-dev", DEV)
with open(broken, "wb") as f:
    f.write(whole[: len(whole) // 2])

# What is asked for and cannot be had is said, though it is no failure.
for args, says in ((["-dev", "nosuch0", "--allow-cpu-fallback"], "nosuch0 is left out"),
                   (["-dev", DEV, "--backend-option", DEV[:3] + ".nosuch=1"], DEV[:3] + ".nosuch=1: has no meaning"),
                   (["-dev", DEV, "--backend-option", "nosuch.x=1"], "no backend nosuch"),
                   (["-dev", DEV, "--backend-path", "/nosuch/folder"], "/nosuch/folder: there is no such folder")):
    r = run("infer-run", "-m", TINY, "--raw", "-p", "x", "-n", "1", *args)
    check(r.rc == 0 and sum(says in line for line in r.err.splitlines()) == 1, "%s is said once" % says, r)
own = os.environ.get("INFER_BACKEND_PATH", "").split(":")[0]  # without the tests' modules, which have things to say
r = run("infer-run", "-m", TINY, "--raw", "-p", "x", "-n", "1", "-t", "1", "-dev", DEV,
        env=clean_env(INFER_BACKEND_PATH=own))
check(r.rc == 0 and r.err == "", "what is known is not remarked on", r)

refuses(4, "does not fit", "infer-run", "-m", TINY, "-dev", DEV, "--raw", "-p", "x", "--kv-cache-memory", "100")

# A module that does not load: 6 when its device is asked for; the others work.
modules = os.path.join(work, "modules")
os.mkdir(modules, 0o755)
with open(os.path.join(modules, "infer-broken.so"), "w") as f:
    f.write("no module")
env = clean_env(INFER_BACKEND_PATH=modules + ":" + os.environ.get("INFER_BACKEND_PATH", ""))
refuses(6, "infer-broken.so", "infer-run", "-m", TINY, "--raw", "-p", "x", "-dev", "broken0", env=env)
r = run("infer-run", "-m", TINY, "--raw", "-p", "x", "-n", "1", "-dev", DEV, env=env)
check(r.rc == 0, "another backend's broken module harms nobody", r)
r = run("infer-probe", env=env)
check(r.rc == 0 and "infer-broken.so" in r.out, "infer-probe names the module that did not load", r)

# --check-model: 0, or 5 with where and what.
r = run("infer-probe", "--check-model", TINY)
check(r.rc == 0 and ": ok: llama" in r.out and not r.said, "check of a good model", r)
r = run("infer-probe", "--check-model", broken)
check(r.rc == 5 and r.out == "" and "broken.gguf" in r.err, "check of a broken model", r)
r = run("infer-probe", "--check-model", text)
check(r.rc == 5 and "byte 0" in r.err, "check of no model", r)

# infer-run's own rules.
refuses(2, "-p and -f", "infer-run", "-m", TINY, "-p", "x", "-f", text)
refuses(2, "--json", "infer-run", "-m", TINY, "-p", "x", "--raw", "--logprobs", "3")
refuses(2, "chat template", "infer-run", "-m", TINY, "-dev", DEV, "-p", "x")
refuses(2, "empty", "infer-run", "-m", TINY, "-dev", DEV, "--raw", "-p", "")
refuses(2, "positional", "infer-run", "-m", TINY, "positional")
refuses(2, "--temp", "infer-run", "-m", TINY, "--temp", "hot")
refuses(2, "--stop", "infer-run", "-m", TINY, "-p", "x", "--raw", *["--stop", "x"] * 17)
refuses(2, "which server", "infer-bench", "serve")
refuses(2, "as the first word", "infer-bench", "-v", "serve")
refuses(2, "\"more\"", "infer-bench", "serve", "more")
refuses(2, "--nonsense", "infer-bench", "serve", "--nonsense")
refuses(2, "http://", "infer-bench", "serve", "--url", "localhost:8080")
refuses(2, "https", "infer-bench", "serve", "--url", "https://localhost")
refuses(2, "--dataset", "infer-bench", "serve", "--url", "http://x", "--workload", "sharegpt")
refuses(2, "--workload sharegpt", "infer-bench", "serve", "--url", "http://x", "--workload", "turns", "--dataset", text)
refuses(2, "--turns", "infer-bench", "serve", "--url", "http://x", "--turns", "3")
refuses(2, "--requests", "infer-bench", "serve", "--url", "http://x", "--requests", "0")
refuses(2, "control character", "infer-bench", "serve", "--url", "http://x", "--api-key", "a\nb")
refuses(1, "No such file", "infer-bench", "serve", "--url", "http://x", "--dataset", "/nosuch/file")
refuses(1, "line 1", "infer-bench", "serve", "--url", "http://x", "--dataset", text)
refuses(1, "No such file", "infer-bench", "serve", "-m", os.path.join(work, "absent.gguf"))
refuses(2, "chat template", "infer-bench", "serve", "-m", TINY, "-dev", DEV, "--endpoint", "chat")
r = run("infer-bench", "serve", "--help")
check(r.rc == 0 and r.out.startswith("usage: infer-bench serve") and "--concurrency" in r.out, "infer-bench serve --help", r)
check(all(len(line) <= 110 for line in r.out.split("\n")), "its lines", r.out)
refuses(2, "verify: not built yet", "infer-eval", "verify", "-m", TINY)
refuses(2, "hellaswag", "infer-eval", "hellaswag", "-m", TINY)
refuses(2, "against what", "infer-eval", "kld", "-m", TINY, "-f", text)
refuses(2, "-f FILE", "infer-eval", "perplexity", "-m", TINY)
refuses(2, "--chunks 0", "infer-eval", "perplexity", "-m", TINY, "-f", text, "--chunks", "0")
refuses(2, "--measure", "infer-probe", "--measure")
refuses(2, "--machine", "infer-probe", "--machine", "x.xml")

# A template that cannot be compiled or that refuses.
refuses(1, "nosuchfilter", "infer-run", "-m", TINY, "-dev", DEV, "-p", "x", "--chat-template", "{{ x|nosuchfilter }}")
refuses(2, "please do not", "infer-run", "-m", TINY, "-dev", DEV, "-p", "x", "--chat-template",
        "{{ raise_exception('please do not') }}")

# A machine whose kernel does not describe its processors: nothing on standard error, and they are found all the same.
# (Needs the right to hide /sys from a process.)
hide = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs none /sys && exec "$@"', "sh"]
try:
    hidden = subprocess.run(hide + ["true"], capture_output=True).returncode == 0
except OSError:
    hidden = False
if hidden:
    r = subprocess.run(hide + [program("infer-run"), "-m", TINY, "--raw", "-p", "x", "-n", "1", "-dev", DEV],
                       capture_output=True, env=clean_env(INFER_BACKEND_PATH=own))
    check(r.returncode == 0 and r.stderr == b"", "without /sys: %r" % r)

# The order: flag, environment, file, default. The number of tokens shows who won.
config = os.path.join(work, "config")
with open(config, "w") as f:
    f.write("# ours\nn-predict = 3\ntemp = 0\nraw\nport = 99  \n")


def n_tokens(*args, **env):
    r = run("infer-run", "-m", TINY, "-dev", DEV, "-p", "abc", "--json", *args, env=clean_env(**env))
    return len(json.loads(r.out)["ids"]) if check(r.rc == 0, "run %s %s" % (args, env), r) else None


check(n_tokens("--raw", "-n", "5", "--config", config, INFER_N_PREDICT="4") == 5, "the flag wins")
check(n_tokens("--config", config, INFER_N_PREDICT="4") == 4, "then the environment")
check(n_tokens("--config", config, INFER_MAX_TOKENS="6") == 6, "which takes other spellings, too")
check(n_tokens("--config", config) == 3, "then the file")
check(n_tokens(INFER_CONFIG=config) == 3, "which the environment may name")
with open(config, "a") as f:
    f.write("nonsense = 1\n")
refuses(2, "line 6: \"nonsense\"", "infer-run", "-m", TINY, "--config", config)
refuses(1, "absent.conf", "infer-run", "-m", TINY, "--config", os.path.join(work, "absent.conf"))

# Names and texts that are no UTF-8 neither break what is printed as JSON nor vanish from it.
odd = os.path.join(work, os.fsdecode(b'odd\xff"\n.gguf'))
with open(odd, "wb") as f:
    f.write(whole)


def told(*args):
    """What a program prints as JSON, None where it is none."""
    try:
        return json.loads(run(*args).out)
    except ValueError:
        return None


shown = os.path.join(work, 'odd\ufffd"\n.gguf')
check((told("infer-probe", "--check-model", odd, "--json") or {}).get("file") == shown, "infer-probe --check-model --json")
check((told("infer-probe", "-m", odd + "x", "--json") or {}).get("error", "").endswith("No such file or directory"),
      "infer-probe --json has the error")
for more in (["-p", "2147483647", "-n", "0"], ["-p", "0", "-n", "2147483647"], ["-p", "0", "-n", "2147418200"]):
    refuses(2, "out of range", "infer-bench", "-m", TINY, "-dev", DEV, "-r", "1", "-d", "2147483647", *more)
rows = told("infer-bench", "-m", odd, "-dev", DEV, "-p", "4", "-n", "2", "-r", "1", "-o", "json")
check([r["model_filename"] for r in rows or []] == [shown] * 2, "infer-bench -o json", rows)
named = os.path.join(work, "named.gguf")
with open(named, "wb") as f:
    at = whole.index(b"general.name") + 12 + 4 + 8 # a string: its type, its length
    f.write(whole[:at] + b"\xff" + whole[at + 1:])
plan = (told("infer-probe", "-m", named, "-dev", DEV, "--json") or {}).get("plan")
check(plan and plan["ledger"] and plan["ledger"][0]["owner"].startswith("\ufffd"), "the plan's ledger", plan)
role = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
r = run("infer-run", "-m", TINY, "-dev", DEV, "-p", "x", "--system", os.fsdecode(b"a\xff"), "--json", "-n", "1",
        "--chat-template", role)
whole_prompt = run("infer-run", "-m", TINY, "-dev", DEV, "--raw", "-p", "[system:a\ufffd][user:x]", "--json", "-n", "1")
check(r.rc == 0 and json.loads(r.out)["prompt_ids"] == json.loads(whole_prompt.out)["prompt_ids"],
      "a system message that is no UTF-8 is kept", r)

# A closed standard stream is none that could be written or read, nor is its number given to another file.
for p, args in (("infer-run", ["-m", TINY, "--raw", "-f", "-"]), ("infer-tokenize", ["-m", TINY]),
                ("infer-eval", ["perplexity", "-m", TINY, "-f", "-"])):
    r = subprocess.run([program(p), *args], stderr=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=lambda: os.close(0))
    check(r.returncode == 1 and b"read -" in r.stderr, p + " without standard input", r)
server = subprocess.Popen([program("infer-serve"), "-m", TINY, "--host", os.path.join(work, "x.sock")],
                          preexec_fn=lambda: os.closerange(0, 3))
end = time.time() + 60 * SLOWDOWN
while not os.path.exists(os.path.join(work, "x.sock")) and time.time() < end:
    time.sleep(0.02)
streams = [os.readlink("/proc/%d/fd/%d" % (server.pid, i)) for i in range(3)]
check(streams == ["/dev/null"] * 3, "numbers of closed streams are not given away", streams)
server.terminate()
check(server.wait(60 * SLOWDOWN) == 0, "a server without streams ends", server.returncode)

# infer VERB.
with open("/dev/full", "w") as full:
    for args in (["--help"], ["--version"]):
        r = subprocess.run([program("infer"), *args], stdout=full, stderr=subprocess.PIPE)
        check(r.returncode == 1 and b"standard output" in r.stderr, "infer %s into a full device" % args, r)
r = run("infer", "run", "--version")
check(r.rc == 0 and r.out.startswith("infer-run "), "infer run", r)
r = run("infer", "nosuchverb")
check(r.rc == 2 and r.out == "" and "no such verb" in r.err, "infer nosuchverb", r)
r = run("infer", "../infer-run")
check(r.rc == 2 and "not a verb" in r.err, "a verb is no path", r)
r = run("infer")
check(r.rc == 2, "infer alone", r)
r = run("infer", "--help")
check(r.rc == 0 and "serve" in r.out, "infer --help", r)

# A port that is taken, an address that is not ours, and a bad key file.
if "infer-serve" in PROGRAMS:
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    s.listen()
    port = s.getsockname()[1]
    r = run("infer-serve", "-m", TINY, "-dev", DEV, "--port", port)
    check(r.rc == 7 and r.out == "" and str(port) in r.said[0] and "in use" in r.said[0], "a taken port", r)
    r = run("infer-serve", "-m", TINY, "-dev", DEV, "--host", "192.0.2.1", "--port", port)
    check(r.rc == 7, "a foreign address", r)
    r = run("infer-serve", "-m", TINY, "-dev", DEV, "--host", "no.such.host.invalid")
    check(r.rc == 7, "an unknown host", r)
    refuses(1, "absent.keys", "infer-serve", "-m", TINY, "--api-key-file", os.path.join(work, "absent.keys"))
    with open(os.path.join(work, "empty.keys"), "w") as f:
        f.write("# none\n\n")
    refuses(2, "holds no key", "infer-serve", "-m", TINY, "--api-key-file", os.path.join(work, "empty.keys"))
    refuses(2, "is empty", "infer-serve", "-m", TINY, "--api-key", "")
    r = run("infer-serve", "-m", broken, "--port", 0)
    check(r.rc == 5, "a server with a broken model", r)
    r = run("infer-serve", "-m", TINY, "--port", 0, "-dev", "nosuch0")
    check(r.rc == 3, "a server without its device", r)

# Log lines as JSON.
r = run("infer-run", "-m", TINY, "-dev", DEV, "--raw", "-p", "x", "-n", "1", "-v", "--log-format", "json")
for line in r.err.splitlines():
    o = json.loads(line)
    check(set(o) == {"time", "level", "area", "msg"}, "a log line", line)
check(r.err.count("\n") >= 2 and r.rc == 0, "-v logs", r)
done()
