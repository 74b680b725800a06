#!/bin/sh
# The conformance kit on the CPU backend: the portable kernels on one thread, then those for each instruction set.
# SPDX-License-Identifier: Apache-2.0
set -e
for settings in "--set isa=generic --set threads=1" "--set isa=avx2" "--set isa=avxvnni" "--set isa=avx512 --set threads=1" "--set isa=amx" \
    "--set isa=neon --set threads=1" "--set isa=i8mm" "--set isa=sve --set threads=1" "--set isa=svei8mm" "--set isa=auto --set threads=3"; do
    text=`$INFER_BUILDDIR/infer-conform --backend cpu $settings 2>&1` || {
        echo "$text"
        case "$text" in *"is not available on this processor"*) continue ;; esac
        exit 1
    }
    echo "$text"
    case "$text" in
    *", 0 ops fall back"*) ;;
    *) echo "check-conform: an op is left to the host"; exit 1 ;;
    esac
done
