"""Every field of an LLMDeployment with values at its edges and beyond them, and what must come of each.

What the definition refuses has to be refused by its path. What it accepts has to end as a fresh create of the same
spec does. What an older definition let through has to leave the old spec serving, under a condition with the path.
"""

from __future__ import annotations

import asyncio
import copy
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from baton_control.errors import ManifestError, UnsupportedError
from baton_control.spec.manifest import parse_live
from baton_control.worker_specs import worker_spec
from baton_operator.kube.kinds import DEPLOYMENTS, WORKERS
from baton_operator.kube.kube_api import Invalid
from baton_operator.objects.cluster import site_of
from baton_operator.schema.crd import deployment_definition
from baton_testing.kube.campaign import difference
from baton_testing.kube.defaults import Kinds
from baton_testing.kube.store import Json
from baton_testing.kube.world import LINKED, NAME, SPACE, Promise, World, deployment_body
from baton_testing.virtual_time.loop import run_virtual
from baton_wire.messages.values import POOL_ROLES

ONE = {"min": 1, "max": 1}
LOOSE = Promise(floor=0, most=2000)
GOOD: dict[str, tuple[Any, ...]] = {
    "model.source": ("pvc://other/b", "file:///models/x"),
    "model.servedName": ("other", "org/name-1"),
    "model.cache.size": ("200Gi",),
    "model.cache.storageClassName": ("fast",),
    "model.credentialsSecret": ("token",),
    "target": ("1ms", "1h", "250ms"),
    "accelerator.resource": ("nvidia.com/gpu",),
    "alternatives": (
        [{"resource": "example.com/gpu", "type": "A100", "costPerHour": 1.5, "nodeSelector": {"a": "b"}}],
    ),
    "kvCacheMemory": ("1Mi", "2Gi"),
    "cpu": ("500m", "3"),
    "memory": ("2Gi",),
    "minBandwidth": ("1GB/s", "1MB/s"),
    "scaleToZeroAfter": ("60s",),
    "schedules": (
        [{"start": "22:00", "end": "06:30", "prefill": 1, "decode": 1}],
        [{"start": "08:00", "end": "18:00", "days": ["Mon", "Fri"], "decode": 1}],
    ),
    "maxQueueDuration": ("1ms", "1h", "5s"),
    "maxRequestDuration": ("1s", "24h", "5m"),
    "topologyKey": ("example.com/rack",),
    "nodeSelector": ({"example.com/kind": "big"},),
    "env": ([{"name": "UCX_NET_DEVICES", "value": "mlx5_0:1"}],),
    "volumes": (
        [{"name": "ca", "mountPath": "/mnt/ca", "configMapName": "ca"}],
        [{"name": "data", "mountPath": "/mnt/a/b", "claimName": "data", "readOnly": False}],
    ),
    "sharedMemory": ("1Gi",),
    "arguments": ([{"name": "landing-bytes", "value": "65536"}], [{"name": "quiet"}]),
    "nodeAffinity": (
        [{"matchExpressions": [{"key": "a/b", "values": ["x", "y"]}, {"key": "c", "operator": "Exists"}]}],
        [{"weight": 7, "matchExpressions": [{"key": "mem", "operator": "Gt", "values": ["40"]}]}],
    ),
    "podAffinity": ([{"matchLabels": {"baton.dev/role": "prefill"}, "topologyKey": "example.com/rack"}],),
    "podAntiAffinity": ([{"weight": 100, "matchLabels": {"a": "b"}, "topologyKey": "example.com/rack"}],),
    "hugepages.size": ("64Mi",),
    "service.annotations": ({"example.com/a": "b"},),
    "serviceAccountAnnotations": ({"example.com/a": "b"},),
    "labels": ({"example.com/a": "b"},),
    "annotations": ({"example.com/a": "b c"},),
    "tolerations": ([{"key": "a/b"}], [{"key": "a", "operator": "Equal", "value": "c", "effect": "NoExecute"}]),
    "resourceClaims": ([{"name": "gpu", "resourceClaimTemplateName": "one"}],),
    "imagePullSecrets": (["one"], ["one", "two"]),
    "pullSecrets": ([{"name": "one"}],),
    "loadBalancerSourceRanges": (["192.0.2.0/24"],),
    "ipFamilies": (["IPv6"], ["IPv4", "IPv6"]),
    "loadBalancerClass": ("example.com/internal",),
    "parentRefs": ([{"name": "edge", "namespace": "ingress", "sectionName": "https", "port": 443}],),
    "maxSurge": (2, "25%"),
    "maxUnavailable": (2, "25%"),
    "requests.cpu": (2,),
    "limits.memory": ("8G",),
    "ephemeral-storage": ("1.5Gi",),
    "with": ({"rdma/ib": 1},),
    "tls": ({"secretName": "cert"},),
    "route": ({"parent": "edge"},),
    "apiKeys": ({"secretName": "clients"},),
    "route.parent": ("edge",),
    "hostnames": (["chat.example.com"],),
    "tracing.endpoint": ("http://collector:4318", "https://traces.example.com/v1/traces"),
}
"""Values that a pattern allows, by the last names of a path."""
NAMES = ("priorityClassName", "schedulerName", "runtimeClassName", "queue", "credentialsSecret", "secretName")
WRONG: tuple[Any, ...] = (-1, 1.5, True, "", "a b; rm -rf /", "x" * 700, [], ["x"], [1], {}, {"a b": "c"}, {"a": 1})


