"""The files of a source: paths, sizes, and the hash that proves each complete."""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from baton_model_fetch.errors import Damaged, SourceRefused

MAX_FILES = 10_000
MAX_PATH = 512
_SAFE_PART = re.compile(r"[^/\x00-\x1f\x7f\\]+")
_KEPT = re.compile(r".*\.(safetensors|json|txt|model|jinja|tiktoken|md)|LICENSE[^/]*|NOTICE[^/]*")
_LEFT = re.compile(r"(.*/)?(original|onnx|openvino|gguf|\.git)/.*|.*/\..*|\..*")


_SECOND_COPY = re.compile(r"consolidated[^/]*\.safetensors(\.index\.json)?")
"""Mistral's repositories have the weights twice: in these files with a layout of their own, and in the usual ones."""
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


class HashKind(enum.StrEnum):
    SHA256 = "sha256"
    MD5 = "md5"
    GIT_BLOB = "git-blob"
    """SHA-1 of `blob SIZE\\0` and the content, by which git names a file."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    path: str
    """Relative, with `/`, free of `..`."""
    size: int
    url: str
    hash_kind: HashKind | None = None
    digest: str = ""
    """Hex. Where the source gives none, the size is all that can be checked."""
    headers: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Headers of the request for it, next to its signature."""
    is_archive: bool = False
    """A tar, plain or gzipped, whose files are the model's."""


class Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


def hasher(file: RemoteFile) -> Hash | None:
    """The hash object for the file's digest; None where the source gives no digest."""
    if file.hash_kind is HashKind.SHA256:
        return hashlib.sha256()
    if file.hash_kind is HashKind.MD5:
        return hashlib.md5(usedforsecurity=False)
    if file.hash_kind is HashKind.GIT_BLOB:
        return hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)
    return None


def safe_path(text: str) -> str:
    """A path that stays inside the model's folder. Raises Damaged."""
    parts = text.split("/")
    if len(text) > MAX_PATH or any(part in ("", ".", "..") or not _SAFE_PART.fullmatch(part) for part in parts):
        raise Damaged(f"the source names a file {text[:MAX_PATH]!r}, which is not a path inside a folder")
    return text


def is_wanted(path: str) -> bool:
    """True if Baton reads such a file: safetensors, configuration, tokenizer; no other weights, nothing hidden."""
    return _KEPT.fullmatch(path) is not None and _LEFT.fullmatch(path) is None


def check_files(files: Iterable[RemoteFile]) -> tuple[RemoteFile, ...]:
    """The files in order, without Mistral's second copy of the weights. Raises SourceRefused for none or too many,
    Damaged for paths that are taken twice."""
    unique = tuple(sorted(files, key=lambda file: file.path))
    if any(file.path in _WEIGHTS for file in unique):
        unique = tuple(file for file in unique if _SECOND_COPY.fullmatch(file.path) is None)
    if not unique:
        raise SourceRefused("the source has no files that Baton reads (safetensors, json, txt)")
    if len(unique) > MAX_FILES:
        raise SourceRefused(f"the source has {len(unique)} files: at most {MAX_FILES} are allowed")
    paths = {file.path for file in unique}
    if len(paths) < len(unique):
        raise Damaged("the source names a file twice")
    for path in paths:
        if any(path.startswith(f"{other}/") for other in _parents(path) & paths):
            raise Damaged(f"the source has {path!r} below a file")
    return unique


def _parents(path: str) -> set[str]:
    parts = path.split("/")
    return {"/".join(parts[:count]) for count in range(1, len(parts))}
