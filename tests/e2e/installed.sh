#!/bin/sh
# Installs into a staging folder and builds the example against that alone. SPDX-License-Identifier: Apache-2.0
set -eu
BUILD=${1:-${INFER_BUILDDIR:-.}}
SRC=${INFER_SRCDIR:-$(cd "$(dirname "$0")/../.." && pwd)}
. "$SRC/tests/stage.sh"
for f in bin/infer-run bin/infer-serve bin/infer-probe lib/libinfer.so.0 lib/infer/infer-cpu.so include/infer/backend.h \
    lib/pkgconfig/infer.pc share/man/man1/infer-run.1 share/infer/new-backend.sh share/infer/skeleton/Makefile \
    share/infer/PORTING.md share/infer/conformance.md; do
    [ -e "$root/$f" ] || { echo "not installed: $f"; exit 1; }
done
${CC:-cc} "$SRC/docs/examples/generate.c" -o "$stage/generate" $(pkg-config --cflags --libs infer)
"$stage/generate" 2>&1 | grep -q usage
# The public headers stand alone.
for h in "$root"/include/infer/*.h; do
    echo "#include <infer/$(basename "$h")>" >"$stage/h.c"
    ${CC:-cc} -std=c11 -Wall -Wextra -Werror -I"$root/include" -fsyntax-only "$stage/h.c"
done
