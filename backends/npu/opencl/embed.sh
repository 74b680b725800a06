#!/bin/sh
# Kernel sources as C arrays: embed.sh NAME=FILE... prints ocl_sources.c. SPDX-License-Identifier: Apache-2.0
set -e
echo "/* Made by embed.sh from kernels/. SPDX-License-Identifier: Apache-2.0 */"
echo "#include \"config.h\""
echo "#include \"ocl_sources.h\""
for pair in "$@"; do
    name=${pair%%=*}
    echo "static const char text_$name[] = {"
    od -An -v -td1 "${pair#*=}" | sed 's/  */,/g; s/^,//; s/$/,/'
    echo "};"
    echo "const ocl_source ocl_source_$name = {text_$name, sizeof text_$name};"
done
