#!/usr/bin/env python3
"""infer-serve: routes, shapes, refusals; a stream says what the whole reply says. SPDX-License-Identifier: Apache-2.0"""
import json
import math
import os
import shutil

from harness import TEMPLATE, TINY, Server, check, done, run, device, work

s = Server()
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def error(path, body, status, param=None, code=None, method="POST", **kw):
    """A refusal in OpenAI's shape."""
    got, headers, data = s.request(method, path, body, **kw)
    check(got == status, "%s %s %.80r: status" % (method, path, body), got, data[:300])
    e = json.loads(data)
    if check(set(e) == {"error"} and set(e["error"]) == {"message", "type", "param", "code"}, "error shape", e):
        check(e["error"]["message"], "a message", e)
        check(param is None or e["error"]["param"] == param, "param is %s" % param, e)
        check(code is None or e["error"]["code"] == code, "code is %s" % code, e)
    return e["error"]


# ---- State and models
check(s.get("/health") == (200, {"status": "ok"}), "/health", s.get("/health"))
check(s.get("/ready")[0] == 200, "/ready")
check(s.get("/version")[1]["version"] == run("infer-serve", "--version").out.split()[1], "/version")
status, models = s.get("/v1/models")
check(status == 200 and models["object"] == "list" and len(models["data"]) == 1, "/v1/models", models)
model = models["data"][0]
check(model["id"] == "tiny-llama" and model["object"] == "model" and model["max_model_len"] == 256, "the model", model)
check(s.get("/v1/models/tiny-llama") == (200, model), "/v1/models/{id}")
error("/v1/models/other", None, 404, code="model_not_found", method="GET")
props = s.get("/props")[1]
check(props["chat_template"] == TEMPLATE and props["n_ctx"] == 256 and props["total_slots"] == 8 and props["plan"],
      "/props", props)

