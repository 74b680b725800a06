#!/bin/sh
# Whether the plugin headers of NEW (default: this tree) keep what those of OLD promised: no constant has another value,
# no field has moved, gone or changed its type. Structs, tables and lists of constants may grow. OLD and NEW are folders that
# hold infer/backend.h, or git revisions. Constants need a C compiler, fields also abidiff (Debian: abigail-tools). Prints every
# breach; exit 1 when there is one, 77 when only the constants could be compared. SPDX-License-Identifier: Apache-2.0
set -eu
top=${INFER_SRCDIR:-$(cd "$(dirname "$0")/.." && pwd)}
[ $# = 1 ] || [ $# = 2 ] || { echo "usage: abi-diff.sh OLD [NEW]" >&2; exit 2; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cc=${CC:-cc}

# headers WHAT NAME: the folder of WHAT's headers, as $tmp/NAME
headers() {
    mkdir -p "$tmp/$2/infer"
    for h in backend ops quant status; do
        if [ -d "$1" ]; then
            cp "$1/infer/$h.h" "$tmp/$2/infer/$h.h"
        else
            git -C "$top" show "$1:core/include/infer/$h.h" >"$tmp/$2/infer/$h.h"
        fi || { echo "abi-diff.sh: $1: no headers there" >&2; exit 2; }
    done
}
headers "$1" old
headers "${2:-$top/core/include}" new

# Constants by name; those that say how much there is so far may grow.
for v in old new; do
    echo '#include <infer/backend.h>' | $cc -I"$tmp/$v" -E -dM - | sed -n 's/^#define \(INFER_[A-Z0-9_]*\) \(.*\)$/\1 \2/p' |
        grep -vE '^INFER_(ABI_MINOR|OP_COUNT|FMT_COUNT|.*_H) ' | sort >"$tmp/$v.names"
done
bad=0
comm -23 "$tmp/old.names" "$tmp/new.names" | while read -r name value; do
    echo "$name: was $value, is $(sed -n "s/^$name //p" "$tmp/new.names" | grep . || echo gone)"
done >"$tmp/said"
if [ -s "$tmp/said" ]; then
    cat "$tmp/said"
    bad=1
fi

command -v abidiff >/dev/null 2>&1 || {
    echo "abidiff is not installed: only constants were compared"
    [ $bad = 0 ] && exit 77
    exit 1
}
# A function that takes a pointer to each struct: abidiff sees types through functions.
for v in old new; do
    {
        echo '#include <infer/backend.h>'
        sed -n 's/^} \(infer_[a-z_0-9]*\);$/\1/p' "$tmp/old/infer/"*.h | while read -r t; do
            echo "void use_$t($t *p); void use_$t($t *p) { (void)p; }"
        done
    } >"$tmp/$v.c"
    $cc -g -shared -fPIC -fvisibility=default -fno-eliminate-unused-debug-types -I"$tmp/$v" -o "$tmp/$v.so" "$tmp/$v.c" || bad=1
done
[ $bad = 0 ] || exit 1
abidiff --no-show-locs --leaf-changes-only "$tmp/old.so" "$tmp/new.so" >"$tmp/report" || true
# In this form of the report a struct that only grew has insertions and no changes; one that holds another by value has both.
if grep -qE 'data member (change|deletion)' "$tmp/report"; then
    cat "$tmp/report"
    exit 1
fi
exit 0
