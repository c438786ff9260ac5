#!/usr/bin/env bash
# The image that holds a Pod's namespaces: a static busybox that sleeps and reaps. pause.sh K NAME:local PYTHON
set -euo pipefail

K=$1 name=${2%:local} python=$3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ ! -f "$K/pause.tar" ] || exit 0
mkdir -p "$K/pause/bin"
cp "$K/root/bin/busybox" "$K/pause/bin/busybox"
"$python" "$here/../../images/pack.py" "$name" "$K/pause.tar" "$K/pause" \
  --command /bin/busybox --command sh --command=-c --command 'trap "exit 0" TERM INT; while :; do /bin/busybox sleep 3600 & wait $!; done'
