"""The machine of one request, alone: whole sequences of events and what it does at each."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from baton_gateway import errors
from baton_gateway.request import RequestLife, Stage
from baton_gateway.request_events import (
    Action,
    Admitted,
    Arrived,
    ClientGone,
    Deliver,
    End,
    Event,
    LegEnded,
    LifeRules,
    NoRevision,
    NoRoute,
    Outcome,
    PickRoute,
    Prepare,
    Prepared,
    Prompt,
    Refused,
    Route,
    Routed,
    RoutesChanged,
    Send,
    StopFound,
    Tick,
    WorkerLost,
)
from baton_gateway.retry_budget import RetryBudget
from baton_kv_transfer.wire.gateway_link import Cancel, LegFailed, Prefill, Reserve
from baton_kv_transfer.wire.values import Address, Finish, Reason, SamplingParams, TokenEntry, unpack_ids

P1, P2, D1, D2 = (name.encode().ljust(16, b".") for name in ("P1", "P2", "D1", "D2"))
NAMES = {P1: "P1", P2: "P2", D1: "D1", D2: "D2"}
REQUEST = bytes(range(16))
PROMPT = (11, 12, 13)
DEADLINE_S = 600.0


@dataclass
class Drive:
    """A life with a clock; `text` is what each choice was delivered."""

    n: int = 1
    max_tokens: int = 8
    prompts: int = 1
    rules: LifeRules = field(default_factory=LifeRules)
    budget: RetryBudget = field(default_factory=RetryBudget)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.life = RequestLife(REQUEST, self.n, DEADLINE_S, self.rules, self.budget, self.now)
        self.delivered: dict[int, list[int]] = {}
        self.finished: dict[int, Finish] = {}
        self.sent: list[Send] = []
        self.picks: list[PickRoute] = []
        self.ends: list[End] = []

    def feed(self, event: Event) -> list[str]:
        """What it does, in short words."""
        return [self._note(action) for action in self.life.handle(event, self.now)]

    def start(self, prefill: bytes | None = P1, decode: bytes = D1) -> None:
        """Admitted, prepared and routed."""
        assert self.feed(Admitted()) == ["prepare"]
        sampling = SamplingParams(max_tokens=self.max_tokens, seed=7)
        self.feed(Prepared(tuple(Prompt(PROMPT, sampling, "") for _ in range(self.prompts))))
        for _ in range(self.prompts):
            self.route(prefill, decode)

    def route(self, prefill: bytes | None = P1, decode: bytes = D1) -> list[str]:
        """Answer the oldest open PickRoute."""
        address = None if prefill is None else Address("10.0.0.1", 7)
        return self.feed(Routed(self.picks.pop(0).run, Route(prefill, decode, address)))

    def tokens(
        self, worker: bytes, first: int, *ids: int, choice: int = 0, attempt: int = 1, finish: Finish | None = None,
        run: bytes = REQUEST,
    ) -> list[str]:  # fmt: skip
        return self.feed(Arrived(worker, TokenEntry(run, attempt, choice, first, ids, None, finish)))

    def leg(self, worker: bytes, reason: Reason, attempt: int = 1, run: bytes = REQUEST) -> list[str]:
        return self.feed(LegEnded(worker, LegFailed(run, attempt, reason)))

    def last(self, kind: type[Prefill | Reserve]) -> Prefill | Reserve:
        message = next(send.message for send in reversed(self.sent) if isinstance(send.message, kind))
        assert not isinstance(message, Cancel)
        return message

    def _note(self, action: Action) -> str:
        match action:
            case Prepare():
                return "prepare"
            case PickRoute():
                self.picks.append(action)
                return "pick"
            case Send():
                self.sent.append(action)
                message = action.message
                suffix = f"#{message.choice}" if isinstance(message, Cancel) and message.choice is not None else ""
                return f"{type(message).__name__.lower()} {NAMES[action.worker]}/{message.attempt}{suffix}"
            case Deliver():
                assert action.choice not in self.finished, "a token after the finish"
                self.delivered.setdefault(action.choice, []).extend(action.ids)
                if action.finish is not None:
                    self.finished[action.choice] = action.finish
                return f"deliver {action.choice}:{','.join(map(str, action.ids))}"
            case End():
                self.ends.append(action)
                assert len(self.ends) == 1, "ended twice"
                return f"end {action.outcome}" + (f" {action.problem.code}" if action.problem else "")


def started(**options: object) -> Drive:
    drive = Drive(**options)  # type: ignore[arg-type]
    drive.start()
    return drive


# The way it should go -------------------------------------------------------------------------------------------------


def test_both_legs_start_at_once_and_tokens_are_delivered_once() -> None:
    drive = Drive(max_tokens=3)
    assert drive.feed(Admitted()) == ["prepare"]
    drive.feed(Prepared((Prompt(PROMPT, SamplingParams(max_tokens=3), "s"),)))
    assert drive.route() == ["reserve D1/1", "prefill P1/1"]
    assert drive.tokens(P1, 0, 50) == ["deliver 0:50"]
    assert drive.tokens(D1, 0, 50) == []
    assert drive.tokens(D1, 1, 51) == ["deliver 0:51"]
    assert drive.tokens(D1, 2, 52, finish=Finish.LENGTH) == ["deliver 0:52", "end finished"]
    assert drive.life.completion_tokens() == 3


def test_the_messages_say_the_same_to_both_workers() -> None:
    drive = started()
    reserve, prefill = drive.last(Reserve), drive.last(Prefill)
    assert isinstance(reserve, Reserve)
    assert isinstance(prefill, Prefill)
    assert reserve.prefill_epoch == P1
    assert prefill.decode.epoch == D1
    for message in (reserve, prefill):
        assert tuple(unpack_ids(message.tokens)) == PROMPT
        assert (message.prompt_tokens, message.choices, message.timeout_s) == (3, (0,), DEADLINE_S)


def test_a_token_of_the_decode_worker_may_come_before_that_of_the_prefill_worker() -> None:
    drive = started()
    assert drive.tokens(D1, 0, 50, 51) == ["deliver 0:50,51"]
    assert drive.tokens(P1, 0, 50) == []
    assert drive.tokens(D1, 1, 51, 52) == ["deliver 0:52"]


def test_a_request_that_ends_at_its_first_token_sends_no_cancel() -> None:
    drive = started()
    assert drive.tokens(P1, 0, 2, finish=Finish.STOP) == ["deliver 0:2", "end finished"]


def test_a_finish_that_only_the_repetition_carries_counts() -> None:
    drive = started()
    drive.tokens(P1, 0, 50)
    assert drive.tokens(D1, 0, 50, finish=Finish.LENGTH) == ["deliver 0:", "end finished"]


def test_a_local_prefill_has_one_leg() -> None:
    drive = Drive()
    drive.start(prefill=None)
    assert [type(send.message) for send in drive.sent] == [Reserve]
    assert drive.feed(ClientGone()) == ["cancel D1/1", "end cancelled"]


def test_choices_finish_one_by_one_and_the_request_with_the_last() -> None:
    drive = started(n=3)
    assert drive.last(Reserve).choices == (0, 1, 2)
    for choice in range(3):
        drive.tokens(P1, 0, 60 + choice, choice=choice)
    assert drive.tokens(D1, 1, 70, choice=1, finish=Finish.STOP) == ["deliver 1:70"]
    assert drive.tokens(D1, 1, 70, choice=0, finish=Finish.STOP) == ["deliver 0:70"]
    assert drive.tokens(D1, 1, 70, choice=2, finish=Finish.STOP) == ["deliver 2:70", "end finished"]


def test_every_prompt_of_a_batch_has_a_run_of_its_own() -> None:
    drive = started(prompts=2, n=2)
    runs = [send.message.request for send in drive.sent if isinstance(send.message, Reserve)]
    assert len(set(runs)) == 2
    assert drive.tokens(P1, 0, 50, choice=1, run=runs[1]) == ["deliver 3:50"]
    assert drive.life.prompt_tokens() == 6


# Stop strings ---------------------------------------------------------------------------------------------------------


def test_a_stop_string_cancels_both_legs_before_the_hand_over_is_known() -> None:
    drive = started()
    drive.tokens(P1, 0, 50)
    assert drive.feed(StopFound(0, 1)) == ["cancel D1/1", "cancel P1/1", "end finished"]


def test_a_stop_string_of_one_choice_cancels_only_that_choice() -> None:
    drive = started(n=2)
    drive.tokens(D1, 0, 50, 51, 52, choice=1)
    assert drive.feed(StopFound(1, 2)) == ["cancel D1/1#1"]
    assert drive.life.completion_tokens() == 2
    assert drive.tokens(D1, 3, 53, choice=1) == []
    drive.tokens(D1, 0, 60, choice=0)
    assert drive.feed(StopFound(0, 1)) == ["cancel D1/1", "end finished"]


def test_a_stop_string_in_the_last_tokens_adds_nothing() -> None:
    drive = started()
    assert drive.tokens(D1, 0, 50, finish=Finish.LENGTH)[-1] == "end finished"
    assert drive.feed(StopFound(0, 1)) == []


# Losing workers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", ["lost", "failed"])
def test_losing_the_prefill_worker_before_token_1_tries_again_with_the_same_tokens(event: str) -> None:
    drive = started()
    did = drive.feed(WorkerLost(P1)) if event == "lost" else drive.leg(P1, Reason.PEER_LOST)
    assert did == ["cancel D1/1", "pick"]
    assert drive.picks[0].avoid == {P1}
    assert drive.route(P2, D1) == ["reserve D1/2", "prefill P2/2"]
    assert tuple(unpack_ids(drive.last(Prefill).tokens)) == PROMPT


def test_losing_the_prefill_worker_between_its_token_and_the_hand_over_migrates() -> None:
    drive = started()
    drive.tokens(P1, 0, 50)
    assert drive.feed(WorkerLost(P1)) == ["cancel D1/1", "pick"]
    drive.route(P2, D1)
    message = drive.last(Prefill)
    assert tuple(unpack_ids(message.tokens)) == (*PROMPT, 50)
    assert message.prompt_tokens == 3


def test_losing_the_prefill_worker_after_the_hand_over_means_nothing() -> None:
    drive = started()
    drive.tokens(P1, 0, 50)
    drive.tokens(D1, 0, 50, 51)
    assert drive.feed(WorkerLost(P1)) == []
    assert drive.leg(P1, Reason.INTERNAL) == []


def test_losing_the_decode_worker_before_token_1_tries_again() -> None:
    drive = started()
    assert drive.feed(WorkerLost(D1)) == ["cancel P1/1", "pick"]
    assert drive.route(P1, D2) == ["reserve D2/2", "prefill P1/2"]


def test_losing_the_decode_worker_in_the_stream_goes_on_without_a_gap_or_a_duplicate() -> None:
    drive = started()
    drive.tokens(P1, 0, 50)
    drive.tokens(D1, 0, 50, 51, 52)
    assert drive.feed(WorkerLost(D1)) == ["pick"]
    assert drive.picks[0].tokens == 6
    drive.route(P1, D2)
    message = drive.last(Reserve)
    assert tuple(unpack_ids(message.tokens)) == (*PROMPT, 50, 51, 52)
    assert message.sampling.max_tokens == 8
    assert drive.tokens(P1, 3, 53, attempt=2) == ["deliver 0:53"]
    assert drive.tokens(D2, 3, 53, 54, attempt=2) == ["deliver 0:54"]
    assert drive.delivered[0] == [50, 51, 52, 53, 54]
    assert drive.life.migrations == 1


def test_losing_both_workers_at_once_routes_once() -> None:
    drive = started()
    assert drive.feed(WorkerLost(P1)) == ["cancel D1/1", "pick"]
    assert drive.feed(WorkerLost(D1)) == []
    assert drive.route(P2, D2) == ["reserve D2/2", "prefill P2/2"]


def test_late_tokens_of_an_old_attempt_are_dropped() -> None:
    drive = started()
    drive.tokens(D1, 0, 50)
    drive.feed(WorkerLost(D1))
    assert drive.tokens(D1, 1, 51) == []
    drive.route(P1, D2)
    assert drive.tokens(D1, 1, 51, attempt=1) == []
    assert drive.tokens(D1, 1, 51, attempt=2) == [], "a worker of another attempt"
    assert drive.tokens(D2, 1, 51, attempt=2) == ["deliver 0:51"]


def test_a_gap_in_the_indexes_fails_the_attempt() -> None:
    drive = started()
    assert drive.tokens(D1, 2, 52) == ["pick"]
    assert drive.picks[0].avoid == {D1}


def test_a_failed_hand_over_is_blamed_on_the_lost_prefill_worker() -> None:
    drive = started()
    assert drive.leg(D1, Reason.PEER_LOST) == ["cancel P1/1", "pick"]
    assert drive.picks[0].avoid == {P1}


def test_one_of_three_choices_migrates_when_the_others_are_done() -> None:
    drive = started(n=3)
    for choice in range(3):
        drive.tokens(D1, 0, 60 + choice, choice=choice, finish=Finish.STOP if choice != 1 else None)
    assert drive.feed(WorkerLost(D1)) == ["pick"]
    drive.route(P1, D2)
    message = drive.last(Reserve)
    assert message.choices == (1,)
    assert tuple(unpack_ids(message.tokens)) == (*PROMPT, 61)
    assert drive.tokens(D2, 1, 71, choice=1, attempt=2, finish=Finish.STOP) == ["deliver 1:71", "end finished"]


def test_three_choices_with_different_tokens_migrate_each_under_its_own_id() -> None:
    drive = started(n=3)
    for choice in range(3):
        drive.tokens(D1, 0, 60 + choice, choice=choice)
    assert drive.feed(WorkerLost(D1)) == ["pick", "pick", "pick"]
    runs = [pick.run for pick in drive.picks]
    assert len({REQUEST, *runs}) == 4
    for choice in range(3):
        drive.route(P1, D2)
        message = drive.last(Reserve)
        assert (message.request, message.attempt, message.choices) == (runs[choice], 1, (choice,))
        assert tuple(unpack_ids(message.tokens)) == (*PROMPT, 60 + choice)
    for choice in range(3):
        drive.tokens(D2, 1, 70, choice=choice, run=runs[choice], finish=Finish.STOP)
    assert drive.ends[0].outcome is Outcome.FINISHED


def test_three_choices_without_a_token_are_tried_again_together() -> None:
    drive = started(n=3)
    assert drive.feed(WorkerLost(P1)) == ["cancel D1/1", "pick"]
    drive.route(P2, D1)
    assert drive.last(Reserve).choices == (0, 1, 2)


# Budgets and waits ----------------------------------------------------------------------------------------------------


def test_three_failures_in_a_row_end_the_request() -> None:
    drive = started()
    assert drive.leg(D1, Reason.INTERNAL) == ["cancel P1/1", "pick"]
    drive.route()
    assert drive.leg(D1, Reason.KV_CORRUPT, attempt=2) == ["cancel P1/2"]
    drive.now = drive.life.wake_at
    assert drive.feed(Tick()) == ["pick"]
    drive.route()
    assert drive.leg(D1, Reason.INTERNAL, attempt=3) == ["cancel P1/3", "end failed workers_failed"]


def test_a_new_token_sets_the_count_of_failures_back() -> None:
    drive = started()
    for attempt in range(1, 7):
        drive.tokens(D1, attempt - 1, 50 + attempt, attempt=attempt)
        assert drive.leg(D1, Reason.INTERNAL, attempt=attempt) == ["pick"]
        drive.route()
    assert drive.delivered[0] == [51, 52, 53, 54, 55, 56]


def test_a_full_pool_is_tried_again_after_a_pause_and_then_told() -> None:
    drive = started()
    assert drive.leg(D1, Reason.NO_CAPACITY) == ["cancel P1/1"]
    assert drive.life.wake_at == pytest.approx(0.05)
    drive.now = 0.05
    drive.feed(Tick())
    drive.route()
    drive.leg(D1, Reason.NO_CAPACITY, attempt=2)
    drive.now = drive.life.wake_at
    drive.feed(Tick())
    drive.route()
    did = drive.leg(D1, Reason.NO_CAPACITY, attempt=3)
    assert did == ["cancel P1/3", "end failed no_capacity"]
    assert drive.ends[0].problem is not None
    assert drive.ends[0].problem.retry_after_s is not None


def test_the_budget_of_all_requests_stops_retries_after_failures_but_not_after_losses() -> None:
    empty = RetryBudget(ratio=0, balance=0, floor_per_s=0)
    assert started(budget=empty).leg(D1, Reason.INTERNAL) == ["cancel P1/1", "end failed workers_failed"]
    assert started(budget=empty).feed(WorkerLost(D1)) == ["cancel P1/1", "pick"]


def test_workers_that_keep_going_away_are_given_up_in_the_end() -> None:
    drive = started()
    for attempt in range(1, 10):
        drive.leg(D1, Reason.PEER_LOST, attempt=attempt)
        drive.now = min(drive.life.wake_at, drive.now + 5)
        drive.feed(Tick())
        drive.route()
    assert drive.leg(D1, Reason.PEER_LOST, attempt=10) == ["cancel P1/10", "end failed workers_failed"]


@pytest.mark.parametrize(
    ("reason", "status"), [(Reason.TOO_LONG, 400), (Reason.DEADLINE, 504), (Reason.BAD_REQUEST, 500)]
)
def test_what_another_attempt_cannot_help_is_told_at_once(reason: Reason, status: int) -> None:
    drive = started()
    drive.leg(D1, reason)
    assert drive.ends[0].problem is not None
    assert drive.ends[0].problem.status == status


def test_without_a_pair_a_new_request_is_told_at_once() -> None:
    drive = Drive()
    drive.feed(Admitted())
    drive.feed(Prepared((Prompt(PROMPT, SamplingParams(max_tokens=3), ""),)))
    assert drive.feed(NoRoute(REQUEST, errors.no_workers())) == ["end refused no_routable_workers"]


def test_a_request_is_parked_before_there_is_anything_to_tokenise_with() -> None:
    drive = Drive(rules=LifeRules(park_s=5))
    drive.feed(Admitted())
    assert drive.feed(NoRevision(errors.no_workers())) == []
    assert drive.life.wake_at == 5
    assert drive.feed(RoutesChanged()) == ["prepare"]
    drive.now = 2
    assert drive.feed(NoRevision(errors.no_workers())) == []
    assert drive.life.wake_at == 5, "the wait is counted from its beginning"
    drive.now = 5
    assert drive.feed(Tick()) == ["end refused no_routable_workers"]


def test_without_parking_a_request_that_finds_no_revision_is_told_at_once() -> None:
    drive = Drive()
    drive.feed(Admitted())
    assert drive.feed(NoRevision(errors.no_workers())) == ["end refused no_routable_workers"]


def test_a_request_may_be_parked_until_a_pair_appears() -> None:
    drive = Drive(rules=LifeRules(park_s=5))
    drive.feed(Admitted())
    drive.feed(Prepared((Prompt(PROMPT, SamplingParams(max_tokens=3), ""),)))
    assert drive.feed(NoRoute(REQUEST, errors.no_workers())) == []
    assert drive.life.wake_at == 5
    assert drive.feed(RoutesChanged()) == ["pick"]
    drive.now = 5
    assert drive.feed(NoRoute(REQUEST, errors.no_workers())) == ["end failed no_routable_workers"]


def test_a_request_that_lost_its_workers_waits_for_others() -> None:
    drive = started()
    drive.tokens(D1, 0, 50)
    drive.feed(WorkerLost(D1))
    assert drive.feed(NoRoute(REQUEST, errors.no_workers())) == []
    drive.now = 20
    assert drive.feed(RoutesChanged()) == ["pick"]
    drive.picks.clear()
    assert drive.feed(NoRoute(REQUEST, errors.no_workers())) == []
    assert drive.life.wake_at == 60, "the wait is counted from its beginning"
    drive.feed(RoutesChanged())
    drive.picks[:-1] = []
    assert drive.route(P2, D2) == ["reserve D2/2", "prefill P2/2"]


def test_the_deadline_ends_it_wherever_it_stands() -> None:
    drive = started()
    drive.tokens(D1, 0, 50)
    drive.now = DEADLINE_S
    assert drive.feed(Tick()) == ["cancel D1/1", "end failed deadline_exceeded"]


def test_the_workers_are_told_the_time_that_is_left() -> None:
    drive = started()
    drive.now = 100.0
    drive.feed(WorkerLost(D1))
    drive.route(P1, D2)
    assert drive.last(Reserve).timeout_s == DEADLINE_S - 100


# The client goes away -------------------------------------------------------------------------------------------------


def _queued(drive: Drive) -> None:
    pass


def _preparing(drive: Drive) -> None:
    drive.feed(Admitted())


def _routing(drive: Drive) -> None:
    drive.feed(Admitted())
    drive.feed(Prepared((Prompt(PROMPT, SamplingParams(max_tokens=3), ""),)))


def _unrouted(drive: Drive) -> None:
    drive.start()
    drive.feed(WorkerLost(D1))
    drive.feed(NoRoute(REQUEST, errors.no_workers()))
    drive.sent.clear()


def _started(drive: Drive) -> None:
    drive.start()


def _first_token(drive: Drive) -> None:
    drive.start()
    drive.tokens(P1, 0, 50)


def _decoding(drive: Drive) -> None:
    _first_token(drive)
    drive.tokens(D1, 0, 50, 51)


def _backing_off(drive: Drive) -> None:
    drive.start()
    drive.leg(D1, Reason.NO_CAPACITY)
    drive.sent.clear()


@pytest.mark.parametrize(
    ("state", "cancels"),
    [
        (_queued, []),
        (_preparing, []),
        (_routing, []),
        (_unrouted, []),
        (_backing_off, []),
        (_started, ["cancel D1/1", "cancel P1/1"]),
        (_first_token, ["cancel D1/1", "cancel P1/1"]),
        (_decoding, ["cancel D1/1"]),
    ],
)
def test_a_client_that_goes_away_frees_what_is_held_in_every_state(state: object, cancels: list[str]) -> None:
    drive = Drive()
    assert callable(state)
    state(drive)
    assert drive.feed(ClientGone()) == [*cancels, "end cancelled"]
    assert drive.feed(ClientGone()) == []
    assert drive.life.stage is Stage.ENDED


@pytest.mark.parametrize(
    "event",
    [Admitted(), RoutesChanged(), Tick(), WorkerLost(D1), StopFound(0, 1), Refused(errors.no_workers())],
)
def test_nothing_happens_after_the_end(event: Event) -> None:
    drive = started()
    drive.feed(ClientGone())
    assert drive.feed(event) == []
    assert drive.tokens(D1, 0, 50) == []


def test_a_refusal_while_preparing_ends_it() -> None:
    drive = Drive()
    drive.feed(Admitted())
    assert drive.feed(Refused(errors.model_not_found("x"))) == ["end refused model_not_found"]


@pytest.mark.parametrize("seed", range(200))
def test_random_losses_never_lose_or_repeat_a_token(seed: int) -> None:
    """Workers die at random; what each choice gets is the same as without."""
    random_ = random.Random(seed)
    n, length = random_.choice([1, 1, 2, 3]), random_.randrange(1, 12)
    drive = Drive(n=n, max_tokens=length, rules=LifeRules(max_losses=1_000))
    drive.start(*random_.choice([(P1, D1), (P2, D2), (None, D1)]))
    for _ in range(4_000):
        if drive.ends:
            break
        _random_event(drive, random_, length)
    assert drive.ends[0].outcome is Outcome.FINISHED
    assert drive.delivered == {choice: [100 * choice + i for i in range(length)] for choice in range(n)}


def _random_event(drive: Drive, random_: random.Random, length: int) -> None:
    if drive.picks:
        drive.route(*random_.choice([(P1, D1), (P2, D2), (P1, D2), (None, D1)]))
        return
    if random_.random() < 0.15:
        drive.feed(WorkerLost(random_.choice([P1, P2, D1, D2])))
        return
    if drive.life.wake_at < DEADLINE_S:
        drive.now = max(drive.now, drive.life.wake_at)
        drive.feed(Tick())
        return
    send = random_.choice(drive.sent[-12:])
    message = send.message
    if isinstance(message, Cancel):
        return
    start = len(unpack_ids(message.tokens)) - message.prompt_tokens
    choice = random_.choice(message.choices)
    have = len(drive.delivered.get(choice, []))
    top = start if isinstance(message, Prefill) else min(length - 1, have + random_.randrange(2))
    first = random_.randrange(start, max(start, min(have, top)) + 1)
    ids = [100 * choice + i for i in range(first, max(first, top) + 1)]
    finish = Finish.LENGTH if ids[-1] == 100 * choice + length - 1 else None
    drive.tokens(send.worker, first, *ids, choice=choice, attempt=message.attempt, run=message.request, finish=finish)
