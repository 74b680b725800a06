# An installation in a temporary folder, for scripts that check what a user has who has nothing else. Sourced.
#   in:  BUILD, the build folder; SRC, the source folder
#   out: stage, the folder, removed at exit; root, the installed prefix in it; the environment in which its programs,
#        headers and pkg-config file are found before any other, and no setting of ours
# SPDX-License-Identifier: Apache-2.0
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
chmod 755 "$stage"
root=$stage$(sed -n 's/^prefix = //p' "$BUILD/Makefile")
make -s -C "$BUILD" install DESTDIR="$stage" >"$stage/log" 2>&1 || { tail "$stage/log"; exit 1; }
unset INFER_BACKEND_PATH INFER_SRCDIR INFER_BUILDDIR MAKEFLAGS MAKELEVEL MFLAGS
PATH=$root/bin:$PATH
LD_LIBRARY_PATH=$root/lib
PKG_CONFIG_PATH=$root/lib/pkgconfig
PKG_CONFIG_SYSROOT_DIR=$stage
export PATH LD_LIBRARY_PATH PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR
