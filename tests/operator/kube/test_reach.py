"""The readable namespaces, worked out by hand."""

from __future__ import annotations

import asyncio

from baton_operator.kube.kinds import BUDGETS, PODS, SERVICES
from baton_operator.kube.kube_api import Forbidden, Unavailable
from baton_operator.kube.reach import Reach, Scope

A, B = "team-a", "team-b"


def reach() -> Reach:
    known = Reach()
    for scope in (A, B):
        known.expect(PODS, scope)
        known.expect(SERVICES, scope)
        known.expect(BUDGETS, scope, is_optional=True)
    return known


def read(known: Reach, scope: Scope) -> None:
    for kind in (PODS, SERVICES, BUDGETS):
        known.mark_listed(kind, scope)


def test_a_namespace_is_known_when_all_of_it_has_been_listed_and_one_that_is_refused_is_its_own_trouble() -> None:
    known = reach()
    assert known.is_blind
    read(known, A)
    known.mark_listed(PODS, B)
    known.mark_failed(SERVICES, B, Forbidden("no right"))
    assert (known.is_known(A), known.is_known(B), known.is_blind) == (True, False, False)
    assert known.problem(A) == ""
    assert known.problems() == {B: "services: no right"}


def test_what_has_not_answered_yet_is_neither_known_nor_a_trouble() -> None:
    known = reach()
    known.mark_listed(PODS, A)
    assert (known.is_known(A), known.problem(A), known.problems()) == (False, "", {})
    assert not known.is_known("never-heard-of")


def test_a_late_cache_is_no_trouble_but_a_right_that_is_taken_away_is_and_both_end() -> None:
    known = reach()
    read(known, A)
    known.mark_failed(PODS, A, Unavailable("away"))
    assert known.is_known(A)
    known.mark_failed(PODS, A, Forbidden("revoked"))
    assert (known.is_known(A), known.problem(A)) == (False, "pods: revoked")
    known.mark_allowed(PODS, A)
    assert known.is_known(A)
    known.mark_failed(PODS, A, Forbidden("revoked"))
    known.mark_listed(PODS, A)
    assert known.is_known(A)


def test_a_list_that_never_came_is_a_trouble_whatever_it_failed_of() -> None:
    known = reach()
    read(known, A)
    known.mark_failed(PODS, B, Unavailable("TimeoutError"))
    assert known.problems() == {B: "pods: TimeoutError"}


def test_an_optional_kind_that_is_refused_is_left_out_there_and_nowhere_else() -> None:
    known = reach()
    read(known, A)
    read(known, B)
    known.mark_failed(BUDGETS, B, Forbidden("no right"))
    assert (known.is_known(B), known.problems()) == (True, {})
    assert (known.left_out(A), known.left_out(B)) == (frozenset(), frozenset({BUDGETS}))


def test_one_stream_for_all_stands_for_every_namespace() -> None:
    known = Reach()
    known.expect(PODS, None)
    known.mark_failed(PODS, None, Forbidden("no right"))
    assert (known.is_known(A), known.is_blind, known.problems()) == (False, True, {"*": "pods: no right"})
    known.mark_listed(PODS, None)
    assert known.is_known(A)
    assert known.is_known(B)


async def test_who_waits_for_all_answers_waits_for_refusals_too_and_changes_are_told_once() -> None:
    known, changed = reach(), list[Scope]()
    known.listeners.append(changed.append)
    waiting = asyncio.create_task(known.settled())
    read(known, A)
    for kind in (PODS, SERVICES, BUDGETS):
        await asyncio.sleep(0)
        assert not waiting.done()
        known.mark_failed(kind, B, Forbidden("no right"))
        known.mark_failed(kind, B, Forbidden("no right"))
    await waiting
    assert changed == [A, B, B]
