#!/bin/sh
# The conformance kit on the simulated accelerator: as it is, and with its own timelines, a second device, a command
# stream so short that it often answers AGAIN, no scratch, and blocks of any size; then no op and no variant of one may
# be refused.
# SPDX-License-Identifier: Apache-2.0
conform="$INFER_BUILDDIR/infer-conform --backend sim --lists $INFER_SRCDIR/tests/cts/lists --set heap_bytes=48M"
$conform || exit 1
text=`$conform --device sim1 --set devices=2 --set native_timelines=1 --set stream_bytes=64K --set scratch_bytes=0 \
    --set epilogues=4 --set block_multiple=1 -v 2>/dev/null`
rc=$?
echo "$text" | grep -v '^pass'
[ $rc = 0 ] || exit 1
may='t0.mem.map|t0.mem.import_host|t4.prog.claim|t4.prog.save_load|t5.*|t6.*'
if echo "$text" | grep '^skip\|^fallback' | grep -v -E "^skip +($may):"; then
    echo "run-sim: more is skipped than absent slots ask for"
    exit 1
fi
