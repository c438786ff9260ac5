#!/usr/bin/env bash
# Build steps of every image of Baton, for the Dockerfile and for local.sh.
#   steps.sh install ROLE SITE   Baton and its pinned dependencies into SITE; ROLE: operator gateway worker-cpu worker-cuda all
#   steps.sh requirements ROLE   the requirements for pip: exact versions, each with the hashes of its files
#   steps.sh packages ROLE       names of Baton's packages that the processes of that role import
#   steps.sh bytecode DIR PLACE  compiles the modules in DIR, which will be at PLACE in the image
#   steps.sh account ROOT        the user of all processes, in the image whose root is ROOT
#   PYTHON=…       interpreter whose pip resolves the packages, of the version that runs them (default: python3)
#   PIP_ARGS=…     further arguments for pip, such as the index of a CPU build of PyTorch
#   TORCH_HASH=…   sha256:… of that build, for an interpreter of which images/requirements-ROLE.txt does not have it
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
user=10001

fail() { echo "steps.sh: $*" >&2; exit 1; }

extras() {
  case $1 in
    operator) echo operator ;;
    gateway) echo gateway,jwt,otel ;;
    worker-cpu) echo worker ;;
    worker-cuda) echo worker,gpu,ucx ;;
    all) echo operator,gateway,jwt,otel,worker ;; # of the local end-to-end tests: one image for every role
    *) fail "role $1 is not known: must be one of operator, gateway, worker-cpu, worker-cuda, all" ;;
  esac
}

packages() {
  case $1 in
    operator) echo baton_wire baton_control baton_operator ;;
    gateway) echo baton_wire baton_gateway ;;
    worker-cpu | worker-cuda)
      echo baton_wire baton_kv_transfer baton_kernels baton_engine baton_worker baton_prefill_worker baton_decode_worker \
        baton_flexible_worker baton_model_fetch ;;
    all) (cd "$here" && for each in */baton_*/; do basename "$each"; done) ;;
  esac
}

# Every file is verified by its hash, those for building Baton's own wheel too: an altered registry, or one with another
# build, is noticed. A CPU build of PyTorch comes from an index of its own, whose files have hashes of their own: TORCH_HASH.
install() {
  local role=$1 site=$2 work
  work=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf '$work'" EXIT
  mkdir -p "$site"
  requirements "$role" > "$work/requirements.txt"
  # shellcheck disable=SC2086
  hashed --target "$site" -r "$work/requirements.txt" ${PIP_ARGS:-}
  hashed --target "$work/build" -r "$here/images/requirements-build.txt"
  PYTHONPATH=$work/build "$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
    --wheel-dir "$work/wheel" "$here"
  "$python" -m pip install "${quiet[@]}" --no-deps --no-index --target "$site" "$work"/wheel/*.whl
  local kept package
  kept=" $(packages "$role" | tr '\n' ' ') "
  for package in "$site"/baton_*/; do
    package=$(basename "$package")
    case $package in *.dist-info) continue ;; esac
    [[ $kept == *" $package "* ]] || rm -rf "${site:?}/$package"
  done
  # Console scripts name the builder's interpreter, tests and headers are never read.
  rm -rf "$site/bin" "$site/torch/test" "$site/torch/include" "$site/torch/share"
  find "$site" -depth -type d -path '*/numpy/*/tests' -exec rm -rf {} +
  bytecode "$site" /opt/baton
}

# A process with a read-only root would compile all its imports at every start, which takes seconds for PyTorch.
# Named by a hash and without times, so that the same source gives the same bytes. Nothing compares it with its source.
bytecode() {
  local folder=$1 place=$2
  find "$folder" -depth -type d -name __pycache__ -exec rm -rf {} +
  # Some packages have files for other versions of Python: such a file fails to compile, is left out, and is never imported.
  PYTHONHASHSEED=0 "$python" -m compileall -qq -j 0 --invalidation-mode unchecked-hash -s "$folder" -p "$place" "$folder" ||
    echo "steps.sh: some files below $place have no bytecode" >&2
}

quiet=(--quiet --no-compile --no-cache-dir --disable-pip-version-check --root-user-action=ignore)

hashed() {
  "$python" -m pip install "${quiet[@]}" --require-hashes --only-binary=:all: "$@"
}

# The pins of a role, with the hashes of a build of PyTorch that the builder gives.
requirements() {
  local hash more=""
  for hash in ${TORCH_HASH:-}; do
    [[ $hash =~ ^sha256:[0-9a-f]{64}$ ]] || fail "TORCH_HASH: '$hash' is not allowed: must be sha256: and 64 hex digits"
    more+=" --hash=$hash"
  done
  extras "$1" > /dev/null
  sed "s/^torch==[^ ]*/&$more/" "$here/images/requirements-$1.txt"
}

account() {
  local root=${1%/}
  mkdir -p "$root/etc" "$root/run/baton" "$root/tmp"
  grep -q "^baton:" "$root/etc/passwd" 2>/dev/null ||
    echo "baton:x:$user:$user:Baton:/run/baton:/usr/sbin/nologin" >> "$root/etc/passwd"
  grep -q "^baton:" "$root/etc/group" 2>/dev/null || echo "baton:x:$user:" >> "$root/etc/group"
  chmod 1777 "$root/tmp"
}

step=${1:-}
[ $# -gt 0 ] && shift
case $step in
  install) [ $# = 2 ] || fail "install needs ROLE and SITE"; install "$@" ;;
  requirements) [ $# = 1 ] || fail "requirements needs ROLE"; requirements "$1" ;;
  packages) [ $# = 1 ] || fail "packages needs ROLE"; extras "$1" > /dev/null; packages "$1" ;;
  bytecode) [ $# = 2 ] || fail "bytecode needs DIR and PLACE"; bytecode "$@" ;;
  account) [ $# = 1 ] || fail "account needs ROOT"; account "$@" ;;
  *) fail "step '$step' is not known: must be one of install, requirements, packages, bytecode, account" ;;
esac
