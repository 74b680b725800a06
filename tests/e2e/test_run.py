#!/usr/bin/env python3
"""infer-run: its JSON, sampling, stops, prompts and the chat loop. SPDX-License-Identifier: Apache-2.0"""
import json
import math
import os
import re
import signal
import subprocess
import time

from harness import SLOWDOWN, TEMPLATE, TINY, check, clean_env, device, done, make_model, program, run, work

BASE = ["-m", TINY, "-dev", device()]


def answer(*args, **kw):
    r = run("infer-run", *BASE, "--json", *args, **kw)
    check(r.rc == 0, "infer-run --json %s" % (args,), r)
    return json.loads(r.out)


# The object of the interface, exactly.
a = answer("--raw", "-p", "Hello", "-n", "20", "--temp", "0", "--logprobs", "3")
check(set(a) == {"text", "ids", "prompt_ids", "logprobs", "timings", "finish_reason"}, "keys", set(a))
check(set(a["timings"]) == {"load_ms", "prompt_n", "prompt_ms", "predicted_n", "predicted_ms"}, "timings", a["timings"])
check(all(isinstance(v, (int, float)) and v >= 0 for v in a["timings"].values()), "timings are numbers", a["timings"])
check(a["timings"]["prompt_n"] == len(a["prompt_ids"]) == 5, "prompt ids", a["prompt_ids"])
check(a["timings"]["predicted_n"] == len(a["ids"]) == len(a["logprobs"]) == 20, "ids", len(a["ids"]))
check(a["finish_reason"] == "length", "finish", a["finish_reason"])
for t, i in zip(a["logprobs"], a["ids"]):
    check(set(t) == {"id", "token", "logprob", "top"} and t["id"] == i and len(t["top"]) == 3, "a token", t)
    check(t["top"][0]["id"] == i, "greedy takes the likeliest", t)
    check(t["top"] == sorted(t["top"], key=lambda x: -x["logprob"]), "alternatives are in order", t)
    check(all(x["logprob"] <= 0 for x in t["top"]) and sum(math.exp(x["logprob"]) for x in t["top"]) <= 1.0001,
          "log-probabilities", t)
b = answer("--raw", "-p", "Hello", "-n", "20", "--temp", "0")
c = answer("--raw", "-p", "Hello", "-n", "20", "--temp", "0", "--speculative", "ngram")
check(c["ids"] == a["ids"] and set(c["timings"]) - set(a["timings"]) == {"draft_n", "draft_n_accepted"}, "drafts", c)
check("logprobs" not in b and b["ids"] == a["ids"] and b["text"] == a["text"], "log-probabilities change nothing")
check(answer("--raw", "-p", "Hello", "-n", "0")["ids"] == [], "-n 0 makes nothing")

# The text on stdout is the text of the object, with one newline at most added; and nothing else is there.
r = run("infer-run", *BASE, "--raw", "-p", "Hello", "-n", "20", "--temp", "0")
check(r.out in (a["text"], a["text"] + "\n") and not r.said, "plain text", r)

# Where a prompt may come from.
path = os.path.join(work, "prompt")
with open(path, "w") as f:
    f.write("Hello")
check(answer("--raw", "-f", path, "-n", "20", "--temp", "0")["ids"] == a["ids"], "-f")
check(answer("--raw", "-n", "20", "--temp", "0", stdin=b"Hello")["ids"] == a["ids"], "standard input")
check(answer("--raw", "-f", "-", "-n", "20", "--temp", "0", stdin=b"Hello")["ids"] == a["ids"], "-f -")

# A line for each call to a backend: seconds, backend, slot, what, status, microseconds.
path = os.path.join(work, "calls")
check(answer("--raw", "-p", "Hello", "-n", "20", "--temp", "0", "--trace-calls", path)["ids"] == a["ids"], "traced")
with open(path) as f:
    calls = f.read().splitlines()
