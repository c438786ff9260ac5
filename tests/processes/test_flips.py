"""Workers that change their role while answers stream: no request, no token and no model is lost."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from baton_testing.engine import tiny_llama
from baton_testing.processes.child_process import wait_for
from baton_testing.processes.deployment import Deployment, Shape, Worker
from baton_testing.processes.order_desk import OrderDesk
from baton_wire.messages.operator_link import FlipOrder
from baton_wire.messages.values import POOL_ROLES, Role

pytestmark = pytest.mark.processes

STREAMS = 4
QUESTION = "Count to one hundred."
NUMBERS = itertools.count(1)
"""Numbers of this module's flips: every next one is larger than the last."""


@pytest.fixture(scope="module")
def desk() -> Iterator[OrderDesk]:
    with OrderDesk() as desk:
        yield desk


@pytest.fixture(scope="module")
def shape(desk: OrderDesk) -> Shape:
    return Shape(prefill=1, decode=2, gateway_processes=2, flips=True, gateway_flags=("--operator", desk.url))


@pytest.fixture(scope="module")
def ordered(desk: OrderDesk, deployment: Deployment) -> OrderDesk:
    """The desk with its gateways linked."""
    desk.open(deployment.keys)
    return desk


class Stream:
    """One streamed answer, greedy or with a seed."""

    def __init__(self, client: openai.OpenAI, seed: int | None) -> None:
        self._client, self._seed = client, seed
        self.begun = threading.Event()

    def run(self) -> str:
        text, reason = "", None
        for chunk in self._client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0 if self._seed is None else 2.0,
            seed=self._seed,
            stream=True,
            max_tokens=320,
        ):
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reason = choice.finish_reason or reason
            self.begun.set()
        assert reason in ("stop", "length")
        return text


def expected() -> str:
    return tiny_llama.text_of(tiny_llama.greedy(tiny_llama.chat_ids(QUESTION), 320).ids)


def texts_while(client: openai.OpenAI, act: Callable[[], None]) -> list[str]:
    """Texts of greedy and seeded streams; once all have begun, `act` is called and as many begin anew after it."""
    seeds: list[int | None] = [None if number % 2 else number for number in range(STREAMS)]
    with ThreadPoolExecutor(2 * STREAMS) as pool:
        streams = [Stream(client, seed) for seed in seeds]
        running = [pool.submit(stream.run) for stream in streams]
        for stream in streams:
            assert stream.begun.wait(60)
        act()
        running += [pool.submit(Stream(client, seed).run) for seed in seeds]
        return [future.result(120) for future in running]


@pytest.fixture(scope="module")
def undisturbed(ordered: OrderDesk, client: openai.OpenAI) -> list[str]:
    texts = texts_while(client, lambda: None)
    assert texts[1] == texts[3] == expected()
    assert texts[:STREAMS] == texts[STREAMS:]
    assert len({texts[0], texts[1], texts[2]}) == 3
    return texts


def role_of(worker: Worker) -> str:
    state = worker.state()
    return "" if state is None else str(state["role"])


def of_present_role(deployment: Deployment, role: Role) -> list[Worker]:
    return [worker for worker in deployment.workers if role_of(worker) == role]


def flip(desk: OrderDesk, worker: Worker, role: Role) -> float:
    seconds = desk.flip(worker.state()["epoch"], next(NUMBERS), role)
    assert role_of(worker) == role
    return seconds


def test_a_flip_under_load_changes_no_answer_and_the_next_prompts_follow_it(
    deployment: Deployment,
    client: openai.OpenAI,
    ordered: OrderDesk,
    undisturbed: list[str],
    record_property: Callable[[str, object], None],
) -> None:
    """1 + 2 workers become 2 + 1, then all change sides, then everything is as it was."""
    (prefill,) = of_present_role(deployment, Role.PREFILL)
    first, second = of_present_role(deployment, Role.DECODE)
    plans = [
        [(first, Role.PREFILL)],
        [(prefill, Role.DECODE), (second, Role.PREFILL)],
        [(second, Role.DECODE)],
        [(prefill, Role.PREFILL), (first, Role.DECODE)],
    ]
    pids = {worker.child.name: worker.state()["pid"] for worker in deployment.workers}
    for number, plan in enumerate(plans):
        took: list[float] = []

        def act(plan: list[tuple[Worker, Role]] = plan, took: list[float] = took) -> None:
            took += [flip(ordered, worker, role) for worker, role in plan]

        assert texts_while(client, act) == undisturbed
        record_property(f"flip {number} seconds", [round(seconds, 3) for seconds in took])
        print(f"flips took {', '.join(f'{seconds:.3f} s' for seconds in took)}")
    assert {worker.child.name: worker.state()["pid"] for worker in deployment.workers} == pids, "nothing was restarted"
    for worker in (first, second):
        moved = worker.state()["transfer"]
        assert moved["kv_bytes_sent"] > 0, "it handed prompts over while it was a prefill worker"
        assert moved["kv_bytes_received"] > 0
    assert prefill.state()["transfer"]["kv_bytes_received"] > 0
    assert len(of_present_role(deployment, Role.DECODE)) == 2
    deployment.await_idle()


