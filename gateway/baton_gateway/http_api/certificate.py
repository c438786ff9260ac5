"""The TLS certificate for clients: read from a mounted folder, and again when it changes, without a restart.

The folder has the files of a Secret of type kubernetes.io/tls: tls.crt with the chain, tls.key without a password.
"""

from __future__ import annotations

import ssl
from pathlib import Path

CHAIN, KEY = "tls.crt", "tls.key"


class CertificateError(ValueError):
    """The files are missing, or are not a certificate and its key."""


class Certificate:
    """The certificate that a listener presents. Open connections keep the one that they began with."""

    def __init__(self, folder: Path) -> None:
        """Raises CertificateError."""
        self._folder = folder
        self._read_last = self._read()
        self.context = _context()
        self.context.set_alpn_protocols(["http/1.1"])
        _load(self.context, folder)

    def refresh(self) -> bool:
        """Load the files if they changed, and return True then.

        Raises CertificateError once for wrong files; the former certificate stays in use.
        """
        content = self._read()
        if content == self._read_last:
            return False
        self._read_last = content
        _load(_context(), self._folder)  # tried on another context: a wrong key must not spoil the one in use
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
    try:  # with an empty password, or a locked key would prompt for one on the terminal
        context.load_cert_chain(folder / CHAIN, folder / KEY, password=lambda: "")
    except (OSError, ValueError) as error:
        raise CertificateError(f"{folder}: {CHAIN} and {KEY} are not a certificate and its key: {error}") from error
