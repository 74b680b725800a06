#!/bin/sh
# Kernel images as C arrays: embed.sh NAME=FILE... prints cuda_images.c. Words of 8 bytes, in the order of this machine:
# an eighth of the text that bytes would take. SPDX-License-Identifier: Apache-2.0
set -e
echo "/* Made by embed.sh from kernels/. SPDX-License-Identifier: Apache-2.0 */"
echo "#include \"config.h\""
echo "#include \"cuda_kernels.h\""
for pair in "$@"; do
    name=${pair%%=*}
    echo "static const uint64_t words_$name[] = {"
    od -An -v -tx8 "${pair#*=}" | sed 's/  */,0x/g; s/^,//; s/$/,/'
    echo "};"
    echo "const cuda_image cuda_image_$name = {words_$name, sizeof words_$name};"
done
