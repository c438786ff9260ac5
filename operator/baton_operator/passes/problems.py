"""Problems that keep a deployment from its wanted state, each with a reason that names the cause. Pure.

Reasons are a closed, stable set, so that alerts can use them. Kubernetes gives most causes only as text; the phrases of
its components are matched here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

MAX_TEXT, MAX_READ = 300, 16_384
_TERMINAL = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)")
"""Control sequences of terminals."""


@dataclass(frozen=True, slots=True)
class PassProblem:
    """Something that a pass wants and does not get."""

    reason: str
    """A CamelCase word from the closed set."""
    message: str
    """A sentence or a part of one."""
    lasts: bool = True
    """True: the problem stays until somebody acts. False: waiting is enough."""
    of: str = ""
    """The role that it keeps back, or `fetch`; empty: the whole deployment."""


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
    ("PodSecurity", "QuotaExceeded", "QuotaNeedsResources", "AdmissionDenied", "OutsideLimitRange", "FailedCreate"),
    ("MissingServiceAccount", "MissingPriorityClass", "MissingRuntimeClass", "MissingResourceClaim"),
    ("MissingSecret", "MissingConfigMap", "MissingClaim", "VolumeFails", "SandboxFails"),
    ("InsufficientAccelerators", "Unschedulable", "NodeRefuses", "ImagePull", "ContainerConfig"),
    ("ModelFetchFailed", "SidecarRunning", "GatewayFails", "NewTemplateFails", "WorkersFail"),
    ("GatewayNotScaled", "RouteNotAccepted", "NoAddress"),
    ("Replacing", "QueuedByKueue", "SchedulingGated", "FetchingModel", "PullingImage", "ContainerCreating"),
    ("NodeNotReady", "ProbeFails"),
    ("NoGateway",),
)
"""All reasons. Problems of an earlier line cause problems of later ones. Among lasting problems, and then among the
others, those of the first line are reported first."""
_PLACE = {reason: place for place, line in enumerate(WORST) for reason in line}


def rank_problems(problems: Iterable[PassProblem]) -> tuple[PassProblem, ...]:
    """The problems without duplicates: lasting ones first, and causes before their consequences."""
    return tuple(
        sorted(dict.fromkeys(problems), key=lambda problem: (not problem.lasts, _PLACE.get(problem.reason, 0)))
    )  # fmt: skip


_REFUSALS = (
    ("exceeded quota", "QuotaExceeded"),
    ("failed quota", "QuotaNeedsResources"),
    ("insufficient quota", "QuotaExceeded"),
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
"""Reasons by phrases of the API server and its admission plugins."""


def reason_of_refusal(text: str, otherwise: str) -> str:
    """The reason of a refusal, from its text; `otherwise`: no phrase matches."""
    return next((reason for phrase, reason in _REFUSALS if phrase in text), otherwise)


_MISSING = re.compile(
    r'(secret|configmap|persistentvolumeclaim|resourceclaim(?:template)?s?)\S* "?([^"\s]+)"? not found'
)
_MISSING_KINDS = {"secret": "MissingSecret", "configmap": "MissingConfigMap", "persistentvolumeclaim": "MissingClaim"}


def find_missing_object(text: str) -> PassProblem | None:
    """The missing object that a text of the scheduler or a kubelet names; None: it names none."""
    match = _MISSING.search(text)
    if match is None:
        return None
    kind, name = match.group(1), match.group(2)
    words = {"secret": "the Secret", "configmap": "the ConfigMap", "persistentvolumeclaim": "the claim"}
    reason = _MISSING_KINDS.get(kind, "MissingResourceClaim")
    return PassProblem(reason, f"{words.get(kind, 'the resource claim')} {name} does not exist")


_ACCELERATOR = re.compile(r"Insufficient [a-z0-9.-]+/(?!hugepages)\S+")
_CLAIM_PROBLEMS = ("PersistentVolumeClaim", "persistentvolumeclaim", "volume node affinity conflict")


def explain_unplaced(text: str, claims: Iterable[str] = ()) -> PassProblem:
    """Why no node takes a Pod, from the scheduler's text. `claims`: the volume claims of the Pod."""
    missing = find_missing_object(text)
    if missing is not None:
        return missing
    if any(phrase in text for phrase in _CLAIM_PROBLEMS):
        names = ", ".join(sorted(claims)) or "of a volume"
        return PassProblem("MissingClaim", f"the claim {names} is not bound: {shorten(text)}")
    reason = "InsufficientAccelerators" if _ACCELERATOR.search(text) else "Unschedulable"
    return PassProblem(reason, f"no node takes it: {shorten(text)}")


def shorten(text: object) -> str:
    """One line of at most MAX_TEXT printable characters: texts of Pods and servers may have any, also such that change
    what a terminal shows."""
    words = _printable(str(text or ""))
    return words if len(words) <= MAX_TEXT else words[: MAX_TEXT - 1] + "…"


def _printable(text: str) -> str:
    plain = _TERMINAL.sub("", text[:MAX_READ])
    return " ".join("".join(letter if letter.isprintable() else " " for letter in plain).split())


def join_names(names: Iterable[str]) -> str:
    """Names in a sentence: a, b and c."""
    *first, last = list(names) or [""]
    return f"{', '.join(first)} and {last}" if first else last
