#!/bin/sh
# The conformance kit to T6 on the first OpenCL device, where there is one. SPDX-License-Identifier: Apache-2.0
text=`$INFER_BUILDDIR/infer-conform --backend opencl --max-tier T6 -v 2>&1`
status=$?
echo "$text" | grep -v '^pass'
case "$text" in
*"no usable device"* | *"no OpenCL loader"*) exit 77 ;;
esac
[ $status = 0 ] || exit $status
# an op that is answered NO is skipped: what a driver makes of kernels that go through rows shows only here
for op in rms_norm softmax argmax sample; do
    echo "$text" | grep -q "^pass *t1\.$op\." || { echo "FAIL $op: no case runs"; exit 1; }
done
# launches that go on in a third dimension
text=`$INFER_BUILDDIR/infer-conform --backend opencl --set fold=3 --max-tier T3 --case 't[13].*' 2>&1` || { echo "$text"; exit 1; }
# the cut of everything that is no CPU, where it runs here too (README.md: not sampling)
for c in 't3.*' 't1.matmul*' 't1.qkv*' 't1.gated_mlp*' 't1.moe*' 't1.rope*' 't1.rms_norm*' 't1.softmax*' 't2.q[468]*'; do
    text=`$INFER_BUILDDIR/infer-conform --backend opencl --set tune=lanes --max-tier T3 --case "$c" -v 2>&1`
    status=$?
    [ $status = 0 ] || { echo "$text"; exit $status; }
    echo "$text" | grep -q '^pass' || { echo "$text"; echo "FAIL $c with tune=lanes: none runs"; exit 1; }
done
