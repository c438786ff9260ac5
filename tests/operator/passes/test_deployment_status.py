"""The status of a pass: the truth about what serves, in reasons that are stable, and Events that are few."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest

from baton_control.errors import FieldProblem
from baton_control.hashes import Revision
from baton_control.rollout import REASONS, Group, RolloutPhase, Step
from baton_control.sizing.decision.scaling import Sized
from baton_control.telemetry.pairs import Pairs
from baton_operator.passes.deployment_status import status_of
from baton_operator.passes.observe import WorkerSet
from baton_operator.passes.pass_result import PassResult
from baton_operator.passes.pool_size import PoolPlan
from baton_operator.passes.problems import PassProblem
from baton_operator.passes.refused_spec import RefusedSpec, refused_status, unreadable_status
from baton_operator.schema.status import DeploymentStatus, SloStatus
from baton_operator.telemetry import GatewayReport
from baton_testing.kube.manifests import deployment
from baton_wire.messages.values import POOL_ROLES, Role

P, D = Role.PREFILL, Role.DECODE
NEW = Revision("fit", "new")
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
LATER = NOW + datetime.timedelta(minutes=5)
EMPTY = DeploymentStatus()


def step(phase: RolloutPhase) -> Step:
    return Step((), REASONS[phase], phase)


def view(
    routable: int | None = 1, workers: int = 1, ready: int = 1, phase: RolloutPhase = RolloutPhase.COMPLETE
) -> PassResult:
    sets = tuple(
        WorkerSet(f"chat-{role}-new", role, NEW, wanted=workers, existing=workers, ready=ready, is_leaving=False)
        for role in POOL_ROLES
    )
    return PassResult(
        deployment=deployment(autoscaling__mode="Off"),
        generation=3,
        wanted=dict.fromkeys(POOL_ROLES, NEW),
        plans={role: PoolPlan(workers, None) for role in POOL_ROLES},
        sized=None,
        sets=sets,
        groups=tuple(Group(role, NEW, workers, routable) for role in POOL_ROLES),
        step=step(phase),
        gateways_ready=1,
        report=None,
        problems=(),
    )


def condition(status: DeploymentStatus, kind: str) -> tuple[str, str]:
    match = next(entry for entry in status.conditions if entry.type == kind)
    return match.status, match.reason


def judge(seen: PassResult, kind: str) -> tuple[str, str]:
    return condition(status_of(seen, EMPTY, NOW), kind)


def test_a_deployment_that_serves_says_so() -> None:
    status = status_of(view(), EMPTY, NOW)
    assert {entry.type: entry.status for entry in status.conditions} == {
        "Ready": "True",
        "Reconciling": "False",
        "Stalled": "False",
        "Available": "True",
        "Progressing": "False",
        "Degraded": "False",
        "SLOMet": "Unknown",
        "TransportVerified": "Unknown",
        "ScalingLimited": "False",
    }
    assert status.observed_generation == 3
    assert status.decode is not None
    assert (status.decode.summary, status.decode.routable) == ("1/1", 1)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (view(), ("True", "Serving")),
        (view(workers=0, routable=0), ("False", "ScaledToZero")),
        (replace(view(workers=0, routable=0), deployment=deployment()), ("True", "ScaledToZero")),
        (replace(view(workers=0, routable=0), deployment=deployment(), gateways_ready=0), ("False", "NoGateway")),
        (
            replace(view(workers=0, routable=0), deployment=deployment(), wakes=None),
            ("Unknown", "RoutableUnknown"),
        ),
        (replace(view(workers=0, routable=0), deployment=deployment(), wakes=False), ("False", "ScaledToZero")),
        (replace(view(), is_reachable=False), ("False", "NoService")),
        (replace(view(), is_reachable=None), ("Unknown", "NoPolicy")),
        (view(routable=0), ("False", "NoRoutableWorkers")),
        (view(routable=None), ("Unknown", "RoutableUnknown")),
        (replace(view(), gateways_ready=0), ("False", "NoGateway")),
        (replace(view(), gateways_ready=None), ("True", "Serving")),
        (
            replace(view(), groups=(Group(P, NEW, 1, 1), Group(D, Revision("x", "y"), 1, 1))),
            ("False", "NoRoutableWorkers"),
        ),
    ],
)
def test_available_means_that_a_request_would_be_answered(seen: PassResult, expected: tuple[str, str]) -> None:
    assert judge(seen, "Available") == expected


CUT_OFF = "gateways that have no pair of workers, of 3: one and two"


@pytest.mark.parametrize(
    ("routable", "pairs", "expected", "message"),
    [
        (0, Pairs(2), ("True", "Serving"), "requests are served"),
        (0, Pairs(2, may_lack_soon=True), ("True", "Serving"), "requests are served"),
        (None, Pairs(2, may_lack_soon=True), ("True", "Serving"), "requests are served"),
        (0, Pairs(3, ("one", "two")), ("False", "NoRoutableWorkers"), CUT_OFF),
        (1, Pairs(3, ("one", "two")), ("False", "NoRoutableWorkers"), CUT_OFF),
        (None, Pairs(3, ("one", "two")), ("False", "NoRoutableWorkers"), CUT_OFF),
        (0, Pairs(1, ("one",)), ("False", "NoRoutableWorkers"), "no prefill and no decode worker is routable"),
        (None, None, ("Unknown", "RoutableUnknown"), "no gateway has reported which workers it can use"),
    ],
)
def test_the_top_line_asks_every_gateway_for_a_pair_of_its_own_and_counts_ask_for_common_workers(
    routable: int | None, pairs: Pairs | None, expected: tuple[str, str], message: str
) -> None:
    seen = replace(view(routable), report=GatewayReport({}, pairs=pairs))
    status = status_of(seen, EMPTY, NOW)
    assert condition(status, "Available") == condition(status, "Ready") == expected
    assert next(entry.message for entry in status.conditions if entry.type == "Ready") == message
    assert status.decode is not None
    assert status.decode.routable == routable


@pytest.mark.parametrize(
    ("leaving", "expected"),
    [(set(), "False"), ({"other"}, "False"), ({"old"}, "True")],
)
def test_a_gateway_that_leaves_needs_no_pair_as_requests_come_to_it_no_more(leaving: set[str], expected: str) -> None:
    seen = replace(view(0), report=GatewayReport({}, pairs=Pairs(2, ("old",))), leaving_gateways=frozenset(leaving))
    assert judge(seen, "Ready")[0] == expected
    alone = replace(seen, report=GatewayReport({}, pairs=Pairs(1, ("old",))))
    assert judge(alone, "Ready") == ("False", "NoRoutableWorkers"), "no other one says that requests are answered"


def test_what_keeps_the_workers_of_a_gateway_back_is_told_as_the_cause() -> None:
    missing = PassProblem("MissingSecret", "the Secret models is not there", of="decode")
    seen = replace(view(0), report=GatewayReport({}, pairs=Pairs(1, ("one",))), problems=(missing,))
    assert judge(seen, "Ready") == ("False", "MissingSecret")
    assert judge(replace(seen, report=GatewayReport({}, pairs=Pairs(1))), "Ready") == ("True", "Serving")


@pytest.mark.parametrize("phase", list(RolloutPhase))
def test_progressing_follows_the_rollout_and_stands_still_where_that_does(phase: RolloutPhase) -> None:
    stands = {
        RolloutPhase.COMPLETE,
        RolloutPhase.PAUSED,
        RolloutPhase.CANARY,
        RolloutPhase.FAILING,
        RolloutPhase.UNSCHEDULABLE,
    }
    assert judge(view(phase=phase), "Progressing") == ("False" if phase in stands else "True", phase.value)


def test_complete_numbers_are_not_complete_until_workers_are_routable() -> None:
    assert judge(view(routable=0), "Progressing") == ("True", "WaitingForWorkers")


CRASH = PassProblem("WorkersFail", "decode worker: crash", of="decode")


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (replace(view(), problems=(PassProblem("QuotaExceeded", "no"),)), "QuotaExceeded"),
        (replace(view(), problems=(CRASH,)), "WorkersFail"),
        (replace(view(phase=RolloutPhase.FAILING), problems=(CRASH,)), "NewTemplateFails"),
        (replace(view(phase=RolloutPhase.FAILING), problems=(PassProblem("ImagePull", "no"),)), "ImagePull"),
        (view(phase=RolloutPhase.FAILING), "NewTemplateFails"),
        (view(phase=RolloutPhase.UNSCHEDULABLE), "Unschedulable"),
    ],
)
def test_degraded_names_the_worst_that_is_known_and_so_does_the_column(seen: PassResult, reason: str) -> None:
    assert judge(seen, "Degraded") == ("True", reason)
    assert judge(seen, "Stalled") == ("True", reason)
    assert judge(seen, "Reconciling") == ("False", "Stalled")
    assert judge(seen, "Ready") == ("True", "Serving"), "what ran before still serves"
    assert status_of(seen, EMPTY, NOW).summary == reason


@pytest.mark.parametrize(
    ("seen", "summary"),
    [
        (view(), "Serving"),
        (view(phase=RolloutPhase.STARTING), "StartingWorkers"),
        (view(phase=RolloutPhase.PAUSED), "Serving"),
        (view(routable=None), "RoutableUnknown"),
        (view(routable=0), "NoRoutableWorkers"),
        (replace(view(), gateways_ready=0), "NoGateway"),
        (
            replace(view(routable=0), problems=(PassProblem("FetchingModel", "x", False, "fetch"),)),
            "FetchingModel",
        ),
        (replace(view(routable=0), problems=(CRASH, PassProblem("Unschedulable", "y", of="gateway"))), "WorkersFail"),
    ],
)
def test_the_column_says_the_worst_in_a_word(seen: PassResult, summary: str) -> None:
    assert status_of(seen, EMPTY, NOW).summary == summary


def test_the_words_beside_the_column_are_about_what_it_says() -> None:
    full = PassProblem("QuotaExceeded", "exceeded quota: q, requested: pods=1, used: pods=3", of="decode")
    status = status_of(replace(view(), problems=(full,)), EMPTY, NOW)
    assert (status.summary, status.message) == ("QuotaExceeded", full.message)
    assert judge(replace(view(), problems=(full,)), "Ready") == ("True", "Serving")
    serving = status_of(view(), EMPTY, NOW)
    assert (serving.summary, serving.message) == ("Serving", "requests are served")
    lost = unreadable_status("forbidden", serving, 1, NOW)
    assert (lost.summary, lost.message) == ("NamespaceUnreadable", "the operator cannot read the namespace: forbidden")
    wrong = refused_status(RefusedSpec("InvalidSpec", (FieldProblem("spec.x", "is wrong"),)), serving, 1, NOW)
    assert (wrong.summary, wrong.message) == ("InvalidSpec", "spec.x: is wrong")


def test_why_nothing_serves_is_a_sentence_with_its_cause() -> None:
    cause = PassProblem("MissingSecret", "decode worker: the Secret x does not exist", of="decode")
    status = status_of(replace(view(routable=0), problems=(cause,)), EMPTY, NOW)
    messages = {entry.type: entry.message for entry in status.conditions}
    assert messages["Available"] == (
        "no prefill and no decode worker is routable, because decode worker: the Secret x does not exist"
    )
    assert messages["Ready"] == "decode worker: the Secret x does not exist"
    one = replace(view(), groups=(Group(P, NEW, 1, 1), Group(D, NEW, 1, 0)))
    assert "no decode worker is routable" in str(status_of(one, EMPTY, NOW).conditions)
    apart = replace(view(), groups=(Group(P, NEW, 1, 1), Group(D, Revision("x", "y"), 1, 1)))
    assert "no routable prefill worker fits a routable decode worker" in str(status_of(apart, EMPTY, NOW).conditions)


def test_what_is_left_out_is_said_without_alarm() -> None:
    assert judge(replace(view(), notes=("no budgets",)), "Degraded") == ("False", "SkippedOptional")


def test_measurements_are_unknown_until_there_are_any() -> None:
    report = GatewayReport({}, SloStatus(ttft="p95 412ms/500ms"), True, None, False, "0.8 GB/s")
    status = status_of(replace(view(), report=report), EMPTY, NOW)
    assert condition(status, "SLOMet") == ("True", "Met")
    assert condition(status, "TransportVerified") == ("False", "TooSlow")
    assert status.slo == report.slo
    assert judge(replace(view(), report=GatewayReport(None)), "SLOMet") == ("Unknown", "NotMeasured")


def test_limits_are_told_with_who_and_what() -> None:
    foreign = replace(view(), plans={P: PoolPlan(1, None), D: PoolPlan(1, None, "", frozenset({"hpa"}))})
    assert judge(foreign, "ScalingLimited") == ("True", "ForeignWriter")
    bound = replace(
        view(), plans={P: PoolPlan(1, None), D: PoolPlan(4, None, "decode: 4 instead of 9 by replicas.max 4")}
    )
    assert judge(bound, "ScalingLimited") == ("True", "OutOfBounds")
    held = replace(view(), sized=Sized({P: 1, D: 1}, {P: "hold", D: "hold"}, holds=True))
    assert judge(held, "ScalingLimited") == ("Unknown", "Holding")


def test_sleep_by_cost_is_ignored_with_a_condition_until_a_quiet_time_is_set() -> None:
    """No edit of such a deployment is refused, whatever its prices and bounds."""

    def limited(minimum: int, **autoscaling: object) -> tuple[str, str]:
        pool = {"min": minimum, "max": 2}
        made = deployment(autoscaling=autoscaling, prefill__replicas=pool, decode__replicas=pool)
        status = status_of(replace(view(), deployment=made), EMPTY, NOW)
        named = "scaleToZeroAfter" in next(
            entry.message for entry in status.conditions if entry.type == "ScalingLimited"
        )
        assert named == (condition(status, "ScalingLimited")[1] == "ScaleToZeroIgnored")
        return condition(status, "ScalingLimited")

    for minimum in (0, 1):
        assert limited(minimum, scaleToZero={"costOfMiss": 0.05}) == ("True", "ScaleToZeroIgnored")
        assert limited(minimum) == ("False", "WithinBounds")
    assert limited(0, scaleToZero={"costOfMiss": 0.05}, scaleToZeroAfter="5m") == ("False", "WithinBounds")


def test_the_same_view_gives_the_same_status_whenever_it_is_judged() -> None:
    first = status_of(view(), EMPTY, NOW)
    assert status_of(view(), first, LATER) == first


def test_a_new_size_is_a_decision_with_its_reason_and_the_first_one_is_none() -> None:
    first = status_of(view(), EMPTY, NOW)
    assert first.last_scaling is None
    sized = Sized({P: 1, D: 3}, {P: "prefill stays", D: "decode 1→3: load"}, holds=False, inputs="9 req/s")
    grown = replace(view(), plans={P: PoolPlan(1, None), D: PoolPlan(3, 3)}, sized=sized)
    after = status_of(grown, first, LATER)
    assert after.last_scaling is not None
    assert (after.last_scaling.from_, after.last_scaling.to, after.last_scaling.inputs) == (1, 3, "9 req/s")
    assert after.last_scaling.reason == "decode 1→3: load"
    assert status_of(grown, after, LATER).last_scaling == after.last_scaling


def test_a_refused_spec_keeps_what_is_said_of_the_one_that_serves() -> None:
    serving = status_of(view(), EMPTY, NOW)
    after = refused_status(RefusedSpec("InvalidSpec", (FieldProblem("spec.x", "too big"),)), serving, 4, LATER)
    assert condition(after, "Available") == ("True", "Serving")
    assert condition(after, "Degraded") == ("True", "InvalidSpec")
    assert (after.observed_generation, after.decode) == (4, serving.decode)
    fresh = refused_status(RefusedSpec("InvalidSpec", (FieldProblem("spec.x", "too big"),)), EMPTY, 1, NOW)
    assert condition(fresh, "Available") == ("False", "InvalidSpec")


def message_of_type(status: DeploymentStatus, kind: str) -> str | None:
    return next(entry.message for entry in status.conditions if entry.type == kind)


def test_a_first_spec_that_is_refused_names_no_last_good_one() -> None:
    fresh = refused_status(RefusedSpec("InvalidSpec", (FieldProblem("spec.x", "too big"),)), EMPTY, 1, NOW)
    assert message_of_type(fresh, "Progressing") == "nothing has been started: spec.x: too big"
    serving = status_of(view(), EMPTY, NOW)
    kept = refused_status(RefusedSpec("InvalidSpec", (FieldProblem("spec.x", "too big"),)), serving, 4, LATER)
    assert message_of_type(kept, "Progressing") == "the last good spec keeps serving"


def test_a_second_refusal_in_a_row_replaces_the_first_ones_words() -> None:
    fresh = refused_status(RefusedSpec("InvalidSpec", (FieldProblem("spec.x", "too big"),)), EMPTY, 1, NOW)
    again = refused_status(RefusedSpec("NotAllowed", (FieldProblem("spec.y", "is not allowed"),)), fresh, 2, LATER)
    assert condition(again, "Ready") == ("False", "NotAllowed")
    assert message_of_type(again, "Ready") == "nothing has been started: spec.y: is not allowed"


def test_a_long_reason_of_a_decision_ends_with_a_whole_clause() -> None:
    first = status_of(view(), EMPTY, NOW)
    long = f"decode 1→3: {'a' * 150}; {'b' * 80}; TPOT p95 50 ms in the last minute misses the target of 25 ms"
    sized = Sized({P: 1, D: 3}, {P: "prefill stays", D: long}, holds=False)
    grown = replace(view(), plans={P: PoolPlan(1, None), D: PoolPlan(3, 3)}, sized=sized)
    after = status_of(grown, first, LATER)
    assert after.last_scaling is not None
    assert after.last_scaling.reason == f"decode 1→3: {'a' * 150}; {'b' * 80}"
