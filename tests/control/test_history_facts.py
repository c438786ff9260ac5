"""What changed from one look at a deployment to the next: sizes, limits, restarts, spec, versions."""

from __future__ import annotations

from msgspec.structs import replace

from baton_control.history_facts import MAX_FIELDS, HistoryFacts, find_changes, flatten_spec
from baton_wire.deployment_history import ChangeKind, HistoryChange

BEFORE = HistoryFacts(
    version="0.2.0",
    spec={"decode.replicas.max": "3"},
    sizes={"prefill": 1, "decode": 2},
    most={"prefill": 4, "decode": 3},
    starts={"chat-decode-0": 1},
)


def texts(changes: tuple[HistoryChange, ...]) -> list[str]:
    return [f"{change.kind} {change.subject}: {change.text}" for change in changes]


def test_nothing_new_is_no_change_and_a_first_look_tells_the_version_alone() -> None:
    assert find_changes(BEFORE, BEFORE, 5.0) == ()
    assert texts(find_changes(HistoryFacts(), BEFORE, 5.0)) == ["version baton: began with 0.2.0"]


def test_a_size_has_its_reason_and_the_most_is_named() -> None:
    now = replace(BEFORE, sizes={"prefill": 2, "decode": 3})
    changes = find_changes(BEFORE, now, 5.0, {"decode": "TPOT p95 41 ms misses 30 ms"})
    assert texts(changes) == [
        "decision prefill: 1 to 2: no reason given",
        "decision decode: 2 to 3: TPOT p95 41 ms misses 30 ms",
        "limit decode: has 3 workers, the most that replicas.max allows",
    ]
    assert find_changes(now, now, 6.0) == ()


def test_a_restart_has_how_the_former_run_ended_and_a_new_process_is_none() -> None:
    now = replace(BEFORE, starts={"chat-decode-0": 2, "chat-decode-1": 1})
    changes = find_changes(BEFORE, now, 5.0, ends={"chat-decode-0": "the one before was killed by SIGKILL"})
    assert texts(changes) == ["restart chat-decode-0: start 2: the one before was killed by SIGKILL"]


def test_the_spec_is_compared_field_by_field_and_no_variable_is_shown() -> None:
    old = {"decode": {"replicas": {"max": 3}, "env": [{"name": "TOKEN", "value": "first-secret"}]}, "gone": True}
    new = {"decode": {"replicas": {"max": 6}, "env": [{"name": "TOKEN", "value": "other-secret"}]}, "came": ["a", "b"]}
    changes = find_changes(HistoryFacts(spec=flatten_spec(old)), HistoryFacts(spec=flatten_spec(new)), 5.0)
    assert texts(changes) == [
        'spec came: unset to ["a","b"]',
        "spec decode.env[0].value: another value to another value",
        "spec decode.replicas.max: 3 to 6",
        "spec gone: true to unset",
    ]
    assert "secret" not in str(flatten_spec(old))


def test_long_values_and_many_fields_are_cut_and_still_compared() -> None:
    long = {"a": "x" * 5_000}
    assert flatten_spec(long) != flatten_spec({"a": "x" * 5_001})
    assert len(flatten_spec(long)["a"]) < 80
    assert len(flatten_spec({str(number): number for number in range(9_999)})) == MAX_FIELDS


def test_another_version_is_a_change() -> None:
    assert texts(find_changes(BEFORE, replace(BEFORE, version="0.3.0"), 5.0)) == ["version baton: 0.2.0 to 0.3.0"]


def test_a_problem_is_a_change_when_it_begins_and_when_it_is_over() -> None:
    whole, broken = HistoryFacts(), HistoryFacts(problems={"LLMTenants": "tenants stay as they were: x"})
    [begun] = find_changes(whole, broken, 5.0)
    assert (begun.kind, begun.subject, begun.text) == (
        ChangeKind.CONDITION,
        "LLMTenants",
        "tenants stay as they were: x",
    )
    assert find_changes(broken, broken, 6.0) == ()
    [ended] = find_changes(broken, whole, 7.0)
    assert (ended.subject, ended.text) == ("LLMTenants", "the problem is over")
