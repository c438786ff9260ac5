"""An HTTP proxy on loopback that tunnels every CONNECT to one server there, and a certificate for that server."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class TunnelProxy:
    target: tuple[str, int]
    status: int = 200
    """The answer to CONNECT."""
    asked: list[str] = field(default_factory=list)
    """`HOST:PORT` of each CONNECT."""
    url: str = ""

    def serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head and (data := client.recv(4096)):
                head += data
            self.asked.append(head.split(b" ")[1].decode())
            if self.status != 200:
                client.sendall(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % self.status)
                return
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            with socket.create_connection(self.target, timeout=10) as server:
                back = threading.Thread(target=_pump, args=(server, client))
                back.start()
                _pump(client, server)
                back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def tunnelling(proxy: TunnelProxy) -> Iterator[TunnelProxy]:
    """The proxy on a port of loopback, `url` filled in."""
    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy.url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                client.settimeout(10)
                threads.append(threading.Thread(target=proxy.serve, args=(client,)))
                threads[-1].start()

        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield proxy
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            acceptor.join()
            for thread in threads:
                thread.join()


def private_certificate(folder: Path, host: str) -> ssl.SSLContext:
    """A context for a server named `host`, whose certificate the private authority in `folder/ca.crt` signed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "names").write_text(f"subjectAltName=DNS:{host}\n", encoding="ascii")
    key = ("-newkey", "rsa:2048", "-nodes", "-days", "2")
    usage = ("-addext", "keyUsage=critical,keyCertSign")
    _openssl(folder, "req", "-x509", *key, "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt", *usage)
    _openssl(folder, "req", *key[:3], "-subj", f"/CN={host}", "-keyout", "host.key", "-out", "host.csr")
    signed_by = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    _openssl(folder, "x509", "-req", "-in", "host.csr", "-out", "host.crt", *signed_by)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "host.crt", folder / "host.key")
    return context


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(("openssl", *arguments), cwd=folder, check=True, capture_output=True, timeout=60)
