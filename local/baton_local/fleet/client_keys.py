"""API keys of a local deployment: none on loopback, required elsewhere unless --open or the manifest waives them.

Keys come from a flag, a file or the environment. They reach the gateway as a file, and appear in no other argument, log
or environment of a child.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from baton_gateway.tenancy.key_files import KEY_WORDS, KeyFiles, first_key, is_key
from baton_local.errors import StartError
from baton_local.fleet.record import RunRecord
from baton_local.fleet.run_dir import RunDir, write_private
from baton_local.shared_options import KEY_VARIABLE

_WAYS = f"--api-key-file FILE, {KEY_VARIABLE} or --api-key"


@dataclass(frozen=True, slots=True)
class KeyOptions:
    """The key options of the command line."""

    key: str | None = None
    file: Path | None = None
    is_open: bool = False


NO_KEY_OPTIONS = KeyOptions()


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """The keys that the gateway accepts: a text or a file. Neither: it needs no key."""

    text: str | None = None
    file: Path | None = None

    def place(self, run: RunDir) -> Path | None:
        """Write a key given as text into the run directory; returns the file that the gateway reads on every change."""
        if self.text is None:
            return self.file
        write_private(run.api_keys, self.text + "\n")
        return run.api_keys


def client_keys(options: KeyOptions, environment: Mapping[str, str], open_access: bool, host: str) -> ClientKeys:
    """The keys that the gateway accepts on this address. `open_access`: the manifest waives keys. Raises StartError,
    which never repeats a key.
    """
    if options.key is not None and options.file is not None:
        raise StartError("--api-key and --api-key-file: give one of them")
    text = options.key if options.key is not None or options.file is not None else environment.get(KEY_VARIABLE)
    if text is not None or options.file is not None:
        if options.is_open:
            raise StartError(f"--open: not allowed together with a key ({_WAYS})")
        return _check(text, options.file, "--api-key" if options.key is not None else KEY_VARIABLE)
    if not (options.is_open or open_access or _is_loopback(host)):
        raise StartError(f"--host {host}: other machines could send requests: give {_WAYS}, or --open")
    return ClientKeys()


def key_for(record: RunRecord, environment: Mapping[str, str]) -> str | None:
    """The key that a command sends to the running deployment; None: it needs none. Raises StartError."""
    if key := environment.get(KEY_VARIABLE):
        return key
    if record.api_keys is None:
        return None
    try:
        key = first_key(Path(record.api_keys))
    except (OSError, ValueError) as error:
        raise StartError(f"the deployment's API keys cannot be read: {error}") from error
    if key is None:
        raise StartError(f"{record.api_keys} has digests only: set {KEY_VARIABLE} to a key")
    return key


def _check(text: str | None, file: Path | None, name: str) -> ClientKeys:
    if text is not None:
        if not is_key(text):
            raise StartError(f"{name} is not allowed: must be {KEY_WORDS}")
        return ClientKeys(text=text)
    assert file is not None
    file = file.absolute()
    try:
        KeyFiles(file)
    except ValueError as error:
        raise StartError(f"--api-key-file: {error}") from error
    return ClientKeys(file=file)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
