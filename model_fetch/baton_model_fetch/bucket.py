"""s3://BUCKET/PREFIX over the S3 API: every object below the prefix, unchanged between listing and reading."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import datetime
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from urllib.parse import quote

from baton_model_fetch import web
from baton_model_fetch.credentials import Credentials
from baton_model_fetch.errors import Damaged
from baton_model_fetch.listing import HashKind, RemoteFile, check_files, is_wanted, safe_path
from baton_model_fetch.sigv4 import signed_headers

MAX_PAGES = 100
_MD5 = re.compile(r"[0-9a-f]{32}")
Signer = Callable[[str, Mapping[str, str]], dict[str, str]]


def signer(credentials: Credentials, now: Callable[[], datetime.datetime]) -> Signer:
    """A function that signs a request when it is sent, since signatures expire. Raises SourceRefused."""
    key, region = credentials.aws_key(), credentials.region

    def sign(url: str, headers: Mapping[str, str]) -> dict[str, str]:
        if key is None:
            return dict(headers)
        return signed_headers(url, key, region, now().strftime("%Y%m%dT%H%M%SZ"), headers)

    return sign


async def list_files(
    session: web.SourceSession, bucket: str, prefix: str, credentials: Credentials, sign: Signer
) -> tuple[RemoteFile, ...]:
    """The objects below `prefix/` that Baton reads. Raises FetchError."""
    base = f"{credentials.endpoint or f'https://s3.{credentials.region}.amazonaws.com'}/{bucket}"
    token, files = "", list[RemoteFile]()
    for _ in range(MAX_PAGES):
        query = {"list-type": "2", "prefix": f"{prefix}/"} | ({"continuation-token": token} if token else {})
        url = f"{base}?" + "&".join(f"{name}={quote(value, safe='~')}" for name, value in sorted(query.items()))
        body, _ = await web.text(session, url, sign(url, {}))
        page, token = read_page(body, base, f"{prefix}/")
        files += page
        if not token:
            return check_files(files)
    raise Damaged(f"the listing has over {MAX_PAGES} pages")


def read_page(body: bytes, base: str, prefix: str) -> tuple[list[RemoteFile], str]:
    """Files of one page of ListObjectsV2, and the token of the next, empty at the end. Raises Damaged."""
    try:
        root = ElementTree.fromstring(body)
        space = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
        files = [_file(entry, space, base, prefix) for entry in root.iter(f"{space}Contents")]
        return [file for file in files if file is not None], root.findtext(f"{space}NextContinuationToken", "")
    except (ElementTree.ParseError, ValueError) as error:
        raise Damaged(f"the bucket's listing cannot be read: {error}") from error


def _file(entry: ElementTree.Element, space: str, base: str, prefix: str) -> RemoteFile | None:
    key = entry.findtext(f"{space}Key", "")
    if not key.startswith(prefix) or key.endswith("/") or not is_wanted(safe_path(key.removeprefix(prefix))):
        return None
    etag = entry.findtext(f"{space}ETag", "")
    digest = etag.strip('"')
    is_md5 = _MD5.fullmatch(digest) is not None  # an upload in parts has another ETag
    return RemoteFile(
        path=key.removeprefix(prefix),
        size=int(entry.findtext(f"{space}Size", "")),
        url=f"{base}/{quote(key)}",
        hash_kind=HashKind.MD5 if is_md5 else None,
        digest=digest if is_md5 else "",
        headers={"x-amz-checksum-mode": "ENABLED", **({"If-Match": etag} if etag else {})},
    )


def with_reply_hash(file: RemoteFile, reply: Mapping[str, str]) -> RemoteFile:
    """The file with the hash from the reply to its GET: a SHA-256 of the whole is better than an MD5, and the ETag of
    an object that is encrypted with a key of its own is not an MD5."""
    checksum = reply.get("x-amz-checksum-sha256", "")
    if checksum and "-" not in checksum:
        try:
            digest = base64.b64decode(checksum, validate=True).hex()
        except binascii.Error as error:
            raise Damaged(f"{file.path}: x-amz-checksum-sha256 is not base64") from error
        return dataclasses.replace(file, hash_kind=HashKind.SHA256, digest=digest)
    encryption = reply.get("x-amz-server-side-encryption", "")
    if encryption.startswith("aws:kms") or "x-amz-server-side-encryption-customer-algorithm" in reply:
        return dataclasses.replace(file, hash_kind=None, digest="")
    return file
