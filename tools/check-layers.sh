#!/bin/sh
# Who may include what, as docs/design says: folders of core/ to their left only, public headers nothing internal,
# programs public headers only, backends the plugin headers only, no vendor's name in core/, and the plugin headers
# alone as C11 and C++11, with an assertion for the place of every field. Prints every breach; exit 1 when there is one. Needs no build.
# SPDX-License-Identifier: Apache-2.0
set -u
top=${INFER_SRCDIR:-$(dirname "$0")/..}
cd "$top" || exit 1
bad=0

# Reads "FILE:#include ..." lines, prints breaches.
includes() {
    find "$@" -name '*.[ch]' -exec grep -HE '^[[:space:]]*#[[:space:]]*include' {} + 2>/dev/null
}

report() {
    if [ -n "$1" ]; then
        printf '%s\n' "$1"
        bad=1
    fi
}

# --- folders of core/ ---------------------------------------------------------------------------
report "$(includes core | awk '
BEGIN {
    n = split("base text topo quant ops hal graph place kv model sched", order, " ")
    for (i = 1; i <= n; i++) rank[order[i]] = i
    # where a public header belongs
    split("status:base error:base version:base text:text quant:quant ops:ops backend:hal plan:place model:model " \
          "engine:sched infer:sched quantize:model", pub, " ")
    for (i in pub) { split(pub[i], kv, ":"); public[kv[1]] = kv[2] }
}
{
    file = $0; sub(/:.*/, "", file)
    inc = $0; sub(/^[^:]*:[^"<]*/, "", inc); quoted = substr(inc, 1, 1) == "\""
    name = inc; sub(/^["<]/, "", name); sub(/[">].*/, "", name)
    split(file, part, "/")
    own = part[2]
    if (own == "include") {
        if (quoted) print file ": a public header includes \"" name "\""
        else if (name ~ /\// && name !~ /^infer\//) print file ": a public header includes <" name ">"
        next
    }
    if (!(own in rank)) { print file ": folder " own " has no place in the order"; next }
    target = ""
    if (quoted) {
        if (name == "config.h") next
        if (name !~ /\//) { print file ": \"" name "\" without its folder"; next }
        split(name, p, "/"); target = p[1]
        if (!(target in rank)) { print file ": \"" name "\" is in no folder of the order"; next }
        if (target != own && p[2] == "internal.h") print file ": \"" name "\" belongs to its folder alone"
    } else if (name ~ /^infer\//) {
        split(name, p, "/"); sub(/\.h$/, "", p[2])
        if (!(p[2] in public)) { print file ": <" name "> has no place in the order"; next }
        target = public[p[2]]
    } else next
    if (rank[target] > rank[own]) print file ": " own " may not include " name " (" target " is to its right)"
}')"

# --- the plugin headers include nothing but one another -----------------------------------------
report "$(for h in backend ops quant status; do
    grep -HE '^[[:space:]]*#[[:space:]]*include' "core/include/infer/$h.h" |
        grep -vE '<infer/(ops|quant|status)\.h>|<std(int|def|arg)\.h>' | sed 's/$/  (a plugin header)/'
done)"

# --- programs -----------------------------------------------------------------------------------
# Developer tools that are not installed may reach into the core.
not_installed='^tools/mkmodel'
report "$(includes tools | grep -vE "$not_installed" | grep '"' | while IFS= read -r line; do
    file=${line%%:*}
    name=$(printf '%s\n' "$line" | sed 's/.*include[^"]*"//; s/".*//')
    [ "$name" = config.h ] && continue
    base=${name##*/}
    [ -e "$(dirname "$file")/$name" ] || [ -e "tools/$name" ] || [ -e "tools/common/$base" ] ||
        echo "$file: a program includes \"$name\", which is not a public header"
done)"

# --- backends -----------------------------------------------------------------------------------
report "$(includes backends | while IFS= read -r line; do
    file=${line%%:*}
    case $line in
    *'<infer/'*)
        printf '%s\n' "$line" | grep -qE '<infer/(backend|ops|quant|status)\.h>' ||
            echo "$line  (a backend sees the plugin headers only)" ;;
    *'"'*)
        name=$(printf '%s\n' "$line" | sed 's/.*include[^"]*"//; s/".*//')
        [ "$name" = config.h ] || [ -e "$(dirname "$file")/$name" ] || [ -e "backends/$name" ] ||
            echo "$file: a backend includes \"$name\", which is not its own" ;;
    esac
done)"

# --- no vendor in the core ----------------------------------------------------------------------
report "$(grep -rniE '(^|[^a-z])(cuda|hip|rocm|vulkan|opencl|openvino|ascend)([^a-z]|$)' core/)"

# --- the plugin headers alone -------------------------------------------------------------------
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
compile() { # compilers, language, standard, suffix
    cc=
    for c in $1; do
        [ -n "$cc" ] || ! command -v "$c" >/dev/null 2>&1 || cc=$c
    done
    [ -n "$cc" ] || { echo "note: none of $1 is here, $3 is not checked"; return; }
    for h in backend ops quant status; do
        printf '#include <infer/%s.h>\n#include <infer/%s.h>\nextern int infer_check; int infer_check = 1;\n' $h $h \
            >"$tmp/$h.$4"
        "$cc" -x "$2" -std="$3" -pedantic -Wall -Wextra -Werror -Icore/include -fsyntax-only "$tmp/$h.$4" ||
            { echo "infer/$h.h does not compile alone as $3"; bad=1; }
    done
}
compile "cc gcc clang" c c11 c
compile "c++ g++ clang++" c++ c++11 cc

if command -v python3 >/dev/null 2>&1; then
    tools/abi-check.py || bad=1
else
    echo "note: no python3, gaps in core/hal/abi_check.c are not looked for"
fi

exit $bad
