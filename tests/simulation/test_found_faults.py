"""Faults of production code that the simulation found, each as small as it can be told."""

from __future__ import annotations

from baton_gateway import errors
from baton_gateway.requests.request_events import NoRoute, WorkerLost
from baton_kv_transfer.grant import DecodePeer
from baton_kv_transfer.handover import HandoverKey, SendTo, TransferConfig
from baton_kv_transfer.prefill.machine import PrefillHandovers
from baton_kv_transfer.prefill.records import Put
from baton_testing.gateway.request_drive import D1, D2, P1, P2, started
from baton_testing.simulation.kv import geometry
from baton_wire.messages.pair_link import Abandon, Grant, Reject, Span, Wait
from baton_wire.messages.values import Reason

KEY = HandoverKey(b"r" * 16, 1)
DECODE = b"d" * 16
BYTES = geometry(4).block_bytes
EARLY_GRANT = Grant(
    request=KEY.request,
    attempt=KEY.attempt,
    transfer=1,
    start_tokens=0,
    end_tokens=4,
    unit_tokens=4,
    spans=(Span(offset=0, length=BYTES),),
)
REJECT = Reject(request=KEY.request, attempt=KEY.attempt, reason=Reason.CANCELLED, detail="")


def test_a_repeated_grant_gets_no_proof_about_writes_of_a_lost_link() -> None:
    """Writes posted over the lost link may still land: an Abandon would free their span at the decode worker."""
    grant = EARLY_GRANT
    machine = PrefillHandovers(geometry(4), TransferConfig())
    machine.link_up(DECODE, DecodePeer(4, 4_096), 0.0)
    machine.opened(KEY, DECODE, 4, 100.0, 0.0)
    machine.computed(KEY, 4, (0,), 0.0)
    (put,) = [action for action in machine.message(DECODE, grant, 0.0) if isinstance(action, Put)]
    machine.link_down(DECODE, Reason.PEER_LOST, "reset", 1.0)
    machine.put_failed(KEY, put.put, Reason.PEER_LOST, "reset", 1.0)
    machine.link_up(DECODE, DecodePeer(4, 4_096), 2.0)
    assert machine.message(DECODE, grant, 2.0) == []


def test_a_grant_for_an_attempt_that_ended_without_one_is_answered() -> None:
    machine = PrefillHandovers(geometry(4), TransferConfig())
    machine.link_up(DECODE, DecodePeer(4, 4_096), 0.0)
    machine.opened(KEY, DECODE, 4, 100.0, 0.0)
    machine.cancelled(KEY, Reason.CANCELLED, "", 0.0)
    grant = Grant(
        request=KEY.request, attempt=KEY.attempt, transfer=1, start_tokens=0, end_tokens=0, unit_tokens=4, spans=()
    )
    (answer,) = machine.message(DECODE, grant, 1.0)
    assert isinstance(answer, SendTo)
    assert isinstance(answer.message, Abandon)


def test_a_repeated_wait_does_not_make_an_early_grant_forgotten() -> None:
    """Seed 4235: a Wait of the lost link came again behind the Grant; the Reject was then taken for one without a
    grant, and the decode worker waited for ever for the word that nothing is being written."""
    machine = PrefillHandovers(geometry(4), TransferConfig())
    machine.link_up(DECODE, DecodePeer(4, 4_096), 0.0)
    assert machine.message(DECODE, EARLY_GRANT, 0.0) == []
    assert machine.message(DECODE, Wait(request=KEY.request, attempt=KEY.attempt, position=0), 0.1) == []
    (answer,) = machine.message(DECODE, REJECT, 0.2)
    assert isinstance(answer, SendTo)
    assert isinstance(answer.message, Abandon)


def test_a_grant_repeated_behind_its_reject_is_never_written_to() -> None:
    """The decode worker was told that nothing is in flight, and has given the span to somebody else."""
    machine = PrefillHandovers(geometry(4), TransferConfig())
    machine.link_up(DECODE, DecodePeer(4, 4_096), 0.0)
    machine.message(DECODE, EARLY_GRANT, 0.0)
    machine.message(DECODE, REJECT, 0.1)
    (answer,) = machine.message(DECODE, EARLY_GRANT, 0.2)
    assert isinstance(answer, SendTo)
    assert isinstance(answer.message, Abandon)
    actions = machine.opened(KEY, DECODE, 4, 100.0, 0.3) + machine.computed(KEY, 4, (0,), 0.4)
    assert not [action for action in actions if isinstance(action, Put)]


def test_a_grant_of_a_lost_link_is_never_written_to_over_the_next() -> None:
    """Seeds 5114, 5519, 5907: the grant came again before its request was opened here, and its bytes were another's."""
    machine = PrefillHandovers(geometry(4), TransferConfig())
    machine.link_up(DECODE, DecodePeer(4, 4_096), 0.0)
    machine.message(DECODE, EARLY_GRANT, 0.0)
    machine.link_down(DECODE, Reason.PEER_LOST, "reset", 1.0)
    machine.link_up(DECODE, DecodePeer(4, 4_096), 2.0)
    assert machine.message(DECODE, EARLY_GRANT, 2.1) == []
    actions = machine.opened(KEY, DECODE, 4, 100.0, 2.2) + machine.computed(KEY, 4, (0,), 2.3)
    assert not [action for action in actions if isinstance(action, Put)]
    assert machine.stats().refused["former_link"] == 1
    fresh = Grant(**{name: getattr(EARLY_GRANT, name) for name in EARLY_GRANT.__struct_fields__} | {"transfer": 2})
    assert [action for action in machine.message(DECODE, fresh, 2.4) if isinstance(action, Put)]


def test_kept_kv_is_let_go_when_the_request_goes_on_with_another_revision() -> None:
    """Seeds 387, 393, 397: the prefill worker kept it for a decode worker that could not come any more."""
    drive = started()
    assert drive.feed(WorkerLost(D1)) == ["pick"]  # P1 keeps the KV
    no_route = NoRoute(drive.picks.pop(0).run, errors.no_workers(), is_superseded=True)
    assert drive.feed(no_route) == ["cancel P1/1", "prepare"]


def test_a_decode_worker_that_repeats_another_token_is_stopped_and_its_attempt_fails() -> None:
    """It said 51 where the prefill worker had said 50: the client would read what nobody computed."""
    drive = started()
    assert drive.tokens(P1, 0, 50) == ["deliver 0:50"]
    assert drive.tokens(D1, 0, 51, 60) == ["cancel D1/1", "pick"]
    assert drive.life.conflicts == 1
    assert drive.route(P2, D2) == ["reserve D2/2", "prefill P2/2"]
    assert drive.tokens(D2, 0, 50, 61, attempt=2) == ["deliver 0:61"]
    assert drive.life.conflicts == 1
