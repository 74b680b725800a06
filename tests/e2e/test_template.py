#!/usr/bin/env python3
"""infer-template: the line protocol, where a template may come from, refusals; with INFER_TEST_DATA the reference's cases
through the program. SPDX-License-Identifier: Apache-2.0"""
import json
import os
import struct

from harness import TEMPLATE, TINY, check, done, run, work

NAME = "infer-template"
HELLO = [{"role": "user", "content": "H\u00e9 \"\U0001f600\""}]


def ask(args, requests):
    r = run(NAME, *args, stdin="".join(q if isinstance(q, str) else json.dumps(q) + "\n" for q in requests).encode())
    return r, [json.loads(line) for line in r.out.splitlines()]


def write(name, text):
    path = os.path.join(work, name)
    with open(path, "wb" if isinstance(text, bytes) else "w") as f:
        f.write(text)
    return path


path = write("t.jinja", "{{ bos_token }}" + TEMPLATE + "{{ tools }}{{ mood }}")
r, out = ask(["--template", path],
             [{"messages": HELLO, "tools": None, "add_generation_prompt": True, "extra": {}},
              {"messages": HELLO, "add_generation_prompt": False, "extra": {"mood": 1.0, "bos_token": "<b>"}},
              {"messages": [], "tools": [{"a": [1, None]}]}])
check(r.rc == 0 and r.err == "" and out == [{"prompt": "[user]H\u00e9 \"\U0001f600\"\n[assistant]None"},
                                            {"prompt": "<b>[user]H\u00e9 \"\U0001f600\"\nNone1.0"},
                                            {"prompt": "[{'a': [1, None]}]"}], "line protocol", r)

# A refusal of the template is an answer; a line that is no request is one too, and told at the end.
path = write("r.jinja", "{% if messages|length > 1 %}\n{{ raise_exception('one at a time') }}{% endif %}{{ m.x }}")
r, out = ask(["--template", path], [{"messages": HELLO * 2}, {"messages": HELLO}])
check(r.rc == 0 and "one at a time" in out[0]["error"] and "line 2" in out[0]["error"] and "'m'" in out[1]["error"],
      "refusals by the template", r)
r, out = ask(["--template", path], ["nothing\n", {"messages": 1}, {"messages": HELLO, "extra": 1},
                                    {"messages": HELLO, "add_generation_prompt": "yes"}, "\n", {"messages": []}])
check(r.rc == 1 and [list(o) for o in out] == [["error"]] * 5 and "extra" in out[2]["error"], "wrong lines", r)

# The date.
path = write("d.jinja", "{{ strftime_now('%d %b %Y %H:%M:%S') }}")
r, out = ask(["--template", path, "--date", "2024-02-29"], [{"messages": []}])
check(out == [{"prompt": "29 Feb 2024 12:00:00"}], "--date", r)
r, out = ask(["--template", path], [{"messages": []}])
check(r.rc == 0 and "20" in out[0]["prompt"], "the clock", r)

# A configuration: text, list, or a file beside it; special tokens as text or objects.
both = [{"name": "default", "template": "D{{ bos_token }}{{ eos_token }}"}, {"name": "tool_use", "template": "T"}]
config = write("tokenizer_config.json",
               json.dumps({"chat_template": both, "bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>",
                           "pad_token": None, "model_max_length": 10**30}))
r, out = ask(["--config", config], [{"messages": []}, {"messages": [], "tools": [{}]}, {"messages": [], "tools": []}])
check(out == [{"prompt": "D<s></s>"}, {"prompt": "T"}, {"prompt": "D<s></s>"}], "a list of templates", r)
config = write("tokenizer_config.json", json.dumps({"chat_template": "C{{ eos_token }}", "eos_token": "E"}))
check(ask(["--tokenizer-config", config], [{"messages": []}])[1] == [{"prompt": "CE"}], "one template")
config = write("tokenizer_config.json", json.dumps({"eos_token": "E"}))
r = run(NAME, "--config", config)
check(r.rc == 1 and "chat_template.jinja" in r.err, "no template", r)
write("chat_template.jinja", "B{{ eos_token }}")
check(ask(["--config", config], [{"messages": []}])[1] == [{"prompt": "BE"}], "a template beside")


