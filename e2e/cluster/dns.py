"""Cluster DNS for the local cluster: answers A questions about Services, from what the API server lists.

`SERVICE.NAMESPACE.svc.DOMAIN` is the cluster IP, or every endpoint of a headless Service. Names that do not exist are
NXDOMAIN, other types an empty answer. Over UDP and TCP, because answers for many endpoints do not fit a datagram.
"""

from __future__ import annotations

import argparse
import http.client
import ipaddress
import json
import socketserver
import ssl
import struct
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import yaml

FRESH_S = 0.3
TTL_S = 1
TYPE_A, CLASS_IN = 1, 1
NO_ERROR, SERVER_FAILURE, NO_NAME, REFUSED = 0, 2, 3, 5
UDP_LIMIT = 1232
_HEADER = struct.Struct("!HHHHHH")


class Question(ValueError):
    """A datagram is not one plain question."""


@dataclass(frozen=True, slots=True)
class Asked:
    ident: int
    name: str
    type: int
    raw: bytes
    """The question section, repeated in the answer."""


def parse(message: bytes) -> Asked:
    """The question of a query. Raises Question for anything else."""
    if len(message) < _HEADER.size:
        raise Question("too short")
    ident, flags, questions, *_ = _HEADER.unpack_from(message)
    if flags & 0x8000 or questions != 1:
        raise Question("not one question")
    labels, at = [], _HEADER.size
    while at < len(message) and message[at]:
        length = message[at]
        if length > 63 or at + 1 + length >= len(message):
            raise Question("bad label")
        labels.append(message[at + 1 : at + 1 + length].decode("ascii", "replace").lower())
        at += 1 + length
    if at + 5 > len(message):
        raise Question("no type")
    (kind, _) = struct.unpack_from("!HH", message, at + 1)
    return Asked(ident, ".".join(labels), kind, message[_HEADER.size : at + 5])


def answer(asked: Asked, code: int, addresses: tuple[str, ...], limit: int) -> bytes:
    """The reply to a question; truncated, and marked so, where it is longer than `limit` bytes."""
    records = [
        struct.pack("!HHHIH", 0xC00C, TYPE_A, CLASS_IN, TTL_S, 4) + ipaddress.IPv4Address(address).packed
        for address in addresses
    ]
    fitting = max(0, (limit - _HEADER.size - len(asked.raw)) // 16)
    flags = 0x8580 | code | (0x0200 if len(records) > fitting else 0)
    fitting_records = records[:fitting]
    return _HEADER.pack(asked.ident, flags, 1, len(fitting_records), 0, 0) + asked.raw + b"".join(fitting_records)


class Cluster:
    """Addresses of Services as the API server reports them, at most `FRESH_S` old."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
        user, cluster = config["users"][0]["user"], config["clusters"][0]["cluster"]
        self._context = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._context.load_cert_chain(user["client-certificate"], user["client-key"])
        self._server = urlsplit(cluster["server"])
        self._lock = threading.Lock()
        self._until = 0.0
        self._found: dict[tuple[str, str], tuple[str, ...]] | None = None

    def addresses(self, name: str, namespace: str) -> tuple[str, ...] | None:
        """Addresses of a Service, None when there is none. Raises OSError while the API server never answered."""
        with self._lock:
            if time.monotonic() >= self._until:
                try:
                    self._found = self._read()
                except (OSError, http.client.HTTPException, ValueError) as error:
                    if self._found is None:
                        raise OSError(str(error)) from error  # otherwise: what was true last, as CoreDNS answers too
                self._until = time.monotonic() + FRESH_S
            assert self._found is not None
            return self._found.get((namespace, name))

    def _read(self) -> dict[tuple[str, str], tuple[str, ...]]:
        endpoints = {_key(endpoint): _endpoints(endpoint) for endpoint in self._list("endpoints")}
        addresses = {}
        for service in self._list("services"):
            address = service["spec"].get("clusterIP", "None")
            addresses[_key(service)] = endpoints.get(_key(service), ()) if address == "None" else (address,)
        return addresses

    def _list(self, plural: str) -> list[dict[str, dict[str, str]]]:
        host, port = self._server.hostname or "", self._server.port
        connection = http.client.HTTPSConnection(host, port, context=self._context, timeout=5)
        try:
            connection.request("GET", f"/api/v1/{plural}?resourceVersion=0")
            reply = connection.getresponse()
            if reply.status != 200:
                raise ValueError(f"{plural}: {reply.status}")
            items: list[dict[str, dict[str, str]]] = json.loads(reply.read())["items"]
            return items
        finally:
            connection.close()


def _key(manifest: dict[str, dict[str, str]]) -> tuple[str, str]:
    return manifest["metadata"]["namespace"], manifest["metadata"]["name"]


def _endpoints(manifest: Mapping[str, object]) -> tuple[str, ...]:
    subsets = manifest.get("subsets") or []
    assert isinstance(subsets, list)
    return tuple(sorted({entry["ip"] for subset in subsets for entry in subset.get("addresses") or []}))


@dataclass
class Names:
    cluster: Cluster
    domain: str
    seen: set[str] = field(default_factory=set)

    def reply(self, message: bytes, limit: int) -> bytes | None:
        """The answer to a query; None when it is not one."""
        try:
            asked = parse(message)
        except Question:
            return None
        parts = asked.name.removesuffix(f".svc.{self.domain}").split(".")
        if not asked.name.endswith(f".svc.{self.domain}"):
            return answer(asked, NO_NAME if asked.name.endswith(self.domain) else REFUSED, (), limit)
        if len(parts) != 2:
            return answer(asked, NO_NAME, (), limit)
        try:
            addresses = self.cluster.addresses(*parts)
        except OSError:
            return answer(asked, SERVER_FAILURE, (), limit)
        if addresses is None:
            return answer(asked, NO_NAME, (), limit)
        return answer(asked, NO_ERROR, addresses if asked.type == TYPE_A else (), limit)


def serve(names: Names, address: str, port: int) -> None:
    """Answer until killed."""

    class Datagram(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            message, socket = self.request
            reply = names.reply(message, UDP_LIMIT)
            if reply is not None:
                socket.sendto(reply, self.client_address)

    class Stream(socketserver.StreamRequestHandler):
        timeout = 5

        def handle(self) -> None:
            while len(header := self.rfile.read(2)) == 2:
                reply = names.reply(self.rfile.read(struct.unpack("!H", header)[0]), 0xFFFF)
                if reply is None:
                    return
                self.wfile.write(struct.pack("!H", len(reply)) + reply)

    class Udp(socketserver.ThreadingUDPServer):
        daemon_threads, allow_reuse_address = True, True

    class Tcp(socketserver.ThreadingTCPServer):
        daemon_threads, allow_reuse_address = True, True

    with Udp((address, port), Datagram) as udp, Tcp((address, port), Stream) as tcp:
        threading.Thread(target=tcp.serve_forever, daemon=True).start()
        print(f"dns: listening on {address}:{port}", file=sys.stderr, flush=True)
        udp.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--listen", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=10053)
    parser.add_argument("--domain", default="cluster.local")
    options = parser.parse_args()
    serve(Names(Cluster(options.kubeconfig), options.domain), options.listen, options.port)


if __name__ == "__main__":
    main()
