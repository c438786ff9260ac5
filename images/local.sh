#!/usr/bin/env bash
# The image of the local end-to-end tests: all roles on CPUs and the tiny model, from Debian and pip, without a builder.
#   images/local.sh NAME OUT.tar      prints NAME@sha256:DIGEST
#   CODE=…          a checkout of another commit: its packages in the environment of today, without the paced model
#   MARK=…          a text that is put into the image, to change its digest
#   WORK=…          folder that keeps the base tree and the packages between runs (default: ~/.cache/baton/images)
#   MMDEBSTRAP=…    path of mmdebstrap, if it is not on PATH
# Needs Debian 12 with its python3 at the version of $PYTHON (3.11): compiled packages are copied into a bookworm tree.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
name=${1:?NAME} out=${2:?OUT.tar}
work=${WORK:-${XDG_CACHE_HOME:-$HOME/.cache}/baton/images}
export PYTHON=${PYTHON:-$here/../.venv/bin/python}
mmdebstrap=${MMDEBSTRAP:-$(command -v mmdebstrap || true)}
mkdir -p "$work"

if [ ! -d "$work/base" ]; then
  [ -n "$mmdebstrap" ] || { echo "local.sh: mmdebstrap is missing: apt install mmdebstrap, or set MMDEBSTRAP" >&2; exit 1; }
  rm -rf "$work/base.draft"
  perl "$mmdebstrap" --quiet --variant=extract \
    --include=python3,libpython3-stdlib,libstdc++6,ca-certificates,libssl3,netbase,base-files,base-passwd,libc-bin,tzdata \
    bookworm "$work/base.draft"
  rm -rf "$work/base.draft"/{usr/share/{doc,man,locale},var/lib/apt,var/cache,dev}
  ln -sf python3 "$work/base.draft/usr/bin/python"
  printf 'root:x:0:0:root:/root:/usr/sbin/nologin\n' > "$work/base.draft/etc/passwd"
  printf 'root:x:0:\n' > "$work/base.draft/etc/group"
  "$here/steps.sh" account "$work/base.draft"
  library=/usr/lib/python$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  "$here/steps.sh" bytecode "$work/base.draft$library" "$library"
  mv "$work/base.draft" "$work/base"
fi

# Third-party packages change with the pins alone, Baton's own with every commit.
pins=$(cat "$here/requirements-all.txt" "$here/requirements-build.txt" "$here/../pyproject.toml" "$here/steps.sh" | sha256sum | cut -c1-16)
if [ ! -d "$work/site-$pins" ]; then
  rm -rf "$work"/site-*
  "$here/steps.sh" install all "$work/site-$pins.draft"
  mv "$work/site-$pins.draft" "$work/site-$pins"
fi

# Three layers, so that a new commit of Baton changes only a small one.
tree=$(mktemp -d "$work/tree.XXXXXX")
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/site/opt" "$tree/code/opt/baton" "$tree/code/models"
cp -al "$work/site-$pins" "$tree/site/opt/baton"
rm -rf "$tree"/site/opt/baton/baton_*
for package in "${CODE:-$here/..}"/*/baton_*/; do cp -r "$package" "$tree/code/opt/baton/"; done
cp -r "$here/../examples/tiny-llama" "$tree/code/models/tiny-llama"
"$PYTHON" "$here/other_model.py" "$tree/code/models/tiny-llama" "$tree/code/models/tiny-llama-2"
if [ -z "${CODE:-}" ]; then
  paced=$here/../e2e/pods/paced
  cp -r "$here/../examples/tiny-llama" "$tree/code/models/paced"
  cp "$paced/config.json" "$tree/code/models/paced/"
  cp "$paced/sitecustomize.py" "$tree/code/opt/baton/"
  "$PYTHON" "$paced/step_times.py" "$paced/config.json" cpu 1 > "$tree/code/models/paced/times.json"
  "$PYTHON" "$paced/step_times.py" "$paced/config.json" h200 10 > "$tree/code/models/paced/accelerated.json"
fi
"$here/steps.sh" bytecode "$tree/code/opt/baton" /opt/baton
[ -z "${MARK:-}" ] || echo "$MARK" > "$tree/code/opt/baton/mark.txt"
chmod -R go+rX,go-w "$tree/code"
echo "$name@$("$PYTHON" "$here/pack.py" "$name" "$out" "$work/base" "$tree/site" "$tree/code")"
