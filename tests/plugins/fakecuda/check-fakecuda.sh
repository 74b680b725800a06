#!/bin/sh
# The CUDA backend on the fake driver: the kit to T6, with what drivers and devices may lack; a driver that cannot be
# used is a reason and no crash; what fails in the middle makes the kit fail, not crash or hang.
# SPDX-License-Identifier: Apache-2.0
here=$INFER_BUILDDIR/tests/plugins/fakecuda/.libs
conform="$INFER_BUILDDIR/infer-conform --plugin $here/infer-cuda.so --max-tier T6 --set driver=$here/libfakecuda.so"
bad=0
set -f # patterns of cases are the kit's

# Without a look for leaks at the end: the leak checker's tracer itself crashes there (gcc 12), as with OpenCL's loader.
# test_cuda drives the same host side and is looked through.
ASAN_OPTIONS="$ASAN_OPTIONS:detect_leaks=0"
export ASAN_OPTIONS

# what, exit status (a pattern), a pattern that the output must have, configuration, arguments
try() {
    text=`INFER_FAKECUDA=$4 timeout 300 $conform $5 2>&1`
    rc=$?
    if ! expr "$rc" : "$2\$" >/dev/null || ! echo "$text" | grep -E -q -- "$3"; then
        echo "$text" | grep -v '^pass\|^skip\|^fallback'
        echo "FAIL $1 ($4): exit $rc, not $2, or no \"$3\""
        bad=1
    else
        echo "pass $1: `echo "$text" | tail -n 1`"
    fi
}

# The whole kit once; the rest runs what differs.
try "all there" 0 'level T6' '' '-v'
# the copies, the waits and the order between devices ran, and ops, caches in every format, and programs did
for case in t5.copy.direct t5.wait t5.at_once t0.queue.host_wait t0.queue.two t6.alloc.walk 't1.add.*' 't1.scale.*' \
    't2.q4_k.*' 't3.attn.*' 't3.f32.*' 't3.f16.*' 't3.bf16.*' 't3.f8.*' 't3.q8_0.*' 't3.q4_0.*' 't4.prog.*'; do
    echo "$text" | grep -E -q "^pass +$case" || { echo "FAIL $case did not pass"; echo "$text" | grep -E " $case"; bad=1; }
done
echo "$text" | grep '^skip *t3\.\|^fallback' && { echo "FAIL an op or a cache is not taken"; bad=1; }
try "one device" 0 'level T6' devices=1 '--case t[05].*'
try "no way between devices" 0 'level T6' peer=0 '--case t5.*'
try "the second device" 0 'level T6' '' '--device cuda1 --case t[0456].*'
try "weights as they come" 0 'level T6' '' '--set packed=0 --case t[12].*'
try "prompts by the kernel for few rows" 0 'level T3' '' '--set attn_many=0 --max-tier T3 --case t[13].*'
# a row's result is the same in any company, packed or not, as it says of all its products and of attention
try "deterministic" 0 'level T6' '' '-v --set deterministic=1 --case t[123].*'
for case in 't2.bf16.company' 't2.q4_k.company' 't2.q5_0.company' 't2.f8_e4m3.company'; do
    echo "$text" | grep -E -q "^pass +$case" || { echo "FAIL $case did not pass"; echo "$text" | grep -E " $case"; bad=1; }
done
try "deterministic, weights as they come" 0 'level T6' '' '--set packed=0 --set deterministic=1 --case t[12].*'
try "no code for the device" 0 'level T6' image=0 ''

try "old driver" 3 'speaks CUDA 11.8: 12.0 or newer' version=11080 ''
try "no 64-bit operations" 3 'no 64-bit stream memory operations' memops=0 ''
try "no device" 3 'probe shows none' devices=0 ''
conform="$INFER_BUILDDIR/infer-conform --plugin $here/infer-cuda.so --max-tier T6 --set driver=$here/none.so"
try "no driver" 3 'no CUDA driver' '' ''
conform="$INFER_BUILDDIR/infer-conform --plugin $here/infer-cuda.so --max-tier T6 --set driver=$here/libfakecuda.so"

for n in 3 9 30; do
    try "refused allocation $n" '[01]' . alloc=$n '--case t0.*'
done
for n in 1 7 20; do
    try "lost device after launch $n" 1 'ILLEGAL_ADDRESS|DEVICE_LOST' lose=$n '--case t1.a*'
done
exit $bad
