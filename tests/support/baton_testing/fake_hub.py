"""A model hub on loopback: one repository, its branches, byte ranges, and faults to order. The real hub is never asked.

It keeps the two calls of the hub's API that fetching uses (`revision`, `tree`) and `resolve` for files. A second server
has a bucket and a registry, with one model in each.
"""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeVar

REPOSITORY = "org/tiny-chat"
LFS_FROM = 1 << 10
TITLE = "org.opencontainers.image.title"


@dataclass
class FakeHub:
    files: Mapping[str, bytes]
    branches: dict[str, str] = field(default_factory=lambda: {"main": "a" * 40})
    token: str | None = None
    cut_after: int | None = None
    """Every body ends after so many bytes; None: whole."""
    seen: list[str] = field(default_factory=list)
    sent_bytes: int = 0
    address: str = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.partition("?")[0]
        self.seen.append(path)
        if self.token is not None and handler.headers.get("Authorization") != f"Bearer {self.token}":
            return handler.send_error(401)
        revision = path.removeprefix(f"/api/models/{REPOSITORY}/revision/")
        if revision in self.branches:
            return self._send(handler, json.dumps({"sha": self.branches[revision]}).encode())
        for commit in self.branches.values():
            if path == f"/api/models/{REPOSITORY}/tree/{commit}":
                return self._send(handler, json.dumps([self._entry(*file) for file in self.files.items()]).encode())
            name = path.removeprefix(f"/{REPOSITORY}/resolve/{commit}/")
            if name in self.files:
                return self._send(handler, self.files[name], self.cut_after)
        handler.send_error(404)

    def _entry(self, path: str, content: bytes) -> dict[str, object]:
        oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        entry: dict[str, object] = {"type": "file", "path": path, "size": len(content), "oid": oid}
        if len(content) >= LFS_FROM:
            entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        return entry

    def _send(self, handler: BaseHTTPRequestHandler, content: bytes, cut_after: int | None = None) -> None:
        self.sent_bytes += _reply(handler, content, cut_after)


@dataclass
class FakeStore:
    """`s3://bucket/models/tiny` and `oci://HOST/models/tiny@` with `digest`."""

    files: Mapping[str, bytes]
    address: str = ""
    cut_after: int | None = None
    """Every file's body ends after so many bytes; None: whole."""
    seen: list[str] = field(default_factory=list)
    sent_bytes: int = 0

    def __post_init__(self) -> None:
        self._blobs = {_digest(content): content for content in self.files.values()}
        layers = [
            {"mediaType": "x", "digest": _digest(content), "size": len(content), "annotations": {TITLE: name}}
            for name, content in self.files.items()
        ]
        self._manifest = json.dumps({"schemaVersion": 2, "layers": layers}).encode()
        self.digest = _digest(self._manifest)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.partition("?")[0]
        self.seen.append(path)
        if path == "/bucket":
            return self._send(handler, self._listing())
        if path == f"/v2/models/tiny/manifests/{self.digest}":
            return self._send(handler, self._manifest)
        name, blob = path.removeprefix("/bucket/models/tiny/"), path.removeprefix("/v2/models/tiny/blobs/")
        content = self.files.get(name, self._blobs.get(blob))
        return handler.send_error(404) if content is None else self._send(handler, content, self.cut_after)

    def _send(self, handler: BaseHTTPRequestHandler, content: bytes, cut_after: int | None = None) -> None:
        self.sent_bytes += _reply(handler, content, cut_after)

    def _listing(self) -> bytes:
        entries = "".join(
            f"<Contents><Key>models/tiny/{name}</Key><Size>{len(content)}</Size>"
            f'<ETag>"{hashlib.md5(content).hexdigest()}"</ETag></Contents>'
            for name, content in self.files.items()
        )
        return f"<ListBucketResult>{entries}</ListBucketResult>".encode()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _reply(handler: BaseHTTPRequestHandler, content: bytes, cut_after: int | None) -> int:
    """Answer, from where the client wants it; bytes of the body that were sent."""
    start = int((handler.headers.get("Range") or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
    handler.send_response(206 if start else 200)
    if start:
        handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
    handler.send_header("Content-Length", str(len(content) - start))
    handler.end_headers()
    body = content[start:] if cut_after is None else content[start:][:cut_after]
    handler.wfile.write(body)
    return len(body)


def model_files(folder: Path) -> dict[str, bytes]:
    """The files of a model's folder, as a repository has them."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away in a handshake is no error of the server."""


Server = TypeVar("Server", FakeHub, FakeStore)


@contextmanager
def served(hub: Server, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """The server on a port of loopback, `address` filled in. `tls`: it is served with this certificate."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hub.answer(self)

        def log_message(self, format: str, *args: object) -> None:
            """`seen` has it."""

    server = QuietServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    hub.address = f"http{'' if tls is None else 's'}://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
