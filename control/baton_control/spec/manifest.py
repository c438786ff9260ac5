"""Parses a manifest or a live object into an LLMDeployment, or reports every problem with its path and allowed values.

Manifests are parsed strictly. Live objects are parsed leniently: fields that this version does not know are dropped and
reported, because another version may have written them. YAML is plain data: no tags, no aliases, no duplicate keys,
limited in size and depth.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sized
from itertools import islice
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from baton_control.errors import FieldProblem, ManifestError, shown
from baton_control.spec.allowed import allowed_at, known_at, model_at
from baton_control.spec.api import LLMDeployment
from baton_control.spec.base_model import Model
from baton_control.spec.foreign_fields import explain_foreign
from baton_control.spec.tenant_fields import TENANT_KIND, LLMTenant
from baton_wire.suggestions import suggestion

MAX_FILE_BYTES = 256 << 10
MAX_DEPTH = 24
MAX_DOCUMENTS = 8
"""Empty ones included: a file may begin and end with `---`."""

MAX_CHECKED = 256
"""Documents of one file that are checked at once."""

UNSHOWN = frozenset({"apiKeys", "api_keys", "credentials", "credentialsSecret", "credentials_secret"})
"""Fields in which a key or a token may be given by mistake: no message repeats what is in them, since messages end in
logs, status and the output of CI.
"""
_PASSWORD = re.compile(r"://[^/@\s]*:[^/@\s]*@")
"""The user and the password of a URL."""
Location = tuple[int | str, ...]
Kind = TypeVar("Kind", LLMDeployment, LLMTenant)


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses YAML which two parsers may read differently."""

    depth = 0

    def compose_node(self, parent: yaml.nodes.Node | None, index: int) -> yaml.nodes.Node | None:
        if self.check_event(yaml.events.AliasEvent):
            raise self._refused("aliases are not allowed")
        tag = getattr(self.peek_event(), "tag", None)  # type: ignore[no-untyped-call]
        if tag is not None:
            raise self._refused(f"tags such as {shown(tag)} are not allowed")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self._refused(f"nested deeper than {MAX_DEPTH} levels")
        node: yaml.nodes.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def _refused(self, message: str) -> yaml.YAMLError:
        event: yaml.events.Event = self.peek_event()  # type: ignore[no-untyped-call]
        mark = event.start_mark if isinstance(event.start_mark, yaml.error.Mark) else None
        return yaml.constructor.ConstructorError(None, None, message, mark)

    def construct_mapping(self, node: yaml.nodes.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                raise yaml.constructor.ConstructorError(None, None, "keys must be plain text", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def read_manifest(path: Path) -> LLMDeployment:
    """The LLMDeployment in a file, which may have LLMTenants too. Raises ManifestError, which names the file where no
    field can be named."""
    return parse_manifest(read_text(path), str(path))


def read_tenants(path: Path) -> tuple[LLMTenant, ...]:
    """The LLMTenants in the file of an LLMDeployment. Raises ManifestError."""
    documents = [document for document in parse_documents(read_text(path), str(path)) if _is_tenant(document)]
    return tuple(parse_tenant(document) for document in documents)


def read_text(path: Path, most_bytes: int = MAX_FILE_BYTES) -> str:
    """The text of a file. Raises ManifestError."""
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise ManifestError((FieldProblem(str(path), f"cannot be read: {error.strerror or error}"),)) from error
    return decode_text(data, str(path), most_bytes)


def decode_text(data: bytes, name: str, most_bytes: int = MAX_FILE_BYTES) -> str:
    """A file's bytes as text. Raises ManifestError."""
    if len(data) > most_bytes:
        raise ManifestError((FieldProblem(name, f"must be at most {most_bytes} bytes"),))
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ManifestError((FieldProblem(name, f"must be UTF-8: byte {error.start} is not"),)) from error


def parse_documents(text: str, name: str) -> list[object]:
    """All documents of a YAML text that are not empty, as plain data. Raises ManifestError."""
    try:
        documents = [document for document in islice(yaml.load_all(text, Loader=_Loader), MAX_CHECKED + 1)]
    except yaml.YAMLError as error:
        raise ManifestError((FieldProblem(name, _yaml_message(error)),)) from error
    except (ValueError, RecursionError) as error:
        raise ManifestError((FieldProblem(name, f"not usable YAML: {error}"),)) from error
    if len(documents) > MAX_CHECKED:
        raise ManifestError((FieldProblem(name, f"must hold at most {MAX_CHECKED} documents"),))
    return [document for document in documents if document is not None]


def parse_manifest(text: str, name: str = "manifest") -> LLMDeployment:
    """The one LLMDeployment in a YAML text, parsed strictly. LLMTenants are left out. Raises ManifestError, whose
    messages call the text `name`.

    >>> deployment = parse_manifest('''
    ... apiVersion: baton.dev/v1alpha1
    ... kind: LLMDeployment
    ... metadata: {name: chat}
    ... spec: {model: {source: "pvc://models/chat", servedName: chat, maxContextTokens: 4096}}
    ... ''')
    >>> deployment.spec.slo.ttft.target, deployment.spec.decode.replicas.max
    (0.5, 1)
    """
    try:
        documents = _documents(text)
    except yaml.YAMLError as error:
        raise ManifestError((FieldProblem(name, _yaml_message(error)),)) from error
    except (ValueError, RecursionError) as error:
        raise ManifestError((FieldProblem(name, f"not usable YAML: {error}"),)) from error
    if not documents:
        raise ManifestError((FieldProblem(name, "is empty: must hold one LLMDeployment"),))
    if len(documents) != 1:
        raise ManifestError((FieldProblem(name, "must hold exactly one LLMDeployment, has more"),))
    return parse_object(documents[0])


def _documents(text: str) -> list[object]:
    """The documents that are neither empty nor LLMTenants: none, one, or two for any larger number, and the rest is not
    read."""
    documents: list[object] = []
    other = 0
    for number, document in enumerate(yaml.load_all(text, Loader=_Loader), 1):
        if _is_tenant(document):
            if number > MAX_CHECKED:
                raise ValueError(f"more than {MAX_CHECKED} documents")
            continue
        other += 1
        documents += [] if document is None else [document]
        if len(documents) > 1 or other > MAX_DOCUMENTS:
            return (documents * 2)[:2] or [None, None]
    return documents


def _is_tenant(document: object) -> bool:
    return isinstance(document, dict) and document.get("kind") == TENANT_KIND


def parse_object(raw: object) -> LLMDeployment:
    """The LLMDeployment in plain data, parsed strictly. Raises ManifestError with every problem."""
    return _parse(LLMDeployment, raw)


def parse_tenant(raw: object) -> LLMTenant:
    """The LLMTenant in plain data, parsed strictly. Raises ManifestError with every problem."""
    return _parse(LLMTenant, raw)


def _parse(kind: type[Kind], raw: object) -> Kind:
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise ManifestError(_problems(error, kind)) from error


def parse_live(raw: Mapping[str, object]) -> tuple[LLMDeployment, tuple[str, ...]]:
    """A live object's LLMDeployment without its unknown fields, and the paths of those. Raises ManifestError."""
    return _parse_live(LLMDeployment, raw)


def parse_live_tenant(raw: Mapping[str, object]) -> tuple[LLMTenant, tuple[str, ...]]:
    """The same for an LLMTenant."""
    return _parse_live(LLMTenant, raw)


def _parse_live(kind: type[Kind], raw: Mapping[str, object]) -> tuple[Kind, tuple[str, ...]]:
    fields = {key: raw[key] for key in ("apiVersion", "kind", "spec") if key in raw}
    metadata = raw.get("metadata")
    names = ("name", "namespace", "labels", "annotations")
    fields["metadata"] = (
        {key: metadata[key] for key in names if key in metadata} if isinstance(metadata, Mapping) else metadata
    )
    try:
        return kind.model_validate(fields), ()
    except ValidationError as error:
        unknown = [detail["loc"] for detail in error.errors() if detail["type"] == "extra_forbidden"]
    known = fields
    for location in unknown:
        known = _without(known, location)
    return _parse(kind, known), tuple(_path(location) for location in unknown)


def _without(value: object, location: Location) -> dict[str, object]:
    """A copy of a mapping without the field at `location`; all other values are shared."""
    assert isinstance(value, Mapping)
    head, rest = location[0], location[1:]
    copy = dict(value)
    if not rest:
        del copy[head]
    elif isinstance(copy[head], list):
        items = list(copy[head])
        items[int(rest[0])] = _without(items[int(rest[0])], rest[1:])
        copy[head] = items
    else:
        copy[head] = _without(copy[head], rest)
    return copy


def _problems(error: ValidationError, kind: type[Model]) -> tuple[FieldProblem, ...]:
    return tuple(_problem(detail, kind) for detail in error.errors(include_url=False) if not _is_echo(detail))


def _is_echo(detail: ErrorDetails) -> bool:
    """True for a list that counts as too short only because its entries were refused."""
    given = detail["input"]
    return detail["type"] == "too_short" and isinstance(given, Sized) and len(given) >= detail["ctx"]["min_length"]


def _problem(detail: ErrorDetails, root: type[Model]) -> FieldProblem:
    location, kind, value = detail["loc"], detail["type"], detail["input"]
    if kind == "rule":
        return FieldProblem(_path((*location, detail["ctx"]["field"])), detail["msg"])
    allowed = allowed_at(location, root)
    if kind == "extra_forbidden":
        return FieldProblem(_path(location), _unknown(location, root))
    if kind == "missing":
        return FieldProblem(_path(location), f"is missing: must be {allowed}")
    hint = " (quote it: YAML reads a bare On, Off, Yes or No as true or false)" if isinstance(value, bool) else ""
    hint = hint if "one of" in allowed else ""
    given = "the value" if UNSHOWN.intersection(location) else _PASSWORD.sub("://…@", shown(value))
    return FieldProblem(_path(location), f"{given} is not allowed: must be {allowed}{hint}")


def _unknown(location: Location, root: type[Model]) -> str:
    """An unknown field in words, with what another system's field is called here, or what was probably meant."""
    known, name = known_at(location[:-1], root), str(location[-1])
    if foreign := explain_foreign(model_at(location[:-1], root), name):
        return foreign
    return f"unknown field{suggestion(name, known.split(', '))}; known here: {known}"


def _path(location: Location) -> str:
    text = ""
    for part in location:
        if part == "[key]":
            continue
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _yaml_message(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        return f"not usable YAML: {error.problem or error.context}{place}"
    return f"not usable YAML: {' '.join(str(error).split())[:200]}"
