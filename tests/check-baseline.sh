#!/bin/sh
# No instruction beyond the first x86-64 (SSE2) in the objects that run everywhere. Only those that are compiled for one
# instruction set and chosen at run time (backends/cpu: libcpu_ISA_la-*) may hold any, and not in their global
# functions, which are called before the choice. That they hold some at all shows that this check can see them.
# 77 on other hosts, without objdump, and where CFLAGS ask for a newer processor. SPDX-License-Identifier: Apache-2.0
set -eu
skip() { echo "skipped: $*"; exit 77; }
cd "${INFER_BUILDDIR:-.}"
grep -q '^host_cpu = x86_64$' Makefile || skip "the host is not x86-64"
command -v objdump >/dev/null 2>&1 || skip "no objdump"
cc=$(sed -n 's/^CC = //p' Makefile)
flags=$(sed -n 's/^CFLAGS = //p' Makefile)
if $cc $flags -dM -E -x c /dev/null | grep -q '__SSE3__'; then
    skip "CFLAGS choose a newer processor: $flags"
fi

# Prints "OBJECT: FUNCTION: INSTRUCTION" for every instruction beyond the baseline. tzcnt is not among them: compilers
# write "rep bsf" where either result will do.
beyond() {
    objdump -d --no-show-raw-insn "$@" | awk '
    BEGIN {
        sse3 = "addsubp[sd]|haddp[sd]|hsubp[sd]|lddqu|movddup|movs[hl]dup|fisttp.*|monitor|mwait"
        ssse3 = "pshufb|phadds?[wd]|phaddsw|phsubs?[wd]|phsubsw|pmaddubsw|pmulhrsw|psign[bwd]|palignr|pabs[bwd]"
        sse41 = "p?blendv?(p[sd]|w|b)|dpp[sd]|pmulld|pmuldq|pm(in|ax)(sb|sd|uw|ud)|pextr[bdq]|pinsr[bdq]|round[ps][sd]|" \
            "ptest|packusdw|pcmpeqq|pmov[sz]x..|insertps|extractps|mpsadbw|phminposuw|movntdqa"
        sse42 = "pcmpgtq|pcmp[ei]str[im]|crc32.*|popcnt.*|pclmul.*|aes.*|sha(1|256).*|gf2p8.*"
        integer = "lzcnt.*|andn|bextr|blsi|blsr|blsmsk|bzhi|pdep|pext|mulx|rorx|sarx|shlx|shrx|adcx|adox|movbe.*|" \
            "cmpxchg16b|xsave.*|xrstor.*|rdrand|rdseed|tpause|umwait|umonitor|clwb|clflushopt"
        wide = "v.*|k[a-z]+[bwdq]|tile.*|tdp.*"
        new = "^(" sse3 "|" ssse3 "|" sse41 "|" sse42 "|" integer "|" wide ")$"
    }
    / file format / { object = $1; sub(/:$/, "", object); next }
    /^[0-9a-f]+ <.*>:$/ { name = $2; gsub(/[<>:]/, "", name); next }
    /^ *[0-9a-f]+:\t/ {
        insn = $2 ~ /^(rep[nez]*|lock|notrack|bnd|data16|[c-gs]s|rex.*)$/ && NF > 2 ? $3 : $2
        if (insn ~ new)
            print object ": " name ": " insn
    }' | sort -u
}

objects=$(find backends core docs tests tools -name '*.o' | sort)
[ -n "$objects" ] || { echo "no objects here"; exit 1; }
special=$(printf '%s\n' "$objects" | grep -E '/libcpu_[a-z0-9_]+_la-' || true)
common=$(printf '%s\n' "$objects" | grep -vE '/libcpu_[a-z0-9_]+_la-')
bad=0
beyond $common | grep . && bad=1
if [ -n "$special" ]; then
    within=$(beyond $special)
    [ -n "$within" ] || { echo "nothing was found in $special, which must hold some: this check is blind"; exit 1; }
    for object in $special; do
        for function in $(nm --defined-only --extern-only "$object" | awk '$2 ~ /[TW]/ { print $3 }'); do
            printf '%s\n' "$within" | grep -F "$object: $function: " && bad=1
        done
    done
fi
[ $bad = 0 ] || exit 1
echo "$(printf '%s\n' $common | wc -l) objects, none needs more than the first x86-64"
