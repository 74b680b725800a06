#!/bin/sh
# Makes a backend of one's own from the skeleton: copies it, renames its files, symbols, settings and devices. Works from
# a source tree and from an installation ($datadir/infer), and needs nothing of either afterwards.
# SPDX-License-Identifier: Apache-2.0
set -eu
me=$(basename "$0")
die() { printf '%s: %s\n' "$me" "$1" >&2; exit "${2:-1}"; }
usage="usage: $me NAME [DIR]

Copies the skeleton plugin into DIR (default: ./NAME) as the backend NAME: module infer-NAME.so, devices NAME0, NAME1, …
NAME: a letter a to z, then letters, digits and _, 16 characters at most."

case ${1-} in
-h | --help) printf '%s\n' "$usage"; exit 0 ;;
esac
[ $# = 1 ] || [ $# = 2 ] || { printf '%s\n' "$usage" >&2; exit 2; }
name=$1
dir=${2:-$name}
printf '%s\n' "$name" | LC_ALL=C grep -qx '[a-z][a-z0-9_]\{0,15\}' ||
    die "\"$name\": a letter a to z, then letters, digits and _, 16 characters at most" 2
case $name in
*[0-9]) die "\"$name\" ends in a digit, and device ids would be ambiguous: ${name}0; append a letter or _" 2 ;;
cpu | ref | sim | fault | cuda | hip | vulkan | opencl | openvino) die "\"$name\" is the name of one of infer's own backends" 2 ;;
skeleton | infer) die "\"$name\" is taken; choose a name of your own" 2 ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
from=
for d in "$here/skeleton" "$here/../backends/npu/skeleton"; do
    [ -f "$d/skeleton.c" ] && from=$d && break
done
[ "$from" ] || die "no skeleton beside this script ($here/skeleton)"
[ -e "$dir" ] && die "$dir exists already; nothing is overwritten"

upper=$(printf '%s\n' "$name" | LC_ALL=C tr a-z A-Z)
mkdir -p "$dir"
for f in skeleton.h skeleton.c skeleton_ops.c Makefile; do
    to=$dir/$(printf '%s\n' "$f" | sed "s/skeleton/$name/")
    sed -e "s/SKELETON/$upper/g" -e "s/skeleton/$name/g" "$from/$f" >"$to" || die "cannot write $to"
done

q=$(printf '%s\n' "$dir" | sed "s/'/'\\\\''/g")
cat <<END
$dir: backend $name, from the skeleton. Next:

  make -C '$q'
  infer-conform --plugin '$q/lib/infer-$name.so'
  infer-run --backend-path "\$(cd '$q/lib' && pwd)" -dev ${name}0 -m MODEL.gguf -p "What is the capital of France?"

Then replace what is marked HERE in $name.c and ${name}_ops.c, in the order that PORTING.md gives.
END
