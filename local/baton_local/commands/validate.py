"""`baton validate`: checks manifests with the operator's parser, all faults at once, without a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from baton_control.errors import FieldProblem, ManifestError, NotAllowedError, shown
from baton_control.spec.api import API_VERSION, KIND, LLMDeployment
from baton_control.spec.manifest import (
    MAX_FILE_BYTES,
    decode_text,
    parse_documents,
    parse_object,
    parse_tenant,
    read_text,
)
from baton_control.spec.model_source import Scheme, parse_source
from baton_control.spec.tenant_fields import TENANT_KIND, LLMTenant
from baton_control.tenant_compiler import TenantSource, compile_tenants
from baton_local.errors import StartError
from baton_local.fleet.degree_check import degree_problems_of_manifest
from baton_operator.objects.pod_policy import PodPolicy
from baton_wire.suggestions import suggestion

GROUP = API_VERSION.partition("/")[0]
STANDARD_INPUT = "-"
HERE = Path()
_POLICY_FIELDS = frozenset(field.encode_name for field in msgspec.structs.fields(PodPolicy))
MAX_NAMED = 8
"""Tenants that a note names."""
FOREIGN_KINDS: Mapping[str, str] = {
    "InferenceService": "KServe's InferenceService",
    "LLMInferenceService": "KServe's LLMInferenceService",
    "DynamoGraphDeployment": "Dynamo's DynamoGraphDeployment",
    "DynamoComponentDeployment": "Dynamo's DynamoComponentDeployment",
}
"""Objects of other systems that serve models."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome for one file."""

    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    valid: int = 0
    """Valid LLMDeployments."""
    tenants: tuple[tuple[str, LLMTenant], ...] = ()
    """Valid LLMTenants, each with the place of its document."""
    namespaces: frozenset[str] = frozenset()
    """Namespaces with a valid LLMDeployment."""
    letting_in: frozenset[str] = frozenset()
    """Namespaces with a valid LLMDeployment that lets tenants in."""


def run_validate(files: Sequence[str], pod_policy: Path | None) -> int:
    """Check the files; exit status 1 when one is refused or none has an LLMDeployment. Raises LocalError."""
    policy = None if pod_policy is None else read_policy(read_text(pod_policy), str(pod_policy))
    outcomes = [check_text(*_text(file), policy, Path(file).parent) for file in files]
    outcomes.append(check_together(outcomes))
    for outcome in outcomes:
        for problem in outcome.problems:
            print(f"baton: {problem}", file=sys.stderr)
        for note in outcome.notes:
            print(f"baton: note: {note}", file=sys.stderr)
    faults, valid = sum(len(outcome.problems) for outcome in outcomes), sum(outcome.valid for outcome in outcomes)
    tenants = sum(len(outcome.tenants) for outcome in outcomes)
    if faults:
        print(f"baton: {faults} {'fault' if faults == 1 else 'faults'}", file=sys.stderr)
        return 1
    if not valid and not tenants:
        print(f"baton: no {KIND} in {', '.join(files)}", file=sys.stderr)
        return 1
    counts = [f"{count} {kind}{'' if count == 1 else 's'}" for count, kind in _counts(valid, tenants)]
    print(f"{', '.join(counts)} valid")
    return 0


def _counts(deployments: int, tenants: int) -> list[tuple[int, str]]:
    return [pair for pair in ((deployments, KIND), (tenants, TENANT_KIND)) if pair[0]]


def _text(file: str) -> tuple[str | ManifestError, str]:
    """A file's text, or why there is none, and its name."""
    try:
        if file == STANDARD_INPUT:
            return decode_text(sys.stdin.buffer.read(MAX_FILE_BYTES + 1), "standard input"), "standard input"
        return read_text(Path(file)), file
    except ManifestError as error:
        return error, file


def check_text(text: str | ManifestError, name: str, policy: PodPolicy | None, folder: Path = HERE) -> Checked:
    """Check all documents of one file in `folder`. Reads no more than the config.json of models on this machine."""
    try:
        if isinstance(text, ManifestError):
            raise text
        documents = parse_documents(text, name)
    except ManifestError as error:
        return Checked(tuple(str(problem) for problem in error.problems))
    problems: list[str] = []
    notes: list[str] = []
    valid, tenants, namespaces, letting_in = 0, list[tuple[str, LLMTenant]](), set[str](), set[str]()
    for number, document in enumerate(documents, 1):
        place = name if len(documents) == 1 else f"{name}, document {number}"
        if (other := _other_kind(document)) is not None:
            notes.append(f"{place}: {other}")
            continue
        faults = list(_faults(document, policy, folder))
        problems += [f"{place}: {fault}" for fault in faults]
        if faults:
            continue
        if _is_tenant(document):
            tenants.append((place, parse_tenant(document)))
            continue
        valid += 1
        deployment = parse_object(document)
        namespaces.add(deployment.metadata.namespace)
        if deployment.spec.gateway.tenants:
            letting_in.add(deployment.metadata.namespace)
    return Checked(tuple(problems), tuple(notes), valid, tuple(tenants), frozenset(namespaces), frozenset(letting_in))


