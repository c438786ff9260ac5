"""The operator's master keys, which others may rotate: files of a folder, or a Secret that the operator makes once.

A Secret is made by a create; when another process was faster, the create conflicts and that process's Secret counts. An
existing Secret is never written. While the process runs, the keys are read again from time to time.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from baton_control.errors import OperatorError
from baton_operator.kube.kinds import SECRETS
from baton_operator.kube.kube_api import AlreadyExists, KubeApi, NotFound
from baton_operator.kube.labels import FIELD_MANAGER
from baton_operator.kube.object_fields import Manifest, mapping
from baton_wire.keys import MAX_KEYS, MIN_MASTER_BYTES

_ID = re.compile(r"[a-z0-9]([a-z0-9.-]{0,30}[a-z0-9])?")
FIRST_ID = "first"
"""The id of the key in a Secret that the operator makes."""
MADE_BYTES = 64
_ALPHABET = string.ascii_letters + string.digits


class MasterKeysError(OperatorError):
    """The source does not hold usable keys; never says what is in them."""


class MasterKeySource(Protocol):
    """A place that holds the master keys."""

    async def read(self, present: Mapping[str, bytes]) -> dict[str, bytes]:
        """The keys in the source now; `present`: the keys in use. Raises MasterKeysError, or KubeError when a server
        does not answer or refuses."""


class MasterKeys:
    """The keys in use, by key id; empty until the first `load`. A source that cannot be read leaves the last good set
    in use."""

    def __init__(self, source: MasterKeySource) -> None:
        self._source = source
        self._keys: Mapping[str, bytes] = {}

    def __call__(self) -> Mapping[str, bytes]:
        return self._keys

    async def load(self) -> bool:
        """Read the source; whether the set differs from the one before. Raises MasterKeysError and KubeError, with the
        old set still in use."""
        keys = await self._source.read(self._keys)
        changed, self._keys = keys != self._keys, keys
        return changed


class KeyFolder:
    """A folder with one file for each key, mounted from a Secret that others make."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def read(self, present: Mapping[str, bytes]) -> dict[str, bytes]:
        try:
            files = sorted(path for path in self._folder.iterdir() if path.is_file() and not path.name.startswith("."))
            keys = {path.name: path.read_bytes() for path in files}
        except OSError as error:
            raise MasterKeysError(f"master keys: {self._folder}: {error.strerror}") from error
        return _checked(keys, str(self._folder), "file")


class KeySecret:
    """A Secret in the operator's namespace, read through the API. One that is absent is made, with `make` for a first
    key; one that was deleted while its keys are in use is made again with these keys."""

    def __init__(self, api: KubeApi, namespace: str, name: str, make: Callable[[], bytes] | None = None) -> None:
        self._api, self._namespace, self._name = api, namespace, name
        self._make = make or make_key

    async def read(self, present: Mapping[str, bytes]) -> dict[str, bytes]:
        where = f"Secret {self._namespace}/{self._name}"
        try:
            live = await self._api.get(SECRETS, self._namespace, self._name)
        except NotFound:
            live = await self._create(present or {FIRST_ID: self._make()})
        return _checked(_decoded(live, where), where, "key")

    async def _create(self, keys: Mapping[str, bytes]) -> Manifest:
        data = {name: base64.b64encode(key).decode() for name, key in keys.items()}
        labels = {"app.kubernetes.io/component": "operator", "app.kubernetes.io/part-of": "baton"}
        metadata: Manifest = {"name": self._name, "namespace": self._namespace, "labels": labels}
        secret: Manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}
        try:
            return await self._api.create(SECRETS, secret, manager=FIELD_MANAGER)
        except AlreadyExists:  # another process was faster
            return await self._api.get(SECRETS, self._namespace, self._name)


def make_key() -> bytes:
    """A new random master key."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(MADE_BYTES)).encode()


def _decoded(secret: Manifest, where: str) -> dict[str, bytes]:
    """The keys in a Secret; dotted names are skipped, as in a mounted folder."""
    data = {name: str(text) for name, text in mapping(secret.get("data")).items() if not name.startswith(".")}
    try:
        return {name: base64.b64decode(text, validate=True) for name, text in sorted(data.items())}
    except binascii.Error as error:
        raise MasterKeysError(f"master keys: {where} is not base64") from error


def _checked(keys: dict[str, bytes], where: str, noun: str) -> dict[str, bytes]:
    """The keys, if they are usable. Raises MasterKeysError."""
    if not keys:
        raise MasterKeysError(f"master keys: {where} has no {noun}")
    if len(keys) > MAX_KEYS:
        raise MasterKeysError(f"master keys: {where} has {len(keys)} {noun}s: must be at most {MAX_KEYS}")
    for name, key in keys.items():
        if not _ID.fullmatch(name):
            raise MasterKeysError(f"master keys: {name!r} is not allowed: must be up to 32 of a-z, 0-9, '.' and '-'")
        if len(key) < MIN_MASTER_BYTES:
            raise MasterKeysError(f"master keys: {name} has {len(key)} bytes: must have at least {MIN_MASTER_BYTES}")
    return keys
