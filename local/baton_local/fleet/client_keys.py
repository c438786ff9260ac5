"""Who may ask a local deployment: anybody on loopback, elsewhere whoever has a key, or anybody where that was said.

Keys come from a flag, a file or the environment. They reach the gateway as a file and stand in no other argument, log
or environment of a child.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from baton_gateway.http_api.tenants import KEY_WORDS, Tenants, first_key, is_key
from baton_local.errors import StartError
from baton_local.fleet.record import RunRecord
from baton_local.fleet.run_dir import RunDir, write_private
from baton_local.shared_options import KEY_VARIABLE

_WAYS = f"--api-key-file FILE, {KEY_VARIABLE} or --api-key"


@dataclass(frozen=True, slots=True)
class AskedKeys:
    """What the command line and the environment say."""

    key: str | None = None
    file: Path | None = None
    is_open: bool = False


NOTHING_SAID = AskedKeys()


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """What the gateway is to ask for; at most one of both, None in both: for nothing."""

    text: str | None = None
    file: Path | None = None

    def placed(self, run: RunDir) -> Path | None:
        """The file that the gateway reads, and reads again when it changes."""
        if self.text is None:
            return self.file
        write_private(run.api_keys, self.text + "\n")
        return run.api_keys


def client_keys(asked: AskedKeys, environment: Mapping[str, str], says_open: bool, host: str) -> ClientKeys:
    """Whom the gateway serves on this address; `says_open`: the manifest has `openAccess`. Raises StartError, which
    never repeats a key.
    """
    if asked.key is not None and asked.file is not None:
        raise StartError("--api-key and --api-key-file: give one of them")
    text = asked.key if asked.key is not None or asked.file is not None else environment.get(KEY_VARIABLE)
    if text is not None or asked.file is not None:
        if asked.is_open:
            raise StartError(f"--open: not allowed together with a key ({_WAYS})")
        return _checked(text, asked.file, "--api-key" if asked.key is not None else KEY_VARIABLE)
    if not (asked.is_open or says_open or _is_loopback(host)):
        raise StartError(f"--host {host}: whoever reaches it could ask: give {_WAYS}, or say --open")
    return ClientKeys()


def key_for(record: RunRecord, environment: Mapping[str, str]) -> str | None:
    """With which key a command on this machine asks the running deployment; None: it needs none. Raises StartError."""
    if given := environment.get(KEY_VARIABLE):
        return given
    if record.api_keys is None:
        return None
    try:
        found = first_key(Path(record.api_keys))
    except (OSError, ValueError) as error:
        raise StartError(f"the deployment's API keys cannot be read: {error}") from error
    if found is None:
        raise StartError(f"{record.api_keys} has digests only: set {KEY_VARIABLE} to a key")
    return found


def _checked(text: str | None, file: Path | None, name: str) -> ClientKeys:
    if text is not None:
        if not is_key(text):
            raise StartError(f"{name} is not allowed: must be {KEY_WORDS}")
        return ClientKeys(text=text)
    assert file is not None
    file = file.absolute()
    try:
        Tenants(file)
    except ValueError as error:
        raise StartError(f"--api-key-file: {error}") from error
    return ClientKeys(file=file)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