form = re.compile(r"[0-9]+\.[0-9]{6} [a-z0-9_]+ ([a-z_]+) .* = (ok|INFER_[A-Z_]+) [0-9]+\.[0-9] us$")
check(all(form.match(c) for c in calls), "lines of calls", [c for c in calls if not form.match(c)][:3])
slots = {form.match(c).group(1) for c in calls if form.match(c)}
check({"probe", "dev_open", "buf_alloc", "op_query", "cmd_op", "queue_signal", "queue_destroy", "dev_close"} <= slots,
      "traced slots", slots)
check(sum(" matmul f32[" in c and "->" in c for c in calls) > 20, "ops with their shapes", calls[-3:])
r = run("infer-run", *BASE, "-p", "Hello", "--trace-calls", os.path.join(work, "no", "such"))
check(r.rc == 1 and len(r.said) == 1 and "no/such" in r.said[0], "a trace that cannot be written", r)

# Seeds: the same gives the same, another another, none a new one each time.
hot = ["--raw", "-p", "Hello", "-n", "40", "--temp", "1.5", "--top-k", "0", "--top-p", "1", "--min-p", "0"]
one, again, other = answer(*hot, "--seed", "7"), answer(*hot, "--seed", "7"), answer(*hot, "--seed", "8")
check(one["ids"] == again["ids"], "a seed gives the same answer")
check(one["ids"] != other["ids"], "another seed another")
check(answer(*hot)["ids"] != answer(*hot)["ids"], "without a seed each time another")
check(answer(*hot, "--seed", "-9223372036854775807")["ids"] != one["ids"], "seeds have 64 bits")
# Sampling options have effect: each of these leaves only the likeliest token.
for only in (["--top-k", "1"], ["--top-p", "0"], ["--top-p", "0.0001"], ["--min-p", "0.9999"]):
    ids = answer("--raw", "-p", "Hello", "-n", "20", "--temp", "1", "--seed", "3", *only)["ids"]
    check(ids == a["ids"], "only the likeliest with %s" % only)
check(len(set(answer(*hot, "--seed", "7", "--frequency-penalty", "50")["ids"])) > len(set(one["ids"])),
      "a frequency penalty spreads")
check(answer("--raw", "-p", "Hello", "-n", "20", "--temp", "0", "--presence-penalty", "30")["ids"] != a["ids"],
      "a presence penalty has effect")
check(answer("--raw", "-p", "Hello", "-n", "20", "--temp", "0", "--repeat-penalty", "3")["ids"] != a["ids"],
      "a repetition penalty has effect")

# The same tokens whatever the chunks of the prompt.
long = "The quick brown fox jumps over the lazy dog. " * 4
want = answer("--raw", "-p", long, "-n", "16", "--temp", "0")["ids"]
for chunk in ("1", "7", "64", "512"):
    check(answer("--raw", "-p", long, "-n", "16", "--temp", "0", "--prefill-chunk", chunk)["ids"] == want, "chunk", chunk)
check(answer("--raw", "-p", long, "-n", "16", "--temp", "0", "-b", "5")["ids"] == want, "steps of 5 tokens")

# A stop string ends the text before it, wherever it falls.
text = b["text"]
for i in (1, 5, 9):
    stop = text[i:i + 2]
    if "\ufffd" in stop or text.find(stop) < 0:
        continue
    s = answer("--raw", "-p", "Hello", "-n", "20", "--temp", "0", "--stop", stop, "--stop", "never in there")
    check(s["text"] == text[:text.find(stop)] and s["finish_reason"] == "stop", "stop at %r" % stop, s["text"])

# A prompt longer than the context is refused, not cut.
r = run("infer-run", *BASE, "--raw", "-p", "x" * 300)
check(r.rc == 1 and len(r.said) == 1 and "256" in r.said[0], "a long prompt", r)
c = answer("--raw", "-p", "x" * 250, "--temp", "0", "--ignore-eos")
check(len(c["ids"]) == 6 and c["finish_reason"] == "length", "until the context is full", len(c["ids"]))
c = answer("--raw", "-p", "x" * 20, "--temp", "0", "--ignore-eos", "-c", "32")
check(len(c["ids"]) == 12, "-c", len(c["ids"]))

