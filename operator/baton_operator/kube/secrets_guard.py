"""Whether an API server can keep this process from Secrets that are not Baton's.

RBAC lets one who may write a Secret write each of its kind, and the answer to a patch has the whole object. Only a
ValidatingAdmissionPolicy tells Secrets apart. In named namespaces that is the installer's choice; in a whole cluster it
is a condition: a process that was taken over could read every Secret there is.
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
    """Nothing would stand between this process and the Secrets of all namespaces."""


async def check_secrets_guarded(api: KubeApi, namespaces: tuple[str, ...] | None) -> None:
    """Waits for a server that does not answer. Raises SecretsUnguarded where all namespaces are to be watched (None)
    and the server has no such policies."""
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
