#!/usr/bin/env bash
# Runs a command with a folder of its own as /var/log/pods, in a mount namespace that `unshare --mount` has made. Kubelets
# have that path built in, and each removes what another one keeps there: own_logs.sh FOLDER COMMAND…
set -euo pipefail

mkdir -p "$1" /var/log/pods
mount --bind "$1" /var/log/pods
exec "${@:2}"
