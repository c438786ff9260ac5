#!/usr/bin/env bash
# Puts what the local cluster runs into one folder, without installing anything into the system:
#   binaries.sh [FOLDER]      FOLDER/bin: Kubernetes 1.20.2 · FOLDER/root: containerd, runc, CNI, etcd, kubectl, …
# Kubernetes comes from the first of BATON_K8S_BIN, ~/.cache/baton/k8s, ../shared/k8s-local, Debian's source (5 minutes).
# Needs Debian 12 with apt, dpkg-dev and its archive's keyring; mmdebstrap is fetched too, for images/local.sh.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=${1:-${K:-/tmp/baton-cluster}}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/baton/k8s
archive=$here/../shared/k8s-local/bin.tar.xz
root=$folder/root
programs=(kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy)
tools=(containerd runc containernetworking-plugins iptables libip4tc2 libip6tc2 libxtables12 libnftnl11 libmnl0
  libnfnetlink0 libnetfilter-conntrack3 conntrack busybox-static mmdebstrap)

fail() { echo "binaries.sh: $*" >&2; exit 1; }

mirror() {
  grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null |
    grep -v -E 'snapshot|security' | head -1 | tr -d ' '
}

# Private apt state for SUITE: prints the options that make apt-get use it.
apt_state() {
  local suite=$1 state=$folder/apt-$1
  mkdir -p "$state"/{lists/partial,cache/archives/partial,parts}
  local signed="[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
  printf 'deb %s %s %s main\ndeb-src %s %s %s main\n' "$signed" "$mirror" "$suite" "$signed" "$mirror" "$suite" > "$state/sources.list"
  printf '%s\n' -qq -o "Dir::Etc::sourcelist=$state/sources.list" -o "Dir::Etc::sourceparts=$state/parts" \
    -o "Dir::State::Lists=$state/lists" -o "Dir::Cache=$state/cache" -o Dir::State::status=/dev/null -o APT::Sandbox::User=root
}

fetch_tools() {
  [ -x "$root/usr/bin/kubectl" ] && [ -x "$root/usr/bin/containerd" ] && return
  local bookworm trixie
  mapfile -t bookworm < <(apt_state bookworm); mapfile -t trixie < <(apt_state trixie)
  apt-get "${bookworm[@]}" update; apt-get "${trixie[@]}" update
  mkdir -p "$folder/debs" "$root"
  (cd "$folder/debs" && apt-get "${bookworm[@]}" download "${tools[@]}" && apt-get "${trixie[@]}" download etcd-server kubectl)
  for deb in "$folder"/debs/*.deb; do dpkg -x "$deb" "$root"; done
}

complete() { local each; for each in "${programs[@]}"; do [ -x "$1/$each" ] || return 1; done; }

find_kubernetes() {
  local source
  for source in "${BATON_K8S_BIN:-}" "$cache"; do
    if [ -n "$source" ] && complete "$source"; then ln -sfn "$source" "$folder/bin"; return; fi
  done
  mkdir -p "$cache"
  if [ -f "$archive" ]; then tar -C "$cache" -xJf "$archive"; else build; fi
  complete "$cache" || fail "programs are missing in $cache: need ${programs[*]}"
  ln -sfn "$cache" "$folder/bin"
}

# Debian's source package is complete, 1.20.2 and the newest that has the servers. Three things keep it from working
# with Debian's Go 1.19: an old vendored reflect2 crashes, one generated file is left out, the kubelet asks clouds.
build() {
  local bookworm source=$folder/gopath/src/k8s.io/kubernetes staging=staging/src/k8s.io each flags=
  mapfile -t bookworm < <(apt_state bookworm)
  mkdir -p "$folder/debs" "$folder/src" "${source%/*}"
  (cd "$folder/debs" && apt-get "${bookworm[@]}" download golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev)
  for each in "$folder"/debs/golang*.deb; do dpkg -x "$each" "$root"; done
  (cd "$folder/src" && apt-get "${bookworm[@]}" source --download-only kubernetes)
  rm -rf "$source"; dpkg-source --no-check -x "$folder"/src/kubernetes_*.dsc "$source"
  export GOROOT=$root/usr/lib/go-1.19 GOPATH=$folder/gopath GO111MODULE=off GOFLAGS= GOCACHE=$folder/gocache CGO_ENABLED=0
  export PATH=$GOROOT/bin:$PATH
  cd "$source"
  rm -rf vendor/github.com/modern-go/reflect2
  cp -r "$root/usr/share/gocode/src/github.com/modern-go/reflect2" vendor/github.com/modern-go/
  sed -i '/_ "k8s.io\/kubernetes\/pkg\/credentialprovider\//d' cmd/kubelet/app/plugins.go
  go build -o "$folder/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
  local dirs
  dirs=$(find pkg $staging/{api,apimachinery,apiserver,apiextensions-apiserver,kube-aggregator,client-go,component-base,cloud-provider,kube-controller-manager,kube-proxy,kube-scheduler,kubelet,metrics} \
    -name '*.go' -not -name 'zz_generated*' -print0 | xargs -0 grep -l '+k8s:openapi-gen=' | xargs -n1 dirname |
    LC_ALL=C sort -u | sed 's#^staging/src/#vendor/#; s#^#k8s.io/kubernetes/#' | paste -sd,)
  "$folder/openapi-gen" --logtostderr -i "$dirs" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
    -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$folder/violations"
  for each in component-base/version client-go/pkg/version; do
    each=k8s.io/kubernetes/vendor/k8s.io/$each
    flags="$flags -X $each.gitVersion=v1.20.2 -X $each.gitMajor=1 -X $each.gitMinor=20 -X $each.gitTreeState=clean"
  done
  go build -tags providerless,dockerless -ldflags "-s -w $flags" -o "$cache/" "${programs[@]/#/./cmd/}"
}

mirror=$(mirror || true)
[ -n "$mirror" ] || fail "no Debian mirror in /etc/apt"
mkdir -p "$folder"
fetch_tools
find_kubernetes