class _Unset:
    def __repr__(self) -> str:
        return "unset"


UNSET = _Unset()


@dataclass(frozen=True, slots=True)
class Mutation:
    path: str
    """Below `spec`."""
    value: Any

    def __str__(self) -> str:
        return f"spec.{self.path} = {str(self.value)[:40]!r}"

    def on(self, body: Json) -> Json:
        """A copy of a deployment with it."""
        body = copy.deepcopy(body)
        *way, last = self.path.split(".")
        node = body["spec"]
        for name in way:
            following = node.get(name)
            node[name] = following if isinstance(following, dict) else {}
            node = node[name]
        if self.value is UNSET:
            node.pop(last, None)
        else:
            node[last] = copy.deepcopy(self.value)
        return body


def base() -> Json:
    """The deployment that is mutated: the smallest that serves."""
    return deployment_body(prefill__replicas=dict(ONE), decode__replicas=dict(ONE))


def paths() -> list[str]:
    """Every leaf field of the spec; lists and mappings count as one, their entries' fields as more."""
    return sorted(_leaves(_spec_schema(), ""))


def mutations() -> list[Mutation]:
    """Every leaf with values at its bounds, past them, of other types, null and unset."""
    leaves = sorted(_leaves(_spec_schema(), "").items())
    return [Mutation(path, value) for path, schema in leaves for value in _values(path, schema)]


def _spec_schema() -> Json:
    definition: Any = deployment_definition()
    schema: Json = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def _leaves(schema: Json, at: str) -> dict[str, Json]:
    properties = schema.get("properties")
    if not properties:
        return {at: schema}
    entries: dict[str, Json] = {}
    for name, inner in properties.items():
        if is_foreign(inner):
            continue
        entries |= _leaves(inner, f"{at}.{name}" if at else name)
    return entries


def is_foreign(schema: Json) -> bool:
    """True for a field that the definition has only to refuse it."""
    return any(rule["rule"] == "false" for rule in schema.get("x-kubernetes-validations", ()))


def _values(path: str, schema: Json) -> Iterator[Any]:
    yield UNSET
    yield None
    yield from schema.get("enum", ())
    for end in ("minimum", "maximum"):
        if end in schema:
            step = -1 if end == "minimum" else 1
            yield from (schema[end], schema[end] + step)
    if schema.get("type") == "boolean":
        yield from (True, False, "true")
    for suffix, values in GOOD.items():
        if path == suffix or path.endswith(f".{suffix}"):
            yield from values
    if path.endswith(NAMES):
        yield "a-name"
    if schema.get("type") == "array" and "properties" in schema.get("items", {}):
        yield from _entries(path, schema["items"])
    yield from WRONG


def _entries(path: str, schema: Json) -> Iterator[Any]:
    whole = next(values[0][0] for suffix, values in GOOD.items() if path.endswith(suffix))
    for name, inner in schema["properties"].items():
        for value in (None, "", 5, "a b", *inner.get("enum", ("x" * 400,))):
            yield [{**whole, name: value}]


def refusal(mutation: Mutation) -> str | None:
    """The complaint of the definition, with paths; None: the object is accepted."""

    try:
        Kinds().admit(DEPLOYMENTS, mutation.on(base()), None)
    except Invalid as error:
        return error.message
    return None


