#!/usr/bin/env bash
# Sets up everything oscbench needs: system packages, .venv, the package itself. Run it again at any time:
# what is there already is left alone (a run with nothing to do takes a second or two).
#
#   scripts/setup.sh             everything, FFCV included (it builds from source)
#   scripts/setup.sh --no-ffcv   without FFCV and its system packages; images then go through the PIL loader
#   scripts/setup.sh --browser   also Chromium, for the test that looks at the live page
set -euo pipefail
cd "$(dirname "$0")/.."

extras=ffcv,dev
packages=(wordnet-base wordnet-sense-index)
ffcv_packages=(libopencv-dev libturbojpeg0-dev pkg-config g++)
browser_packages=()
for argument in "$@"; do
  case "$argument" in
    --no-ffcv) extras=dev; ffcv_packages=() ;;
    --browser) browser_packages=(chromium) ;;
    *) echo "setup.sh: unknown option $argument (known: --no-ffcv, --browser)" >&2; exit 2 ;;
  esac
done
packages+=("${ffcv_packages[@]}" "${browser_packages[@]}")

fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 12))' 2>/dev/null; }
python=""
for candidate in "${PYTHON:-}" python3.11 python3; do
  if [ -n "$candidate" ] && command -v "$candidate" >/dev/null && fits "$candidate"; then python=$candidate; break; fi
done
if [ -z "$python" ]; then
  echo "setup.sh: Python 3.11 is needed and was not found; name one with PYTHON=/path/to/python scripts/setup.sh" >&2
  exit 1
fi

"$python" -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
if [ ${#ffcv_packages[@]} -gt 0 ]; then
  "$python" -c 'import pathlib, sysconfig, sys; sys.exit(not (pathlib.Path(sysconfig.get_path("include")) / "Python.h").exists())' \
    || packages+=(python3-dev)
fi

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "installing system packages: ${missing[*]}" >&2
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null || ! sudo -v; then
      echo "setup.sh: these system packages are missing and only an administrator can install them; the line to give them:" >&2
      echo "  apt-get update && apt-get install -y ${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
fi

# The stamp says what this environment was made from, so that a second run has nothing to do.
stamp=.venv/.oscbench-setup
wanted="$PWD $extras $("$python" -c 'import sys; print(sys.version)' | tr '\n' ' ') $(sha256sum < pyproject.toml)"
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
  [ -x .venv/bin/python ] || "$python" -m venv .venv
  echo "installing oscbench[$extras] into .venv (a few minutes the first time)" >&2
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".[$extras]"
  echo "$wanted" > "$stamp"
fi
echo "oscbench is ready: .venv/bin/oscbench" >&2
