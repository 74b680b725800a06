#!/bin/sh
# tools/abi-diff.sh finds what breaks plugins and lets pass what does not. 77 where abidiff is not installed and all
# that can be seen without it is right. SPDX-License-Identifier: Apache-2.0
set -eu
SRC=${INFER_SRCDIR:-$(cd "$(dirname "$0")/../.." && pwd)}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
bad=0
have=1
command -v abidiff >/dev/null 2>&1 || have=0

# try RC-WITH-ABIDIFF RC-WITHOUT WHAT FILE SED-SCRIPT: the headers of the tree against a copy that is changed so
try() {
    rm -rf "$tmp/new"
    mkdir "$tmp/new"
    cp -r "$SRC/core/include/infer" "$tmp/new/"
    chmod -R u+w "$tmp/new"
    if [ "$5" ]; then
        sed -i "$5" "$tmp/new/infer/$4"
        ! cmp -s "$SRC/core/include/infer/$4" "$tmp/new/infer/$4" || { echo "$3: the change is none"; bad=1; }
    fi
    want=$1
    [ $have = 1 ] || want=$2
    rc=0
    "$SRC/tools/abi-diff.sh" "$SRC/core/include" "$tmp/new" >"$tmp/said" 2>&1 || rc=$?
    if [ $rc != $want ]; then
        echo "$3: exit $rc instead of $want"
        cat "$tmp/said"
        bad=1
    fi
}
try 0 77 "no change" backend.h ""
try 0 77 "a slot at the end" backend.h 's/^} infer_backend_ops;/    void (*more)(infer_device *dev);\n&/'
try 0 77 "a service at the end" backend.h 's/^} infer_host;/    void (*more)(void *ctx);\n&/'
try 0 77 "a new constant" ops.h 's/^#define INFER_OP_BROADCAST .*/&\n#define INFER_OP_MORE 68u/'
try 1 77 "a slot in the middle" backend.h 's/^    void (\*dev_close)/    void (*more)(infer_device *dev);\n&/'
try 1 77 "a field that grew" backend.h 's/^    uint32_t n_queues;/    uint64_t n_queues;/'
try 1 77 "a field of another type" backend.h 's/^    double launch_ns; /    uint64_t launch_ns; /'
try 1 77 "a field that is gone" ops.h '/^    float soft_cap;/d'
try 1 77 "another argument" backend.h 's/(\*buf_free)(infer_device \*dev, infer_buffer \*buf)/(*buf_free)(infer_device *dev, infer_buffer *buf, uint32_t why)/'
try 1 1 "another number" ops.h 's/^#define INFER_OP_MUL .*/#define INFER_OP_MUL 15u/'
try 1 1 "a constant that is gone" status.h '/^#define INFER_E_BUSY/d'
[ $bad = 0 ] || exit 1
[ $have = 1 ] || { echo "skipped: no abidiff"; exit 77; }
