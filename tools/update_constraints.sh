#!/bin/sh
# Rewrite constraints.txt: the newest versions of everything hotloop, its build, tests and checks need.
# Run the tests before committing the result.
set -eu
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"${PYTHON:-python3}" -m venv "$scratch"
pip="$scratch/bin/python -m pip --quiet --disable-pip-version-check"
$pip install --upgrade pip
"$scratch/bin/python" - >"$scratch/requirements.txt" <<'PY'
import tomllib

with open("pyproject.toml", "rb") as file:
    pyproject = tomllib.load(file)
print(*pyproject["project"]["dependencies"], *pyproject["build-system"]["requires"], "cmake", "ninja", sep="\n")
PY
$pip install -r "$scratch/requirements.txt" --group test --group lint
{
    echo "# The tested set of versions: run time, build, tests and checks. Made by tools/update_constraints.sh."
    $pip freeze --all | grep -v '^setuptools=='
} >constraints.txt
