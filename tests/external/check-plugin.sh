#!/bin/sh
# What a plugin's author does who has only an installation: copies the skeleton, builds it with the installed headers,
# runs the kit, serves a model. 77 without pkg-config. SPDX-License-Identifier: Apache-2.0
set -eu
BUILD=${1:-${INFER_BUILDDIR:-.}}
BUILD=$(cd "$BUILD" && pwd)
SRC=${INFER_SRCDIR:-$(cd "$(dirname "$0")/../.." && pwd)}
command -v pkg-config >/dev/null 2>&1 || { echo "skipped: no pkg-config"; exit 77; }
. "$SRC/tests/stage.sh"
fail() { printf '%s\n' "$*"; exit 1; }
new=$root/share/infer/new-backend.sh
mkdir -m 755 "$stage/work"
cd "$stage/work"

# The script: names that make no backend, and never over something that is there.
for bad in "" Npu 2npu npu2 "a b" ../x cpu a234567890123456z; do
    rc=0
    "$new" "$bad" >/dev/null 2>&1 || rc=$?
    [ $rc = 2 ] && [ -z "$(ls -A .)" ] || fail "new-backend.sh \"$bad\": exit $rc, or it left something"
done
"$new" mynpu >said
grep -q "make -C 'mynpu'" said && grep -q "infer-conform --plugin" said && grep -q "\-dev mynpu0" said || fail "$(cat said)"
"$new" mynpu >/dev/null 2>&1 && fail "new-backend.sh wrote over a folder"
"$new" other deep/er >/dev/null
! grep -rli skeleton mynpu deep || fail "the skeleton's name is left over"

# Built against the installation alone, as C11 without a warning.
for f in $(${CC:-cc} -M $(pkg-config --cflags infer) mynpu/*.c); do
    case $f in "$SRC"/* | "$BUILD"/*) fail "reads $f of the source tree" ;; esac
done
make -s -C mynpu CFLAGS="-O2 -Werror" CC="${CC:-cc}"
make -s -C deep/er CFLAGS="-O2 -Werror" CC="${CC:-cc}"
[ "$(nm -D --defined-only mynpu/lib/infer-mynpu.so | grep -c ' T ')" = 1 ] || fail "more than one symbol is exported"

# Conformance, as its Makefile calls it.
make -s -C mynpu check CONFORM_FLAGS="--set heap_bytes=67108864" >said 2>&1 || fail "$(cat said)"
grep -q 'mynpu0 (backend mynpu .*: level T[1-9]$' said || fail "$(cat said)"

# The same tokens as the reference, alone and with a second copy beside it.
tokens() {
    infer-run --backend-path "$1" -dev "$2" -m "$3" --raw -p "Once upon a time" -n 16 --temp 0 --json |
        sed 's/.*"ids": \(\[[^]]*\]\).*/\1/'
}
a=$PWD/mynpu/lib b=$PWD/deep/er/lib
for model in tiny-llama tiny-qwen3moe; do
    m=$SRC/tests/golden/$model.gguf
    want=$(tokens "$a" ref0 "$m")
    case $want in *[0-9]*,*[0-9]*) ;; *) fail "no tokens on ref0: $want" ;; esac
    for dev in mynpu0 mynpu0,other0; do
        got=$(tokens "$a:$b" $dev "$m")
        [ "$got" = "$want" ] || fail "$model on $dev: $got instead of $want"
    done
done

# A module of an older header: its table ends before the first slot that may be absent, its descriptor before `reserved`.
"$new" older >/dev/null
sed -i -e 's/\.struct_size = sizeof table/.struct_size = offsetof(infer_backend_ops, backend_init)/' \
    -e 's/\.struct_size = sizeof desc/.struct_size = offsetof(infer_plugin_desc, reserved)/' \
    -e 's/#include <string.h>/#include <stddef.h>\n&/' older/older.c
grep -c 'offsetof(infer_' older/older.c | grep -qx 2 || fail "the skeleton's sizes are written otherwise"
make -s -C older CFLAGS="-O2 -Werror" CC="${CC:-cc}"
m=$SRC/tests/golden/tiny-llama.gguf
[ "$(tokens "$PWD/older/lib" older0 "$m")" = "$(tokens "$a" ref0 "$m")" ] || fail "a plugin with a short table: other tokens"
