#!/bin/sh
# docs/examples/generate answers on models with a tokenizer, and says what is wrong when it cannot.
# SPDX-License-Identifier: Apache-2.0
set -u
BUILD=${INFER_BUILDDIR:-.}
SRC=${INFER_SRCDIR:-$(cd "$(dirname "$0")/../.." && pwd)}
generate=$BUILD/docs/examples/generate
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAIL: $*"; cat "$dir/out" "$dir/err" 2>/dev/null; exit 1; }
[ -e "$BUILD/.libs/infer-cpu.so" ] || { echo "no device is chosen by itself: the cpu backend is not built"; exit 77; }

"$BUILD/tools/mkmodel" --tiny --seed 7 "$dir/made.gguf" >"$dir/out" 2>&1 || fail "mkmodel"
for model in "$SRC/tests/golden/tiny-llama.gguf" "$SRC/tests/golden/tiny-qwen3moe.gguf" "$dir/made.gguf"; do
    "$generate" "$model" "Hello, you" >"$dir/out" 2>"$dir/err" || fail "$model: exit $?"
    [ "$(wc -c <"$dir/out")" -gt 1 ] || fail "$model: no text"
    [ ! -s "$dir/err" ] || fail "$model: errors"
    "$generate" "$model" "Hello, you" >"$dir/again" 2>/dev/null
    cmp -s "$dir/out" "$dir/again" || fail "$model: a second answer differs"
done
"$generate" >"$dir/out" 2>"$dir/err"
[ $? = 2 ] || fail "without arguments"
"$generate" "$dir/absent.gguf" x >"$dir/out" 2>"$dir/err"
[ $? = 1 ] && grep -q "absent.gguf" "$dir/err" || fail "an absent file"
head -c 2000 "$dir/made.gguf" >"$dir/cut.gguf"
"$generate" "$dir/cut.gguf" x >"$dir/out" 2>"$dir/err"
[ $? = 1 ] && grep -q "cut.gguf" "$dir/err" || fail "a cut file"
echo "ok"
