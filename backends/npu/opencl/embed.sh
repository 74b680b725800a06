#!/bin/sh
# Kernel sources as C arrays: embed.sh NAME=FILE... prints a header. SPDX-License-Identifier: Apache-2.0
set -e
echo "/* Made by embed.sh from kernels/. SPDX-License-Identifier: Apache-2.0 */"
for pair in "$@"; do
    echo "static const char ocl_source_${pair%%=*}[] = {"
    od -An -v -td1 "${pair#*=}" | sed 's/  */,/g; s/^,//; s/$/,/'
    echo "};"
done
