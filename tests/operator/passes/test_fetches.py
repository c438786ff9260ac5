"""Fetches that fail: when a person has to act, what begins them anew, and that texts of Pods stay harmless."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from baton_control.names import Key
from baton_operator.kube.kinds import CLAIMS, DEPLOYMENTS, JOBS, PODS
from baton_operator.objects.fetch_settings import FetchSettings
from baton_operator.objects.fetch_state import RETRY_S, fetch_state, retry_in_s
from baton_operator.objects.metadata import REFETCH_ANNOTATION
from baton_operator.passes.fetch_failures import failures_of
from baton_operator.passes.problems import MAX_TEXT, shorten
from baton_operator.passes.reconcile import Reconciler
from baton_testing.kube.causes import HUB, clear
from baton_testing.kube.clock import stamp, wall
from baton_testing.kube.cluster import Affliction
from baton_testing.kube.fetch_causes import LOG, job_status, program_ended, refused, tried, twice
from baton_testing.kube.planted_causes import LOOSE, until
from baton_testing.kube.store import Json
from baton_testing.kube.world import NAME, SPACE, World
from baton_testing.virtual_time.loop import run_virtual


def status(world: World) -> Json:
    live: Json = world.store.read(DEPLOYMENTS, SPACE, NAME).get("status", {})
    return live


def condition(world: World, kind: str) -> Json:
    return next((entry for entry in status(world).get("conditions", ()) if entry["type"] == kind), {})


def jobs(world: World) -> list[Json]:
    return list(world.store.all(JOBS, SPACE))


def in_world(body: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World(promise=LOOSE)
        world.start()
        await body(world)
        await world.end()

    run_virtual(main())


@pytest.mark.parametrize(
    ("lines", "is_stalled"),
    [
        (["HTTP 503"], "False"),
        (["HTTP 503", "HTTP 503"], "True"),
        (["HTTP 503", "HTTP 503", "HTTP 429"], "False"),
        (["HTTP 429", "HTTP 503", "HTTP 503"], "True"),
        (["[Connect call failed ('10.0.0.1', 443)]", "[Connect call failed ('10.0.0.2', 443)]"], "True"),
        (["a: 10 of 99 bytes came", "a: 70 of 99 bytes came"], "False"),
        (["a: 10 of 99 bytes came", "a: 10 of 99 bytes came"], "True"),
    ],
)
def test_from_the_second_equal_failure_a_person_has_to_act(lines: list[str], is_stalled: str) -> None:
    async def body(world: World) -> None:
        await tried(1, *[f"{LOG}baton.fetch failed: {line}\n" for line in lines])(world)
        await until(lambda: lines[-1] in status(world).get("message", ""), 30.0)
        await asyncio.sleep(15.0)
        assert status(world)["summary"] == "FetchingModel"
        assert f"try {len(lines) + 1} of 13; last: {lines[-1]}" in status(world)["message"]
        assert condition(world, "Stalled")["status"] == is_stalled
        assert condition(world, "Ready")["status"] == "False"

    in_world(body)


def test_a_download_that_goes_on_is_not_stalled_by_failures_before_it() -> None:
    async def body(world: World) -> None:
        await twice("HTTP 503")(world)
        await until(lambda: condition(world, "Stalled").get("status") == "True", 30.0)
        running: Json = {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]}
        far = "Readiness probe failed: fetched 13207024435 of 64961380352 bytes"
        world.fetch_pod_is(Affliction(running, ("Unhealthy", far)), "now")
        await until(lambda: "20 %" in status(world)["message"], 60.0)
        assert "(12.3 of 60.5 GiB), try 3 of 13; last: HTTP 503" in status(world)["message"]
        assert condition(world, "Stalled")["status"] == "False"

    in_world(body)


def test_a_mended_secret_is_found_without_deleting_the_job_by_hand() -> None:
    """The operator may read no Secret, so that it tries again by itself."""

    async def body(world: World) -> None:
        await refused("HTTP 401: credentials are missing")(world)
        await until(lambda: status(world).get("summary") == "ModelFetchFailed", 30.0)
        [former] = jobs(world)
        assert REFETCH_ANNOTATION in status(world)["message"]
        assert "10 min" in status(world)["message"]
        clear(world)
        world.cluster.weather.job = Affliction({"active": 1})
        former["status"] = job_status(1, "PodFailurePolicy", stamp(world.clock()))
        await asyncio.sleep(RETRY_S + 60)
        [present] = jobs(world)
        assert present["metadata"]["uid"] != former["metadata"]["uid"]
        assert status(world)["summary"] == "FetchingModel"
        assert "last: HTTP 401: credentials are missing" in status(world)["message"], "until it is known to be better"
        assert condition(world, "Stalled")["status"] == "True"
        clear(world)
        world.cluster.nudge()
        await until(lambda: status(world)["summary"] == "Serving", 120.0)
        assert status(world)["summary"] == "Serving"

    in_world(body)


def test_another_value_of_the_annotation_begins_the_fetch_at_once_and_restarts_no_worker() -> None:
    async def body(world: World) -> None:
        await refused("HTTP 401: credentials are missing")(world)
        await until(lambda: status(world).get("summary") == "ModelFetchFailed", 30.0)
        [former] = jobs(world)
        clear(world)
        world.cluster.weather.job = None
        annotate(world, REFETCH_ANNOTATION, "1")
        await until(lambda: status(world)["summary"] == "Serving", 120.0)
        assert [job["metadata"]["name"] for job in jobs(world)] != [former["metadata"]["name"]]
        revision = status(world)["revision"]
        annotate(world, REFETCH_ANNOTATION, "2")
        await asyncio.sleep(120.0)
        assert (status(world)["summary"], status(world)["revision"]) == ("Serving", revision)
        assert len(jobs(world)) == 1

    in_world(body)


def annotate(world: World, name: str, value: str) -> None:
    body = world.store.read(DEPLOYMENTS, SPACE, NAME)
    body["metadata"].setdefault("annotations", {})[name] = value
    world.store.replace(DEPLOYMENTS, body, "kubectl-annotate")


def test_a_fetch_that_is_done_is_not_repeated_when_the_installation_gets_a_proxy() -> None:
    async def body(world: World) -> None:
        world.user_applies(**HUB)
        await until(lambda: status(world).get("summary") == "Serving", 120.0)
        [done] = jobs(world)
        proxy = FetchSettings(env=(("HTTPS_PROXY", "http://10.0.0.9:3128"),))
        world.platform = replace(world.platform, fetch=proxy)
        await world.restart()
        await asyncio.sleep(60.0)
        assert [job["metadata"]["uid"] for job in jobs(world)] == [done["metadata"]["uid"]]
        assert status(world)["summary"] == "Serving"

    in_world(body)


def test_json_logs_of_the_installation_repeat_no_fetch_and_restart_nothing() -> None:
    async def body(world: World) -> None:
        world.user_applies(**HUB)
        await until(lambda: status(world).get("summary") == "Serving", 120.0)
        [done], before = jobs(world), {pod["metadata"]["uid"] for pod in world.store.all(PODS, SPACE)}
        world.platform = replace(world.platform, json_logs=True)
        await world.restart()
        await asyncio.sleep(60.0)
        assert [job["metadata"]["uid"] for job in jobs(world)] == [done["metadata"]["uid"]]
        assert {pod["metadata"]["uid"] for pod in world.store.all(PODS, SPACE)} == before
        assert status(world)["summary"] == "Serving"

    in_world(body)


def test_a_fetch_that_fails_begins_anew_when_the_installation_gets_a_proxy() -> None:
    async def body(world: World) -> None:
        await refused("the proxy answers HTTP 407")(world)
        await until(lambda: status(world).get("summary") == "ModelFetchFailed", 30.0)
        [former] = jobs(world)
        clear(world)
        world.platform = replace(world.platform, fetch=FetchSettings(env=(("HTTPS_PROXY", "http://10.0.0.9:3128"),)))
        world.cluster.weather.job = None
        await world.restart()
        await until(lambda: status(world)["summary"] == "Serving", 120.0)
        [present] = jobs(world)
        assert present["metadata"]["name"] != former["metadata"]["name"]

    in_world(body)


def test_the_wait_for_the_next_try_counts_from_the_failure() -> None:
    def at(seconds: float) -> str:
        return stamp(seconds)

    failed = fetch_state({"status": job_status(1, "PodFailurePolicy", at(100.0))}, "job")
    now = wall(160.0)
    assert retry_in_s(failed, now) == pytest.approx(RETRY_S - 60)
    assert retry_in_s(failed, wall(100.0 + 2 * RETRY_S)) == 0.0
    assert retry_in_s(replace(failed, failed_at=""), now) == RETRY_S
    assert retry_in_s(fetch_state({"status": {"active": 1}}, "job"), now) is None


def test_a_fetch_with_former_settings_ends_when_they_change() -> None:
    """It would hold the lock of the cache against the mended one, for all of its tries."""

    async def body(world: World) -> None:
        world.cluster.weather.job = Affliction({"active": 1})
        world.user_applies(**HUB)
        await until(lambda: len(jobs(world)) == 1, 30.0)
        [former] = jobs(world)
        world.user_applies(**HUB, model__credentialsSecret="hub")
        await until(lambda: False, 30.0)
        [present] = jobs(world)
        assert present["metadata"]["name"] != former["metadata"]["name"]

    in_world(body)


def test_a_done_fetch_of_a_former_model_goes_once_the_new_one_is_done() -> None:
    """Until then a user may go back to the former model, and it needs not be fetched again."""

    async def body(world: World) -> None:
        world.user_applies(**HUB)
        await world.settle()
        [former] = jobs(world)
        world.cluster.weather.job = Affliction({"active": 1})
        world.user_applies(**HUB | {"model__source": "hf://org/other@" + "b" * 40})
        await until(lambda: len(jobs(world)) == 2, 30.0)
        await until(lambda: len(jobs(world)) != 2, 60.0)
        assert former["metadata"]["name"] in [job["metadata"]["name"] for job in jobs(world)]
        world.cluster.weather.job = None
        world.cluster.nudge()
        await world.settle()
        [present] = jobs(world)
        assert present["metadata"]["name"] != former["metadata"]["name"]

    in_world(body)


def test_a_problem_since_an_unknown_time_is_reported_without_pass_after_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts at once, so that no later moment changes the status."""
    passes: list[float | None] = []

    class CountedReconciler(Reconciler):
        async def reconcile(self, key: Key) -> float | None:
            next_s = await super().reconcile(key)
            passes.append(next_s)
            return next_s if len(passes) < 100 else 60.0

    monkeypatch.setattr("baton_operator.runtime.Reconciler", CountedReconciler)

    async def body(world: World) -> None:
        world.cluster.weather.job = Affliction({"active": 1})
        world.user_applies(**HUB)
        await until(lambda: len(jobs(world)) == 1, 30.0)
        ended = program_ended(0, "", "") | {"phase": "Running"}
        proxy: Json = {"name": "istio-proxy", "restartCount": 0, "ready": True, "state": {"running": {}}}
        ended["containerStatuses"] = [*ended["containerStatuses"], proxy]
        world.fetch_pod_is(Affliction(ended))
        await until(lambda: "istio-proxy" in status(world).get("message", ""), 30.0)
        await until(lambda: False, 30.0)
        assert len(passes) < 50

    in_world(body)


