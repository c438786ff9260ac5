"""Makes all objects of a deployment except its workers: accounts, policies, Services, keys, gateway, pool facades."""

from __future__ import annotations

from dataclasses import dataclass

from baton_control.errors import OperatorError
from baton_control.names import gateway_name
from baton_control.spec.api import ScalingMode
from baton_control.spec.gateway_fields import GatewaySpec
from baton_operator.kube.kinds import ACCOUNTS, CLAIMS, JOBS, POLICIES, WORKERS
from baton_operator.kube.kube_api import Forbidden, Invalid
from baton_operator.kube.object_fields import (
    Manifest,
    annotations_of,
    integer,
    is_leaving,
    mapping,
    metadata_of,
    uid_of,
)
from baton_operator.objects.cluster import Owner
from baton_operator.objects.fetch_state import fetch_of, is_fetched
from baton_operator.objects.metadata import belongs
from baton_operator.objects.model_cache import is_clone
from baton_operator.passes.apply import Applied, Applier, DesiredObject, NameTaken, with_metadata
from baton_operator.passes.drain_replacement import DrainReplacement, adjust_object
from baton_operator.passes.drift import APPLIED
from baton_operator.passes.held_gateway import with_template
from baton_operator.passes.pool_size import SCALER, WRITTEN, Facade
from baton_operator.passes.problems import PassProblem, reason_of_refusal, shorten
from baton_operator.passes.rendering import Rendering
from baton_operator.passes.snapshot import Snapshot
from baton_operator.passes.template_records import Stored

_NEEDED = (POLICIES, ACCOUNTS)
"""Kinds that have to be as wanted before any Pod starts."""


@dataclass(frozen=True, slots=True)
class Ensured:
    """The outcome of making objects."""

    problems: tuple[PassProblem, ...] = ()
    """The refusals."""
    may_run: bool = True
    """True if everything that Pods need exists."""
    again_s: float | None = None
    """When the rest can be made; None: nothing is left to make."""


class SharedObjects:
    def __init__(self, applier: Applier) -> None:
        self._applier = applier

    async def ensure(
        self, seen: Snapshot, rendering: Rendering, replacement: DrainReplacement, held_gateway: Stored | None = None
    ) -> Ensured:
        """Make the shared objects as wanted, in order, what Pods need first; budgets and the gateway follow
        `replacement`, and the gateway keeps the template of `held_gateway`, if given. Stops at the first refusal of an
        object that Pods need, so that no Pod runs without its policies; other refusals keep nothing back. Raises
        KubeError for failures that can be retried."""
        problems: list[PassProblem] = []
        if seen.keys != rendering.keys or not seen.has_keys:
            try:
                await self._applier.ensure_secret(rendering.secret, seen.owner, is_known=seen.keys is not None)
            except (NameTaken, Forbidden, Invalid) as error:
                problems.append(refusal_problem(error))
                if seen.keys is None or not seen.has_keys:
                    return Ensured(tuple(problems), may_run=False)  # else Pods start with the present keys
        is_here = fetch_of(rendering.objects, seen.fetches).is_done
        for desired in rendering.standing:
            if desired.resource == JOBS and is_fetched(desired.body, seen.fetches):
                continue  # also where the installation's part of fetch Pods has changed since
            if desired.resource == CLAIMS and is_clone(desired.body) and not is_here:
                continue  # it would be a clone of an empty claim
            wanted = desired
            if held_gateway is not None and desired.resource == WORKERS:  # the only Deployment among the shared objects
                wanted = with_template(desired, held_gateway)
            refused = await self._one(wanted, seen, rendering, replacement)
            problems += [refused] if refused is not None else []
            if refused is not None and desired.resource in _NEEDED:
                return Ensured(tuple(problems), may_run=False)
        return Ensured(tuple(problems), may_run=True)

    async def _one(
        self, desired: DesiredObject, seen: Snapshot, rendering: Rendering, replacement: DrainReplacement
    ) -> PassProblem | None:
        gateway = gateway_name(rendering.deployment.metadata.name)
        try:
            if desired.name == gateway and desired.resource == WORKERS:
                size = plan_handover(
                    desired, seen.live_sets.get(gateway), rendering.deployment.spec.gateway, seen.owner
                )
                if size is not None:
                    await self._applier.apply(size, manager=SCALER, force=True)
            if await self._applier.ensure(adjust_object(desired, replacement), seen.owner) is not Applied.LEAVING:
                return None
        except (NameTaken, Forbidden, Invalid) as error:
            is_fixed = desired.resource == CLAIMS and isinstance(error, Invalid)
            return _fixed_claim(desired.name, error) if is_fixed else refusal_problem(error)
        return PassProblem(
            "Replacing", f"an older {desired.resource.kind} {desired.name} is being deleted", lasts=False
        )

    async def facade(
        self, bare: DesiredObject, owner: Owner, live: Facade | None, replicas: int | None, mode: ScalingMode
    ) -> None:
        """Make the LLMPool, and write `replicas` into it if given. `bare` is the pool without them."""
        spec = {**mapping(bare.body["spec"]), "replicas": replicas}
        full = with_metadata({**bare.body, "spec": spec}, annotations={WRITTEN: str(replicas)})
        if live is None:
            existing = await self._applier.find(bare, owner)
            if existing is None and replicas is not None:
                await self._applier.apply(full, manager=SCALER, force=False)
            return
        await self._applier.ensure(bare, owner)
        if replicas is not None:
            await self._applier.apply(full, manager=SCALER, force=live.mode != mode)


def refusal_problem(error: OperatorError) -> PassProblem:
    """The problem that a refusal is reported as."""
    if isinstance(error, NameTaken):
        return PassProblem("NameTaken", str(error))
    if isinstance(error, Forbidden):
        return PassProblem(
            "QuotaExceeded" if error.is_quota else reason_of_refusal(error.message, "Forbidden"), error.message
        )
    return PassProblem(reason_of_refusal(str(error), "Rejected"), str(error))


def _fixed_claim(name: str, error: OperatorError) -> PassProblem:
    """The problem of a claim whose spec was changed in what Kubernetes never changes."""
    way = "delete it to have it made anew, or name another one in spec.model.cache.claimName"
    text = f"the claim {name} exists, and keeps its access mode, class and source: {way}: {shorten(error)}"
    return PassProblem(reason_of_refusal(str(error), "Rejected"), text)


def plan_handover(wanted: DesiredObject, live: Manifest | None, gateway: GatewaySpec, owner: Owner) -> Manifest | None:
    """The fields that the scaler's manager applies to the gateway's live Deployment before `wanted` is applied; None:
    none.

    A field that its only owner leaves out of an apply falls back to its default: an autoscaler that got `replicas` only
    because they are left out would find one gateway. So the scaler's manager takes the present number over first, and
    raises it to the autoscaler's floor: an autoscaler does nothing at zero, and some clusters have none.
    """
    if gateway.autoscaling is None or live is None or is_leaving(live) or not belongs(live, owner):
        return None
    replicas = integer(mapping(live.get("spec")).get("replicas")) or 0
    is_as_applied = annotations_of(live).get(APPLIED) == wanted.digest
    if is_as_applied and replicas >= gateway.autoscaling.min:
        return None
    metadata: Manifest = {"name": wanted.name, "namespace": wanted.namespace, "uid": uid_of(live)}
    metadata["resourceVersion"] = metadata_of(live).get("resourceVersion")
    spec: Manifest = {"replicas": max(replicas, gateway.autoscaling.min)}
    kind = {"apiVersion": wanted.resource.api_version, "kind": wanted.resource.kind}
    return {**kind, "metadata": metadata, "spec": spec}