# A model file, of which only the container must be known.
def gguf(pairs):
    def text(s):
        return struct.pack("<Q", len(s.encode())) + s.encode()

    def value(v):
        if isinstance(v, str):
            return struct.pack("<I", 8) + text(v)
        if isinstance(v, list):
            return struct.pack("<IIQ", 9, 8, len(v)) + b"".join(map(text, v))
        return struct.pack("<II", 4, v)
    return struct.pack("<4sIQQ", b"GGUF", 3, 0, len(pairs)) + b"".join(text(k) + value(v) for k, v in pairs.items())


pairs = {"general.architecture": "unheard-of", "tokenizer.ggml.model": "no-such-thing",
         "tokenizer.ggml.tokens": ["a", "<|begin|>", "<|end|>"], "tokenizer.ggml.bos_token_id": 1,
         "tokenizer.ggml.eos_token_id": 2, "tokenizer.chat_template": "{{ bos_token }}M{{ eos_token }}"}
r, out = ask(["-m", write("m.gguf", gguf(pairs))], [{"messages": []}, {"messages": [], "tools": [{}]}])
check(out == [{"prompt": "<|begin|>M<|end|>"}] * 2, "a model file", r)
pairs["tokenizer.chat_template.tool_use"] = "U"
r, out = ask(["-m", write("m.gguf", gguf(pairs))], [{"messages": []}, {"messages": [], "tools": [{}]}])
check(out == [{"prompt": "<|begin|>M<|end|>"}, {"prompt": "U"}], "its template for tools", r)

# Refusals.
unknown = write("u.jinja", "\n{{ messages|frobnicate }}")
broken = write("b.jinja", "\n\n{% if %}")
for rc, says, args in ((2, "--template", []), (2, "--template", ["-m", TINY, "--template", path]),
                       (2, "2025-02-30", ["--template", path, "--date", "2025-02-30"]),
                       (2, "12.1.2025", ["--template", path, "--date", "12.1.2025"]),
                       (1, "No such file", ["--template", path + "x"]), (5, "byte 0", ["-m", path]),
                       (1, "no chat template", ["-m", TINY]), (5, "not a JSON object", ["--config", path]),
                       (1, "line 2: unknown filter 'frobnicate'", ["--template", unknown]),
                       (5, "line 3", ["--template", broken])):
    r = run(NAME, *args)
    check(r.rc == rc and r.out == "" and len(r.said) == 1 and says in r.err, "refusal %s" % args, r)

# The reference's cases, through the program.
data = os.environ.get("INFER_TEST_DATA")
texts = errors = 0
if data:
    home = os.path.join(data, "chat-templates")
    with open(os.path.join(home, "index.json"), encoding="utf-8") as f:
        index = json.load(f)["templates"]
    for name, info in index.items():
        with open(os.path.join(home, name + ".jsonl"), encoding="utf-8") as f:
            cases = [json.loads(line) for line in f]
        special = {k: info[k] for k in ("bos_token", "eos_token")}
        r, out = ask(["--template", os.path.join(home, info["template"]), "--date", "2025-07-10"],
                     [{**{k: c[k] for k in ("messages", "tools", "add_generation_prompt")},
                       "extra": {**special, **c["extra"]}} for c in cases])
        check(r.rc == 0 and len(out) == len(cases), name, r)
        for c, o in zip(cases, out):
            good = "error" in o if c.get("error") else o == {"prompt": c["expected"]}
            texts += good and "prompt" in o
            errors += good and "error" in o
            check(good, name, c, o)
    print("%d templates: %d texts, %d errors" % (len(index), texts, errors))
done()
