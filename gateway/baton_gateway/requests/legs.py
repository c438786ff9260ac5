"""What the two workers of an attempt are told. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from baton_gateway.requests.request_events import Prompt, Route, Send
from baton_gateway.requests.run import Run
from baton_wire.messages.gateway_link import Prefill, Reserve, Retarget
from baton_wire.messages.values import PeerRef, pack_ids

LEAST_S = 0.001
"""Workers are told a positive time; a passed deadline ends the request here anyway."""


def start_legs(run: Run, route: Route, prompt: Prompt, forced: Sequence[int], n: int, left_s: float) -> list[Send]:
    """Both legs, the decode worker's first. `forced`: what was generated before this attempt; `n`: choices a prompt."""
    tokens = pack_ids([*prompt.tokens, *forced])
    choices = tuple(sorted(choice % n for choice in run.choices))
    what = (tokens, len(prompt.tokens), choices, prompt.sampling, max(left_s, LEAST_S), prompt.salt)
    legs = [Send(route.decode, Reserve(run.request, run.attempt, *what, route.prefill))]
    if route.prefill is not None and route.decode_address is not None:
        decode = PeerRef(route.decode_address, route.decode)
        legs.append(Send(route.prefill, Prefill(run.request, run.attempt, *what, decode)))
    return legs


def send_on(run: Run, route: Route, left_s: float) -> list[Send]:
    """To the prefill worker that keeps the KV of the attempt before this one: where it goes now."""
    assert route.prefill is not None
    assert route.decode_address is not None
    peer = PeerRef(route.decode_address, route.decode)
    return [Send(route.prefill, Retarget(run.request, run.attempt - 1, run.attempt, max(left_s, LEAST_S), peer))]
