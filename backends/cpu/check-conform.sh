#!/bin/sh
# The conformance kit on the CPU backend: the portable kernels on one thread, then the best ones on three.
# SPDX-License-Identifier: Apache-2.0
set -e
for settings in "--set isa=generic --set threads=1" "--set isa=auto --set threads=3"; do
    text=`$INFER_BUILDDIR/infer-conform --backend cpu $settings` || { echo "$text"; exit 1; }
    echo "$text"
    case "$text" in
    *", 0 ops fall back"*) ;;
    *) echo "check-conform: an op is left to the host"; exit 1 ;;
    esac
done
