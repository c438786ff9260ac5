"""The certificate that clients see: read from a mounted folder, and again when it changes; nothing restarts.

The folder is what a Secret of type kubernetes.io/tls looks like: tls.crt with the chain, tls.key without a password.
"""

from __future__ import annotations

import ssl
from pathlib import Path

CHAIN, KEY = "tls.crt", "tls.key"


class CertificateError(ValueError):
    """The files are not there, or are no certificate and its key."""


class Certificate:
    """What a listener presents; connections that stand keep what they were made with."""

    def __init__(self, folder: Path) -> None:
        """Raises CertificateError."""
        self._folder = folder
        self._read_last = self._read()
        self.context = _context()
        self.context.set_alpn_protocols(["http/1.1"])
        _load(self.context, folder)

    def refresh(self) -> bool:
        """Take the files as they are now; whether they had changed. Raises CertificateError once for files that are
        wrong: the former certificate stays."""
        found = self._read()
        if found == self._read_last:
            return False
        self._read_last = found
        _load(_context(), self._folder)  # tried apart: a wrong key must not spoil the context in use
        _load(self.context, self._folder)
        return True

    def _read(self) -> tuple[bytes, bytes]:
        try:
            return (self._folder / CHAIN).read_bytes(), (self._folder / KEY).read_bytes()
        except OSError as error:
            raise CertificateError(f"{error.filename}: {error.strerror or error}") from error


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _load(context: ssl.SSLContext, folder: Path) -> None:
    try:  # with a password at hand, or a locked key would ask for one on a terminal
        context.load_cert_chain(folder / CHAIN, folder / KEY, password=lambda: "")
    except (OSError, ValueError) as error:
        raise CertificateError(f"{folder}: {CHAIN} and {KEY} are no certificate and its key: {error}") from error
