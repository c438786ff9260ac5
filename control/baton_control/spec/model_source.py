"""Where a model comes from: `file://`, `pvc://`, `hf://`, `s3://`, `oci://` and `random://`, taken apart once.

Deciding whether a site can reach a source is the site's business; here is only what the text means.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, StringConstraints
from pydantic_core import PydanticCustomError

from baton_control.spec.quantities import Allowed


class Scheme(enum.StrEnum):
    FILE = "file"
    RANDOM = "random"
    """Random weights of the shape that a config.json has, to measure with."""
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
    """Path inside the place, or on the file system; None where the place is all."""
    revision: str | None
    """Pinned commit or digest; None where the scheme has none."""

    @property
    def is_remote(self) -> bool:
        """Whether it has to be fetched before a worker can read it."""
        return self.scheme in (Scheme.HF, Scheme.S3, Scheme.OCI)


def parse_source(text: str) -> ModelSource:
    """The parts of a model source. Raises ValueError when it is not one of the allowed forms."""
    name, separator, rest = text.partition("://")
    if not separator or name not in set(Scheme):
        raise ValueError(f"must be {ALLOWED}")
    match = _SHAPES[Scheme(name)].fullmatch(rest)
    if match is None or ".." in re.split(r"[/@]", rest):
        raise ValueError(f"must be {ALLOWED}")
    parts = match.groupdict()
    return ModelSource(Scheme(name), parts.get("place"), parts.get("path"), parts.get("revision"))


def source_pattern() -> str:
    """One regular expression for all forms, without the rule that a path has no '..'; for readers other than Python."""
    shapes = "|".join(f"{scheme}://{shape.pattern}" for scheme, shape in _SHAPES.items())
    return f"^({re.sub(r'[?]P<[a-z]+>', '', shapes)})$"


def _checked(text: str) -> str:
    try:
        parse_source(text)
    except ValueError as error:
        raise PydanticCustomError("quantity", "not a model source") from error
    return text


SourceText = Annotated[str, StringConstraints(min_length=1, max_length=512), AfterValidator(_checked), Allowed(ALLOWED)]
