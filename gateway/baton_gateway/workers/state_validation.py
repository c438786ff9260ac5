"""Validates the state that a worker reports. A worker with a valid key may be broken, or lie: then its reported load
must not attract prompts, or make pools grow or shrink, without bounds. Pure.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from baton_wire.messages.gateway_link import Hello, WorkerState
from baton_wire.messages.measures import StepTiming
from baton_wire.messages.values import MAX_CONTEXT_TOKENS

MAX_WAITING: Final = 1 << 21
"""Requests: twice what `--max-waiting` allows, because prompts and reservations wait separately."""
MAX_COMPUTING: Final = 2 * MAX_CONTEXT_TOKENS
"""Prompt tokens of two steps of the longest contexts."""
MAX_STEP_S: Final = 600.0
MAX_STARTUP_S: Final = 86_400.0
MAX_GATEWAYS: Final = 1_024
"""Links that a worker accepts."""
MAX_ROWS: Final = 1 << 16


def clamp_state(state: WorkerState, hello: Hello) -> tuple[WorkerState, tuple[str, ...]]:
    """The state with impossible values left out or clamped to the worker's Hello, and what was wrong."""
    if is_plausible_state(state, hello):
        return state, ()
    doubts = []
    changes: dict[str, object] = {}
    most_tokens = MAX_WAITING * hello.max_context_tokens
    for name, most in (
        ("blocks_free", hello.blocks_total),
        ("blocks_cached", hello.blocks_total),
        ("running", hello.max_sequences),
        ("waiting", MAX_WAITING),
        ("waiting_tokens", most_tokens),
        ("computing_tokens", MAX_COMPUTING),
        ("step_s", MAX_STEP_S),
        ("gateways", MAX_GATEWAYS),
    ):
        value = getattr(state, name)
        if value > most:
            doubts.append(f"{name}: {value} is more than {most}")
            changes[name] = most
    if state.startup_s is not None and state.startup_s > MAX_STARTUP_S:
        doubts.append(f"startup_s: {state.startup_s} is more than {MAX_STARTUP_S}")
        changes["startup_s"] = None
    if state.turn is not None and not 0 <= (state.turn.place or 0) < state.turn.of <= MAX_GATEWAYS:
        doubts.append(f"turn: {state.turn.place} of {state.turn.of} is none of at most {MAX_GATEWAYS}")
        changes["turn"] = None
    timings = tuple(timing for timing in state.timings if is_plausible_step(timing))
    if len(timings) < len(state.timings):
        doubts.append(f"timings: {len(state.timings) - len(timings)} of {len(state.timings)} are of no step")
        changes["timings"] = timings
    return replace(state, **changes), tuple(doubts)


def is_plausible_state(state: WorkerState, hello: Hello) -> bool:
    """Return whether all of it is possible: asked ten times a second for each worker."""
    return (
        max(state.blocks_free, state.blocks_cached) <= hello.blocks_total
        and state.running <= hello.max_sequences
        and state.waiting <= MAX_WAITING
        and state.waiting_tokens <= MAX_WAITING * hello.max_context_tokens
        and state.computing_tokens <= MAX_COMPUTING
        and state.step_s <= MAX_STEP_S
        and state.gateways <= MAX_GATEWAYS
        and (state.startup_s is None or state.startup_s <= MAX_STARTUP_S)
        and (state.turn is None or 0 <= (state.turn.place or 0) < state.turn.of <= MAX_GATEWAYS)
        and all(map(is_plausible_step, state.timings))
    )


def is_plausible_step(timing: StepTiming) -> bool:
    """Return whether an engine can have made such a step."""
    return (
        0.0 < timing.seconds <= MAX_STEP_S
        and timing.prefill_tokens <= MAX_CONTEXT_TOKENS
        and timing.decode_rows <= MAX_ROWS
        and timing.prefill_tokens + timing.decode_rows > 0
    )


def find_hello_fault(hello: Hello) -> str | None:
    """Why no worker can be as its Hello says; None: one can."""
    held = hello.blocks_total * hello.block_tokens
    if held < hello.max_context_tokens:
        return f"blocks_total: they hold {held} tokens, fewer than a context of {hello.max_context_tokens}"
    return None