def test_everybody_is_linked_with_everybody_before_any_flip(deployment: Deployment, ordered: OrderDesk) -> None:
    """Each worker dialled both others, and itself never for long."""
    addresses = {f"{worker.host}:{worker.pair_port}" for worker in deployment.workers}
    for worker in deployment.workers:
        others = addresses - {f"{worker.host}:{worker.pair_port}"}

        def is_linked(worker: Worker = worker, others: set[str] = others) -> bool | None:
            return {link["peer"] for link in worker.state()["transfer"]["links"]} == others or None

        wait_for(is_linked, f"{worker.child.name} to be linked with {others}", 60)
        assert "no link to decode worker" not in worker.child.output(), "least of all to itself"


def test_a_late_or_repeated_order_does_not_undo_a_later_one(deployment: Deployment, ordered: OrderDesk) -> None:
    worker = of_present_role(deployment, Role.DECODE)[0]
    epoch = worker.state()["epoch"]
    early, late, last = next(NUMBERS), next(NUMBERS), next(NUMBERS)
    ordered.flip(epoch, late, Role.PREFILL)
    ordered.order(
        FlipOrder(bytes.fromhex(epoch), early, Role.DECODE), FlipOrder(bytes.fromhex(epoch), late, Role.DECODE)
    )
    ordered.flip(epoch, last, Role.PREFILL)  # later messages have arrived: these changed nothing
    assert role_of(worker) == Role.PREFILL
    assert worker.child.output().count(f"flip {late}: prefill") == 1
    assert f"flip {early}" not in worker.child.output()
    flip(ordered, worker, Role.DECODE)


@pytest.mark.parametrize("role", POOL_ROLES)
def test_kill_of_a_flipped_worker_loses_no_request(
    deployment: Deployment, client: openai.OpenAI, ordered: OrderDesk, undisturbed: list[str], role: Role
) -> None:
    """The worker dies in its new role, with work of its first role and of the new one."""
    before = Role.DECODE if role is Role.PREFILL else Role.PREFILL
    if role is Role.DECODE:  # the pools have 2 + 1 workers then
        flip(ordered, of_present_role(deployment, Role.DECODE)[0], Role.PREFILL)
    victim = of_present_role(deployment, before)[0]

    def act() -> None:
        flip(ordered, victim, role)
        victim.child.send(signal.SIGKILL)

    assert texts_while(client, act) == undisturbed
    restore(deployment, ordered, victim)


@pytest.mark.parametrize("delay_s", [0.0, 0.05])
def test_kill_in_the_midst_of_a_flip_loses_no_request(
    deployment: Deployment, client: openai.OpenAI, ordered: OrderDesk, undisturbed: list[str], delay_s: float
) -> None:
    victim = of_present_role(deployment, Role.DECODE)[0]
    epoch = bytes.fromhex(victim.state()["epoch"])

    def act() -> None:
        ordered.order(FlipOrder(epoch, next(NUMBERS), Role.PREFILL))
        threading.Event().wait(delay_s)
        victim.child.send(signal.SIGKILL)

    assert texts_while(client, act) == undisturbed
    restore(deployment, ordered, victim)


def restore(deployment: Deployment, desk: OrderDesk, victim: Worker) -> None:
    """One prefill and two decode workers again."""
    wait_for(lambda: not victim.child.is_running() or None, "the victim to end", 60)
    deployment.replace(victim)
    deployment.await_routable()
    prefill, decode = (of_present_role(deployment, role) for role in POOL_ROLES)
    for worker in prefill[1:]:
        flip(desk, worker, Role.DECODE)
    for worker in decode[2:]:
        flip(desk, worker, Role.PREFILL)
    assert [len(of_present_role(deployment, role)) for role in POOL_ROLES] == [1, 2]
    deployment.await_idle()
