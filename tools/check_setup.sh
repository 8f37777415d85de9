#!/bin/sh
# Say what this machine lacks to build hotloop, and the Debian or Ubuntu packages that bring it.
# PYTHON and CXX choose the interpreter and the compiler, as in the Makefile.
set -u
PYTHON=${PYTHON:-python3}
missing=""
packages=""

lacks() { # lacks WHAT PACKAGE
    missing="$missing
  - $1"
    packages="$packages $2"
}

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

if ! command -v "$PYTHON" >/dev/null 2>&1; then
    lacks "Python 3.11 or newer ($PYTHON not found)" "python3 python3-dev python3-venv"
elif ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    lacks "Python 3.11 or newer ($PYTHON is $("$PYTHON" -V 2>&1)); name another one with PYTHON=..." \
        "python3.11 python3.11-dev python3.11-venv"
else
    "$PYTHON" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
        lacks "Python's headers (Python.h)" python3-dev
    "$PYTHON" -c 'import venv, ensurepip' 2>/dev/null ||
        lacks "Python's venv module with pip" python3-venv
fi

# Any of them will do; CMake looks for the same names.
compiler=""
printf '#include <optional>\nint main() { return std::optional<int>(0).value(); }\n' >"$scratch/probe.cpp"
for candidate in ${CXX:-c++ g++ clang++}; do
    if "$candidate" -std=c++17 -o "$scratch/probe" "$scratch/probe.cpp" >/dev/null 2>&1; then
        compiler=$candidate
        break
    fi
done
[ -n "$compiler" ] || lacks "a C++17 compiler (g++ 9 or newer, clang++ 10 or newer)${CXX:+, CXX=$CXX is none}" g++

command -v make >/dev/null 2>&1 || lacks "make" make

if [ -n "$missing" ]; then
    printf 'hotloop needs a few things that this machine lacks:%s\n' "$missing" >&2
    printf 'On Debian or Ubuntu:\n  sudo apt-get install%s\n' "$packages" >&2
    exit 1
fi
