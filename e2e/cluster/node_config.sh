#!/usr/bin/env bash
# Configuration files of containerd, CNI, kubelet and kube-proxy for the local cluster: node_config.sh K PKI PAUSE_IMAGE
set -euo pipefail

K=$1 PKI=$2 PAUSE=$3 ROOT=$1/root
mkdir -p "$K/cni" "$K/containerd"
cat > "$K/cni/10-bridge.conflist" <<C
{"cniVersion": "0.4.0", "name": "k8s", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "$K/cni-data"}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
C
# A machine without CAP_SYS_RESOURCE cannot lower oom scores: hence restrict_oom_score_adj here and oomScoreAdj below.
cat > "$K/containerd/config.toml" <<C
version = 2
root = "$K/containerd/root"
state = "$K/containerd/state"
[grpc]
  address = "$K/containerd/sock"
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
    conf_dir = "$K/cni"
C
cat > "$K/kubelet.yaml" <<C
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $PKI/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $PKI/kubelet.crt
tlsPrivateKeyFile: $PKI/kubelet.key
cgroupDriver: cgroupfs
failSwapOn: false
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
podCIDR: 10.244.0.0/24
oomScoreAdj: 0
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
volumePluginDir: $K/kubelet/volplugins
C
cat > "$K/kube-proxy.yaml" <<C
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
hostnameOverride: node1
clusterCIDR: 10.244.0.0/16
clientConnection: {kubeconfig: $PKI/proxy.kubeconfig}
oomScoreAdj: 0
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
C
