"""The features that an older API server lacks. The operator names them at its start and works on.

Manifests without Helm install on any server, and nothing else checks the version.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from baton_operator.kube.backoff import Backoff
from baton_operator.kube.kube_api import Forbidden, KubeError, NotFound, Unauthorized

log = logging.getLogger(__name__)
OLDEST = (1, 33)
"""The oldest supported version; the chart refuses older servers (`kubeVersion`)."""
Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of the API server that Baton's objects use."""

    name: str
    since: Version
    """The first version that has it switched on by default."""
    without: str
    """The consequence on a server without it."""


FEATURES = (
    Feature("policy/v1", (1, 21), "no PodDisruptionBudget is made: an eviction may take all workers of a pool"),
    Feature("autoscaling/v2", (1, 23), "no HorizontalPodAutoscaler is made for gateways"),
    Feature("PodSecurity", (1, 23), "nothing keeps other Pods of the namespace from more rights than Baton's have"),
    Feature("CEL in definitions", (1, 25), "wrong specs are stored, and refused by the operator alone"),
    Feature("podFailurePolicy", (1, 26), "a fetch Job that is refused for good is tried again"),
    Feature("matchLabelKeys", (1, 27), "Deployments with it are refused, so that nothing is served"),
    Feature("preStop.sleep", (1, 30), "Deployments with it are refused, so that nothing is served"),
    Feature("ValidatingAdmissionPolicy", (1, 30), "nothing keeps the operator's account from other Secrets"),
)


def version_of(text: str) -> Version | None:
    """`v1.33.2+k3s1` as (1, 33); None: the text is no version."""
    match = re.match(r"v?(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match is not None else None


def lacks(text: str) -> tuple[Feature, ...]:
    """The features that a server of this version lacks, the oldest first; none for an unreadable version."""
    version = version_of(text)
    return () if version is None else tuple(feature for feature in FEATURES if version < feature.since)


def warnings(text: str) -> tuple[str, ...]:
    """The warnings about a server of this version; none for a supported one."""
    version = version_of(text)
    if version is None or version >= OLDEST:
        return ()
    oldest = ".".join(map(str, OLDEST))
    too_old = f"Kubernetes {text} is older than {oldest}, the oldest that Baton supports"
    return (too_old, *(f"{feature.name} is missing: {feature.without}" for feature in lacks(text)))


async def look(ask: Callable[[], Awaitable[str]]) -> str:
    """Ask the server for its version, log what it lacks and return the version. Waits for a server that does not
    answer. Empty: the server does not say its version."""
    backoff = Backoff(random.Random())
    while True:
        try:
            text = await ask()
        except (Forbidden, NotFound, Unauthorized) as error:
            log.info("the server's version is unknown: %s", error)
            return ""
        except KubeError as error:
            log.warning("version: %s", error)
            await asyncio.sleep(backoff.after(error))
            continue
        log.info("the server is Kubernetes %s", text)
        for warning in warnings(text):
            log.warning("%s", warning)
        return text
