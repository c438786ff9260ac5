"""The parts of a request's time: a closed set of names, each with what it means and where to look next."""

from __future__ import annotations

import enum


class Part(enum.StrEnum):
    """A part of a request's time: what it waited for during a span. Spans of traces have the same
    names after `baton.`."""

    RECEIVING = "receiving"
    QUEUED = "queued"
    RENDERING = "rendering"
    TOKENISING = "tokenising"
    COMPILING = "compiling"
    PREPARING = "preparing"
    PARKED = "parked"
    HELD = "held"
    ROUTING = "routing"
    LINKS = "links"
    PREFILL_QUEUE = "prefill_queue"
    PREFILL = "prefill"
    FIRST_TOKEN = "first_token"
    RESERVATION = "reservation"
    TRANSFER = "transfer"
    DECODE_QUEUE = "decode_queue"
    DECODING = "decoding"
    SLOW_GAPS = "slow_gaps"
    PREEMPTED = "preempted"
    LOST_ATTEMPT = "lost_attempt"
    BACKING_OFF = "backing_off"
    SENDING = "sending"
    GATEWAY_STALLED = "gateway_stalled"
    WORKER_SILENT = "worker_silent"


MEANINGS: dict[str, str] = {
    Part.RECEIVING: "reading the client's body: it is large, or the client sends slowly",
    Part.QUEUED: "waiting for admission: the tenant's quota, or requests before it",
    Part.RENDERING: "rendering the chat template",
    Part.TOKENISING: "tokenising the prompt",
    Part.COMPILING: "compiling the schema or grammar",
    Part.PREPARING: "preparing the prompt otherwise",
    Part.PARKED: "waiting for workers: none could take it",
    Part.HELD: "held at the gateway: every worker that could take it was busy",
    Part.ROUTING: "choosing workers",
    Part.LINKS: "between gateway and worker: no process accounts for this time",
    Part.PREFILL_QUEUE: "waiting in the queue of the worker that computes the prompt",
    Part.PREFILL: "computing the prompt",
    Part.FIRST_TOKEN: "drawing the first token",
    Part.RESERVATION: "waiting for blocks at the decode worker",
    Part.TRANSFER: "waiting for the KV: its transfer to the decode worker",
    Part.DECODE_QUEUE: "waiting for a slot and a step of the decode worker after the KV had landed",
    Part.DECODING: "decoding within the target",
    Part.SLOW_GAPS: "decoding beyond the target: steps took long",
    Part.PREEMPTED: "preempted: its blocks went to older requests",
    Part.LOST_ATTEMPT: "an attempt that was lost",
    Part.BACKING_OFF: "waiting before another attempt",
    Part.SENDING: "sending the rest of the answer: the client reads slowly",
    Part.GATEWAY_STALLED: "this gateway process stood still",
    Part.WORKER_SILENT: "the worker sent nothing: stopped, without a CPU, or cut off",
}
"""The meaning of each part, as people read it."""


def meaning_of(part: str) -> str:
    """Return the meaning of a part; for a part of a later version of the gateway its name."""
    return MEANINGS.get(part, part)
