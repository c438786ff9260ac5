"""Gives flexible workers their roles: labels on their Pods, and orders to flip through the gateways."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from baton_control.names import Key
from baton_operator.kube.kinds import PODS
from baton_operator.kube.labels import ASSIGNED_ANNOTATION, COST_ANNOTATION, FIELD_MANAGER
from baton_operator.kube.object_fields import Manifest
from baton_operator.objects.cluster import Owner
from baton_operator.objects.metadata import role_labels
from baton_operator.passes.apply import Applier
from baton_operator.passes.roles import Assignment, flip_orders
from baton_operator.passes.worker_pods import WorkerPod
from baton_operator.telemetry import GatewayReport, Telemetry
from baton_wire.messages.operator_link import FlipOrder

log = logging.getLogger(__name__)
FIRST_TO_GO = "-1"
"""Deletion cost of the Pod that goes first; all others have 0."""


class RoleLabels:
    """The roles of all flexible workers. `clock` is monotonic, in seconds."""

    def __init__(self, applier: Applier, telemetry: Telemetry | None, clock: Callable[[], float]) -> None:
        self._applier, self._telemetry, self._clock = applier, telemetry, clock
        self._open: dict[Key, dict[FlipOrder, float]] = {}
        """Orders that were not carried out at the last pass, each with the time since when."""

    async def write(self, key: Key, owner: Owner, wanted: Iterable[Assignment]) -> dict[str, WorkerPod]:
        """Label Pods with their roles; returns the Pods with these roles, by uid. Raises KubeError, and Conflict for a
        Pod that is gone."""
        labelled: dict[str, WorkerPod] = {}
        for assignment in wanted:
            pod = assignment.pod
            if assignment.is_new:
                await self._applier.apply(_body(key, assignment), manager=FIELD_MANAGER, force=True)
                self._applier.count_write(owner)
                if pod.is_assigned and pod.role is not assignment.role:
                    log.info("%s: %s is %s, was %s", key, pod.name, assignment.role, pod.role)
            labelled[pod.uid] = replace(pod, role=assignment.role, is_assigned=True, is_spare=assignment.is_spare)
        return labelled

    def order(self, key: Key, pods: Iterable[WorkerPod], report: GatewayReport | None) -> None:
        """Order the flips that are missing. While gateways report nothing, the last orders stay."""
        if self._telemetry is None or report is None:
            return
        wanted = flip_orders(pods, report.flexible)
        before, now = self._open.get(key, {}), self._clock()
        for order, since in before.items():
            if order not in wanted and any(worker.epoch == order.worker for worker in report.flexible):
                log.info("%s: flip %d to %s took %.2f s", key, order.number, order.role, now - since)
        self._open[key] = {order: before.get(order, now) for order in wanted}
        self._telemetry.order(key, wanted)

    def forget(self, key: Key) -> None:
        """Drop the orders of a deployment that is gone."""
        self._open.pop(key, None)


def _body(key: Key, wanted: Assignment) -> Manifest:
    marks: Mapping[str, str] = {ASSIGNED_ANNOTATION: "true"}
    return {
        "apiVersion": PODS.api_version,
        "kind": PODS.kind,
        "metadata": {
            "name": wanted.pod.name,
            "namespace": key.namespace,
            "uid": wanted.pod.uid,
            "labels": role_labels(wanted.role),
            "annotations": {**marks, **({COST_ANNOTATION: FIRST_TO_GO} if wanted.is_spare else {})},
        },
    }
