"""Progress of a running step with its prompts, reported layer by layer, so that finished layers can be sent meanwhile.

On a CPU the engine thread reports between two layers. On a GPU an event is recorded after the layer's kernels, and a
thread of its own waits for the event and reports; the engine thread never waits.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import torch

from baton_engine.scheduling.step_plan import StepPlan

NOTICE_BYTES = 1 << 20
"""Least KV between two notices: a notice, its write and its checksums cost the worker a millisecond on a CPU."""

LayerListener = Callable[[int, int], None]
"""(step, layers): KV of layers [0, layers) of the step's prompts is complete in the pool. Must not block."""


class LayerNotices:
    """Reports one runner's steps to one listener."""

    def __init__(self, device: torch.device, layers: int, layer_token_bytes: int, listener: LayerListener) -> None:
        """`layers`: the number after which all KV is written. `layer_token_bytes`: KV of one token in one layer."""
        self._layers = layers
        self._layer_token_bytes = layer_token_bytes
        self._listener = listener
        self._events: queue.SimpleQueue[tuple[torch.cuda.Event, int, int]] | None = None
        if device.type != "cpu":
            self._events = queue.SimpleQueue()
            threading.Thread(target=self._watch, args=(self._events,), name="layer-notices", daemon=True).start()

    def of(self, plan: StepPlan) -> Callable[[int], None] | None:
        """The callback for the model, to call when a layer's KV is written (or its kernels are launched); None for a
        step without prompts."""
        tokens = sum(len(chunk.tokens) for chunk in plan.prefill)
        if tokens == 0:
            return None
        stride = max(1, -(-NOTICE_BYTES // (tokens * self._layer_token_bytes)))

        def written(layers: int) -> None:
            if layers % stride == 0 or layers == self._layers:
                self._notify(plan.step, layers)

        return written

    def _notify(self, step: int, layers: int) -> None:
        if self._events is None:
            self._listener(step, layers)
            return
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._events.put((event, step, layers))

    def _watch(self, events: queue.SimpleQueue[tuple[torch.cuda.Event, int, int]]) -> None:
        while True:
            event, step, layers = events.get()
            event.synchronize()
            self._listener(step, layers)
