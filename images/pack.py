"""Packs directories into an OCI image, without a builder or a daemon: `python images/pack.py NAME OUT.tar ROOT…`.

Each root becomes a layer over the former ones. Equal trees give equal bytes, on any day and for any user: entries are
sorted, owners and times are dropped. Prints the image's digest; the archive names the image `NAME:local` and
`NAME@DIGEST`, which `ctr images import` reads.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

USER = "10001:10001"
ENVIRONMENT = ("PATH=/usr/local/bin:/usr/bin:/bin", "PYTHONPATH=/opt/baton", "PYTHONUNBUFFERED=1", "HOME=/run/baton")
CREATED = "1970-01-01T00:00:00Z"
_CHUNK = 1 << 20


def pack(name: str, out: Path, roots: Sequence[Path], command: Sequence[str] = ()) -> str:
    """Write the image of the layers `roots` to `out` and return its digest, `sha256:…`. Raises OSError."""
    with contextlib.ExitStack() as stack:
        layers = []
        for root in roots:
            layer = stack.enter_context(tempfile.TemporaryFile(dir=out.parent))
            write_layer(root, layer)
            layers.append((layer, *_digest(layer)))
        config = _blob(
            {
                "architecture": "amd64",
                "os": "linux",
                "created": CREATED,
                "config": {"User": USER, "Env": list(ENVIRONMENT), "WorkingDir": "/", "Entrypoint": list(command)},
                "rootfs": {"type": "layers", "diff_ids": [digest for _, digest, _ in layers]},
            }
        )
        manifest = _blob(
            {
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": _descriptor("config.v1+json", config),
                "layers": [
                    {"mediaType": _media("layer.v1.tar"), "digest": digest, "size": size} for _, digest, size in layers
                ],
            }
        )
        named = _descriptor("manifest.v1+json", manifest)
        references = (f"{name}:local", f"{name}@{named['digest']}")
        annotated = [named | {"annotations": {"io.containerd.image.name": reference}} for reference in references]
        index = _blob({"schemaVersion": 2, "mediaType": _media("index.v1+json"), "manifests": annotated})
        with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as archive:
            _add(archive, "oci-layout", _blob({"imageLayoutVersion": "1.0.0"}))
            _add(archive, "index.json", index)
            for content in (config, manifest):
                _add(archive, f"blobs/sha256/{hashlib.sha256(content).hexdigest()}", content)
            for layer, digest, size in layers:
                layer.seek(0)
                archive.addfile(_entry(f"blobs/sha256/{digest.removeprefix('sha256:')}", size), layer)
    return str(named["digest"])


def write_layer(root: Path, out: BinaryIO) -> None:
    """Write the tree under `root` as a tar whose bytes depend only on names, modes and contents."""
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in _walk(root):
            member = archive.gettarinfo(str(path), arcname=str(path.relative_to(root)))
            if member is None or not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
                continue  # device nodes: the runtime makes its own
            member.uid = member.gid = member.mtime = 0
            member.uname = member.gname = ""
            if member.islnk():  # the order of hard links to one file depends on the file system
                member.type, member.linkname, member.size = tarfile.REGTYPE, "", path.stat().st_size
            if not member.isreg():
                archive.addfile(member)
                continue
            with path.open("rb") as content:
                archive.addfile(member, content)


def _walk(root: Path) -> Iterator[Path]:
    for name in sorted(os.listdir(root)):
        path = root / name
        yield path
        if stat.S_ISDIR(path.lstat().st_mode):
            yield from _walk(path)


def _digest(file: BinaryIO) -> tuple[str, int]:
    file.seek(0)
    content_hash, size = hashlib.sha256(), 0
    while chunk := file.read(_CHUNK):
        content_hash.update(chunk)
        size += len(chunk)
    return f"sha256:{content_hash.hexdigest()}", size


def _media(kind: str) -> str:
    return f"application/vnd.oci.image.{kind}"


def _blob(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _descriptor(kind: str, content: bytes) -> dict[str, object]:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return {"mediaType": _media(kind), "digest": digest, "size": len(content)}


def _entry(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o644, 0
    return member


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    archive.addfile(_entry(name, len(content)), io.BytesIO(content))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("out", type=Path)
    parser.add_argument("roots", type=Path, nargs="+", metavar="ROOT")
    parser.add_argument("--command", action="append", default=[], help="argument of the entry point; may be repeated")
    options = parser.parse_args()
    print(pack(options.name, options.out, options.roots, options.command))


if __name__ == "__main__":
    main()
