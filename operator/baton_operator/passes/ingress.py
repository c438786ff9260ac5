"""Problems of requests from outside the cluster: a Service without an address, a route that no Gateway accepts.
Pure."""

from __future__ import annotations

import datetime

from baton_operator.kube.kinds import ROUTES
from baton_operator.kube.object_fields import Manifest, integer, mapping, mappings, metadata_of
from baton_operator.passes.pod_problems import seconds_since
from baton_operator.passes.problems import PassProblem, shorten
from baton_operator.passes.snapshot import Snapshot
from baton_wire.messages.values import Role

ANSWERED_WITHIN_S = 120.0
"""Seconds after which a Service without an address, or a route without an answer of a Gateway, is a problem."""


def find_ingress_problems(seen: Snapshot, now: datetime.datetime) -> tuple[tuple[PassProblem, float], ...]:
    """The problems of requests from outside, each with the seconds until it counts: an address takes a moment."""
    routes = [route for resource, route in seen.withdrawable if resource == ROUTES]
    late = [_without_address(seen.gateway_service, now), *(_not_accepted(route, now) for route in routes)]
    return tuple(problem for problem in late if problem is not None)


def _without_address(service: Manifest, now: datetime.datetime) -> tuple[PassProblem, float] | None:
    """The problem of a Service of type LoadBalancer without an address; inside the cluster it works all the same."""
    balancer = mapping(mapping(service.get("status")).get("loadBalancer"))
    since_s = _age_s(service, now)
    if mapping(service.get("spec")).get("type") != "LoadBalancer" or mappings(balancer.get("ingress")):
        return None
    message = (
        f"gateway: the Service {metadata_of(service).get('name')} of type LoadBalancer has no external address: "
        "the cluster has no load balancers, or they refuse this Service"
    )
    return _of_gateway("NoAddress", message), ANSWERED_WITHIN_S - since_s


def _not_accepted(route: Manifest, now: datetime.datetime) -> tuple[PassProblem, float] | None:
    """The problem of a route that no Gateway has answered, or that all answers refuse. An answer to an older edit of
    the route does not count."""
    parents = ", ".join(str(parent.get("name")) for parent in mappings(mapping(route.get("spec")).get("parentRefs")))
    answers = [
        condition
        for parent in mappings(mapping(route.get("status")).get("parents"))
        for condition in mappings(parent.get("conditions"))
        if condition.get("type") == "Accepted"
    ]
    if not answers:
        question = f"does the Gateway {parents} exist, and does a controller serve it?"
        message = f"gateway: no Gateway has answered the HTTPRoute: {question}"
        return _of_gateway("RouteNotAccepted", message), ANSWERED_WITHIN_S - _age_s(route, now)
    generation = integer(metadata_of(route).get("generation")) or 0
    refusals = [
        answer
        for answer in answers
        if answer.get("status") == "False" and (integer(answer.get("observedGeneration")) or generation) >= generation
    ]
    if len(refusals) < len(answers):
        return None
    refusal = f"{refusals[0].get('reason')}: {shorten(refusals[0].get('message'))}"
    if refusals[0].get("reason") == "UnsupportedValue" and "timeouts" in str(mapping(route.get("spec")).get("rules")):
        refusal += "; for a Gateway without HTTPRoute timeouts the installation sets routeTimeouts: false"
    return _of_gateway("RouteNotAccepted", f"gateway: the Gateway {parents} refuses the HTTPRoute: {refusal}"), 0.0


def _of_gateway(reason: str, message: str) -> PassProblem:
    return PassProblem(reason, message, of=Role.GATEWAY.value)


def _age_s(body: Manifest, now: datetime.datetime) -> float:
    """The age of an object; 0 if it has no creation time."""
    return seconds_since(metadata_of(body).get("creationTimestamp"), now) or 0.0
