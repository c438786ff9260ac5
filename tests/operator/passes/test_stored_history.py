"""The history on a cluster: kept in one object, bounded, written seldom, and read again by the next operator."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

from baton_control.history_facts import HISTORY_ANNOTATION, HistoryFacts, StoredHistory
from baton_control.names import Key, history_name
from baton_operator.kube.kinds import RECORDS
from baton_operator.kube.kube_api import Change, Resource
from baton_operator.kube.labels import DEPLOYMENT_LABEL
from baton_operator.passes.reconcile import Installation, Reconciler
from baton_operator.passes.stored_history import WRITE_S, merge_history, read_history
from baton_testing.kube.campaign import serving
from baton_testing.kube.clock import wall
from baton_testing.kube.store import Json
from baton_testing.kube.world import MASTERS, NAME, PLATFORM, SPACE, Promise, World
from baton_testing.virtual_time.loop import run_virtual
from baton_wire.deployment_history import MAX_CHANGES, ChangeKind, DeploymentHistory, make_change


def changes(*rows: tuple[float, ChangeKind, str, str]) -> DeploymentHistory:
    return DeploymentHistory(tuple(make_change(*row) for row in rows))


def texts(history: DeploymentHistory) -> list[str]:
    return [f"{change.kind} {change.subject}: {change.text}" for change in history.entries]


RESTART = (10.0, ChangeKind.RESTART, "chat-decode-0", "start 2: OOMKilled, exit code 137")
LIMIT = (20.0, ChangeKind.LIMIT, "deployment", "decode wants 5 workers, replicas.max is 3")


def test_a_change_that_no_longer_shows_stays_and_one_that_still_shows_is_there_once() -> None:
    kept = merge_history(StoredHistory(), changes(RESTART, LIMIT), HistoryFacts("a", {"x": "1"}), 21.0)
    later = merge_history(kept, changes(LIMIT), kept.facts, 30.0)
    assert later == merge_history(later, changes(LIMIT), kept.facts, 40.0)
    assert [change.at for change in later.history.entries] == [10.0, 20.0]


def test_the_wanted_sizes_are_those_of_the_present_and_not_kept() -> None:
    """Found: on clusters the page knew no wanted sizes, so a worker that was gone did not count as missing."""
    present = changes(LIMIT).with_reasons({"decode": "at max"}, {"prefill": 1, "decode": 3})
    kept = merge_history(StoredHistory(), present, HistoryFacts(), 21.0)
    assert kept.history.wanted == {"prefill": 1, "decode": 3}
    assert merge_history(kept, changes(LIMIT), HistoryFacts(), 22.0).history.wanted == {}


def test_a_limit_whose_text_has_other_numbers_is_the_same_change() -> None:
    kept = merge_history(StoredHistory(), changes(LIMIT), HistoryFacts(), 21.0)
    again = (20.0, ChangeKind.LIMIT, "deployment", "decode wants 6 workers, replicas.max is 3")
    assert merge_history(kept, changes(again), HistoryFacts(), 22.0).history == kept.history


def test_a_condition_with_another_reason_is_another_change() -> None:
    def not_ready(text: str) -> DeploymentHistory:
        return changes((20.0, ChangeKind.CONDITION, "Ready False", text))

    stored = StoredHistory()
    for text in ("Starting: 1 of 2", "Starting: 2 of 2", "MissingSecret: hf", "Starting: 0 of 2"):
        stored = merge_history(stored, not_ready(text), HistoryFacts(), 21.0)
    assert [change.text for change in stored.history.entries] == ["Starting: 1 of 2", "MissingSecret: hf"]


def test_edits_of_the_spec_and_other_images_are_changes_but_the_first_facts_are_not() -> None:
    first = merge_history(StoredHistory(), DeploymentHistory(), HistoryFacts("worker:1", {"slo.ttft": "500ms"}), 1.0)
    assert first.history.entries == ()
    edited = HistoryFacts("worker:2", {"slo.ttft": "300ms"})
    assert texts(merge_history(first, DeploymentHistory(), edited, 2.0).history) == [
        "version baton: worker:1 to worker:2",
        "spec slo.ttft: 500ms to 300ms",
    ]


def test_many_changes_stay_bounded_and_the_latest_are_kept() -> None:
    stored, facts = StoredHistory(), HistoryFacts()
    for place in range(3 * MAX_CHANGES):
        row = (float(place), ChangeKind.RESTART, f"chat-decode-{place}", "x" * 300)
        stored = merge_history(stored, changes(row), facts, float(place))
    assert len(stored.history.entries) <= MAX_CHANGES
    assert stored.history.entries[-1].at == 3 * MAX_CHANGES - 1
    first = (0.0, ChangeKind.RESTART, "chat-decode-0", "x" * 300)
    assert merge_history(stored, changes(first), facts, 999.0) == stored, "what fell out does not come back"


def test_what_cannot_be_read_counts_as_no_history() -> None:
    strange: list[dict[str, Any]] = [
        {},
        {"metadata": {"annotations": {HISTORY_ANNOTATION: "{"}}},
        {"metadata": {"annotations": {HISTORY_ANNOTATION: '{"history": 7}'}}},
        {"metadata": {"annotations": {HISTORY_ANNOTATION: 7}}},
    ]
    assert [read_history(live) for live in strange] == [StoredHistory()] * len(strange)


def test_an_edit_is_in_the_object_and_the_next_operator_goes_on_from_there() -> None:
    announced: list[DeploymentHistory] = []

    async def main() -> None:
        world = World(promise=Promise(), rest=serving())
        world.start()
        await world.settle()
        world.user_edits("decode.env", [{"name": "UCX_TLS", "value": "secret-value"}])
        await world.settle()
        world.user_edits("decode.replicas", {"min": 3, "max": 4})
        await world.settle()
        assert world.runtime is not None
        reconciler = Reconciler(
            world.kube,
            world.runtime.caches,
            Installation(lambda: PLATFORM, lambda: MASTERS),
            now=lambda: wall(world.clock()),
            clock=world.clock,
            announce=lambda key, history: announced.append(history),
        )
        await reconciler.reconcile(Key(SPACE, NAME))
        live = world.runtime.caches[RECORDS].get(SPACE, history_name(NAME))
        assert live is not None
        text = json.dumps(live)
        assert "secret-value" not in text
        stored = read_history(live)
        assert any("decode.replicas" in line for line in texts(stored.history)), texts(stored.history)
        assert stored.facts.version
        await world.end()

    run_virtual(main())
    assert any("decode.replicas" in line for line in texts(announced[-1]))


def test_a_deleted_object_is_written_again_with_all_that_it_had() -> None:
    async def main() -> None:
        world = World(promise=Promise(), rest=serving())
        world.start()
        await world.settle()
        world.user_edits("decode.replicas", {"min": 3, "max": 4})
        await world.settle()
        await asyncio.sleep(WRITE_S)
        before = read_history(world.store.read(RECORDS, SPACE, history_name(NAME)))
        world.user_deletes(RECORDS, history_name(NAME))
        await asyncio.sleep(2 * WRITE_S)
        assert read_history(world.store.read(RECORDS, SPACE, history_name(NAME))) == before
        await world.end()

    run_virtual(main())


def test_what_others_edit_in_the_object_is_put_back() -> None:
    async def main() -> None:
        world = World(promise=Promise(), rest=serving())
        world.start()
        await world.settle()
        await asyncio.sleep(WRITE_S)
        before = world.store.read(RECORDS, SPACE, history_name(NAME))["metadata"]
        for field, name, edit in (
            ("annotations", HISTORY_ANNOTATION, {}),
            ("annotations", HISTORY_ANNOTATION, {HISTORY_ANNOTATION: "{}"}),
            ("labels", "app.kubernetes.io/managed-by", {"app.kubernetes.io/managed-by": "other"}),
            ("labels", DEPLOYMENT_LABEL, {}),
        ):
            edited = world.store.read(RECORDS, SPACE, history_name(NAME))
            del edited["metadata"][field][name]
            edited["metadata"][field] |= edit
            world.store.replace(RECORDS, edited, "kubectl-edit")
            await asyncio.sleep(2 * WRITE_S)
            after = world.store.read(RECORDS, SPACE, history_name(NAME))["metadata"]
            assert after[field] == before[field], (name, edit)
        await world.end()

    run_virtual(main())


def test_a_deployment_that_changes_all_the_time_is_written_once_a_minute() -> None:
    written_at: list[float] = []

    async def main() -> None:
        world = World(promise=Promise(), rest=serving())

        def note(resource: Resource, change: Change, before: Json | None, after: Json) -> None:
            if resource == RECORDS and after["metadata"]["name"] == history_name(NAME):
                written_at.append(world.clock())

        world.store.on_commit.append(note)
        world.start()
        for number in range(60):
            world.user_edits("decode.replicas", {"min": 2, "max": 3 + number % 2})
            await asyncio.sleep(5.0)
        await world.end()

    run_virtual(main())
    assert len(written_at) >= 4
    assert all(after - before >= WRITE_S for before, after in itertools.pairwise(written_at)), written_at
