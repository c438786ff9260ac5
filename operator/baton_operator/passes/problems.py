"""What keeps a deployment from what is wanted, each with a reason that names the cause, and the words it is told from.

Reasons are a closed set and stable: alerts may be written on them. Kubernetes tells most causes only as text, so the
phrases of its components are matched here and nowhere else. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

MAX_TEXT = 300


@dataclass(frozen=True, slots=True)
class PassProblem:
    """Something that a pass wanted and did not get."""

    reason: str
    """CamelCase, of the closed set."""
    message: str
    """A sentence or a part of one."""
    lasts: bool = True
    """Whether it stays until somebody does something; False: waiting is enough."""
    of: str = ""
    """Whom it keeps back: a role, `fetch`, or nobody in particular."""


WORST = (
    (
        "InvalidSpec",
        "NotAllowed",
        "Unsupported",
        "NameTaken",
        "NamespaceTerminating",
        "Forbidden",
        "WebhookDown",
        "Rejected",
    ),
    ("PodSecurity", "QuotaExceeded", "AdmissionDenied", "OutsideLimitRange", "FailedCreate"),
    ("MissingServiceAccount", "MissingPriorityClass", "MissingRuntimeClass", "MissingResourceClaim"),
    ("MissingSecret", "MissingConfigMap", "MissingClaim", "VolumeFails", "SandboxFails"),
    ("InsufficientAccelerators", "Unschedulable", "NodeRefuses", "ImagePull", "ContainerConfig"),
    ("ModelFetchFailed", "GatewayFails", "NewTemplateFails", "WorkersFail"),
    ("GatewayNotScaled", "RouteNotAccepted", "NoAddress"),
    ("Replacing", "QueuedByKueue", "SchedulingGated", "FetchingModel", "PullingImage", "ContainerCreating"),
    ("NodeNotReady", "ProbeFails"),
    ("NoGateway",),
)
"""All reasons. A line stands before another because what it names is in the way of the other. Within what lasts, and
then within what does not, the first line is told first."""
_PLACE = {reason: place for place, line in enumerate(WORST) for reason in line}


def rank_problems(problems: Iterable[PassProblem]) -> tuple[PassProblem, ...]:
    """What lasts before what does not, causes before what follows from them; the same ones once."""
    return tuple(
        sorted(dict.fromkeys(problems), key=lambda problem: (not problem.lasts, _PLACE.get(problem.reason, 0)))
    )  # fmt: skip


_REFUSALS = (
    ("exceeded quota", "QuotaExceeded"),
    ("violates PodSecurity", "PodSecurity"),
    ("failed calling webhook", "WebhookDown"),
    ("failed to call webhook", "WebhookDown"),
    ("because it is being terminated", "NamespaceTerminating"),
    ("error looking up service account", "MissingServiceAccount"),
    ("no PriorityClass with name", "MissingPriorityClass"),
    ("RuntimeClass", "MissingRuntimeClass"),
    ("denied the request", "AdmissionDenied"),
    ("denied request", "AdmissionDenied"),
    ("usage per Container is", "OutsideLimitRange"),
    ("usage per Pod is", "OutsideLimitRange"),
    ("usage per PersistentVolumeClaim is", "OutsideLimitRange"),
)
"""By phrases of the API server and its admission plugins."""


def reason_of_refusal(text: str, otherwise: str) -> str:
    """The reason for which an object was refused, from the refusal's words."""
    return next((reason for phrase, reason in _REFUSALS if phrase in text), otherwise)


_MISSING = re.compile(
    r'(secret|configmap|persistentvolumeclaim|resourceclaim(?:template)?s?)\S* "?([^"\s]+)"? not found'
)
_MISSING_KINDS = {"secret": "MissingSecret", "configmap": "MissingConfigMap", "persistentvolumeclaim": "MissingClaim"}


def find_missing_object(text: str) -> PassProblem | None:
    """An object that a Pod needs and that is not there, as the scheduler or a kubelet says; None: it says no such
    thing."""
    match = _MISSING.search(text)
    if match is None:
        return None
    kind, name = match.group(1), match.group(2)
    words = {"secret": "the Secret", "configmap": "the ConfigMap", "persistentvolumeclaim": "the claim"}
    reason = _MISSING_KINDS.get(kind, "MissingResourceClaim")
    return PassProblem(reason, f"{words.get(kind, 'the resource claim')} {name} does not exist")


_ACCELERATOR = re.compile(r"Insufficient [a-z0-9.-]+\.[a-z0-9.-]+/(?!hugepages)\S+")
_CLAIM_PROBLEMS = ("PersistentVolumeClaim", "persistentvolumeclaim", "volume node affinity conflict")


def explain_unplaced(text: str, claims: Iterable[str] = ()) -> PassProblem:
    """Why no node takes a Pod, from the scheduler's words. `claims`: the volumes that it waits for, if it does."""
    missing = find_missing_object(text)
    if missing is not None:
        return missing
    if any(phrase in text for phrase in _CLAIM_PROBLEMS):
        names = ", ".join(sorted(claims)) or "of a volume"
        return PassProblem("MissingClaim", f"the claim {names} is not bound: {shorten(text)}")
    reason = "InsufficientAccelerators" if _ACCELERATOR.search(text) else "Unschedulable"
    return PassProblem(reason, f"no node takes it: {shorten(text)}")


def shorten(text: object) -> str:
    """One line of at most MAX_TEXT characters."""
    words = " ".join(str(text or "").split())
    return words if len(words) <= MAX_TEXT else words[: MAX_TEXT - 1] + "…"


def join_names(names: Iterable[str]) -> str:
    """Names as a sentence has them: a, b and c."""
    *first, last = list(names) or [""]
    return f"{', '.join(first)} and {last}" if first else last
