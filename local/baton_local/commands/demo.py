"""`baton demo`: starts a deployment, asks it one question, shows the KV transfers, and stops it.

It runs `baton up` as its child, so that it shows what users get. It fails when no KV moved from one process to another,
or when a process is left at the end.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from baton_local.client import Answer, ask, chat
from baton_local.commands.ask import show
from baton_local.errors import LocalError
from baton_local.fleet.client_keys import key_for
from baton_local.fleet.observation import Observation
from baton_local.fleet.own_deployment import check_moved, own_deployment
from baton_local.fleet.record import RunRecord
from baton_local.text_table import milliseconds, table


class DemoError(LocalError):
    """The demonstration failed."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of `baton demo`."""

    manifest: Path
    up_arguments: tuple[str, ...]
    """Arguments passed on to `baton up`."""
    question: str
    max_tokens: int
    ready_s: float


def run_demo(options: DemoOptions) -> int:
    """Run the demonstration. Raises LocalError or OperatorError when a part of it fails."""
    with own_deployment(options.manifest, options.up_arguments, options.ready_s) as own:
        print(f"ready {own.record.endpoint} after {own.ready_after_s:.1f} s\n", flush=True)
        answer = _ask(own.record, options)
        seen = own.settled()
        print(f"\n\n{report(seen, answer)}\n", flush=True)
        check_moved(seen)
    print("stopped; no process is left")
    print(f"\nnext: {next_steps(sys.argv[0], options.manifest)}")
    return 0


def next_steps(program: str, manifest: Path) -> str:
    """The commands to type next. `program`: the script that runs, which no PATH may have.

    >>> next_steps(".venv/bin/baton", Path("examples/tiny.yaml"))
    '`.venv/bin/baton up -f examples/tiny.yaml` serves it until Ctrl-C; then `.venv/bin/baton chat` in another terminal'
    """
    baton = program if Path(program).name == "baton" and shutil.which("baton") != program else "baton"
    return f"`{baton} up -f {manifest}` serves it until Ctrl-C; then `{baton} chat` in another terminal"


def report(seen: Observation, answer: Answer) -> str:
    """The table of the demonstration. Pure."""
    rows: list[tuple[object, ...]] = []
    if seen.gateway is not None:
        rows.append(("gateway", str(seen.gateway.pid), seen.gateway.address, None, None, None))
    for process, state in seen.workers:
        if state is None:
            rows.append((process.role, str(process.pid), process.address, None, None, "does not answer"))
            continue
        sent, received = state.transfer.bytes_sent, state.transfer.bytes_received
        moved = received if process.role == "decode" else sent
        direction = "received" if process.role == "decode" else "sent"
        rows.append(
            (process.role, str(process.pid), process.address, _blocks(moved, state.block_bytes), moved, direction)
        )
    header = ("PROCESS", "PID", "ADDRESS", "KV BLOCKS", "KV BYTES", "")
    transports = {state.transfer.transport for _, state in seen.workers if state and state.transfer.transport}
    facts = (
        f"transport {', '.join(sorted(transports)) or '-'}",
        f"TTFT {milliseconds(answer.ttft_s)}",
        f"TPOT {milliseconds(answer.tpot_s if answer.tokens > 1 else None)}",
        f"{answer.tokens} tokens",
    )
    return f"{table(header, rows)}\n\n{'   '.join(facts)}"


def _blocks(moved: int, block_bytes: int) -> int | None:
    """Whole blocks in a number of bytes; None for an unknown block size."""
    return moved // block_bytes if block_bytes else None


def _ask(record: RunRecord, options: DemoOptions) -> Answer:
    print(f"> {options.question}\n", flush=True)
    question = chat(record.served_name, options.question, max_tokens=options.max_tokens, temperature=0)
    answer = ask(record.endpoint, question, show, key_for(record, os.environ))
    if not any(answer.texts.values()):
        raise DemoError("the answer is empty")
    return answer
