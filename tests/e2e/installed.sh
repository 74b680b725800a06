#!/bin/sh
# Installs into a staging folder and builds the example against that alone. SPDX-License-Identifier: Apache-2.0
set -eu
BUILD=${1:-${INFER_BUILDDIR:-.}}
SRC=${INFER_SRCDIR:-$(cd "$(dirname "$0")/../.." && pwd)}
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
prefix=$(sed -n 's/^prefix = //p' "$BUILD/Makefile")
make -s -C "$BUILD" install DESTDIR="$stage" >"$stage/log" 2>&1 || { tail "$stage/log"; exit 1; }
for f in bin/infer-run bin/infer-serve bin/infer-probe lib/libinfer.so.0 lib/infer/infer-cpu.so include/infer/backend.h \
    lib/pkgconfig/infer.pc share/man/man1/infer-run.1; do
    [ -e "$stage$prefix/$f" ] || { echo "not installed: $f"; exit 1; }
done
flags=$(PKG_CONFIG_SYSROOT_DIR="$stage" PKG_CONFIG_PATH="$stage$prefix/lib/pkgconfig" pkg-config --cflags --libs infer)
${CC:-cc} "$SRC/docs/examples/generate.c" -o "$stage/generate" $flags
LD_LIBRARY_PATH="$stage$prefix/lib" "$stage/generate" 2>&1 | grep -q usage
# The public headers stand alone.
for h in "$stage$prefix"/include/infer/*.h; do
    echo "#include <infer/$(basename "$h")>" >"$stage/h.c"
    ${CC:-cc} -std=c11 -Wall -Wextra -Werror -I"$stage$prefix/include" -fsyntax-only "$stage/h.c"
done
