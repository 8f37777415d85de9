#!/bin/sh
# The NEON kernel set without an ARM machine: cross-compiled, run in an emulator, and its results compared with this
# machine's. Usage: test_neon.sh BUILD_DIR [ROUNDS]
# Debian and Ubuntu: apt-get install cmake ninja-build g++ g++-aarch64-linux-gnu qemu-user
set -eu
build=${1:?usage: test_neon.sh BUILD_DIR [ROUNDS]}
rounds=${2:-10}
cross=${CROSS_CXX:-aarch64-linux-gnu-g++}
emulator=${EMULATOR:-qemu-aarch64}
for tool in "$cross" "$emulator"; do
    command -v "$tool" >/dev/null 2>&1 || {
        echo "$tool is missing: apt-get install g++-aarch64-linux-gnu qemu-user" >&2
        exit 1
    }
done
cd "$(dirname "$0")/.."

build_selftest() { # build_selftest DIR CMAKE_OPTIONS...
    dir=$1
    shift
    cmake -S . -B "$dir" -G Ninja -DHOTLOOP_PYTHON=OFF -DHOTLOOP_TESTS=ON "$@" >/dev/null
    cmake --build "$dir" --target kernel_selftest
}

build_selftest "$build/native"
build_selftest "$build/neon" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_CXX_COMPILER="$cross" -DCMAKE_EXE_LINKER_FLAGS=-static

"$emulator" "$build/neon/kernel_selftest" "$rounds" neon | tee "$build/neon.txt"
"$build/native/kernel_selftest" 1 | tee "$build/native.txt"
# The digests are of all results of the scalar set and of quantized weights: both machines compute the same bits.
if [ "$(grep digest "$build/neon.txt")" != "$(grep digest "$build/native.txt")" ]; then
    echo "this machine and the emulated one compute different bits" >&2
    exit 1
fi