def check_together(outcomes: Sequence[Checked]) -> Checked:
    """Check the tenants of all files together: those that a cluster would refuse because of another one, and those of
    a namespace in which no deployment of these files lets tenants in."""
    problems, notes = [], []
    letting_in = frozenset[str]().union(*(outcome.letting_in for outcome in outcomes))
    namespaces = frozenset[str]().union(*(outcome.namespaces for outcome in outcomes))
    placed: list[tuple[str, LLMTenant]] = []
    for outcome in outcomes:  # files of several sites may have one object each; the last one counts
        names = {(tenant.metadata.namespace, tenant.metadata.name) for _, tenant in outcome.tenants}
        placed = [(place, t) for place, t in placed if (t.metadata.namespace, t.metadata.name) not in names]
        placed += outcome.tenants
    for namespace in sorted({tenant.metadata.namespace for _, tenant in placed}):
        own = [(place, tenant) for place, tenant in placed if tenant.metadata.namespace == namespace]
        sources = [TenantSource(tenant, f"{number:08}") for number, (_, tenant) in enumerate(own)]
        refusals = compile_tenants(namespace, sources, {}, 0.0).problems
        for name, problem in refusals.items():
            place = next(place for place, tenant in reversed(own) if tenant.metadata.name == name)
            problems.append(f"{place}: {problem}")
        if (letting_in or namespace in namespaces) and namespace not in letting_in:
            shown_names = ", ".join(tenant.metadata.name for _, tenant in own[:MAX_NAMED])
            notes.append(
                f"LLMTenants of namespace {namespace} ({shown_names}): no LLMDeployment of that namespace in these"
                " files lets tenants in (spec.gateway.tenants)"
            )
    return Checked(tuple(problems), tuple(notes))


def _is_tenant(document: object) -> bool:
    return isinstance(document, dict) and document.get("kind") == TENANT_KIND


def _other_kind(document: object) -> str | None:
    """A note about an object that Baton's parser does not read; None: the parser reads it, if only to refuse it."""
    if not isinstance(document, dict):
        return None
    kind, version = document.get("kind"), document.get("apiVersion")
    if isinstance(kind, str) and kind in FOREIGN_KINDS:
        return f"{FOREIGN_KINDS[kind]} is not checked: docs/api.md has its fields' names in an {KIND}"
    if not isinstance(kind, str) or kind == KIND or (isinstance(version, str) and version.startswith(f"{GROUP}/")):
        return None
    return f"{shown(kind)} is not checked"


def _faults(document: object, policy: PodPolicy | None, folder: Path) -> Iterator[FieldProblem]:
    try:
        if _is_tenant(document):
            parse_tenant(document)
            return
        deployment: LLMDeployment = parse_object(document)
        if policy is not None:
            policy.check(deployment)
        yield from degree_problems_of_manifest(deployment, folder)
        yield from _source_problems(deployment, folder)
    except (NotAllowedError, ManifestError) as error:
        yield from error.problems


def _source_problems(deployment: LLMDeployment, folder: Path) -> Iterator[FieldProblem]:
    """The fault of a model's path that is relative to the manifest and leads nowhere: clusters refuse relative ones,
    so that it can be meant for this machine only."""
    source = parse_source(deployment.spec.model.source)
    if source.scheme not in (Scheme.FILE, Scheme.RANDOM) or source.path is None or Path(source.path).is_absolute():
        return
    path = folder / source.path
    if not path.exists():
        there = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        yield FieldProblem(
            "spec.model.source", f"{deployment.spec.model.source}: {path} does not exist{suggestion(path.name, there)}"
        )


def read_policy(text: str, name: str) -> PodPolicy:
    """The policy in a YAML text: the chart's values, which may lack a podPolicy, or that object alone. Raises
    StartError."""
    documents = parse_documents(text, name)
    raw = documents[0] if len(documents) == 1 else None
    if not isinstance(raw, dict):
        raise StartError(f"--pod-policy {name}: must hold the chart's values, or their podPolicy")
    is_values = "podPolicy" in raw or not raw.keys() & _POLICY_FIELDS
    if is_values and "podPolicy" not in raw:
        print(f"baton: note: {name} has no podPolicy: the chart's own is checked", file=sys.stderr)
    try:
        return msgspec.convert((raw.get("podPolicy") or {}) if is_values else raw, PodPolicy)
    except (msgspec.ValidationError, ValueError) as error:
        raise StartError(f"--pod-policy {name}: {error}") from error
