#!/usr/bin/env bash
# Puts Debian's etcd into the cache that `make test-k8s` looks in, without installing anything into the system.
# Needs a Debian or Ubuntu with apt and its archive's keyring; SUITE names the release to take it from.
set -euo pipefail

suite=${SUITE:-trixie}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/baton/k8s
if [ -x "$cache/etcd" ]; then exit 0; fi
mirror=$(grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null |
  grep -v -E 'snapshot|security' | head -1 | tr -d ' ' || true)
[ -n "$mirror" ] || { echo "fetch_etcd: no Debian mirror in /etc/apt: put etcd into $cache yourself" >&2; exit 1; }

state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
mkdir -p "$state"/{lists/partial,cache/archives/partial,parts,debs} "$cache"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" > "$state/sources.list"
options=(-qq -o "Dir::Etc::sourcelist=$state/sources.list" -o "Dir::Etc::sourceparts=$state/parts"
  -o "Dir::State::Lists=$state/lists" -o "Dir::Cache=$state/cache" -o Dir::State::status=/dev/null)
[ "$(id -u)" != 0 ] || options+=(-o APT::Sandbox::User=root)
apt-get "${options[@]}" update
(cd "$state/debs" && apt-get "${options[@]}" download etcd-server && dpkg -x etcd-server_*.deb "$state/root")
install -m 755 "$state/root/usr/bin/etcd" "$cache/.etcd.$$" && mv "$cache/.etcd.$$" "$cache/etcd"
