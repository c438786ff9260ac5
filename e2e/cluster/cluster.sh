#!/usr/bin/env bash
# A Kubernetes cluster on this machine, for the end-to-end tests: real Pods, no container runtime installed.
#   cluster.sh binaries|up|node NUMBER|dns|load IMAGE.tar|stop PART|start PART|down        all under $K (default: /tmp/baton-cluster)
# Nodes are 1 and 2: each a kubelet and a containerd of its own, with one kube-proxy for both.
#   export KUBECONFIG=$K/pki/admin.kubeconfig
# Debian 12, root. One cluster a machine: ports and bridge are fixed, and `down` takes every Pod's cgroup, network
# namespace and iptables line for its own. Control plane 1.20.2: policy/v1, batch/v1 CronJobs, CEL, preStop.sleep and
# Pod Security admission are not there; NetworkPolicies are stored but not enforced.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
K=${K:-/tmp/baton-cluster}
ROOT=$K/root PKI=$K/pki LOG=$K/log RUN=$K/run
ADDRESS=${ADDRESS:-$(ip -4 -o addr show scope global | awk '!/cni[01]/ {sub("/.*", "", $4); print $4; exit}')}
PYTHON=${PYTHON:-$here/../../.venv/bin/python}
PAUSE=k8s.local/pause:local
mkdir -p "$K" "$LOG" "$RUN"

fail() { echo "cluster.sh: $*" >&2; exit 1; }
kubectl() { "$ROOT/usr/bin/kubectl" --kubeconfig "$PKI/admin.kubeconfig" "$@"; }
ctr() { "$ROOT/usr/bin/ctr" -a "$K/node$1/containerd/sock" -n k8s.io "${@:2}"; }
nodes() { for each in "$K"/node[12]; do [ ! -d "$each" ] || echo "${each##*node}"; done; }
front_proxy() {
  echo "--requestheader-client-ca-file=$PKI/fp-ca.crt --requestheader-allowed-names=front-proxy-client" \
    "--requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group" \
    "--requestheader-extra-headers-prefix=X-Remote-Extra- --proxy-client-cert-file=$PKI/front-proxy.crt --proxy-client-key-file=$PKI/front-proxy.key"
}

# until_ok SECONDS PART COMMAND…: says why not by the end of the log of PART, and at once where PART has ended.
until_ok() {
  local limit=$1 end=$((SECONDS + $1)) part=$2 why; shift 2
  until "$@" >/dev/null 2>&1; do
    why=
    [ $SECONDS -lt $end ] || why="not in $limit s: $*"
    alive "$part" || why="$part has ended before this was so: $*"
    [ -z "$why" ] || { tail -n 15 "$LOG/$part.log" | cut -c1-400 >&2; fail "$why; above: the end of $LOG/$part.log"; }
    sleep 0.2
  done
}

# A part's processes are a group, but for the moment before `setsid` has made it.
alive() { [ -f "$RUN/$1.pid" ] && { kill -0 -- "-$(cat "$RUN/$1.pid")" || kill -0 "$(cat "$RUN/$1.pid")"; } 2>/dev/null; }

