#!/bin/sh
# infer-conform as a program: exit codes, the JSON object, fallbacks, one case repeated.
# SPDX-License-Identifier: Apache-2.0
conform="$INFER_BUILDDIR/infer-conform"
sim="$conform --backend sim --set heap_bytes=24M"
bad=0

# expect CODE COMMAND...: the exit status; an error is one line on stderr that names the program
expect()
{
    want=$1
    shift
    err=`"$@" 2>&1 >/dev/null`
    rc=$?
    if [ $rc != $want ]; then
        echo "$*: exit $rc instead of $want: $err"
        bad=1
    elif [ $want -gt 1 ] && { [ `echo "$err" | wc -l` != 1 ] || ! echo "$err" | grep -q '^infer-conform: '; }; then
        echo "$*: not one line: $err"
        bad=1
    fi
}

# has TEXT: whether the JSON of the last run says so, blanks aside
has()
{
    case "`echo "$json" | tr -d ' \n'`" in
    *"$1"*) ;;
    *) echo "the JSON object lacks $1"; bad=1 ;;
    esac
}

expect 0 $sim --case 't0.copy.*'
expect 0 $sim --max-tier T0
expect 0 $conform --help
expect 2 $conform
expect 2 $conform --backend sim --plugin x.so
expect 2 $conform --backend sim --max-tier T9
expect 2 $sim --case no.such.case
expect 3 $sim --device sim7
expect 3 $sim --set devices=0
expect 6 $conform --backend nosuch
expect 6 $conform --plugin "$INFER_SRCDIR/tests/cts/run-tool.sh"
expect 6 $conform --plugin "$INFER_BUILDDIR/tests/plugins/.libs/infer-fault.so"

json=`$sim --json --max-tier T1 --set deny_ops=rope,glu` || { echo "denied ops are no failure"; bad=1; }
has '"level":"T1","backend":"sim"'
has '"device":"sim0"'
has '"failures":[]'
has '{"case":"t0.mem.map","tier":"T0","reason":"buf_map'
has '"fallbacks":[{"op":"glu","reason":"'
has '{"op":"rope","reason":"'

# programs of what is left
text=`$sim --max-tier T4 --case 't4.prog.*' --set deny_ops=act,scale -v 2>/dev/null`
[ `echo "$text" | grep -c '^pass'` -ge 8 ] || { echo "T4 without ACT and SCALE: $text"; bad=1; }

# a device that gives a heap that it has not: T0 fails, by a case that can be run alone
over="--backend sim --set fail=none --set heap_bytes=1M --seed 3"
json=`$conform $over --json --case 't0.copy.big'`
[ $? = 1 ] || { echo "8 MiB fit into 1 MiB"; bad=1; }
has '"level":null'
has '"case":"t0.copy.big","tier":"T0","detail":"'
has '"seed":3'
# what the kit provokes does not look like a failure
err=`$sim --max-tier T0 --case 't0.abi.*' -v 2>&1 >/dev/null`
case "$err" in *"another ABI"*) echo "a right plugin seems to fail: $err"; bad=1 ;; esac
err=`$sim --max-tier T0 --case 't0.abi.query' -v -v 2>&1 >/dev/null`
case "$err" in *"of another version: sim:"*) ;; *) echo "what a plugin logs is lost: $err"; bad=1 ;; esac

# calls can be traced, those of the kit itself too
calls=`mktemp`
$sim --max-tier T1 --case 't1.add.*' --trace-calls "$calls" >/dev/null || { echo "a traced plugin fails"; bad=1; }
grep -q ' sim cmd_op queue 0x[0-9a-f]* add f32\[[0-9,]*\] f32\[[0-9,]*\] -> f32\[[0-9,]*\] rows 0\*1 = ok [0-9.]* us$' "$calls" ||
    { echo "no line of an op: `tail -3 "$calls"`"; bad=1; }
rm -f "$calls"

# a device that never signals fails the case that waits, and nothing is run after it; a slot that never returns ends the
# run. Both name the case.
slow="--plugin $INFER_BUILDDIR/tests/plugins/.libs/infer-fault.so --set heap_bytes=24M --case-timeout 4
    --set wrap=$INFER_BUILDDIR/tests/plugins/.libs/infer-sim.so"
expect 8 $conform $slow --max-tier T1 --case 't1.add.[01]' --set delay=op:3600000000000
expect 8 $conform $slow --max-tier T1 --case 't1.add.[01]' --set delay=done:3600000000000
json=`$conform $slow --json --max-tier T1 --case 't1.add.[01]' --set delay=op:3600000000000 2>/dev/null`
has '"hung":"t1.add.0"'
has '"level":"T0"'
has '{"case":"t1.add.0","tier":"T1","detail":"stillrunningafter4s'
case "$json" in *t1.add.1*) echo "a case ran after one that does not end"; bad=1 ;; esac
json=`$conform $slow --json --max-tier T1 --case 't1.add.[01]' --set delay=done:3600000000000 2>/dev/null`
has '"hung":"t1.add.0"'
has '{"case":"t1.add.0","tier":"T1","detail":"submittedworkdidnotcomplete'
has '{"case":"t1.add.1","tier":"T1","detail":"notrun:thedevicehungint1.add.0"'
exit $bad
