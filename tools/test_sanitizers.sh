#!/bin/sh
# The kernel tests under AddressSanitizer and UndefinedBehaviorSanitizer: first without Python, then through the extension
# module. Usage: test_sanitizers.sh PYTHON BUILD_DIR [PYTEST_ARGUMENTS...]
# PYTHON is an interpreter with nanobind and the test dependencies. gcc and clang both do (CXX chooses).
set -eu
python=${1:?usage: test_sanitizers.sh PYTHON BUILD_DIR [PYTEST_ARGUMENTS...]}
build=${2:?usage: test_sanitizers.sh PYTHON BUILD_DIR [PYTEST_ARGUMENTS...]}
shift 2
cd "$(dirname "$0")/.."

cmake -S . -B "$build" -G Ninja -DHOTLOOP_SANITIZE=ON -DHOTLOOP_TESTS=ON -DPython_EXECUTABLE="$python" >/dev/null
cmake --build "$build"
"$build/kernel_selftest" 10

package=$build/package
rm -rf "$package"
mkdir -p "$package"
cp -r src/hotloop "$package/"
rm -f "$package"/hotloop/_native*.so
cp "$build"/_native*.so "$package/hotloop/"

# The interpreter is not built with the sanitizer, so its run-time library must come first, and libstdc++ with it, whose
# exceptions it watches. Leaks are not the kernels'. Messages must not end in pytest's capture of the descriptor.
compiler=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")
runtime=$("$compiler" -print-file-name=libasan.so)
[ -e "$runtime" ] || runtime=$("$compiler" -print-file-name="libclang_rt.asan-$(uname -m).so")
libraries="$runtime $("$compiler" -print-file-name=libstdc++.so)"
[ $# -gt 0 ] || set -- tests/kernels tests/unit/ops/test_kernel_set.py
PYTHONPATH=$package LD_PRELOAD=$libraries ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
    "$python" -m pytest -q --capture=sys "$@"
