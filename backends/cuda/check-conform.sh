#!/bin/sh
# The conformance kit to T6 on the first CUDA device, where there is one. SPDX-License-Identifier: Apache-2.0
text=`$INFER_BUILDDIR/infer-conform --backend cuda --max-tier T6 2>&1`
status=$?
echo "$text"
case "$text" in
*"no usable device"* | *"no CUDA driver"*) exit 77 ;;
esac
exit $status
