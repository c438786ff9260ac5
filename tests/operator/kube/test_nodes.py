"""Which nodes are being emptied, from lists and events."""

from __future__ import annotations

from typing import Any

import pytest

from baton_operator.kube.kube_api import Change, Listing, WatchEvent
from baton_operator.kube.nodes import Nodes, is_emptying

Json = dict[str, Any]


def node(name: str, **spec: object) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "resourceVersion": "5"}, "spec": spec}


def taint(key: str) -> Json:
    return {"taints": [{"key": key, "effect": "NoSchedule"}]}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, False),
        ({"unschedulable": True}, True),
        ({"unschedulable": False}, False),
        (taint("nvidia.com/gpu"), False),
        (taint("node.kubernetes.io/not-ready"), False),
        (taint("ToBeDeletedByClusterAutoscaler"), True),
        (taint("karpenter.sh/disrupted"), True),
    ],
)
def test_a_node_is_emptied_when_it_is_cordoned_or_marked_by_what_takes_nodes_away(spec: Json, expected: bool) -> None:
    assert is_emptying(node("a", **spec)) is expected


def test_a_change_is_told_once_and_nothing_is_known_before_the_first_list() -> None:
    changes: list[frozenset[str] | None] = []
    nodes = Nodes(lambda: changes.append(nodes.emptying))
    assert nodes.emptying is None
    nodes.apply_event(WatchEvent(Change.MODIFIED, node("a", unschedulable=True)))
    assert nodes.emptying is None
    nodes.apply_list(Listing((node("a"), node("b", unschedulable=True)), "5"), None)
    nodes.apply_event(WatchEvent(Change.MODIFIED, node("a", unschedulable=True)))
    nodes.apply_event(WatchEvent(Change.MODIFIED, node("a", unschedulable=True)))
    nodes.apply_event(WatchEvent(Change.BOOKMARK, {"metadata": {"resourceVersion": "9"}}))
    nodes.apply_event(WatchEvent(Change.DELETED, node("b", unschedulable=True)))
    nodes.apply_list(Listing((node("a"),), "9"), None)
    assert changes == [frozenset("b"), frozenset("ab"), frozenset("a"), frozenset()]
