"""Credentials for fetching, as files of a mounted Secret. Nothing here is ever logged.

| scheme | files |
|---|---|
| hf | `HF_TOKEN` |
| s3 | `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION` |
| oci | `.dockerconfigjson`, or `username` and `password` |

`sources` is required: beginnings of the sources that these credentials are for, one a line. So the owner of the Secret
decides about its use, and not the author of an LLMDeployment that names it. `endpoint` names another server than the
public one: a mirror, an S3-compatible store, a registry's URL. `hosts` has further hosts that belong to it, one a line:
token servers, stores that bodies are redirected to. Both may have private addresses.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from pathlib import Path

from yarl import URL

from baton_model_fetch.errors import SourceRefused
from baton_model_fetch.sigv4 import AwsKey

MAX_BYTES = 64 << 10
_HOST = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of one fetch; empty where nothing is mounted."""

    folder: Path | None

    @property
    def endpoint(self) -> str | None:
        """URL without a slash at its end. Raises SourceRefused unless it is http(s)."""
        url = self._text("endpoint")
        if url is not None and not url.startswith(("https://", "http://")):
            raise SourceRefused("the credentials' endpoint is not allowed: must begin with https:// or http://")
        return None if url is None else url.rstrip("/")

    @property
    def hosts(self) -> frozenset[str]:
        """Hosts that may have any address: the one of `endpoint`, and those in `hosts`. Raises SourceRefused."""
        named = frozenset(self._lines("hosts"))
        wrong = [host for host in named if _HOST.fullmatch(host) is None]
        if wrong:
            raise SourceRefused(f"the credentials' hosts has {wrong[0][:80]!r}: must be host names, one a line")
        endpoint_host = URL(self.endpoint).host if self.endpoint is not None else None
        return named | ({endpoint_host} if endpoint_host else set())

    def check(self, source: str) -> None:
        """Raises SourceRefused unless there are no credentials, or they are for this source."""
        if self.folder is None:
            return
        named = self._lines("sources")
        if not any(begins(source, beginning) for beginning in named):
            what = ", ".join(named) if named else "nothing"
            raise SourceRefused(
                f"the credentials are for {what}: to allow this source, their Secret needs a key 'sources' with "
                f"{source.partition('@')[0]!r} or a beginning of it"
            )

    @property
    def hf_token(self) -> str | None:
        return self._text("HF_TOKEN")

    @property
    def region(self) -> str:
        return self._text("AWS_REGION") or "us-east-1"

    def aws_key(self) -> AwsKey | None:
        """None: anonymous. Raises SourceRefused for half a key."""
        access, secret = self._text("AWS_ACCESS_KEY_ID"), self._text("AWS_SECRET_ACCESS_KEY")
        if access is None and secret is None:
            return None
        if access is None or secret is None:
            raise SourceRefused("the credentials have one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: must be both")
        return AwsKey(access, secret, self._text("AWS_SESSION_TOKEN"))

    def registry_login(self, registry: str) -> tuple[str, str] | None:
        """User and password for a registry. Raises SourceRefused for a file that is none of Docker's."""
        config = self._text(".dockerconfigjson")
        if config is not None:
            return _docker_login(config, registry)
        user, password = self._text("username"), self._text("password")
        if user is None or password is None:
            return None
        if not any(begins(beginning, f"oci://{registry}") for beginning in self._lines("sources")):
            raise SourceRefused(f"the credentials' username and password are not for {registry}: name it in 'sources'")
        return user, password

    def _lines(self, name: str) -> tuple[str, ...]:
        return tuple((self._text(name) or "").split())

    def _text(self, name: str) -> str | None:
        path = None if self.folder is None else self.folder / name
        if path is None or not path.is_file():
            return None
        with path.open("rb") as file:
            content = file.read(MAX_BYTES)
        try:
            return content.decode().strip() or None
        except UnicodeDecodeError:
            raise SourceRefused(f"the credentials' {name} is not text") from None


def begins(source: str, beginning: str) -> bool:
    """True if `source` is `beginning` or is below it: a part of a host's or folder's name does not count."""
    if "://" not in beginning or not source.startswith(beginning):
        return False
    return beginning.endswith("/") or source[len(beginning) : len(beginning) + 1] in ("", "/", "@")


def _docker_login(config: str, registry: str) -> tuple[str, str] | None:
    try:
        entry = json.loads(config)["auths"].get(registry)
        if entry is None:
            return None
        if "auth" in entry:
            user, _, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
            return user, password
        return str(entry["username"]), str(entry["password"])
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
        raise SourceRefused(
            "the credentials' .dockerconfigjson is not Docker's: must be {auths: {REGISTRY: …}}"
        ) from None
