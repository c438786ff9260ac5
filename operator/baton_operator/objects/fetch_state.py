"""The state of a fetch, from the live Jobs of a deployment. Pure.

A Job's name follows from what its LLMDeployment asks for, and from what the installation adds to fetch Pods. A fetch
that is done stays done while only the installation's part changes: its Job has an identity, which leaves that part out.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass

from baton_operator.kube.object_fields import Manifest, annotations_of, labels_of, mapping, mappings, name_of
from baton_operator.objects.metadata import FETCH_ROLE, ROLE_LABEL

FETCH_ANNOTATION = "baton.dev/fetch"
"""On a Job whose name depends on the installation's settings too: the name that it would have without them."""
RETRY_S = 600.0
"""Seconds after which a fetch that was given up begins anew: the operator reads no Secrets, and cannot see that one
was mended."""


@dataclass(frozen=True, slots=True)
class FetchState:
    """The state of a fetch, by its Job."""

    is_done: bool
    failure: str = ""
    """Why the Job was given up, in Kubernetes' words; empty: it goes on."""
    failed_at: str = ""
    """When it was given up, as Kubernetes wrote it."""
    job: str = ""
    """Name of the Job; empty: no model is fetched, or the Job is not wanted any more."""


def fetch_of(objects: Iterable[Manifest], live: Iterable[Manifest]) -> FetchState:
    """The state of the fetch Job among the wanted objects; done where no model is fetched."""
    wanted = next((manifest for manifest in objects if manifest["kind"] == "Job"), None)
    if wanted is None:
        return FetchState(True)
    jobs = tuple(live)
    if is_fetched(wanted, jobs):
        return FetchState(True, job=name_of(wanted))
    return fetch_state(next((job for job in jobs if name_of(job) == name_of(wanted)), None), name_of(wanted))


def fetch_state(job: Manifest | None, name: str = "") -> FetchState:
    """The state of a live Job; None: the Job does not exist yet."""
    conditions = mappings(mapping((job or {}).get("status")).get("conditions"))
    true = {str(condition.get("type")): condition for condition in conditions if condition.get("status") == "True"}
    if "Complete" in true:
        return FetchState(True, job=name)
    failed = true.get("Failed")
    if failed is None:
        return FetchState(False, job=name)
    why = f"{failed.get('reason', 'Failed')}: {failed.get('message', 'the Job failed')}"
    return FetchState(False, why, str(failed.get("lastTransitionTime") or ""), name)


def is_fetched(wanted: Manifest, live: Iterable[Manifest]) -> bool:
    """True if a Job has fetched what the wanted one would, whatever the installation added to it."""
    return _fetched_by(wanted, live) is not None


def _fetched_by(wanted: Manifest, live: Iterable[Manifest]) -> Manifest | None:
    """The done Job with the identity of the wanted one, which itself comes first; None: there is none."""
    done = [job for job in live if _is_fetch(job) and _identity(job) == _identity(wanted) and fetch_state(job).is_done]
    return min(done, key=lambda job: (name_of(job) != name_of(wanted), name_of(job)), default=None)


def retry_in_s(fetch: FetchState, now: datetime.datetime) -> float | None:
    """Seconds until a fetch that was given up begins anew; None: it was not given up."""
    if fetch.is_done or not fetch.failure:
        return None
    try:
        since = (now - datetime.datetime.fromisoformat(fetch.failed_at)).total_seconds()
    except (ValueError, TypeError):
        return RETRY_S  # without its time it is only counted from each pass: a person has to act
    return max(RETRY_S - since, 0.0)


def find_former_jobs(objects: Iterable[Manifest], live: Iterable[Manifest]) -> tuple[Manifest, ...]:
    """The live fetch Jobs of earlier sources, credentials and settings. The done Job that stands for the wanted one
    stays."""
    jobs = tuple(job for job in live if _is_fetch(job))
    wanted = [manifest for manifest in objects if manifest["kind"] == "Job"]
    stand_ins = [_fetched_by(manifest, jobs) for manifest in wanted]
    kept = {name_of(job) for job in (*wanted, *stand_ins) if job is not None}
    return tuple(job for job in jobs if name_of(job) not in kept)


def _identity(job: Manifest) -> str:
    return str(annotations_of(job).get(FETCH_ANNOTATION) or name_of(job))


def _is_fetch(job: Manifest) -> bool:
    return labels_of(job).get(ROLE_LABEL) == FETCH_ROLE
