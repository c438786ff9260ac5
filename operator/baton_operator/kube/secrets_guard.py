"""The check that an API server can keep this process from Secrets that are not Baton's.

RBAC cannot restrict writes to certain Secrets of a namespace, and the answer to a patch contains the whole Secret. Only
a ValidatingAdmissionPolicy can restrict them by name. In named namespaces such a policy is the installer's choice. For
a whole cluster it is required, because a hijacked process could read every Secret.
"""

from __future__ import annotations

import asyncio
import logging
import random

from baton_operator.kube.backoff import Backoff
from baton_operator.kube.kube_api import KubeApi, KubeError

log = logging.getLogger(__name__)
GROUP, VERSION, POLICIES = "admissionregistration.k8s.io", "v1", "validatingadmissionpolicies"


class SecretsUnguarded(Exception):
    """Nothing would keep this process from the Secrets of all namespaces."""


async def check_secrets_guarded(api: KubeApi, namespaces: tuple[str, ...] | None) -> None:
    """Check that the server has such policies, waiting for one that does not answer. Raises SecretsUnguarded when all
    namespaces are watched (None) and it has none."""
    if namespaces is not None:
        return
    backoff = Backoff(random.Random())
    while True:
        try:
            served = await api.served(GROUP, VERSION)
        except KubeError as error:
            log.warning("%s: %s", POLICIES, error)
            await asyncio.sleep(backoff.after(error))
            continue
        if POLICIES not in served:
            raise SecretsUnguarded(
                f"--all-namespaces is refused: this API server has no {POLICIES} in {GROUP}/{VERSION} (Kubernetes "
                "1.30 or newer); name the namespaces instead"
            )
        return