# Templates: the prompt is the rendered conversation, the system message leads it.
t = answer("-p", "Hi", "-n", "4", "--temp", "0", "--chat-template", TEMPLATE, "--system", "Be kind")
check(t["prompt_ids"] == answer("--raw", "-p", "[system]Be kind\n[user]Hi\n[assistant]", "-n", "0")["prompt_ids"],
      "the template's prompt")

# One BOS where the tokenizer wants one, also before a template or a text that states it.
vocab = os.path.join(os.environ.get("INFER_TEST_DATA", ""), "gguf-vocab", "llama-spm.gguf")
if os.path.exists(vocab):
    spm = ["-m", make_model("spm.gguf", "--vocab", vocab, "--vocab-size", "32000"), "-dev", device(), "-n", "0", "--json"]
    for args, ids in ((["--raw", "-p", "Hello"], [1, 15043]), (["--raw", "-p", "<s>Hello"], [1, 15043]),
                      (["-p", "Hello", "--chat-template", "{{ bos_token }}{{ messages[0].content }}"], [1, 15043]),
                      (["-p", "Hello", "--chat-template", "{{ messages[0].content }}"], [1, 15043])):
        r = run("infer-run", *spm, *args)
        check(r.rc == 0 and json.loads(r.out)["prompt_ids"] == ids, "BOS with %s" % args, r)

# The chat loop, through a pipe: commands, history, and what goes where.
lines = "Hi\nagain\n/clear\nHi\n/nonsense\n/help\ntwo\\\nlines\n/exit\nnever\n"
r = run("infer-run", *BASE, "-i", "--chat-template", TEMPLATE, "-n", "5", "--temp", "0", stdin=lines.encode())
first = answer("-p", "Hi", "-n", "5", "--temp", "0", "--chat-template", TEMPLATE)["text"]
check(r.rc == 0, "chat", r)
check(r.out.startswith(first) and r.out.count(first.rstrip("\n")) >= 2, "the first answer, and again after /clear", r)
check("/nonsense: no such command" in r.err and "/clear" in r.err and "never" not in r.err, "commands", r)
hist = answer("--raw", "-p", "[user]Hi\n[assistant]%s\n[user]again\n[assistant]" % first, "-n", "5", "--temp", "0")
check(hist["text"].rstrip("\n") in r.out, "the second turn sees the first")
r = run("infer-run", *BASE, "-i", "--chat-template", TEMPLATE, "-n", "3", "--temp", "0", stdin=b"%s\nHi\n" % (b"x" * 400))
check(r.rc == 0 and "/clear" in r.err and r.out != "", "a message that does not fit leaves the chat alive", r)

# Ctrl-C: in a chat it ends the answer, outside it the program.
big = make_model("long.gguf", "--ctx", "65536", "--layers", "4", "--dim", "256")
endless = [program("infer-run"), "-m", big, "-dev", device(), "--ignore-eos", "-n", "-1", "--temp", "0"]
p = subprocess.Popen(endless + ["--raw", "-p", "Hello"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                     stderr=subprocess.DEVNULL, env=clean_env())
p.stdout.read(20)
p.send_signal(signal.SIGINT)
rest = p.stdout.read()
check(p.wait(20 * SLOWDOWN) == 130, "Ctrl-C ends with 130", p.returncode)
p = subprocess.Popen(endless + ["-i", "--chat-template", TEMPLATE], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                     stderr=subprocess.DEVNULL, env=clean_env())
for turn in range(2):
    p.stdin.write(b"Hello\n")
    p.stdin.flush()
    p.stdout.read(20)
    p.send_signal(signal.SIGINT)
    time.sleep(0.5 * SLOWDOWN)
    check(p.poll() is None, "Ctrl-C ends an answer only")
p.stdin.close()
p.stdout.read()
check(p.wait(20 * SLOWDOWN) == 0, "the end of the input leaves with 0", p.returncode)
done()
