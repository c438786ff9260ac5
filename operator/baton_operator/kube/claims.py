"""Claims to namespaces: two installations of one class in a namespace would undo each other's work.

A claim is a Lease in the namespace. The installation holds it, whichever of its processes is active. A second
installation stays out and says so. Claims that are no longer renewed expire, so that a removed installation loses them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from baton_operator.kube.kube_api import Forbidden, KubeApi, KubeError
from baton_operator.kube.lease import Lease, Times

log = logging.getLogger(__name__)
TIMES = Times(duration_s=180.0, renew_s=60.0, give_up_s=150.0)
LOOK_S = 30.0
"""Time until the operator looks again at a namespace that another installation holds."""


def claim_name(operator_class: str | None) -> str:
    """The name of the Lease by which installations of a class claim a namespace."""
    return "baton-claim" if operator_class is None else f"baton-claim-{operator_class}"


@dataclass(slots=True)
class _Claim:
    lease: Lease
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    look_at: float = 0.0
    other: str = ""
    may_not_ask: bool = False


class Claims:
    """The claims of the installation `identity`, the same for all of its processes. `on_change` is called with a
    namespace that was won or lost."""

    def __init__(
        self, api: KubeApi, name: str, identity: str, on_change: Callable[[str], None] = lambda _: None
    ) -> None:
        self._api, self._name, self._identity, self.on_change = api, name, identity, on_change
        self._claims: dict[str, _Claim] = {}

    async def other(self, namespace: str) -> str:
        """The other installation that holds the namespace; empty: this one does, or the server does not let it ask.
        Asks the server when its last answer is old. Raises KubeError."""
        claim = self._claims.get(namespace)
        if claim is None:
            lease = Lease(self._api, namespace, self._name, self._identity, times=TIMES)
            claim = self._claims[namespace] = _Claim(lease)
        clock = asyncio.get_running_loop().time
        async with claim.turn:
            if clock() >= claim.look_at:
                before, claim.other = claim.other, await self._ask(namespace, claim)
                claim.look_at = clock() + (LOOK_S if claim.other else TIMES.renew_s)
                if claim.other != before:
                    self._report(namespace, claim.other)
        return claim.other

    def others(self) -> Mapping[str, str]:
        """The namespaces that other installations hold, each with its holder."""
        return {namespace: claim.other for namespace, claim in self._claims.items() if claim.other}

    async def keep(self, namespaces: Callable[[], Iterable[str]]) -> None:
        """Renew the claims to `namespaces`, and ask again about namespaces of others, until cancelled."""
        while True:
            wanted = frozenset(namespaces())
            for namespace in self._claims.keys() - wanted:
                del self._claims[namespace]  # expires, and others may have it
            for namespace in wanted:
                try:
                    await self.other(namespace)
                except KubeError as error:
                    log.warning("the claim to namespace %s is not renewed: %s", namespace, error)
            await asyncio.sleep(LOOK_S / 2)

    async def _ask(self, namespace: str, claim: _Claim) -> str:
        try:
            return "" if await claim.lease.hold() else claim.lease.holder or "another installation"
        except Forbidden as error:
            if not claim.may_not_ask:
                log.warning("namespace %s: it is unknown whether another operator works there: %s", namespace, error)
            claim.may_not_ask = True
            return ""

    def _report(self, namespace: str, other: str) -> None:
        if other:
            log.error("namespace %s belongs to the operator %s: %s stays out", namespace, other, self._identity)
        else:
            log.info("namespace %s is free: %s works there", namespace, self._identity)
        self.on_change(namespace)
