"""The MODEL argument of `baton up`: a folder, or a remote source with or without a pinned commit. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from baton_control.spec.model_source import ALLOWED, ModelSource, Scheme, parse_source
from baton_local.errors import StartError

_UNPINNED = re.compile(r"hf://(?P<repository>[^@/\s]+/[^@/\s]+)(@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]{0,254}))?")
MAIN = "main"
MAX_NAME = 36


@dataclass(frozen=True, slots=True)
class HubName:
    """A hub repository at a branch or tag, which may point to another commit tomorrow."""

    repository: str
    revision: str

    def pinned(self, commit: str) -> str:
        return f"hf://{self.repository}@{commit}"


def parse_model_argument(text: str) -> Path | ModelSource | HubName:
    """A local folder, a pinned source, or a hub name to resolve. Raises StartError.

    >>> parse_model_argument("hf://org/model@main")
    HubName(repository='org/model', revision='main')
    >>> parse_model_argument("s3://bucket/models/chat").place
    'bucket'
    """
    if "://" not in text:
        return Path(text)
    try:
        source = parse_source(text)
    except ValueError:
        match = _UNPINNED.fullmatch(text)
        if match is not None and ".." not in text:
            return HubName(match["repository"], match["revision"] or MAIN)
        message = f"{text[:200]!r} is not allowed: must be a folder, hf://ORG/NAME, or {ALLOWED}"
        raise StartError(message) from None
    if source.scheme is Scheme.PVC:
        raise StartError(f"{text}: only a manifest can name a claim: use -f FILE with --volume")
    if source.scheme is Scheme.RANDOM:
        raise StartError(f"{text}: only a manifest can name random weights: use -f FILE")
    return Path(str(source.path)) if source.scheme is Scheme.FILE else source


def served_name(model: Path | ModelSource | HubName) -> str:
    """The model name in requests: the repository of a hub model, else the last part of the path."""
    if isinstance(model, HubName):
        return model.repository
    if isinstance(model, Path):
        return model.resolve().name
    if model.scheme is Scheme.HF:
        return str(model.place)
    return str(model.path or model.place).rstrip("/").rpartition("/")[2]


def deployment_name(served: str) -> str:
    """A name that Kubernetes accepts, from the last part of the served name.

    >>> deployment_name("org/Llama-3.1-8B_Instruct")
    'llama-3-1-8b-instruct'
    """
    name = re.sub(r"[^a-z0-9]+", "-", served.rpartition("/")[2].lower()).strip("-")
    name = name if name[:1].isalpha() else f"m-{name}"
    return name[:MAX_NAME].rstrip("-")
