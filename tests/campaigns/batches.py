"""Kills of gateways and workers while batches are answered: `make campaign RUN="batches --lines 100000 --kills 50"`.

Two gateways of two processes each share a folder of batches, in front of null workers. Again and again a gateway
process, a whole gateway or the workers are killed with SIGKILL. In the end each line must have exactly one answer, its
own, in the output file of its batch, and the request of that answer must be in the ledger once. Exits with 1 when one
has not.

`--lanes N` shares lines and kills among N such services next to each other.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import openai
import psutil

from baton_testing.gateway.batch_client import ENDED, begin, client_of, line
from baton_testing.gateway.fake_pool import pool_flags
from baton_testing.processes.child_process import Child, NotReadyError, get_status, wait_for
from baton_wire.ledger_line import LineEvent, decode_line
from campaigns.lanes import Campaign, LaneVerdict, Plan, kill_one_process

MODEL = "null"
STEP_MS = 1
GATEWAYS, PROCESSES = 2, 2
BATCHES = 4
MOST_TOKENS = 5
WORKERS = "workers"
START_S = 600.0
"""For a process to start, also on a machine that is busy with other work."""
POLL_S = 1.0


def tokens_of(number: int) -> int:
    """The tokens that a line asks for, by which an answer is known to be its own."""
    return 1 + number % MOST_TOKENS


class BatchService:
    """The processes that are killed, and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.batches, self.ledger = folder, folder / "batches", folder / "ledger"
        self._starts = Counter[str]()
        self.ports: dict[str, int] = {}
        self._workers = self._start(WORKERS, "bench.serving.null_worker", str(folder), f"--step-ms={STEP_MS}")
        self._gateways = {name: self._start_gateway(name) for name in (f"gateway-{at}" for at in range(GATEWAYS))}

    def await_routable(self) -> None:
        """Raises NotReadyError."""
        for port in self.ports.values():
            url = f"http://127.0.0.1:{port}/health/routable"
            wait_for(lambda: get_status(url, 2.0) == 200 or None, "gateways to be routable", START_S)  # noqa: B023

    def kill(self, dice: random.Random) -> str:
        """Kill one thing, and start it again where nothing else does. Returns what it was."""
        what = dice.choices(("a gateway process", "a gateway", WORKERS), (6, 2, 2))[0]
        name = dice.choice(sorted(self._gateways))
        if what == WORKERS:
            _kill(self._workers)
            self._workers = self._start(WORKERS, "bench.serving.null_worker", str(self.folder), f"--step-ms={STEP_MS}")
        elif what == "a gateway":
            _kill(self._gateways[name])
            self._gateways[name] = self._start_gateway(name)
        else:
            kill_one_process(self._gateways[name].pid, dice)
        return what

    def stop(self) -> None:
        """Stop everything, after last gateways have recovered the ledger of killed processes. Raises NotReadyError."""
        try:
            for name, gateway in self._gateways.items():
                gateway.stop(60.0)
                self._gateways[name] = self._start_gateway(name)
        finally:
            for gateway in self._gateways.values():
                gateway.stop(60.0)
            self._workers.stop()

    def _start_gateway(self, name: str) -> Child:
        flags = ("--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", f"--processes={PROCESSES}", f"--name={name}")
        folders = (f"--batch-folder={self.batches}", f"--ledger={self.ledger}", "--drain-s=20")
        child = self._start(name, "baton_gateway", *flags, *pool_flags(self.folder), *folders)
        self.ports[name] = json.loads((self.folder / f"{name}.announced").read_text())["port"]
        return child

    def _start(self, name: str, *argv: str) -> Child:
        self._starts[name] += 1
        announce = self.folder / f"{name}.announced"
        announce.unlink(missing_ok=True)
        command = ("-m", *argv, f"--announce={announce}")
        child = Child(f"{name}-{self._starts[name]}", command, self.folder, {"PYTHONPATH": os.pathsep.join(sys.path)})
        child.await_file(announce, START_S)
        return child


def _kill(child: Child) -> None:
    family = child.family()
    child.send(signal.SIGKILL)
    child.wait(60.0)
    psutil.wait_procs(family, 30.0)  # they die with it


@dataclass(slots=True)
class BatchVerdict:
    """What became of the lines."""

    answered: int = 0
    interrupted: int = 0
    """Closing lines of the ledger that are marked so: these were computed again."""
    answered_at_kill: list[int] = field(default_factory=list)
    killed: Counter[str] = field(default_factory=Counter)
    answering_s: float = 0.0
    problems: list[str] = field(default_factory=list)


