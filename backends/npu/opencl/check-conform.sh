#!/bin/sh
# The conformance kit to T6 on the first OpenCL device, where there is one. SPDX-License-Identifier: Apache-2.0
text=`$INFER_BUILDDIR/infer-conform --backend opencl --max-tier T6 2>&1`
status=$?
echo "$text"
case "$text" in
*"no usable device"* | *"no OpenCL loader"*) exit 77 ;;
esac
exit $status
