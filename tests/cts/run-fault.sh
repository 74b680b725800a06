#!/bin/sh
# The fault decorator as a module around sim's module: transparent while nothing is armed; and what is armed by a
# setting makes the kit fail, not crash or hang.
# SPDX-License-Identifier: Apache-2.0
conform="$INFER_BUILDDIR/infer-conform --plugin $INFER_BUILDDIR/tests/plugins/.libs/infer-fault.so --set heap_bytes=24M
    --set wrap=$INFER_BUILDDIR/tests/plugins/.libs/infer-sim.so"
$conform || exit 1
for fail in alloc:9 copy:40 op:20 signal:30 op:20:-401 copy:3:-401 done:25 host:60; do
    text=`$conform --set fail=$fail`
    rc=$?
    echo "fail=$fail: exit $rc, `echo "$text" | grep -c ^FAIL` failures"
    [ $rc = 1 ] || { echo "$text"; exit 1; }
done
