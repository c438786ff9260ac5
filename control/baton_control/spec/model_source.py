"""Model sources: `file://`, `pvc://`, `hf://`, `s3://`, `oci://` and `random://` URLs, parsed in one place.

The site decides which sources it can reach; this module only parses them.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, StringConstraints
from pydantic_core import PydanticCustomError

from baton_control.spec.resource_quantities import Allowed


class Scheme(enum.StrEnum):
    """Scheme of a model source."""

    FILE = "file"
    RANDOM = "random"
    """Random weights for the shape in a config.json, for measurements."""
    PVC = "pvc"
    HF = "hf"
    S3 = "s3"
    OCI = "oci"


_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_SHAPES = {
    Scheme.FILE: re.compile(r"(?P<path>/?[^\x00-\x1f\x7f/][^\x00-\x1f\x7f]*)"),
    Scheme.RANDOM: re.compile(r"(?P<path>/?[^\x00-\x1f\x7f/?][^\x00-\x1f\x7f?]*\.json)"),
    Scheme.PVC: re.compile(rf"(?P<place>[a-z0-9][a-z0-9.-]*)/(?P<path>{_PART}(/{_PART})*)"),
    Scheme.HF: re.compile(rf"(?P<place>{_PART}/{_PART})@(?P<revision>[0-9a-f]{{40}})"),
    Scheme.S3: re.compile(rf"(?P<place>[a-z0-9][a-z0-9.-]*)/(?P<path>{_PART}(/{_PART})*)"),
    Scheme.OCI: re.compile(rf"(?P<place>{_PART}(:[0-9]{{1,5}})?(/{_PART})+)@(?P<revision>sha256:[0-9a-f]{{64}})"),
}
ALLOWED = (
    "file://PATH, pvc://CLAIM/PATH, s3://BUCKET/PATH, hf://ORG/NAME@COMMIT (40 hex digits) "
    "or oci://IMAGE@sha256:DIGEST, or random://CONFIG.json for random weights of that shape; no '..' in a path"
)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A parsed `model.source`."""

    scheme: Scheme
    place: str | None
    """Claim, bucket, repository or image; None for `file://` and `random://`."""
    path: str | None
    """Path inside the place, or on the file system; None: the whole place."""
    revision: str | None
    """Pinned commit or digest; None: the scheme has none."""

    @property
    def is_remote(self) -> bool:
        """True when the model has to be fetched before a worker can read it."""
        return self.scheme in (Scheme.HF, Scheme.S3, Scheme.OCI)


def parse_source(text: str) -> ModelSource:
    """The parts of a model source. Raises ValueError when it has none of the allowed forms.

    >>> parse_source("pvc://models/llama-3.1-8b")
    ModelSource(scheme=<Scheme.PVC: 'pvc'>, place='models', path='llama-3.1-8b', revision=None)
    >>> parse_source("s3://bucket/llama").is_remote
    True
    """
    name, separator, rest = text.partition("://")
    if not separator or name not in set(Scheme):
        raise ValueError(f"must be {ALLOWED}")
    match = _SHAPES[Scheme(name)].fullmatch(rest)
    if match is None or ".." in re.split(r"[/@]", rest):
        raise ValueError(f"must be {ALLOWED}")
    parts = match.groupdict()
    return ModelSource(Scheme(name), parts.get("place"), parts.get("path"), parts.get("revision"))


def source_pattern() -> str:
    """One regular expression for all forms, for the CRD; it does not express that a path must not have '..'."""
    shapes = "|".join(f"{scheme}://{shape.pattern}" for scheme, shape in _SHAPES.items())
    return f"^({re.sub(r'[?]P<[a-z]+>', '', shapes)})$"


def _checked(text: str) -> str:
    try:
        parse_source(text)
    except ValueError as error:
        raise PydanticCustomError("quantity", "not a model source") from error
    return text


SourceText = Annotated[str, StringConstraints(min_length=1, max_length=512), AfterValidator(_checked), Allowed(ALLOWED)]
