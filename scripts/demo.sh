#!/usr/bin/env bash
# The main job on embedded data, from nothing: installs what is missing, draws the images of protocol 1, converts them,
# trains a small network, extracts its features and searches all 80 EVM settings on Ray.
#
#   scripts/demo.sh                    a few minutes; results in ./runs
#   scripts/demo.sh --no-ffcv          the same without FFCV and its system packages
#   scripts/demo.sh --loss eos         anything else goes to oscbench tune
set -euo pipefail
cd "$(dirname "$0")/.."

setup=()
if [ "${1:-}" = --no-ffcv ]; then setup=(--no-ffcv); shift; fi
scripts/setup.sh "${setup[@]}"
export PATH="$PWD/.venv/bin:$PATH"

set -x
oscbench doctor
oscbench tune --alg evm --protocol 1 --yes "$@"