def test_a_claim_of_former_settings_keeps_nothing_back() -> None:
    async def body(world: World) -> None:
        world.cluster.weather.job = Affliction({"active": 1})
        world.user_applies(**HUB)
        await until(lambda: any(True for _ in world.store.all(CLAIMS, SPACE)), 30.0)
        world.store.set_status(CLAIMS, SPACE, f"{NAME}-models", {"phase": "Pending"})
        await until(lambda: "is Pending" in status(world).get("message", ""), 30.0)
        world.user_applies(**HUB, model__cache={"claimName": "models"})
        await until(lambda: "is Pending" not in status(world)["message"], 30.0)
        assert status(world)["message"] == "the model is being fetched"

    in_world(body)


EVIL = "\x1b[2J\x1b]0;owned\x07\u202egnp.exe\u202c \x00\r\nok \u200b" + "x" * 5000


def test_texts_of_pods_are_short_printable_lines() -> None:
    pod: Json = {"metadata": {}, "status": program_ended(1, f"{LOG}baton.fetch failed: {EVIL}", "2026-11-28T10:00:00Z")}
    [failure] = failures_of([pod])
    assert failure.text.isprintable()
    assert len(failure.text) <= MAX_TEXT
    assert "owned" not in failure.text
    assert shorten(EVIL).startswith("gnp.exe ok")