command_of() {
  case $1 in
    etcd) echo "$ROOT/usr/bin/etcd --name=d --data-dir=$K/etcd-data --unsafe-no-fsync --listen-client-urls=http://127.0.0.1:2379" \
      "--advertise-client-urls=http://127.0.0.1:2379 --listen-peer-urls=http://127.0.0.1:2380" \
      "--initial-advertise-peer-urls=http://127.0.0.1:2380 --initial-cluster=d=http://127.0.0.1:2380" ;;
    apiserver) echo "$K/bin/kube-apiserver --etcd-servers=http://127.0.0.1:2379 --secure-port=6443 --advertise-address=$ADDRESS" \
      "--tls-cert-file=$PKI/apiserver.crt --tls-private-key-file=$PKI/apiserver.key --client-ca-file=$PKI/ca.crt" \
      "--service-account-key-file=$PKI/sa.pub --service-account-signing-key-file=$PKI/sa.key" \
      "--service-account-issuer=https://kubernetes.default.svc --api-audiences=https://kubernetes.default.svc" \
      "--kubelet-client-certificate=$PKI/apiserver-kubelet.crt --kubelet-client-key=$PKI/apiserver-kubelet.key" \
      "--kubelet-preferred-address-types=InternalIP --enable-aggregator-routing=true --authorization-mode=Node,RBAC" \
      "--enable-admission-plugins=NodeRestriction --service-cluster-ip-range=10.96.0.0/16 --allow-privileged=true $(front_proxy)" ;;
    kcm) echo "$K/bin/kube-controller-manager --kubeconfig=$PKI/kcm.kubeconfig --authentication-kubeconfig=$PKI/kcm.kubeconfig" \
      "--authorization-kubeconfig=$PKI/kcm.kubeconfig --service-account-private-key-file=$PKI/sa.key --root-ca-file=$PKI/ca.crt" \
      "--cluster-signing-cert-file=$PKI/ca.crt --cluster-signing-key-file=$PKI/ca.key --use-service-account-credentials=true" \
      "--cluster-cidr=10.244.0.0/16 --allocate-node-cidrs=true --enable-hostpath-provisioner=true" ;;
    sched) echo "$K/bin/kube-scheduler --kubeconfig=$PKI/sched.kubeconfig --authentication-kubeconfig=$PKI/sched.kubeconfig" \
      "--authorization-kubeconfig=$PKI/sched.kubeconfig" ;;
    containerd[12]) node=node${1#containerd}; echo "unshare --mount $here/own_logs.sh $K/$node/logs" \
      "$ROOT/usr/bin/containerd -c $K/$node/containerd/config.toml" ;;
    kubelet[12]) node=node${1#kubelet}; echo "nsenter --mount --target $(cat "$RUN/containerd${1#kubelet}.pid")" \
      "$K/bin/kubelet --config=$K/$node/kubelet.yaml --kubeconfig=$PKI/$node.kubeconfig" \
      "--hostname-override=$node --node-ip=$ADDRESS --root-dir=$K/$node/kubelet/root --container-runtime=remote" \
      "--container-runtime-endpoint=unix://$K/$node/containerd/sock" ;;
    kube-proxy) echo "$K/bin/kube-proxy --config=$K/kube-proxy.yaml" ;;
    dns) echo "$PYTHON $here/dns.py --kubeconfig=$PKI/admin.kubeconfig --listen=$ADDRESS" ;;
    *) fail "part $1 is not known" ;;
  esac
}

# Controllers elect a leader, as everywhere: one that cannot renew its lease ends, and something starts it again. A node
# controller that outlived its API server would take every node for silent at that server's return.
start() {
  local part=$1 command again=()
  alive "$part" && return
  command=$(command_of "$part")
  case $part in kcm|sched) again=(bash -c 'while true; do "$@"; sleep 5; done' again) ;; esac
  # shellcheck disable=SC2086
  setsid "${again[@]}" $command > "$LOG/$part.log" 2>&1 < /dev/null &
  echo $! > "$RUN/$part.pid"
}

stop() {
  local part=$1 each
  if alive "$part"; then
    kill -- "-$(cat "$RUN/$part.pid")" 2>/dev/null || true
    for each in $(seq 100); do alive "$part" || break; sleep 0.1; done
    alive "$part" && kill -9 -- "-$(cat "$RUN/$part.pid")"
  fi
  rm -f "$RUN/$part.pid"
}

binaries() { "$here/binaries.sh" "$K"; }

up() {
  local part
  for part in etcd apiserver; do ! alive $part || fail "$part runs already"; done
  "$here/pki.sh" "$PKI" "$ADDRESS"
  rm -rf "$K/etcd-data"
  start etcd; start apiserver
  until_ok 60 apiserver kubectl get --raw /readyz
  start kcm; start sched
  until_ok 60 kcm kubectl -n default get serviceaccount default # without it no Pod is admitted
}

