"""A variable that is refused since an upgrade: what runs goes on, what is made anew has it no more, a spec that brings
one is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from baton_control import worker_specs
from baton_control.spec import pod_options
from baton_operator.kube.kinds import DEPLOYMENTS, PODS, POOLS
from baton_operator.objects import allowed_env
from baton_operator.objects.allowed_env import SAFE_ENV
from baton_operator.objects.metadata import RESTART_ANNOTATION
from baton_testing.kube.calm_world import play
from baton_testing.kube.world import ALL, NAME, PLATFORM, SPACE, World
from baton_wire.messages.values import Role

Json = dict[str, Any]
FORMER = ("UCX_LOG_FILE", "/tmp/log")
"""Reserved now."""
NOW = replace(PLATFORM, pod_policy=msgspec.structs.replace(ALL, env=SAFE_ENV))
BOUNDS = {"min": 2, "max": 4}


@pytest.fixture
def former(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The version before: it judged neither these names nor values, and set nothing against them."""
    for module in (pod_options, allowed_env):
        monkeypatch.setattr(module, "is_reserved", lambda name: False)
    monkeypatch.setattr(allowed_env, "_PLAIN", re.compile(".*"))
    monkeypatch.setattr(worker_specs, "CLOSED_ENV", ())
    return monkeypatch


def env(*variables: tuple[str, str]) -> list[Json]:
    return [{"name": name, "value": value} for name, value in variables]


def condition(world: World, kind: str) -> Json:
    conditions = world.store.read(DEPLOYMENTS, SPACE, NAME)["status"]["conditions"]
    (one,) = (condition for condition in conditions if condition["type"] == kind)
    return dict(one)


def pods(world: World, role: Role) -> dict[str, set[str]]:
    """The names of the variables of each Pod, by its uid."""
    pods = [pod for pod in world.store.all(PODS, SPACE) if pod["metadata"]["labels"]["baton.dev/role"] == role]
    return {
        pod["metadata"]["uid"]: {variable["name"] for variable in pod["spec"]["containers"][0]["env"]} for pod in pods
    }


async def upgrade(world: World, former: pytest.MonkeyPatch) -> None:
    """The operator of this version takes over from the one before, under the safe list."""
    await world.stop()
    former.undo()
    world.store.kinds.is_strict = False  # what is stored already is not judged again
    world.platform = NOW
    world.start()
    await world.settle()


@pytest.mark.parametrize("variable", [FORMER, ("UCX_PROTO_ENABLE", "y"), ("UCX_TLS", "/mnt/x")], ids=str)
def test_what_runs_goes_on_after_the_upgrade_is_sized_and_rolls_when_the_variable_is_taken_out(
    variable: tuple[str, str], former: pytest.MonkeyPatch
) -> None:
    async def script(world: World) -> None:
        before = {role: pods(world, role) for role in (Role.PREFILL, Role.DECODE)}
        assert all(variable[0] in names for names in before[Role.DECODE].values())
        await upgrade(world, former)
        assert {role: pods(world, role) for role in before} == before, "nothing was restarted"
        degraded = condition(world, "Degraded")
        assert (degraded["status"], degraded["reason"]) == ("True", "EnvRefused")
        assert f"spec.decode.env: {variable[0]}" in degraded["message"]
        assert RESTART_ANNOTATION in degraded["message"]
        assert [condition(world, kind)["status"] for kind in ("Ready", "Available", "Stalled")] == ["True"] * 2 + [
            "False"
        ]
        world.user_scales(POOLS, "chat-decode", 3)
        world.user_edits("prefill.replicas", {"min": 3, "max": 4})
        await world.settle()
        after = {role: pods(world, role) for role in before}
        assert all(len(after[role]) == 3 and after[role].keys() > before[role].keys() for role in before)
        world.user_edits("decode.env", env(("UCX_NET_DEVICES", "eth0")))
        await world.settle()
        rolled = pods(world, Role.DECODE)
        assert len(rolled) == 3
        assert not rolled.keys() & after[Role.DECODE].keys()
        assert all(variable[0] not in names for names in rolled.values())
        assert pods(world, Role.PREFILL) == after[Role.PREFILL]
        assert condition(world, "Degraded")["status"] == "False"

    fields: Json = {"prefill__replicas": BOUNDS, "decode__replicas": BOUNDS, "autoscaling": {"mode": "External"}}
    play(script, **fields, decode__env=env(variable, ("UCX_NET_DEVICES", "eth0")))


def test_a_template_that_is_made_anew_has_the_variable_no_more_and_an_older_one_that_had_it_never_comes_back(
    former: pytest.MonkeyPatch,
) -> None:
    async def script(world: World) -> None:
        await upgrade(world, former)
        world.user_edits("decode.sharedMemory", "1Gi")
        await world.settle()
        assert all(FORMER[0] not in names for names in pods(world, Role.DECODE).values())
        degraded = condition(world, "Degraded")
        assert degraded["status"] == "False", "nothing in use has it"
        assert "spec.decode.env[0].name" in degraded["message"], "but the spec still does"
        world.user_edits("decode.sharedMemory", None)
        await world.settle()
        assert all(FORMER[0] not in names for names in pods(world, Role.DECODE).values())
        assert condition(world, "Degraded")["status"] == "False"

    play(script, decode__env=env(FORMER))


def test_a_restart_closes_it_while_the_spec_is_as_it_was(former: pytest.MonkeyPatch) -> None:
    async def script(world: World) -> None:
        await upgrade(world, former)
        body = world.store.read(DEPLOYMENTS, SPACE, NAME)
        body["metadata"].setdefault("annotations", {})[RESTART_ANNOTATION] = "now"
        world.store.replace(DEPLOYMENTS, body, "kubectl")
        await world.settle()
        for role in (Role.PREFILL, Role.DECODE):
            assert all(FORMER[0] not in names and "UCX_CONFIG_DIR" in names for names in pods(world, role).values())
        assert condition(world, "Degraded")["status"] == "False"
        assert condition(world, "Available")["status"] == "True"

    play(script, decode__env=env(FORMER), prefill__env=env(FORMER))


@pytest.mark.parametrize("came", [("UCX_GDB_COMMAND", "sh"), (FORMER[0], "/mnt/other"), ("UCX_PROTO_ENABLE", "y")])
def test_a_spec_that_brings_a_refused_variable_is_refused_and_what_ran_goes_on(
    came: tuple[str, str], former: pytest.MonkeyPatch
) -> None:
    async def script(world: World) -> None:
        await upgrade(world, former)
        before = pods(world, Role.DECODE)
        world.user_edits("decode.env", env(came))
        await world.settle()
        degraded = condition(world, "Degraded")
        assert degraded["reason"] in ("NotAllowed", "InvalidSpec")
        assert came[0] in degraded["message"]
        assert pods(world, Role.DECODE) == before
        assert condition(world, "Available")["status"] == "True"

    play(script, decode__env=env(FORMER))
