#!/bin/sh
# The conformance kit on the simulated accelerator: as it is, and with its own timelines, a second device, a command
# stream so short that it often answers AGAIN, no scratch, and blocks of any size; then no op and no variant of one may
# be refused.
# SPDX-License-Identifier: Apache-2.0
set -e
conform="$INFER_BUILDDIR/infer-conform --backend sim --lists $INFER_SRCDIR/tests/cts/lists --set heap_bytes=48M"
$conform
text=`$conform --device sim1 --set devices=2 --set native_timelines=1 --set stream_bytes=64K --set scratch_bytes=0 \
    --set epilogues=4 --set block_multiple=1` || { echo "$text"; exit 1; }
echo "$text"
case "$text" in
*"2 skipped, 0 ops fall back"*) ;;
*) echo "run-sim: more is skipped than buf_map and buf_import_host"; exit 1 ;;
esac