# iptables-nft under the names that kube-proxy and CNI look for.
with_tools() {
  local each
  mkdir -p "$K/nodebin"
  for each in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
    ln -sf "$ROOT/usr/sbin/xtables-nft-multi" "$K/nodebin/$each"
  done
  export PATH=$K/nodebin:$ROOT/usr/sbin:$ROOT/usr/bin:$PATH
  export LD_LIBRARY_PATH=$ROOT/usr/lib/x86_64-linux-gnu XTABLES_LIBDIR=$ROOT/usr/lib/x86_64-linux-gnu/xtables
}

node() {
  local number=$1 controller
  with_tools
  "$here/node_config.sh" "$K" "$PKI" "$PAUSE" "$number"
  for controller in /sys/fs/cgroup/*/; do mkdir -p "$controller/baton-node$number"; done
  [ "$(cat /proc/sys/net/ipv4/ip_forward)" = 1 ] || echo 1 > /proc/sys/net/ipv4/ip_forward
  start "containerd$number"
  until_ok 20 "containerd$number" ctr "$number" version
  "$here/pause.sh" "$K" "$PAUSE" "$PYTHON"
  ctr "$number" images import "$K/pause.tar" > /dev/null
  start "kubelet$number"
  until_ok 60 "kubelet$number" sh -c "$ROOT/usr/bin/kubectl --kubeconfig $PKI/admin.kubeconfig get nodes | grep -q 'node$number *Ready'"
  proxy
}

# One for both nodes. Where its node is not there yet it looks again more and more seldom, and where its file changes it
# ends: so both are there before it. Without it no Pod reaches the API server: that is tried.
proxy() {
  if ! alive kube-proxy; then
    "$here/proxy_config.sh" "$K" "$PKI"
    start kube-proxy
  fi
  until_ok 60 kube-proxy kubectl --server=https://10.96.0.1 --request-timeout=2s get --raw /readyz
}

dns() {
  start dns
  sed "s/HOST/$ADDRESS/" "$here/dns.yaml" | kubectl apply -f - > /dev/null
}

load() { local number; for number in $(nodes); do ctr "$number" images import "$1" > /dev/null; done; }

down() {
  with_tools
  local each number
  stop kubelet1; stop kubelet2; stop kube-proxy; stop dns
  for number in $(nodes); do
    ctr "$number" version > /dev/null 2>&1 || continue
    for each in $(ctr "$number" tasks ls -q); do ctr "$number" tasks kill -s 9 "$each" 2>/dev/null || true; done
    sleep 1
    for each in $(ctr "$number" tasks ls -q); do ctr "$number" tasks rm -f "$each" > /dev/null 2>&1 || true; done
    for each in $(ctr "$number" containers ls -q); do ctr "$number" containers rm "$each" 2>/dev/null || true; done
  done
  for each in sched kcm apiserver etcd containerd1 containerd2; do stop "$each"; done
  [ ! -x "$K/bin/kube-proxy" ] || "$K/bin/kube-proxy" --cleanup > /dev/null 2>&1 || true
  iptables-save | grep -vE 'KUBE-|CNI-' | iptables-restore
  ip6tables-save | grep -vE 'KUBE-' | ip6tables-restore || true
  for each in cni0 cni1; do ip link del "$each" 2>/dev/null || true; done
  for each in /run/netns/cni-*; do
    [ -e "$each" ] || continue
    while umount -l "$each" 2>/dev/null; do :; done
    rm -f "$each" || true
  done
  awk -v k="$K/" 'index($2, k) == 1 {print $2}' /proc/mounts | sort -r | xargs -r -n1 umount -l 2>/dev/null || true
  find /sys/fs/cgroup/*/baton-node[12] /sys/fs/cgroup/*/k8s.io -depth -type d -exec rmdir {} + 2>/dev/null || true
  rm -rf "$K/node1" "$K/node2" "$K/etcd-data"
}

[ $# -gt 0 ] || fail "say what to do: binaries, up, node NUMBER, dns, load IMAGE.tar, stop PART, start PART, down"
while [ $# -gt 0 ]; do
  case $1 in
    binaries|up|dns|down) "$1"; shift ;;
    node|load|stop|start) [ $# -gt 1 ] || fail "$1 of what?"; "$1" "$2"; shift 2 ;;
    *) fail "'$1' is not known" ;;
  esac
done
