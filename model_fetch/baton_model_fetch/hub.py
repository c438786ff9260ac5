"""hf://ORG/NAME@COMMIT over the hub's HTTP API: the tree of a commit, with git's and LFS's hash of every file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from urllib.parse import quote

from baton_model_fetch import web
from baton_model_fetch.credentials import Credentials
from baton_model_fetch.errors import Damaged
from baton_model_fetch.listing import HashKind, RemoteFile, check_files, is_wanted, safe_path

PUBLIC = "https://huggingface.co"
MAX_PAGES = 100
_COMMIT = re.compile(r"[0-9a-f]{40}")


async def list_files(
    session: web.SourceSession, repository: str, commit: str, credentials: Credentials
) -> tuple[RemoteFile, ...]:
    """The files of the commit that Baton reads. Raises FetchError."""
    base = credentials.endpoint or PUBLIC
    headers = {} if credentials.hf_token is None else {"Authorization": f"Bearer {credentials.hf_token}"}
    url: str | None = f"{base}/api/models/{repository}/tree/{commit}?recursive=true&limit=1000"
    files: list[RemoteFile] = []
    for _ in range(MAX_PAGES):
        if url is None:
            return check_files(files)
        body, reply = await web.text(session, url, headers)
        files += read_tree(body, f"{base}/{repository}/resolve/{commit}", headers)
        url = _next(reply.get("Link", ""), base)
    raise Damaged(f"the tree has over {MAX_PAGES} pages")


async def resolve_commit(session: web.SourceSession, repository: str, revision: str, credentials: Credentials) -> str:
    """The commit that a branch or tag means now. Raises FetchError."""
    base = credentials.endpoint or PUBLIC
    headers = {} if credentials.hf_token is None else {"Authorization": f"Bearer {credentials.hf_token}"}
    body, _ = await web.text(session, f"{base}/api/models/{repository}/revision/{quote(revision, safe='')}", headers)
    try:
        commit = str(json.loads(body)["sha"])
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"the hub's answer about {repository} cannot be read: {error}") from error
    if _COMMIT.fullmatch(commit) is None:
        raise Damaged(f"the hub's answer about {repository} names no commit")
    return commit


def read_tree(body: bytes, base: str, headers: Mapping[str, str]) -> list[RemoteFile]:
    """The files of one page that Baton reads. Raises Damaged."""
    files = []
    try:
        for entry in json.loads(body):
            if entry["type"] != "file" or not is_wanted(path := safe_path(str(entry["path"]))):
                continue
            lfs = entry.get("lfs")
            kind = HashKind.GIT_BLOB if lfs is None else HashKind.SHA256
            digest = str(entry["oid"] if lfs is None else lfs["oid"]).removeprefix("sha256:")
            size = int(entry["size"] if lfs is None else lfs["size"])
            files.append(RemoteFile(path, size, f"{base}/{quote(path)}", kind, digest, headers))
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"the hub's tree cannot be read: {error}") from error
    return files


def _next(link: str, base: str) -> str | None:
    """The next page of a Link header, on the same server only: the token goes with it."""
    for part in link.split(","):
        target, _, relation = part.partition(";")
        if 'rel="next"' in relation:
            url = target.strip().strip("<>")
            return url if url.startswith(f"{base}/") else None
    return None
