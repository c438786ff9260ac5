"""Whether requests from outside of the cluster find the gateways: what a cloud's load balancer and a Gateway of the
Gateway API made of the objects that they were given. Pure.
"""

from __future__ import annotations

import datetime

from baton_operator.kube.kinds import ROUTES
from baton_operator.kube.object_fields import Manifest, integer, mapping, mappings, metadata_of
from baton_operator.passes.pod_problems import seconds_since
from baton_operator.passes.problems import PassProblem, shorten
from baton_operator.passes.snapshot import Snapshot
from baton_wire.messages.values import Role

FOUND_WITHIN_S = 120.0
"""A Service without an address, or a route of which no Gateway says anything, is told of after so long."""


def find_ingress_problems(seen: Snapshot, now: datetime.datetime) -> tuple[tuple[PassProblem, float], ...]:
    """What keeps requests from outside away, and in how many seconds that is a problem: an address takes a moment."""
    routes = [route for resource, route in seen.withdrawable if resource == ROUTES]
    late = [_without_address(seen.gateway_service, now), *(_not_accepted(route, now) for route in routes)]
    return tuple(problem for problem in late if problem is not None)


def _without_address(service: Manifest, now: datetime.datetime) -> tuple[PassProblem, float] | None:
    """Of a Service of type LoadBalancer that has none. Inside of the cluster it works all the same."""
    balancer = mapping(mapping(service.get("status")).get("loadBalancer"))
    since_s = _age_s(service, now)
    if mapping(service.get("spec")).get("type") != "LoadBalancer" or mappings(balancer.get("ingress")):
        return None
    message = (
        f"gateway: the Service {metadata_of(service).get('name')} of type LoadBalancer has no address from outside: "
        "nothing gives this cluster load balancers, or it refuses this one"
    )
    return _of_gateway("NoAddress", message), FOUND_WITHIN_S - since_s


def _not_accepted(route: Manifest, now: datetime.datetime) -> tuple[PassProblem, float] | None:
    """Of a route that no Gateway has said anything about, or that every one refuses which did. What was said about an
    older edit is no answer to this one."""
    parents = ", ".join(str(parent.get("name")) for parent in mappings(mapping(route.get("spec")).get("parentRefs")))
    answers = [
        condition
        for parent in mappings(mapping(route.get("status")).get("parents"))
        for condition in mappings(parent.get("conditions"))
        if condition.get("type") == "Accepted"
    ]
    if not answers:
        message = f"gateway: nobody has taken the HTTPRoute: is there a Gateway {parents}, and who serves it?"
        return _of_gateway("RouteNotAccepted", message), FOUND_WITHIN_S - _age_s(route, now)
    generation = integer(metadata_of(route).get("generation")) or 0
    refusals = [
        answer
        for answer in answers
        if answer.get("status") == "False" and (integer(answer.get("observedGeneration")) or generation) >= generation
    ]
    if len(refusals) < len(answers):
        return None
    refusal = f"{refusals[0].get('reason')}: {shorten(refusals[0].get('message'))}"
    return _of_gateway("RouteNotAccepted", f"gateway: the Gateway {parents} refuses the HTTPRoute: {refusal}"), 0.0


def _of_gateway(reason: str, message: str) -> PassProblem:
    return PassProblem(reason, message, of=Role.GATEWAY.value)


def _age_s(body: Manifest, now: datetime.datetime) -> float:
    """0 of an object that does not say when it was made."""
    return seconds_since(metadata_of(body).get("creationTimestamp"), now) or 0.0
