#!/usr/bin/env python3
"""infer-tokenize: the line protocol, the table, decoding, refusals; with INFER_TEST_DATA the reference's cases through
the program. SPDX-License-Identifier: Apache-2.0"""
import json
import lzma
import os

from harness import SRC, TINY, check, done, run, work

NAME = "infer-tokenize"
SEEDS = os.path.join(SRC, "tests", "fuzz", "corpus", "tokenizer_json")


def document(seed):
    with open(os.path.join(SEEDS, seed), "rb") as f:
        return f.read().split(b"\0")[0]


def ask(args, requests):
    r = run(NAME, *args, "--json", stdin="".join(json.dumps(q) + "\n" for q in requests).encode())
    return r, [json.loads(line) for line in r.out.splitlines()]


folder = os.path.join(work, "model")
os.mkdir(folder)
path = os.path.join(folder, "tokenizer.json")
with open(path, "wb") as f:
    f.write(document("spm"))

# Pieces: 0 <unk>, 1 <s>, 2 </s>, 3 ▁, 4 a, 5 b, 8 ab, 9 ▁a, 11 and 12 the bytes of é.
questions = [{"text": "ab", "add_special": False}, {"text": "ab", "add_special": True}, {"text": "\u00e9\0<s>"},
             {"text": ""}]
answers = [{"ids": [3, 8], "decoded": "ab"}, {"ids": [1, 3, 8], "decoded": "<s> ab"},
           {"ids": [1, 3, 11, 12, 0, 1], "decoded": "<s> \u00e9<unk><s>"}, {"ids": [1], "decoded": "<s>"}]
for args in (["--tokenizer", path], ["--tokenizer", folder], ["-m", folder]):
    r, out = ask(args, questions)
    check(r.rc == 0 and out == answers and r.err == "", "line protocol", r)
r, out = ask(["--tokenizer", path, "--no-parse-special", "--no-add-special"], [{"text": "<s>"}])
check(1 not in out[0]["ids"], "a special token's name as text", r)

# A wrong line is answered in its place, and told at the end.
r, out = ask(["--tokenizer", path], [{"text": 1}, {"text": "a", "add_special": 1}, {"text": "a"}])
check(r.rc == 1 and [list(o) for o in out] == [["error"], ["error"], ["ids", "decoded"]], "wrong lines", r)

# BOS as tokenizer_config.json says: the one beside, or the one named.
with open(path, "wb") as f:
    f.write(document("byte_level"))
check(ask(["-m", folder], [{"text": "he"}])[1] == [{"ids": [5], "decoded": "he"}], "no BOS")
config = os.path.join(work, "config.json")
for name in (config, os.path.join(folder, "tokenizer_config.json")):
    with open(name, "w") as f:
        json.dump({"bos_token": {"content": "<|e|>"}, "add_bos_token": True, "model_max_length": 10**30}, f)
    check(ask(["-m", folder, *(["--config", name] if name == config else [])], [{"text": "he"}])[1]
          == [{"ids": [10, 5], "decoded": "<|e|>he"}], "BOS by configuration")

# For people.
r = run(NAME, "-m", folder, "-p", "hell\u00e9")
check(r.rc == 0 and r.out == '10\t"<|e|>"\n7\t"hell"\n8\t"\ufffd"\n9\t"\ufffd"\n', "table", r)
r = run(NAME, "-m", folder, "--decode", "-p", "[7, 8,9]")
check(r.rc == 0 and r.out == "hell\u00e9", "ids to text", r)
r = run(NAME, "-m", folder, "--decode", stdin=b"7 99\n")
check(r.rc == 2 and "99" in r.err, "an id that is none", r)
r, out = ask(["-m", TINY], [{"text": "Hello \u00e9", "add_special": False}])
check(r.rc == 0 and out[0]["decoded"] == "Hello \u00e9", "a model file", r)

# Refusals.
for rc, says, args in ((2, "--tokenizer", []), (2, "--tokenizer", ["-m", TINY, "--tokenizer", path]),
                       (2, "--json", ["-m", TINY, "--json", "-p", "x"]), (1, "No such file", ["-m", path + "x"]),
                       (5, "tokenizer.json", ["--tokenizer", config]), (5, "byte 0", ["-m", path])):
    r = run(NAME, *args)
    check(r.rc == rc and r.out == "" and len(r.said) == 1 and says in r.err, "refusal %s" % args, r)
with open(path, "wb") as f:
    f.write(document("byte_level").replace(b'"NFC"', b'"Shout"'))
r = run(NAME, "-m", folder, "-p", "x")
check(r.rc == 1 and "normalizer.type: 'Shout'" in r.err, "an unknown component by name", r)

# The reference's cases, through the program.
data = os.environ.get("INFER_TEST_DATA")
for family in ("deepseek_v3", "llama2") if data else ():
    home = os.path.join(data, "tokenizers", family)
    with lzma.open(os.path.join(home, "tokenizer.json.xz")) as f, open(path, "wb") as g:
        g.write(f.read())
    with open(os.path.join(home, "cases.jsonl"), encoding="utf-8") as f:
        cases = [json.loads(line) for line in f]
    r, out = ask(["--tokenizer", path, "--config", os.path.join(home, "tokenizer_config.json")],
                 [{"text": c["text"], "add_special": c["add_special"]} for c in cases])
    good = sum(o == {"ids": c["ids"], "decoded": c["decoded"]} for o, c in zip(out, cases))
    print("%s: %d of %d cases" % (family, good, len(cases)))
    check(r.rc == 0 and len(out) == len(cases) == good, family)
if data:
    home = os.path.join(data, "gguf-vocab")
    with open(os.path.join(home, "llama-spm.cases.jsonl"), encoding="utf-8") as f:
        cases = [json.loads(line) for line in f]
    r, out = ask(["-m", os.path.join(home, "llama-spm.gguf"), "--no-parse-special"],
                 [{"text": c["text"], "add_special": c["add_special"]} for c in cases])
    check([o["ids"] for o in out] == [c["ids"] for c in cases], "llama-spm", r)
done()