# ---- Routes that are not built, not there, or asked the wrong way
for path in ("/v1/embeddings", "/v1/rerank", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/api/chat",
             "/api/generate", "/api/show", "/api/embed", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
    error(path, {}, 501)
for path in ("/api/tags", "/api/ps", "/api/version", "/slots", "/"):
    error(path, None, 501, method="GET")
for path in ("/nonsense", "/v1", "/v1/chat/completions/", "/v1/chat", "//", "/../etc/passwd"):
    error(path, None, 404, method="GET")
    error(path, {}, 404)
status, headers, data = s.request("GET", CHAT)
check(status == 405 and headers["Allow"] == "POST", "405 says what is allowed", status, headers)
error("/v1/models", {}, 405)
status, headers, data = s.request("HEAD", "/health")
check(status == 200 and data == b"", "HEAD", status, data)

# ---- Text tools
status, t = s.post("/tokenize", {"content": "Hello w\u00f6rld"})
check(t["count"] == len(t["tokens"]) and s.post("/detokenize", {"tokens": t["tokens"]})[1]["content"] == "Hello w\u00f6rld",
      "tokenize and back", t)
check(s.post("/tokenize", {"prompt": "Hello w\u00f6rld"})[1]["tokens"] == t["tokens"], "tokenize takes prompt, too")
p = s.post("/tokenize", {"content": "\u00f6", "with_pieces": True})[1]["tokens"]
check([x["piece"] for x in p] == [[195], [182]], "pieces that are no text are bytes", p)
messages = [{"role": "system", "content": "Be kind"}, {"role": "user", "content": "Hi"}]
rendered = "[system]Be kind\n[user]Hi\n[assistant]"
check(s.post("/apply-template", {"messages": messages}) == (200, {"prompt": rendered}), "/apply-template")
ids = s.post("/tokenize", {"content": rendered})[1]["tokens"]
check(s.post("/tokenize", {"messages": messages})[1]["tokens"] == ids, "tokenize takes messages, too")
error("/tokenize", {}, 400, "content")
error("/tokenize", {"content": 5}, 400, "content", "invalid_type")
error("/detokenize", {"tokens": "x"}, 400, "tokens", "invalid_type")
error("/detokenize", {"tokens": [264]}, 400, "tokens")
error("/detokenize", {"tokens": [-1]}, 400, "tokens")
error("/apply-template", {"messages": []}, 400, "messages")

# ---- Chat
chat = {"model": "tiny-llama", "messages": messages, "max_tokens": 24, "temperature": 0}
status, a = s.post(CHAT, chat)
check(status == 200 and a["object"] == "chat.completion" and a["id"].startswith("chatcmpl-"), "chat", a)
check(set(a) >= {"id", "object", "created", "model", "choices", "usage"} and a["model"] == "tiny-llama", "keys", a)
choice = a["choices"][0]
check(choice["index"] == 0 and choice["message"]["role"] == "assistant" and choice["logprobs"] is None, "choice", choice)
check(choice["finish_reason"] == "length", "finish", choice)
usage = {"prompt_tokens": len(ids), "completion_tokens": 24, "total_tokens": len(ids) + 24,
         "prompt_tokens_details": {"cached_tokens": 0}}
check(a["usage"] == usage, "usage counts", a["usage"])
# The engine behind it is the one of infer-run.
r = json.loads(run("infer-run", "-m", TINY, "-dev", device(), "--raw", "-p", rendered, "-n", 24, "--temp", 0, "--json").out)
check(r["text"] == choice["message"]["content"], "the same text as infer-run", r["text"])
parts = [{"role": "system", "content": [{"type": "text", "text": "Be kind"}]},
         {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
check(s.post(CHAT, dict(chat, messages=parts))[1]["choices"] == a["choices"], "content as text parts")
check(s.post(CHAT, dict(chat, max_completion_tokens=3, max_tokens=9))[1]["usage"]["completion_tokens"] == 3,
      "max_completion_tokens")
check(s.post(CHAT, dict(chat, unknown_field={"x": 1}, user="me", metadata=None))[0] == 200, "unknown fields are ignored")
check(s.post(CHAT, dict(chat, messages=[{"role": "developer", "content": "Be kind"}, messages[1]]))[1]["choices"]
      == a["choices"], "a developer message is a system message to templates that know none")
check(s.post(CHAT, dict(chat, temperature=None, n=None, stop=None, max_tokens=None, seed=None))[0] == 200, "null is absent")


# ---- Streams
def joined(events, key):
    out = {}
    for e in events:
        for c in e["choices"]:
            piece = c["delta"].get("content", "") if key == "delta" else c["text"]
            out[c["index"]] = out.get(c["index"], "") + (piece or "")
    return out


def counts(usage):
    """Without what the prefix cache had: the same request asked again finds more."""
    return {k: v for k, v in usage.items() if k != "prompt_tokens_details"}


def cached(usage):
    return usage["prompt_tokens_details"]["cached_tokens"]


def same_streamed(path, body):
    status, whole = s.post(path, body)
    status2, events, last = s.stream(path, dict(body, stream_options={"include_usage": True}))
    check(status == status2 == 200 and last, "stream ends with [DONE]", status, status2, whole)
    key = "delta" if path == CHAT else "text"
    kind = "chat.completion.chunk" if path == CHAT else "text_completion"
    check(all(e["object"] == kind and e["id"] == events[0]["id"] for e in events), "chunks", events[:1])
    texts = joined(events, key)
    finish, logprobs = {}, {}
    for e in events:
        for c in e["choices"]:
            if c["finish_reason"]:
                check(c["index"] not in finish, "one finish reason a choice")
                finish[c["index"]] = c["finish_reason"]
            if c["logprobs"]:
                logprobs.setdefault(c["index"], []).append(c["logprobs"])
    for c in whole["choices"]:
        text = c["message"]["content"] if path == CHAT else c["text"]
        check(texts.get(c["index"], "") == text, "streamed text", repr(texts.get(c["index"])), repr(text))
        check(finish.get(c["index"]) == c["finish_reason"], "streamed finish", finish, c["finish_reason"])
        if c["logprobs"]:
            for k in c["logprobs"]:
                if isinstance(c["logprobs"][k], list):
                    check(sum((x[k] for x in logprobs[c["index"]]), []) == c["logprobs"][k], "streamed " + k)
    check(len(finish) == len(whole["choices"]), "every choice finishes", finish)
    check(events[-1]["choices"] == [] and counts(events[-1]["usage"]) == counts(whole["usage"])
          and cached(events[-1]["usage"]) >= cached(whole["usage"]), "usage comes last", events[-1])
    check(all(e["usage"] is None for e in events[:-1]), "usage is null before")
    return whole, events


whole, events = same_streamed(CHAT, chat)
check(events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}, "the role comes first", events[0])
check(len(events) > 8, "text comes in pieces", len(events))
check("usage" not in s.stream(CHAT, chat)[1][-1], "no usage unless asked")
hot = dict(chat, temperature=1.3, seed=11, n=3, max_tokens=40)
whole, _ = same_streamed(CHAT, hot)
check(len({c["message"]["content"] for c in whole["choices"]}) == 3, "n choices differ", whole)
check(whole["usage"]["prompt_tokens"] == len(ids), "the prompt counts once", whole["usage"])
check(s.post(CHAT, hot)[1]["choices"] == whole["choices"], "a seed gives the same choices")
same_streamed(CHAT, dict(hot, logprobs=True, top_logprobs=2))
same_streamed(TEXT, {"prompt": "Hello", "max_tokens": 30, "temperature": 0})
same_streamed(TEXT, {"prompt": ["Hello", "World"], "max_tokens": 9, "temperature": 1, "seed": 5, "n": 2, "echo": True})
same_streamed(TEXT, {"prompt": "Hello", "max_tokens": 9, "temperature": 0, "echo": True, "logprobs": 2})
# the best of several are those with the highest log-probability a token, in that order
many = {"prompt": "Hello", "max_tokens": 9, "temperature": 1.5, "seed": 5, "n": 6, "logprobs": 1}
every = s.post(TEXT, many)[1]
best = s.post(TEXT, dict(many, n=2, best_of=6))[1]
mean = lambda x: sum(x["logprobs"]["token_logprobs"]) / len(x["logprobs"]["token_logprobs"])
want = sorted(every["choices"], key=mean, reverse=True)[:2]
check([x["text"] for x in best["choices"]] == [x["text"] for x in want], "best_of", best, want)
check([x["index"] for x in best["choices"]] == [0, 1], "indices of the best", best)
check(best["usage"]["completion_tokens"] == every["usage"]["completion_tokens"], "all that was made is counted")
check(s.post(TEXT, dict(many, best_of=3))[0] == 400, "fewer than asked for")
check(s.post(TEXT, dict(many, n=1, best_of=3, stream=True))[0] == 400, "a stream cannot know the best")

# beam search: width 1 is the greedy answer; the best of a width are the first of that width; both ways of asking
beams = {"prompt": "Hello", "max_tokens": 12, "use_beam_search": True}
greedy = s.post(TEXT, {"prompt": "Hello", "max_tokens": 12, "temperature": 0})[1]
r = s.post(TEXT, beams)[1]
check(r["choices"][0]["text"] == greedy["choices"][0]["text"] and len(r["choices"]) == 1, "width 1", r, greedy)
r = s.post(TEXT, dict(beams, n=4, temperature=0))[1]
texts = [x["text"] for x in r["choices"]]
check(len(set(texts)) >= 3 and [x["index"] for x in r["choices"]] == [0, 1, 2, 3], "four hypotheses", r)
check(r["usage"]["prompt_tokens"] == greedy["usage"]["prompt_tokens"], "the prompt counts once", r["usage"])
check(4 <= r["usage"]["completion_tokens"] <= 48, "tokens of all that is told", r["usage"])
r = s.post(TEXT, dict(beams, n=2, best_of=4, prompt=["Hello", "World"]))[1]
check([x["text"] for x in r["choices"]][:2] == texts[:2] and len(r["choices"]) == 4, "the best two of four", r, texts)
check([x["index"] for x in r["choices"]] == [0, 1, 2, 3], "indices over prompts", r)
r = s.post(CHAT, {"messages": chat["messages"], "max_tokens": 8, "use_beam_search": True, "best_of": 3, "n": 2,
                  "length_penalty": 0.5, "early_stopping": "never"})
check(r[0] == 200 and len(r[1]["choices"]) == 2, "beams of a chat", r)
check(s.post(TEXT, dict(beams, n=3, early_stopping=True, echo=True))[1]["choices"][2]["text"].startswith("Hello"), "echo")
for param, bad in (("stream", {"stream": True}), ("temperature", {"temperature": 0.5}), ("n", {"n": 11}),
                   ("best_of", {"best_of": 11}), ("logprobs", {"logprobs": 1}), ("stop", {"stop": "x"}),
                   ("frequency_penalty", {"frequency_penalty": 1}), ("max_tokens", {"max_tokens": 0}),
                   ("length_penalty", {"length_penalty": 11}), ("early_stopping", {"early_stopping": "soon"}),
                   ("best_of", {"n": 10})):
    r = s.post(TEXT, dict(beams, **bad))
    check(r[0] == 400 and r[1]["error"]["param"] == param, "refused by name: " + param, bad, r)

for seed in range(6):  # hot tiny models write broken UTF-8: characters must still leave whole
    same_streamed(TEXT, {"prompt": "\u00e4\u00f6", "max_tokens": 60, "temperature": 2, "seed": seed})

# Stop strings, in whatever pieces they come.
text = s.post(TEXT, {"prompt": "Hello", "max_tokens": 30, "temperature": 0})[1]["choices"][0]["text"]
for i in range(0, 12, 3):
    stop = text[i:i + 3]
    w, _ = same_streamed(TEXT, {"prompt": "Hello", "max_tokens": 30, "temperature": 0, "stop": stop})
    check(w["choices"][0]["text"] == text[:text.find(stop)] and w["choices"][0]["finish_reason"] == "stop", "stop", w)
same_streamed(TEXT, {"prompt": "Hello", "max_tokens": 30, "temperature": 0, "stop": [text[4:6], "never"]})

# ---- Log-probabilities
lp = s.post(CHAT, dict(chat, logprobs=True, top_logprobs=4))[1]["choices"][0]["logprobs"]["content"]
check(len(lp) == 24, "one a token", len(lp))
for t in lp:
    check(set(t) == {"token", "logprob", "bytes", "top_logprobs"} and len(t["top_logprobs"]) == 4, "shape", t)
    check(t["logprob"] == max(x["logprob"] for x in t["top_logprobs"]), "greedy is the likeliest", t)
check(bytes(sum((t["bytes"] for t in lp), [])).decode("utf-8", "replace") == choice["message"]["content"],
      "the bytes are the text")
lp = s.post(TEXT, {"prompt": "Hello", "max_tokens": 4, "temperature": 0, "logprobs": 3, "echo": True})[1]
lp = lp["choices"][0]["logprobs"]
check([len(lp[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [9] * 4, "lengths", lp)
check(lp["token_logprobs"][0] is None and all(x < 0 for x in lp["token_logprobs"][1:]), "the first has none", lp)
check(lp["text_offset"] == list(range(9)), "offsets", lp["text_offset"])
# A prompt's log-probabilities are those of making it: ask for each from what is before it.
for i in range(1, 5):
    top = s.post(TEXT, {"prompt": "Hello"[:i], "max_tokens": 1, "logprobs": 5, "temperature": 0})[1]
    top = top["choices"][0]["logprobs"]["top_logprobs"][0]
    if "Hello"[i] in top:
        check(abs(top["Hello"[i]] - lp["token_logprobs"][i]) < 1e-4, "the same log-probability", top, lp)
e = s.post(TEXT, {"prompt": "Hello", "max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0})[1]
check(e["choices"][0]["text"] == "Hello" and e["choices"][0]["logprobs"]["token_logprobs"] == lp["token_logprobs"][:5],
      "scoring a text", e)
check(e["usage"]["completion_tokens"] == 0, "makes nothing", e["usage"])

# ---- Parameters that shape the answer
greedy = {"prompt": "Hello", "max_tokens": 12, "temperature": 0}
base = s.post(TEXT, greedy)[1]["choices"][0]["text"]
hello = s.post("/tokenize", {"content": "Hello"})[1]["tokens"]
check(s.post(TEXT, dict(greedy, prompt=hello))[1]["choices"][0]["text"] == base, "a prompt of ids")
two = s.post(TEXT, dict(greedy, prompt=[hello, hello[:2]], echo=True))[1]["choices"]
check([c["index"] for c in two] == [0, 1] and two[0]["text"] == "Hello" + base and two[1]["text"].startswith("He"),
      "prompts of ids with echo", two)
for only in ({"top_k": 1}, {"top_p": 0}, {"top_p": 1e-6}, {"min_p": 0.9999}):
    check(s.post(TEXT, dict(greedy, temperature=1, seed=1, **only))[1]["choices"][0]["text"] == base, "only", only)
x = s.post("/tokenize", {"content": "x"})[1]["tokens"][0]
forced = s.post(TEXT, dict(greedy, logit_bias={str(x): 100}))[1]["choices"][0]["text"]
check(forced == "x" * 12, "logit_bias", forced)
check(s.post(TEXT, dict(greedy, frequency_penalty=2))[1]["choices"][0]["text"] != base, "frequency_penalty")
check(s.post(TEXT, dict(greedy, repetition_penalty=5))[1]["choices"][0]["text"] != base, "repetition_penalty")
st = s.post(TEXT, dict(greedy, logit_bias={str(x): 100}, stop_token_ids=[x]))[1]
check(st["choices"][0]["finish_reason"] == "stop" and st["usage"]["completion_tokens"] <= 1, "stop_token_ids", st)
check(s.post(TEXT, dict(greedy, prompt="x" * 250, max_tokens=100, ignore_eos=True))[1]["usage"]["completion_tokens"] == 6,
      "an answer ends with the context")
check(s.post(TEXT, {"prompt": "Hello", "temperature": 0, "ignore_eos": True})[1]["usage"]["completion_tokens"] == 16,
      "16 tokens unless asked for more")

# ---- Refusals
error(CHAT, dict(chat, messages=[{"role": "user", "content": "x" * 300}]), 400, "messages", "context_length_exceeded")
error(TEXT, {"prompt": "x" * 300}, 400, "prompt", "context_length_exceeded")
error(TEXT, {"prompt": [1] * 256}, 400, "prompt", "context_length_exceeded")
for field, values in {
    "temperature": [-0.1, 2.1, "1", [], True], "top_p": [-0.1, 1.1, "x"], "n": [0, 129, 1.5, "1"],
    "max_tokens": [-1, "5", 1.5, 1 << 40], "presence_penalty": [-2.1, 2.1], "frequency_penalty": [-2.1, 2.1, {}],
    "seed": [1.5, "x"], "stream": [1, "true"], "stop": [5, {}, [5], ["x"] * 17, "y" * 257],
    "logit_bias": [[], {"x": 1}, {"999": 1}, {"1": 101}, {"1": "x"}, {"0" * k + "1": 1 for k in range(301)}],
    "stream_options": [5], "min_p": [1.0, -1],
    "top_k": [-2, 0.5], "min_tokens": [-1], "stop_token_ids": [5, ["x"], [264], [-1], [1] * 257], "response_format": [5],
    "ignore_eos": [1], "model": [5],
}.items():
    for v in values:
        for path, body in ((CHAT, chat), (TEXT, greedy)):
            e = error(path, dict(body, **{field: v}), 400)
            check((e["param"] or "").startswith(field), "param of %s=%r" % (field, v), e)
error(CHAT, dict(chat, max_tokens=0), 400, "max_tokens")
error(CHAT, dict(chat, logprobs=3), 400, "logprobs")
error(CHAT, dict(chat, top_logprobs=3), 400, "top_logprobs")
error(CHAT, dict(chat, logprobs=True, top_logprobs=21), 400, "top_logprobs")
error(TEXT, dict(greedy, logprobs=6), 400, "logprobs")
error(TEXT, dict(greedy, logprobs=True), 400, "logprobs")
error(CHAT, dict(chat, stream_options={"include_usage": True}), 400, "stream_options")
error(CHAT, {"model": "m"}, 400, "messages", "missing_required_parameter")
error(TEXT, {"model": "m"}, 400, "prompt", "missing_required_parameter")
for v in (5, {}, [], [[]], [{}], ["x", 5], [5, "x"], [[5, "x"]], [264], [-1], ["x"] * 129, [1 << 40]):
    error(TEXT, {"prompt": v}, 400, "prompt")
for v in ("x", [], [5], [{}], [{"role": 5, "content": "x"}], [{"role": "user"}], [{"role": "user", "content": 5}],
          [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
          [{"role": "user", "content": [5]}]):
    error(CHAT, {"messages": v}, 400, "messages")
for field, v in {"tools": [{"type": "function"}], "response_format": {"type": "json_object"}, "guided_json": {},
                 "guided_regex": "x", "guided_choice": ["a"], "grammar": "root", "functions": [{}]}.items():
    error(CHAT, dict(chat, **{field: v}), 400, field, "unsupported_parameter")
for field, v in {"suffix": "x", "prompt_logprobs": 1}.items():
    error(TEXT, dict(greedy, **{field: v}), 400, field, "unsupported_parameter")
check(s.post(CHAT, dict(chat, tools=[], response_format={"type": "text"}))[0] == 200, "what asks for nothing is taken")
check(s.post(CHAT, dict(chat, tools=[{"type": "function"}], tool_choice="none"))[0] == 200, "tools that are not to be used")

# ---- Headers
status, headers, _ = s.request("POST", CHAT, chat, headers={"x-request-id": "my-id_1"})
check(headers["x-request-id"] == "my-id_1" and headers["Content-Type"] == "application/json", "x-request-id", headers)
status, headers, _ = s.request("GET", "/nonsense", headers={"x-request-id": "bad id\x7f"})
check(headers["x-request-id"].startswith("req-"), "a strange id is not echoed", headers)

# ---- Metrics: vLLM's suffixes; counts agree with what was done
before = s.metrics()
s.post(TEXT, greedy)
s.stream(TEXT, greedy)
after = s.metrics()
for name, by in {"infer_generation_tokens_total": 24, "infer_prompt_tokens_total": 10,
                 'infer_request_success_total{finished_reason="length"}': 2,
                 "infer_time_to_first_token_seconds_count": 2, "infer_inter_token_latency_seconds_count": 22,
                 "infer_e2e_request_latency_seconds_count": 2, "infer_request_queue_time_seconds_count": 2,
                 "infer_request_generation_tokens_sum": 24}.items():
    check(after[name] - before[name] == by, name, before[name], after[name])
for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total",
             "prefix_cache_queries_total", "prefix_cache_hits_total"):
    check("infer_" + name in after, name)
check(after["infer_num_requests_running"] == 0 and after["infer_kv_cache_usage_perc"] == 0, "idle", after)
for name in ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"):
    rows = [(k, v) for k, v in after.items() if k.startswith("infer_%s_bucket" % name)]
    bounds = [float(k.split('le="')[1].split('"')[0].replace("+Inf", "inf")) for k, _ in rows]
    check(bounds == sorted(bounds) and math.isinf(bounds[-1]), "buckets of " + name, bounds)
    check([v for _, v in rows] == sorted(v for _, v in rows), "buckets are cumulative")
    check(rows[-1][1] == after["infer_%s_count" % name], "the last bucket is the count")

# ---- The prefix cache: what a prompt shares with earlier ones is counted in usage and metrics, by salt
first = [(7 * i + i * i) % 250 for i in range(100)]
ask = {"prompt": first, "max_tokens": 8, "temperature": 1, "seed": 3, "logprobs": 2, "ignore_eos": True}
before = s.metrics()
a = s.post(TEXT, ask)[1]
check(cached(a["usage"]) < 10, "a prompt like no other", a["usage"])
b = s.post(TEXT, ask)[1]
check(cached(b["usage"]) == 99 and b["usage"]["prompt_tokens"] == 100, "all but the last token, which is always computed",
      b["usage"])
check(a["choices"] == b["choices"], "the same answer from the cache")
u = s.stream(TEXT, dict(ask, prompt=first[:77] + [251, 252], stream_options={"include_usage": True}))[1][-1]["usage"]
check(cached(u) == 77, "to the token", u)
u = s.post(TEXT, dict(ask, prompt=[first, first[:50] + [253]]))[1]["usage"]
check(cached(u) == 99 + 50, "prompts of one request count each", u)
for salt in ("one", "two"):
    x = [s.post(TEXT, dict(ask, cache_salt=salt))[1] for _ in range(2)]
    check([cached(y["usage"]) for y in x] == [0, 99], "a salt shares with its like only", salt, [y["usage"] for y in x])
    check([y["choices"] for y in x] == [a["choices"]] * 2, "and changes nothing else")
u = s.post(TEXT, dict(ask, echo=True))[1]["usage"]
check(cached(u) == 0, "who asks for a prompt's log-probabilities gets them computed", u)
after = s.metrics()
asked = 100 * 2 + 79 + 100 + 51 + 4 * 100 + 100
check(after["infer_prefix_cache_queries_total"] - before["infer_prefix_cache_queries_total"] == asked, "queries", asked)
hits = after["infer_prefix_cache_hits_total"] - before["infer_prefix_cache_hits_total"]
check(hits == cached(a["usage"]) + 99 + 77 + 99 + 50 + 2 * 99, "hits", hits)
check(after["infer_prompt_tokens_total"] - before["infer_prompt_tokens_total"] == asked, "prompt tokens, cached or not")
check(after["infer_kv_cache_usage_perc"] == 0, "what is only cached is not used", after["infer_kv_cache_usage_perc"])
for v in (5, ["x"]):
    error(TEXT, dict(greedy, cache_salt=v), 400, "cache_salt", "invalid_type")
for v in ("", "a\0b"):
    error(CHAT, dict(chat, cache_salt=v), 400, "cache_salt", "invalid_value")
check(any(k.startswith("infer_device_memory_bytes{device=") and v > 0 for k, v in after.items()), "device memory")
check(all(v == 1 for k, v in after.items() if k.startswith("infer_device_healthy")), "device health")
check(s.stop() == 0, "drain", s.p.returncode)

# ---- Other settings
s = Server("--served-model-name", "my/model", "--metrics-compat", "vllm", "--seed", "4", "--no-enable-prefix-caching",
           template=None)
check([cached(s.post(TEXT, ask)[1]["usage"]) for _ in range(2)] == [0, 0]
      and s.metrics()["infer_prefix_cache_queries_total"] == 0, "--no-enable-prefix-caching")
check(s.get("/v1/models")[1]["data"][0]["id"] == "my/model", "the served name")
check(s.get("/v1/models/my/model")[0] == 200, "a name with a slash")
error(TEXT, dict(greedy, model="gpt-4"), 404, "model", "model_not_found")
check(s.post(TEXT, dict(greedy, model="my/model"))[0] == 200, "its own name")
check(s.post(TEXT, greedy)[0] == 200, "no name")
check("infer_num_requests_running" in s.metrics() and "vllm:num_requests_running" in s.metrics(), "vllm: names")
error(CHAT, chat | {"model": "my/model"}, 400, "messages")
hot = {"prompt": "Hello", "max_tokens": 20, "temperature": 1.5}
check(s.post(TEXT, hot)[1]["choices"] == s.post(TEXT, hot)[1]["choices"], "--seed is the default seed")
check(s.stop() == 0, "drain")
odd = os.path.join(work, os.fsdecode(b"odd\xff.gguf"))
shutil.copy(TINY, odd)
for args, name in (([], "odd\ufffd"), (["--served-model-name", os.fsdecode(b'a\xff"\n')], 'a\ufffd"\n')):
    s = Server(*args, model=odd)
    check(s.get("/v1/models")[1]["data"][0]["id"] == name, "a name that is no UTF-8", s.get("/v1/models"))
    check(s.get("/props")[1].get("model_path") == os.path.join(work, "odd\ufffd.gguf"), "a path that is none", s.get("/props"))
    check(s.post(TEXT, dict(greedy, model=name))[1].get("model") == name, "its answers have the name")
    check(s.request("GET", "/metrics")[2].decode(), "its figures are UTF-8")
    check(s.stop() == 0, "drain")
s = Server("--no-metrics")
error("/metrics", None, 404, method="GET")
check(s.stop() == 0, "drain")
done()
