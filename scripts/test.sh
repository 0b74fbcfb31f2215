#!/usr/bin/env bash
# The whole check: style, types, tests. Installs what it needs first.
#
#   scripts/test.sh          what every change must pass
#   scripts/test.sh --all    also the long chaos and host tests
#   scripts/test.sh -k evm   anything else goes to pytest
set -euo pipefail
cd "$(dirname "$0")/.."

selection=(-m "not slow")
if [ "${1:-}" = --all ]; then selection=(); shift; fi

scripts/setup.sh --browser
export PATH="$PWD/.venv/bin:$PATH"
ruff check .
ruff format --check .
mypy
python -m pytest "${selection[@]}" "$@"