JSON_LINE = '{"time": "2026-11-28T10:00:00.000Z", "level": "ERROR", "logger": "baton.fetch", "message": "%s"}\n'


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (f"{LOG}baton.fetch refused: a: b\n", "a: b"),
        ("refused: a\nfailed: b\n", "b"),
        (f"{LOG}baton.fetch failed: a\nTraceback (most recent call last):\n  KeyError: 1\n", "a"),
        ("Traceback (most recent call last):\n  File x\nKeyError: 'x'\n", "KeyError: 'x'"),
        ("baton_model_fetch: error: unrecognized arguments: --progress=x", None),
        (JSON_LINE % "refused: a: b", "a: b"),
        ((JSON_LINE % "failed: the source is busy")[40:], "the source is busy"),
        ("", "Error, exit code 1, without a word"),
        (None, "Error, exit code 1, without a word"),
        (7, "7"),
    ],
)
def test_the_programs_last_line_is_found(message: object, text: str | None) -> None:
    ended = program_ended(1, "", "2026-11-28T10:00:00Z")
    ended["containerStatuses"][0]["state"]["terminated"]["message"] = message
    [failure] = failures_of([{"metadata": {}, "status": ended}])
    assert failure.text == (message if text is None else text)


@pytest.mark.parametrize("status", [{}, {"phase": "Running"}, {"phase": "Succeeded"}, program_ended(0, "", "")])
def test_pods_that_did_not_fail_are_no_failures(status: Json) -> None:
    assert failures_of([{"metadata": {}, "status": status}]) == ()


def test_a_pod_that_its_node_ended_is_a_failure_in_kubernetes_words() -> None:
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    [failure] = failures_of([{"metadata": {"name": "x"}, "status": evicted}])
    assert failure.text == "Evicted: The node was low on resource: memory."
    assert failure.code is None
