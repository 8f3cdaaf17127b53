#!/usr/bin/env bash
# Get and build the llama.cpp that `make bench LLAMACPP_DIR=build/llamacpp` compares with: the source inside
# PyPI's llama-cpp-python, for the processor at hand. Does nothing when it is there. Needs python3,
# python3-venv, cmake, a C++ compiler, git (which tells the build its commit) and, built on all cores, some
# minutes; JOBS=N takes fewer, TARGETS="ggml-base" builds less.
set -euo pipefail
cd "$(dirname "$0")/../.."

package=llama-cpp-python==0.3.36
archive=llama_cpp_python-0.3.36.tar.gz
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
place=build/llamacpp
source=$place/source/vendor/llama.cpp
targets=${TARGETS:-llama-bench llama-server}

fail() {
    echo "get-llamacpp.sh: $*" >&2
    exit 1
}

[ -x "$place/bin/llama-bench" ] && [ -x "$place/bin/llama-server" ] && exit 0
mkdir -p "$place"

# gcc 12 drops the stores that fill the configuration, since it does not see that the tile unit reads it.
patch_tiles() {
    local file=$1/ggml/src/ggml-cpu/amx/mmq.cpp load='    _tile_loadconfig(&tc);'
    [ "$(grep -cFx "$load" "$file" 2>/dev/null)" = 1 ] ||
        fail "$file: not one line '$load' to put a memory barrier before; is this another version?"
    sed -i "s/^    _tile_loadconfig(&tc);\$/    __asm__ volatile(\"\" ::: \"memory\");\\n&/" "$file"
}

if [ ! -d "$source" ]; then
    echo "getting $package from PyPI" >&2
    [ -x build/venv/bin/pip ] || python3 -m venv build/venv
    build/venv/bin/pip download -q --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
        -d "$place/download" "$package" >&2
    echo "$sha256  $place/download/$archive" | sha256sum --check --quiet ||
        fail "$archive has another checksum than expected"
    # Unpacked beside its place and renamed when whole, so that a broken run leaves no half of it.
    part=$(mktemp -d "$place/.source.XXXXXX")
    trap 'rm -rf "$part"' EXIT
    tar -xzf "$place/download/$archive" -C "$part" --strip-components=1 --no-same-owner
    patch_tiles "$part/vendor/llama.cpp"
    rm -rf "$place/source"
    mv "$part" "$place/source"
    rm -rf "$place/download"
fi

# Without its web pages, which the build would download.
cmake -S "$source" -B "$place" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF \
    -DLLAMA_USE_PREBUILT_UI=OFF >"$place/configure.log" 2>&1 || fail "cmake could not configure it: $place/configure.log"
# shellcheck disable=SC2086
cmake --build "$place" --parallel "${JOBS:-$(nproc)}" --target $targets >"$place/build.log" 2>&1 ||
    fail "it did not compile: $place/build.log"