def names_the_path(mutation: Mutation, text: str) -> bool:
    """True if a complaint names the field, one of its entries, or a rule of the mapping that it is in."""
    parts = mutation.path.split(".")
    places = ["spec." + ".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    plain = re.sub(r"\[[0-9]+\]", "", text)
    return any(place in plain for place in places[:3])


class Bench:
    """One deployment that is mutated again and again, and fresh ones to compare with."""

    def __init__(self) -> None:
        self._fresh: dict[str, Json] = {}

    def fresh(self, body: Json) -> Json:
        """The end state of a cluster in which a deployment was created like that."""
        key = str(body["spec"])
        if key not in self._fresh:

            async def main() -> Json:
                world = World(promise=LOOSE, has_links=True)
                try:
                    world.start()
                    world.store.create(DEPLOYMENTS, body, "kubectl")
                    await world.settle()
                finally:
                    await world.end()
                return world.outcome()

            self._fresh[key] = run_virtual(main())
        return self._fresh[key]

    def edited(self, bodies: list[tuple[float, Json]]) -> tuple[Json, Json]:
        """The end state after these edits, each after a while, of one that was created from `base`, and the last of
        them that was taken: some cannot follow what was there."""

        async def main() -> tuple[Json, Json]:
            world, taken = World(promise=LOOSE, has_links=True), base()
            try:
                world.start()
                world.store.create(DEPLOYMENTS, base(), "kubectl")
                for wait_s, body in bodies:
                    await asyncio.sleep(wait_s)
                    live = world.store.read(DEPLOYMENTS, SPACE, NAME)
                    try:
                        world.store.replace(DEPLOYMENTS, {**live, "spec": copy.deepcopy(body["spec"])}, "kubectl")
                    except Invalid as error:
                        if "cannot change" not in error.message:
                            raise
                    else:
                        taken = body
                await world.settle()
            finally:
                await world.end()
            return world.outcome(), taken

        return run_virtual(main())

    def complaint(self, bodies: list[tuple[float, Json]]) -> str | None:
        """How the edits end otherwise than a fresh create of the last one that was taken; None: they do not."""
        stored_spec, taken = self.edited(bodies)
        wanted = self.fresh(taken)
        return None if wanted == stored_spec else difference(wanted, stored_spec)


def slipped(broken: list[Mutation]) -> list[str]:
    """Specs that only an older definition would have let through, one after the other on one deployment that serves.
    Returns what went wrong: another condition than has to be, or workers that are not those of before."""

    async def main() -> list[str]:
        world, wrong = World(promise=LOOSE, has_links=True), []
        try:
            world.start()
            world.store.create(DEPLOYMENTS, base(), "kubectl")
            await world.settle()
            world.store.kinds.is_strict = False
            before = [
                (worker_set["metadata"]["name"], worker_set["spec"]) for worker_set in world.store.all(WORKERS, SPACE)
            ]
            good = world.store.read(DEPLOYMENTS, SPACE, NAME)["spec"]
            for mutation in broken:
                live = world.store.read(DEPLOYMENTS, SPACE, NAME)
                world.store.replace(DEPLOYMENTS, {**live, "spec": mutation.on({"spec": good})["spec"]}, "kubectl")
                await asyncio.sleep(20.0)
                stored = world.store.read(DEPLOYMENTS, SPACE, NAME)
                if not _is_refused(stored):
                    continue
                conditions = {condition["type"]: condition for condition in stored["status"]["conditions"]}
                degraded = conditions["Degraded"]
                if (degraded["status"], degraded["reason"]) != ("True", "InvalidSpec"):
                    wrong.append(f"{mutation}: Degraded is {degraded['status']} {degraded['reason']}")
                elif not names_the_path(mutation, degraded["message"]) and len(degraded["message"]) < 1000:
                    wrong.append(f"{mutation}: {degraded['message']}")
                now = [
                    (worker_set["metadata"]["name"], worker_set["spec"])
                    for worker_set in world.store.all(WORKERS, SPACE)
                ]
                if now != before:
                    wrong.append(f"{mutation}: the workers changed")
        finally:
            await world.end()
        return wrong

    return run_virtual(main())


def _is_refused(stored: Json) -> bool:
    try:
        parse_live(stored)
    except ManifestError:
        return True
    return False


def _is_held(body: Json) -> bool:
    """True if the spec cannot be run: workers that flip need equal pools."""
    deployment, _ = parse_live(body)
    try:
        for role in POOL_ROLES:
            worker_spec(deployment, role, site_of(deployment, role, LINKED))
    except UnsupportedError:
        return True
    return False


def sequence(rng: random.Random, good: list[Mutation]) -> list[tuple[float, Json]]:
    """Some edits in a row, each after 0 to 40 s; the last one is a spec that is accepted unchanged, not paused and not
    held: what a pause or a spec that cannot be run keeps depends on what was there."""
    body, complaints = base(), []
    for _ in range(rng.randint(2, 5)):
        tried = rng.choice(good).on(body if rng.random() < 0.6 else base())
        if not _is_refused(tried):
            body = tried
        complaints.append((rng.choice((0.0, 0.0, 1.0, 8.0, 40.0)), body))
    if body["spec"].get("rollout", {}).get("paused"):
        body = Mutation("rollout.paused", False).on(body)
        complaints.append((8.0, body))
    if _is_held(body):
        complaints.append((8.0, Mutation("autoscaling.flips", False).on(body)))
    return complaints
