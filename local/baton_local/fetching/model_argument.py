"""What stands behind `baton up`: a folder, or a source to fetch, with or without the commit that pins it. Pure."""

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
    """A repository of the hub by branch or tag: it means another commit tomorrow."""

    repository: str
    revision: str

    def pinned(self, commit: str) -> str:
        return f"hf://{self.repository}@{commit}"


def asked_model(text: str) -> Path | ModelSource | HubName:
    """A folder of this machine, a pinned source, or a name to resolve. Raises StartError."""
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
        raise StartError(f"{text}: a claim is named in an LLMDeployment: use -f FILE with --volume")
    if source.scheme is Scheme.RANDOM:
        raise StartError(f"{text}: random weights are named in an LLMDeployment: use -f FILE")
    return Path(str(source.path)) if source.scheme is Scheme.FILE else source


def served_name(asked: Path | ModelSource | HubName) -> str:
    """What clients write as `model`: the repository for the hub, elsewhere the last name."""
    if isinstance(asked, HubName):
        return asked.repository
    if isinstance(asked, Path):
        return asked.resolve().name
    if asked.scheme is Scheme.HF:
        return str(asked.place)
    return str(asked.path or asked.place).rstrip("/").rpartition("/")[2]


def deployment_name(served: str) -> str:
    """A name that Kubernetes takes too, from the last part of what is served."""
    name = re.sub(r"[^a-z0-9]+", "-", served.rpartition("/")[2].lower()).strip("-")
    name = name if name[:1].isalpha() else f"m-{name}"
    return name[:MAX_NAME].rstrip("-")
