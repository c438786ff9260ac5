"""What can be read of which namespace, worked out by hand."""

from __future__ import annotations

import asyncio

from baton_operator.kube.kinds import BUDGETS, PODS, SERVICES
from baton_operator.kube.kube_api import Forbidden, Unavailable
from baton_operator.kube.reach import Reach, Scope

A, B = "team-a", "team-b"


def reach() -> Reach:
    made = Reach()
    for scope in (A, B):
        made.expect(PODS, scope)
        made.expect(SERVICES, scope)
        made.expect(BUDGETS, scope, is_optional=True)
    return made


def read(made: Reach, scope: Scope) -> None:
    for each in (PODS, SERVICES, BUDGETS):
        made.mark_listed(each, scope)


def test_a_namespace_is_known_when_all_of_it_has_been_listed_and_one_that_is_refused_is_its_own_trouble() -> None:
    made = reach()
    assert made.is_blind
    read(made, A)
    made.mark_listed(PODS, B)
    made.mark_failed(SERVICES, B, Forbidden("no right"))
    assert (made.is_known(A), made.is_known(B), made.is_blind) == (True, False, False)
    assert made.problem(A) == ""
    assert made.problems() == {B: "services: no right"}


def test_what_has_not_answered_yet_is_neither_known_nor_a_trouble() -> None:
    made = reach()
    made.mark_listed(PODS, A)
    assert (made.is_known(A), made.problem(A), made.problems()) == (False, "", {})
    assert not made.is_known("never-heard-of")


def test_a_late_cache_is_no_trouble_but_a_right_that_is_taken_away_is_and_both_end() -> None:
    made = reach()
    read(made, A)
    made.mark_failed(PODS, A, Unavailable("away"))
    assert made.is_known(A)
    made.mark_failed(PODS, A, Forbidden("revoked"))
    assert (made.is_known(A), made.problem(A)) == (False, "pods: revoked")
    made.mark_allowed(PODS, A)
    assert made.is_known(A)
    made.mark_failed(PODS, A, Forbidden("revoked"))
    made.mark_listed(PODS, A)
    assert made.is_known(A)


def test_a_list_that_never_came_is_a_trouble_whatever_it_failed_of() -> None:
    made = reach()
    read(made, A)
    made.mark_failed(PODS, B, Unavailable("TimeoutError"))
    assert made.problems() == {B: "pods: TimeoutError"}


def test_an_optional_kind_that_is_refused_is_left_out_there_and_nowhere_else() -> None:
    made = reach()
    read(made, A)
    read(made, B)
    made.mark_failed(BUDGETS, B, Forbidden("no right"))
    assert (made.is_known(B), made.problems()) == (True, {})
    assert (made.left_out(A), made.left_out(B)) == (frozenset(), frozenset({BUDGETS}))


def test_one_stream_for_all_stands_for_every_namespace() -> None:
    made = Reach()
    made.expect(PODS, None)
    made.mark_failed(PODS, None, Forbidden("no right"))
    assert (made.is_known(A), made.is_blind, made.problems()) == (False, True, {"*": "pods: no right"})
    made.mark_listed(PODS, None)
    assert made.is_known(A)
    assert made.is_known(B)


async def test_who_waits_for_all_answers_waits_for_refusals_too_and_changes_are_told_once() -> None:
    made, told = reach(), list[Scope]()
    made.listeners.append(told.append)
    waiting = asyncio.create_task(made.settled())
    read(made, A)
    for each in (PODS, SERVICES, BUDGETS):
        await asyncio.sleep(0)
        assert not waiting.done()
        made.mark_failed(each, B, Forbidden("no right"))
        made.mark_failed(each, B, Forbidden("no right"))
    await waiting
    assert told == [A, B, B]
