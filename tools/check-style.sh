#!/bin/sh
# The looks of the sources: clang-format (where it is installed), the licence line, file length, no leftover marks.
# Prints every breach; exit 1 when there is one, 77 when all else is right but clang-format is missing.
# SPDX-License-Identifier: Apache-2.0
set -u
top=${INFER_SRCDIR:-$(dirname "$0")/..}
cd "$top" || exit 1
bad=0
max_lines=1000

sources() {
    find core backends tests tools docs \( -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' -o -name '*.comp' \
        -o -name '*.sh' -o -name '*.py' \) -type f ! -path 'tools/build-aux/*' ! -path 'tools/m4/*' "$@" | sort
    for f in tools/quickstart tools/runtests tools/check-emulated .ci/run; do
        [ -f $f ] && echo $f
    done
}

for f in $(sources); do
    if ! head -n 25 "$f" | tr -d '\n' | grep -qE 'SPDX-License-Identifier:[ */]*Apache-2\.0'; then
        echo "$f: no SPDX line in its head"
        bad=1
    fi
    n=$(wc -l <"$f")
    if [ "$n" -gt $max_lines ]; then
        echo "$f: $n lines, at most $max_lines"
        bad=1
    fi
done

# The marks are spelled apart so that this file does not find itself.
marks='(^|[^A-Za-z])(TO''DO|FIX''ME|XX''X|HA''CK)([^A-Za-z]|$)'
if sources -size +0 | xargs grep -nE "$marks" /dev/null; then
    echo "leftover marks"
    bad=1
fi

if command -v clang-format >/dev/null 2>&1; then
    sources | grep -E '\.[ch]$' | xargs clang-format --dry-run -Werror || bad=1
elif [ $bad = 0 ]; then
    echo "clang-format is not installed: formatting not checked"
    exit 77
fi
exit $bad
