#!/usr/bin/env bash
# Makes or updates .venv: finds a Python, chooses a PyTorch (see scripts/install_torch.py), installs the pinned rest.
#   scripts/install.sh local   the requirements of `baton`
#   scripts/install.sh dev     those, and the requirements of tests, checks and benches
#   PYTHON=…       the interpreter; by default the first of python3, python3.13, 3.12, 3.11 that is new enough
#   TORCH=cpu|cuda the PyTorch to install; by default cuda with an NVIDIA driver, else cpu
#   TORCH_INDEX=…  index for a CPU build that the configured package indexes lack
set -euo pipefail
cd "$(dirname "$0")/.."
extra=${1:-}

fail() { echo "make install: $*" >&2; exit 1; }

case $extra in local | dev) ;; *) fail "'$extra' is not known: must be local or dev" ;; esac

is_fitting() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1; }

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if is_fitting "$candidate"; then echo "$candidate"; return; fi
  done
  fail "needs Python 3.11 or newer, found $(python3 --version 2>&1 || true); name one with PYTHON=/path/to/python3"
}

python=$(find_python)
"$python" -c 'import ensurepip, venv' 2>/dev/null || fail "$("$python" --version) has no venv module: on Debian and Ubuntu,
  apt install $("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')-venv"

if ! is_fitting .venv/bin/python; then
  # A PyTorch that the base interpreter already has saves gigabytes: the environment sees it.
  sees=$("$python" scripts/install_torch.py --is-kept && echo --system-site-packages || true)
  echo "make install: new environment in .venv with $("$python" --version)"
  # shellcheck disable=SC2086
  "$python" -m venv --clear $sees .venv
fi

.venv/bin/python scripts/install_torch.py --constraints .venv/constraints.txt
echo "make install: everything else for '$extra', pinned by constraints.txt (a minute or two)"
.venv/bin/python -m pip install -qq --constraint .venv/constraints.txt --editable ".[$extra]"
touch .venv/.installed
[ "$extra" != dev ] || touch .venv/.installed-dev
