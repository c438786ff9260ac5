#!/usr/bin/env bash
# Configuration of the local cluster's kube-proxy, one for both nodes: proxy_config.sh K PKI
set -euo pipefail

K=$1 PKI=$2
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
