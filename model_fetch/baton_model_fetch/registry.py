"""oci://REGISTRY/NAME@sha256:DIGEST over the registry API: the layers of one manifest, each by its own digest.

Files come as layers that say their path (`org.opencontainers.image.title`, ModelPack's `org.cncf.model.filepath`) or in
layers that are tar archives. Follows the OCI distribution and image specifications 1.1.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from urllib.parse import urlencode

from yarl import URL

from baton_model_fetch import web
from baton_model_fetch.credentials import Credentials
from baton_model_fetch.errors import Damaged, SourceRefused
from baton_model_fetch.listing import HashKind, RemoteFile, check_files, is_wanted, safe_path

INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_TYPES = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
TITLES = ("org.cncf.model.filepath", "org.opencontainers.image.title")
KNOWN_TOKEN_HOSTS = {
    **dict.fromkeys(("docker.io", "index.docker.io", "registry-1.docker.io"), ("auth.docker.io",)),
    "registry.gitlab.com": ("gitlab.com",),
}
"""Public registries whose tokens come from another host."""
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


async def list_files(
    session: web.SourceSession, registry: str, name: str, digest: str, credentials: Credentials
) -> tuple[RemoteFile, ...]:
    """The model's layers. Raises FetchError."""
    base = f"{credentials.endpoint or f'https://{registry}'}/v2/{name}"
    login = credentials.registry_login(registry)
    friends = {*KNOWN_TOKEN_HOSTS.get(registry, ()), *credentials.hosts}
    headers = await _authorise(session, f"{base}/manifests/{digest}", name, login, friends)
    manifest = await _manifest(session, base, digest, headers)
    if manifest.get("mediaType") in INDEX_TYPES or "manifests" in manifest:
        manifest = await _manifest(session, base, only_manifest(manifest), headers)
    return read_layers(manifest, base, headers)


async def _manifest(
    session: web.SourceSession, base: str, digest: str, headers: Mapping[str, str]
) -> Mapping[str, object]:
    accept = {"Accept": ", ".join((*MANIFEST_TYPES, *INDEX_TYPES))}
    body, _ = await web.text(session, f"{base}/manifests/{digest}", {**headers, **accept})
    if f"sha256:{hashlib.sha256(body).hexdigest()}" != digest:
        raise Damaged(f"the manifest that came is not {digest}")
    try:
        manifest = json.loads(body)
    except ValueError as error:
        raise Damaged(f"manifest {digest} is not JSON: {error}") from error
    if not isinstance(manifest, dict):
        raise Damaged(f"manifest {digest} is no manifest")
    return manifest


def only_manifest(index: Mapping[str, object]) -> str:
    """The digest of an index's manifest: the only one, or the one for amd64. Raises SourceRefused, Damaged."""
    entries = index.get("manifests")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise Damaged("the index has no list of manifests")
    real = [entry for entry in entries if "vnd.docker.reference.type" not in (entry.get("annotations") or {})]
    fitting = [entry for entry in real if (entry.get("platform") or {}).get("architecture") == "amd64"]
    chosen = real if len(real) == 1 else fitting
    if len(chosen) != 1:
        raise SourceRefused(f"the index has {len(real)} manifests: name the one with the model by its own digest")
    return f"sha256:{_hex(chosen[0].get('digest'))}"


def read_layers(manifest: Mapping[str, object], base: str, headers: Mapping[str, str]) -> tuple[RemoteFile, ...]:
    """Files and archives of a manifest. Raises SourceRefused, Damaged."""
    layers = manifest.get("layers")
    if not isinstance(layers, list):
        raise Damaged("the manifest has no layers")
    files: dict[str, RemoteFile] = {}
    for number, layer in enumerate(layers):
        try:
            digest, size, media = _hex(layer["digest"]), int(layer["size"]), str(layer["mediaType"])
            annotations = layer.get("annotations") or {}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Damaged(f"layer {number} cannot be read: {error}") from error
        title = next((str(annotations[key]) for key in TITLES if key in annotations), None)
        is_archive = re.search(r"(\.|\+)tar(\+gzip|\.gzip|$)|tar\+gzip$|\.tar$", media) is not None
        if "zstd" in media or "encrypted" in media:
            raise SourceRefused(f"layer {number} is {media}: must be a file, a tar or a gzipped tar")
        if not is_archive and (title is None or not is_wanted(title)):
            continue
        path = f"layer-{number}.tar" if is_archive else safe_path(str(title))
        url = f"{base}/blobs/sha256:{digest}"
        files[path] = RemoteFile(path, size, url, HashKind.SHA256, digest, headers, is_archive)
    return check_files(files.values())


def _hex(digest: object) -> str:
    match = _DIGEST.fullmatch(str(digest))
    if match is None:
        raise Damaged(f"{str(digest)[:80]!r} is not sha256:…")
    return match.group(1)


def token_server(realm: str, registry: str, friends: Collection[str]) -> str:
    """The realm of a challenge, if a token may be requested there. Raises SourceRefused for any other."""
    try:
        asked, own = URL(realm), URL(registry)
        is_own = asked.origin() == own.origin()
    except ValueError as error:
        raise SourceRefused("the registry's challenge names no place for tokens") from error
    if is_own or (asked.scheme == "https" and (asked.host == own.host or asked.host in friends)):
        return realm
    raise SourceRefused(
        f"the registry wants a token asked for at {asked.origin()}, which is not its own: name that host in the "
        "credentials' hosts, and use https"
    )


async def _authorise(
    session: web.SourceSession, url: str, name: str, login: tuple[str, str] | None, friends: Collection[str]
) -> dict[str, str]:
    """Headers that authorise a request to the registry: none, the login itself, or a token obtained with the login.

    The registry names its token server, which is asked only if it is the registry's own or one of `friends`.
    """
    basic = {} if login is None else {"Authorization": f"Basic {base64.b64encode(':'.join(login).encode()).decode()}"}
    async with web.opened(session, url, {}, allow=frozenset({401, 404})) as reply:
        challenge = reply.headers.get("WWW-Authenticate", "") if reply.status == 401 else ""
    if not challenge.lower().startswith("bearer"):
        return basic if challenge else {}
    given = dict(_PARAMETER.findall(challenge))
    realm = token_server(given.get("realm", ""), url, friends)
    query = {"scope": given.get("scope", f"repository:{name}:pull")}
    query |= {"service": given["service"]} if "service" in given else {}
    body, _ = await web.text(session, f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}", basic)
    try:
        answer = json.loads(body)
        token = answer.get("token") or answer["access_token"]
    except (ValueError, KeyError, AttributeError) as error:
        raise Damaged("the registry's token cannot be read") from error
    return {"Authorization": f"Bearer {token}"}
