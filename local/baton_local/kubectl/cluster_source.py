"""The pages of a deployment on a cluster: what its gateways and workers answer over forwarded ports."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from baton_control.history_facts import HISTORY_ANNOTATION, read_stored
from baton_control.names import history_name
from baton_gateway.page.static_files import DATA
from baton_gateway.records.record_query import RecordQuery, RecordsPage
from baton_local.errors import LocalError, StartError
from baton_local.explain.record_sources import FoundRecords, merge_answers, query_path
from baton_local.fleet.observation import Observation, merge_gateways, worker_state
from baton_local.kubectl.cluster_record import DEPLOYMENT_LABEL, run_record
from baton_local.kubectl.pod_access import ADMIN_PORT, HTTP_PORT, PodAccess
from baton_wire.deployment_history import DeploymentHistory

Json = Mapping[str, Any]
OLD_TEMPLATE = f"port {ADMIN_PORT} is closed where the template is of an older version: annotate baton.dev/upgrade"


@dataclass(frozen=True, slots=True)
class GatewayAnswers:
    """The answers of a deployment's gateway Pods to one question."""

    pages: list[bytes]
    silent: list[str]
    """Pods that did not answer, with the reason."""

    def require_one(self) -> list[bytes]:
        """Return the answers. Raises LocalError where there is none."""
        if not self.pages:
            why = "; ".join(self.silent) or "there is no gateway Pod"
            raise LocalError(f"no gateway answered: {why}{f' ({OLD_TEMPLATE})' if self.silent else ''}")
        return self.pages


def choose_deployment(access: PodAccess, name: str | None) -> Json:
    """Return the LLMDeployment of that name, or the only one. Raises StartError."""
    deployments = {str(item["metadata"]["name"]): item for item in access.deployments()}
    names = ", ".join(sorted(deployments)) or "none"
    if name is not None:
        if name not in deployments:
            raise StartError(f"no LLMDeployment {name!r} in the namespace {access.namespace}: there are {names}")
        return deployments[name]
    if len(deployments) != 1:
        raise StartError(f"name an LLMDeployment of the namespace {access.namespace}: there are {names}")
    return next(iter(deployments.values()))


def pods_of(access: PodAccess, deployment: Json) -> list[dict[str, Any]]:
    """List the Pods of a deployment."""
    return access.pods(f"{DEPLOYMENT_LABEL}={deployment['metadata']['name']}")


def ask_gateway_pods(access: PodAccess, deployment: Json, pods: Sequence[Json], path: str) -> GatewayAnswers:
    """Ask the admin listener of every gateway Pod for a page."""
    record = run_record(deployment, pods, {})
    names = [process.name for process in record.processes if process.role == "gateway"]
    answers = access.pages([(name, ADMIN_PORT, path) for name in names])
    silent = [f"{name} ({answer})" for name, answer in zip(names, answers, strict=True) if isinstance(answer, str)]
    return GatewayAnswers([answer for answer in answers if isinstance(answer, bytes)], silent)


def observe_cluster(access: PodAccess, name: str | None) -> Observation:
    """Observe a deployment: its object, its Pods, and their state pages. A page that does not come is unknown, and the
    Pod is named on stderr. Raises LocalError for a gateway of another version."""
    deployment = choose_deployment(access, name)
    pods = pods_of(access, deployment)
    states = ask_gateway_pods(access, deployment, pods, "/state")
    history = _history(ask_gateway_pods(access, deployment, pods, DATA).pages)
    record = run_record(deployment, pods, history.reasons)
    workers = [process for process in record.processes if process.role != "gateway"]
    gateway = next((process for process in record.processes if process.role == "gateway"), None)
    answers = access.pages([(process.name, HTTP_PORT, "/state") for process in workers])
    observed = [None if isinstance(page, str) else worker_state(_json(page)) for page in answers]
    silent = [f"{p.name} ({page})" for p, page in zip(workers, answers, strict=True) if isinstance(page, str)]
    warn_of([*states.silent, *silent])
    pages = [page for page in map(_json, states.pages) if isinstance(page, dict)]
    try:
        seen_by_gateways = merge_gateways(pages)
    except msgspec.ValidationError as error:
        raise _other_version(error) from error
    return Observation(record, tuple(zip(workers, observed, strict=True)), gateway, seen_by_gateways)


def warn_of(silent: Sequence[str]) -> None:
    """Name on stderr the Pods that did not answer."""
    for name in silent:
        print(f"baton: {name} did not answer: its figures are missing", file=sys.stderr)


def read_cluster_history(access: PodAccess, name: str | None) -> DeploymentHistory:
    """Read what the operator keeps, or, where that may not be read, what it announced to the gateways. Raises
    LocalError where no gateway answers either."""
    deployment = choose_deployment(access, name)
    if (stored := stored_history(access, deployment)) is not None:
        return stored
    answers = ask_gateway_pods(access, deployment, pods_of(access, deployment), DATA)
    return _history(answers.require_one())


def stored_history(access: PodAccess, deployment: Json) -> DeploymentHistory | None:
    """Read the object in which the operator keeps the history; None: there is none, or it may not be read."""
    record = access.record(history_name(str(deployment["metadata"]["name"]))) or {}
    annotations = (record.get("metadata") or {}).get("annotations") or {}
    return read_stored(annotations[HISTORY_ANNOTATION]).history if HISTORY_ANNOTATION in annotations else None


def find_records(access: PodAccess, name: str | None, query: RecordQuery) -> FoundRecords:
    """Ask every gateway Pod, each with all of its processes, for records. Raises LocalError where none answers."""
    deployment = choose_deployment(access, name)
    answers = ask_gateway_pods(access, deployment, pods_of(access, deployment), query_path(query))
    try:
        pages = [msgspec.json.decode(page, type=RecordsPage) for page in answers.require_one()]
    except msgspec.DecodeError as error:
        raise _other_version(error) from error
    return merge_answers(pages, answers.silent, query)


def _other_version(error: Exception) -> LocalError:
    return LocalError(f"a gateway of another version answered: {error}")


def _history(pages: Sequence[bytes]) -> DeploymentHistory:
    """Return the longest history that a gateway has."""
    histories = [DeploymentHistory()]
    for page in map(_json, pages):
        raw = page.get("history") if isinstance(page, dict) else None
        try:
            histories.append(msgspec.convert(raw or {}, DeploymentHistory))
        except msgspec.ValidationError:
            continue
    return max(histories, key=lambda history: (len(history.entries), len(history.reasons)))


def _json(page: bytes) -> object:
    try:
        return msgspec.json.decode(page)
    except msgspec.DecodeError:
        return None
