"""Deletes what nothing needs any more: worker Deployments that are empty, records of templates that nobody runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from baton_control.hashes import Revision
from baton_operator.kube.kinds import JOBS, RECORDS, WORKERS
from baton_operator.kube.object_fields import Manifest, metadata_of
from baton_operator.passes.apply import Applier, DesiredObject
from baton_operator.passes.observe import finished
from baton_operator.passes.snapshot import Snapshot
from baton_operator.passes.template_records import outdated
from baton_operator.passes.worker_pods import PodCounts
from baton_wire.messages.values import POOL_ROLES, Role


class Cleanup:
    def __init__(self, applier: Applier) -> None:
        self._applier = applier

    async def run(self, seen: Snapshot, wanted: Mapping[Role, Revision]) -> None:
        """Each object only as it was seen: Conflict otherwise, and the pass is repeated."""
        for each in finished(seen.sets, wanted):
            roles = POOL_ROLES if each.is_flexible else (each.role,)
            if not any(seen.crews.get((role, each.revision.template), PodCounts()).existing for role in roles):
                await self._applier.delete(WORKERS, seen.live_sets[each.name])
        live = {each.revision.template for each in seen.sets}
        for record in outdated(seen.records, live | {each.template for each in wanted.values()}):
            await self._applier.delete(RECORDS, seen.live_records[record.name])

    async def withdrawn(self, seen: Snapshot, wanted: Iterable[DesiredObject]) -> None:
        """Objects that the deployment had and does not ask for any more."""
        names = {(each.resource, each.name) for each in wanted}
        for resource, live in seen.withdrawable:
            if (resource, str(metadata_of(live).get("name"))) not in names:
                await self._applier.delete(resource, live)

    async def jobs(self, former: Iterable[Manifest]) -> None:
        """Jobs that fetched what nobody asks for now; their Pods go with them."""
        for each in former:
            await self._applier.delete(JOBS, each)
