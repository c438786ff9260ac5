#!/usr/bin/env bash
# Configuration files of containerd, CNI and kubelet for a node of the local cluster:
#   node_config.sh K PKI PAUSE_IMAGE NUMBER
# Nodes share the machine: each has a folder, a bridge, ports and a root of cgroups of its own. What one node is made of
# is in its folder alone: parts of another node, or of both, may watch their files, and end when they change.
set -euo pipefail

K=$1 PKI=$2 PAUSE=$3 NUMBER=$4 ROOT=$1/root
N=$K/node$NUMBER BEFORE=$((NUMBER - 1))
mkdir -p "$N/cni" "$N/containerd"
cat > "$N/cni/10-bridge.conflist" <<C
{"cniVersion": "0.4.0", "name": "k8s", "plugins": [
  {"type": "bridge", "bridge": "cni$BEFORE", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.$BEFORE.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "$N/cni-data"}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
C
# A machine without CAP_SYS_RESOURCE cannot lower oom scores: hence restrict_oom_score_adj here and oomScoreAdj below.
cat > "$N/containerd/config.toml" <<C
version = 2
root = "$N/containerd/root"
state = "$N/containerd/state"
[grpc]
  address = "$N/containerd/sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$PAUSE"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "$ROOT/usr/sbin/runc"
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$ROOT/usr/lib/cni"
    conf_dir = "$N/cni"
C
cat > "$N/kubelet.yaml" <<C
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $PKI/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $PKI/node$NUMBER.crt
tlsPrivateKeyFile: $PKI/node$NUMBER.key
cgroupDriver: cgroupfs
failSwapOn: false
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
podCIDR: 10.244.$BEFORE.0/24
port: $((10250 + 100 * BEFORE))
healthzPort: $((10248 + 100 * BEFORE))
cgroupRoot: /baton-node$NUMBER
oomScoreAdj: 0
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
volumePluginDir: $N/kubelet/volplugins
C
