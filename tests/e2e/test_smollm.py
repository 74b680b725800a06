#!/usr/bin/env python3
"""The real model, where the set-up fetched it: sensible answers, the same through every door.

SPDX-License-Identifier: Apache-2.0
"""
import json

from harness import SLOWDOWN, Server, check, device, done, real_model, run, skip

model = real_model()
if not model:
    skip("SmolLM2 is not here (tools/quickstart fetches it; INFER_TEST_MODEL names it)")
if SLOWDOWN > 1:
    skip("too slow with sanitizers or in emulation")
question = "What is the capital of France?"
asked = ["-m", model, "-dev", device(), "--temp", "0", "-n", "24"]
r = run("infer-run", *asked, "-p", question, "--json", timeout=600)
check(r.rc == 0, "infer-run", r)
a = json.loads(r.out)
check("Paris" in a["text"] and a["finish_reason"] == "stop", "an answer", a)
check(len(a["prompt_ids"]) == 37 and a["prompt_ids"].count(1) >= 2, "the model's own template, no doubled BOS", a)
r = run("infer-run", *asked, "-p", "Once upon a time", "--raw", "--json", timeout=600)
raw = json.loads(r.out)
check(raw["prompt_ids"] == json.loads(run("infer-run", *asked, "-p", "Once upon a time", "--raw", "--json", "-n", "0").out)
      ["prompt_ids"] and len(raw["ids"]) == 24, "raw text", raw)

s = Server("-c", "2048", model=model, template=None)
chat = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 24}
status, whole = s.post("/v1/chat/completions", chat, timeout=600)
check(status == 200 and whole["choices"][0]["message"]["content"] == a["text"], "the server says the same", whole)
check(whole["usage"]["prompt_tokens"] == 37 and whole["usage"]["completion_tokens"] == len(a["ids"]), "usage", whole)
status, events, last = s.stream("/v1/chat/completions", chat, timeout=600)
text = "".join(c["delta"].get("content", "") for e in events for c in e["choices"])
check(status == 200 and last and text == a["text"], "the stream says the same", text)
# Text beyond ASCII: pieces of characters are joined before they leave.
greek = {"prompt": "\u03b1 \u03b2 \u03b3 \u03b4 \u03b5 \u03b6 \u4f60\u597d \u4f60\u597d \u4f60", "temperature": 0, "max_tokens": 24}
whole = s.post("/v1/completions", greek, timeout=600)[1]["choices"][0]["text"]
status, events, last = s.stream("/v1/completions", greek, timeout=600)
pieces = [c["text"] for e in events for c in e["choices"]]
check("".join(pieces) == whole and not any("\ufffd" in p for p in pieces if "\ufffd" not in whole), "whole characters", pieces)
tool = s.post("/apply-template", {"messages": chat["messages"]})[1]["prompt"]
check(s.post("/tokenize", {"content": tool})[1]["tokens"] == a["prompt_ids"], "the template and its ids", tool)
check(s.stop(timeout=120) == 0, "drain")
done()
