"""Runs in a Pod: a model hub over plain HTTP with one repository, for who has the token. Standard library alone.

`hub.py FOLDER TOKEN`, on port 8080: the tree of any commit, and its files, with byte ranges.
"""

from __future__ import annotations

import hashlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER, TOKEN = Path(sys.argv[1]), sys.argv[2]
LFS_FROM = 1 << 16


class Hub(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.send_error(401)
            return
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/"):
            self._send(json.dumps([self._entry(file) for file in sorted(FOLDER.rglob("*")) if file.is_file()]).encode())
            return
        _, _, _, _, _, name = path.split("/", 5)
        file = FOLDER / name
        if ".." in name or not file.is_file():
            self.send_error(404)
            return
        self._send(file.read_bytes())

    def _entry(self, path: Path) -> dict[str, object]:
        content = path.read_bytes()
        name = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        entry: dict[str, object] = {
            "type": "file",
            "path": str(path.relative_to(FOLDER)),
            "size": len(content),
            "oid": name,
        }
        if len(content) >= LFS_FROM:
            entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        return entry

    def _send(self, content: bytes) -> None:
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:])


if __name__ == "__main__":
    ThreadingHTTPServer(("0.0.0.0", 8080), Hub).serve_forever()
