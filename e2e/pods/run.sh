#!/usr/bin/env bash
# `make e2e`: real Pods on the first cluster there is. Arguments go to pytest.
#   KUBECONFIG set        that cluster; the images have to be where it can pull them: BATON_E2E_IMAGE, BATON_E2E_IMAGE_2
#   kind and Docker       a cluster of its own
#   root on Debian 12     the local cluster (e2e/cluster), 1.20.2; K=… names its folder, KEEP=1 leaves it up
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$here/../..
python=$root/.venv/bin/python
work=${XDG_CACHE_HOME:-$HOME/.cache}/baton/e2e
name=k8s.local/baton
export K=${K:-/tmp/baton-cluster} PYTHON=$python
mkdir -p "$work"

fail() { echo "make e2e: $*" >&2; exit 1; }
say() { echo "make e2e: $SECONDS s: $*"; }

# Two images of the same programs whose digests differ, as those of two releases do.
build() {
  local each
  for each in one two; do
    say "image $each"
    MARK=$each MMDEBSTRAP=${MMDEBSTRAP:-$(command -v mmdebstrap || echo "$K/root/usr/bin/mmdebstrap")} \
      "$root/images/local.sh" "$name" "$work/$each.tar" > "$work/$each.ref"
  done
  export BATON_E2E_IMAGE BATON_E2E_IMAGE_2
  BATON_E2E_IMAGE=$(cat "$work/one.ref") BATON_E2E_IMAGE_2=$(cat "$work/two.ref")
}

# The programs of old charts, for test_upgrading.py, where this copy of the repository has their commits.
build_old() {
  local commit old=$work/old each
  for commit in 97861b4b 3cef96ea 84fc5af5; do
    git -C "$root" cat-file -e "$commit^{commit}" 2> /dev/null || continue
    say "image of $commit onto both nodes"
    rm -rf "$old" && mkdir -p "$old"
    git -C "$root" archive "$commit" | tar -x -C "$old"
    each=$(CODE=$old "$root/images/local.sh" "$name-$commit" "$work/old.tar")
    "$root/e2e/cluster/cluster.sh" load "$work/old.tar"
    BATON_E2E_OLD_IMAGES="${BATON_E2E_OLD_IMAGES:-} $commit=$each"
  done
  rm -rf "$old" "$work/old.tar"
  export BATON_E2E_OLD_IMAGES
}

if [ -n "${KUBECONFIG:-}" ] && [ -z "${BATON_E2E_LOCAL:-}" ]; then
  [ -n "${BATON_E2E_IMAGE:-}" ] && [ -n "${BATON_E2E_IMAGE_2:-}" ] ||
    fail "KUBECONFIG is set: set BATON_E2E_IMAGE and BATON_E2E_IMAGE_2 too, two images by digest (images/local.sh makes them)"
elif [ -z "${BATON_E2E_LOCAL:-}" ] && command -v kind > /dev/null && docker info > /dev/null 2>&1; then
  build
  kind create cluster --name baton-e2e --kubeconfig "$work/kubeconfig"
  trap 'kind delete cluster --name baton-e2e' EXIT
  export KUBECONFIG=$work/kubeconfig
  say "images onto kind's node"
  for each in one two; do kind load image-archive "$work/$each.tar" --name baton-e2e; done
else
  [ "$(id -u)" = 0 ] || fail "no KUBECONFIG and no kind: the local cluster needs root"
  export BATON_E2E_LOCAL=$K
  exec 9> "$K.lock"
  flock 9  # a run before this one may still remove its nodes; what outlives this script must not inherit the lock
  say "the cluster's programs, in $K"
  "$root/e2e/cluster/cluster.sh" binaries 9>&-
  export KUBECONFIG=$K/pki/admin.kubeconfig PATH=$K/root/usr/bin:$PATH
  if ! kubectl --request-timeout=5s get --raw /readyz > /dev/null 2>&1; then
    [ -n "${KEEP:-}" ] || trap '"$root/e2e/cluster/cluster.sh" down 9>&-' EXIT
    say "control plane, two nodes, DNS"
    "$root/e2e/cluster/cluster.sh" up node 1 node 2 dns 9>&-
  fi
  build
  for each in one two; do
    say "image $each onto both nodes"
    "$root/e2e/cluster/cluster.sh" load "$work/$each.tar"
  done
  build_old
fi
HELM=$("$python" "$root/scripts/find_helm.py")
export HELM
say "tests"
"$root/.venv/bin/pytest" -q -rs -x --durations=0 "$here" "$root/e2e/test_conformance.py" "$@" 9>&-