async def answer_under_kills(service: BatchService, plan: Plan, verdict: BatchVerdict) -> None:
    """Create batches, kill at even progress while they are answered, and check the answers."""
    dice, began = random.Random(plan.seed), time.monotonic()
    lines, kills = plan.amounts["lines"], plan.amounts["kills"]
    share = lines // BATCHES
    ids: dict[str, range] = {}
    async with client_of(f"http://127.0.0.1:{service.ports['gateway-0']}/v1") as client:
        for at in range(BATCHES):
            numbers = range(at * share, lines if at == BATCHES - 1 else (at + 1) * share)
            content = "".join(line(f"q{n}", model=MODEL, max_tokens=tokens_of(n)) for n in numbers)
            ids[(await begin(client, content)).id] = numbers
    while True:
        answered, ended = await progress(service, ids)
        num_kills = verdict.killed.total()
        if num_kills < kills and answered >= lines * (num_kills + dice.random()) / (kills + 1):
            verdict.killed[await asyncio.to_thread(service.kill, dice)] += 1
            verdict.answered_at_kill.append(answered)
            await asyncio.to_thread(service.await_routable)
        elif ended == len(ids):
            break
        elif time.monotonic() > plan.until_s:
            verdict.problems.append(f"{len(ids) - ended} batches have not ended: {answered} of {lines} are answered")
            break
        else:
            await asyncio.sleep(POLL_S)
    verdict.answering_s = time.monotonic() - began
    async with client_of(f"http://127.0.0.1:{service.ports['gateway-1']}/v1") as client:
        for batch_id, numbers in ids.items():
            await check_answers(client, batch_id, numbers, service.ledger, verdict)


async def progress(service: BatchService, ids: dict[str, range]) -> tuple[int, int]:
    """How many lines are answered, and how many batches have ended."""
    answered = ended = 0
    for port in service.ports.values():
        try:
            async with client_of(f"http://127.0.0.1:{port}/v1") as client:
                batches = [await client.batches.retrieve(batch_id) for batch_id in ids]
        except openai.APIError:
            continue  # it was killed a moment ago
        for batch in batches:
            counts = batch.request_counts
            answered += 0 if counts is None else counts.completed + counts.failed
            ended += batch.status in ENDED
        break
    return answered, ended


async def check_answers(
    client: openai.AsyncOpenAI, batch_id: str, numbers: range, ledger: Path, verdict: BatchVerdict
) -> None:
    """Compare one batch's files with its lines."""
    batch = await client.batches.retrieve(batch_id)
    if batch.status != "completed" or batch.error_file_id is not None or batch.output_file_id is None:
        verdict.problems.append(f"{batch_id}: {batch.status}, {batch.request_counts}, {batch.errors}")
        return
    content = await client.files.content(batch.output_file_id)
    seen = Counter[int]()
    requests: set[str] = set()
    for text in content.text.splitlines():
        answer = json.loads(text)
        number = int(answer["custom_id"][1:])
        seen[number] += 1
        requests.add(answer["response"]["request_id"])
        usage = answer["response"]["body"]["usage"]
        if answer["response"]["status_code"] != 200 or usage["completion_tokens"] != tokens_of(number):
            verdict.problems.append(f"q{number} has the answer of another line, or an error: {text[:300]}")
    verdict.answered += seen.total()
    for number in numbers:
        if seen[number] != 1:
            verdict.problems.append(f"q{number} has {seen[number]} answers")
    if surplus := set(seen) - set(numbers):
        verdict.problems.append(f"{batch_id} has answers of lines that are not its own: {sorted(surplus)[:5]}")
    if len(requests) != len(numbers):
        verdict.problems.append(f"{batch_id} has {len(requests)} request ids for {len(numbers)} lines")
    (ledger.parent / f"{batch_id}.requests").write_text("\n".join(requests))


def check_ledger(folder: Path, verdict: BatchVerdict) -> None:
    """Compare the requests of all answers with the ledger, after everything has stopped."""
    closed = Counter[str]()
    for path in (folder / "ledger").glob("*.jsonl"):
        for text in path.read_bytes().splitlines():
            try:
                entry = decode_line(text)
            except ValueError:
                continue  # torn by a kill, and written again
            if entry.event is LineEvent.CLOSED:
                verdict.interrupted += entry.interrupted
                closed[entry.request] += entry.status == "finished"
    answered = [request for path in folder.glob("*.requests") for request in path.read_text().splitlines()]
    wrong = [request for request in answered if closed[request] != 1]
    if wrong:
        verdict.problems.append(f"{len(wrong)} answers are not in the ledger as finished exactly once: {wrong[:3]}")


def run(folder: Path, plan: Plan) -> LaneVerdict:
    """Answer, kill, stop everything, and judge."""
    verdict = BatchVerdict()
    service = BatchService(folder)
    try:
        service.await_routable()
        asyncio.run(answer_under_kills(service, plan, verdict))
    except NotReadyError as error:
        verdict.problems.append(f"after {verdict.killed.total()} kills: {error}")
    finally:
        try:
            service.stop()
        except NotReadyError as error:
            verdict.problems.append(f"a last gateway: {error}")
    check_ledger(folder, verdict)
    counts = Counter({f"kills: {what}": count for what, count in verdict.killed.most_common()})
    counts["lines"] = plan.amounts["lines"]
    counts["answers"] = verdict.answered
    counts["requests that were interrupted, and computed again"] = verdict.interrupted
    counts["seconds of answering, of all lanes"] = round(verdict.answering_s)
    if verdict.killed.total() < plan.amounts["kills"]:
        verdict.problems.append(f"{verdict.killed.total()} kills of {plan.amounts['kills']}")
    return LaneVerdict(counts, verdict.problems)


if __name__ == "__main__":
    sys.exit(Campaign("batches", __doc__, {"lines": 2_000, "kills": 10}, run).main())
