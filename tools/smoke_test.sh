#!/bin/sh
# Smoke test of an installed hotloop: smoke_test.sh BIN_FOLDER. Run from elsewhere, so that nothing of the checkout is used.
set -eu
bin=$(cd "$1" && pwd)
cd /
"$bin/hotloop" --version
"$bin/python" -c 'import hotloop._native'
"$bin/hotloop" list --catalog >/dev/null
if model=$("$bin/hotloop" pull smollm2-135m); then
    "$bin/hotloop" run "$model" "Say hello." --max-tokens 8
else
    echo "no model and no registry in reach: the wheel was not run on a model"
fi
