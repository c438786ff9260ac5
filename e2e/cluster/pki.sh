#!/usr/bin/env bash
# Certificates and kubeconfigs of the local cluster: pki.sh FOLDER ADDRESS. Keeps what is there.
set -euo pipefail

folder=$1 address=$2
[ -f "$folder/admin.kubeconfig" ] && exit 0
mkdir -p "$folder" && cd "$folder"

authority() {
  openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj "/CN=$1" -keyout "$1.key" -out "$1.crt" \
    -addext keyUsage=critical,keyCertSign,digitalSignature 2>/dev/null
}

leaf() { # NAME AUTHORITY SUBJECT [ALTERNATIVE_NAMES]
  {
    printf 'keyUsage=critical,digitalSignature,keyEncipherment\nextendedKeyUsage=serverAuth,clientAuth\n'
    [ -z "${4:-}" ] || printf 'subjectAltName=%s\n' "$4"
  } > "$1.ext"
  openssl req -newkey rsa:2048 -nodes -subj "$3" -keyout "$1.key" -out "$1.csr" 2>/dev/null
  openssl x509 -req -in "$1.csr" -CA "$2.crt" -CAkey "$2.key" -CAcreateserial -days 3650 -out "$1.crt" -extfile "$1.ext" 2>/dev/null
}

authority ca; authority fp-ca
openssl genrsa -out sa.key 2048 2>/dev/null; openssl rsa -in sa.key -pubout -out sa.pub 2>/dev/null
service=DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local
leaf apiserver ca /CN=kube-apiserver "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,$service,IP:127.0.0.1,IP:10.96.0.1,IP:$address"
leaf admin ca /O=system:masters/CN=admin
leaf kcm ca /CN=system:kube-controller-manager
leaf sched ca /CN=system:kube-scheduler
leaf proxy ca /CN=system:kube-proxy
for node in node1 node2; do
  leaf "$node" ca "/O=system:nodes/CN=system:node:$node" "DNS:$node,IP:$address,IP:127.0.0.1"
done
leaf apiserver-kubelet ca /O=system:masters/CN=apiserver-kubelet-client
leaf front-proxy fp-ca /CN=front-proxy-client
for user in kcm sched proxy node1 node2 admin; do
  cat > "$user.kubeconfig" <<C
apiVersion: v1
kind: Config
clusters: [{name: local, cluster: {server: "https://127.0.0.1:6443", certificate-authority: $folder/ca.crt}}]
users: [{name: u, user: {client-certificate: $folder/$user.crt, client-key: $folder/$user.key}}]
contexts: [{name: local, context: {cluster: local, user: u, namespace: default}}]
current-context: local
C
done
