"""The state of one deployment's sizing, and one decision from it: learn step times, then size the pools.

Pure: a state goes in and comes out. The part that outlives a restart is one short text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random

from baton_control.sizing.decision.capacity import SimulatedSizer
from baton_control.sizing.decision.slo import SloDecision, size, wake
from baton_control.sizing.inputs import fitting, memory
from baton_control.sizing.inputs.fitting import Fit
from baton_control.sizing.inputs.memory import MAX_SAVED_BYTES, SizingMemory
from baton_control.sizing.inputs.observations import Measurements, ObservedStep, Unknown
from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_control.sizing.inputs.worker_model import WorkerModel

MODEL_MOVED = 0.03
"""New simulations are run when a typical step takes this much longer or shorter than the model says."""
MOST_STEPS = 256
"""Steps that one decision learns from, which takes a few ms. Many workers report thousands between two decisions."""
TYPICAL_PROMPT, TYPICAL_BATCH, TYPICAL_CONTEXT = 1000, 32, 1000


REPORTED_AFFINITY = 1.0
"""The share of the cached tokens of a mix that workers find, where gateways report what workers had cached."""


@dataclass(frozen=True, slots=True)
class SizingState:
    """The sizing of one deployment between two decisions."""

    prior: WorkerModel
    prefill: Fit
    decode: Fit
    sizer: SimulatedSizer
    """Caches the simulator's answers until the step times change."""
    memory: SizingMemory = field(default_factory=SizingMemory)

    @property
    def model(self) -> WorkerModel:
        """The worker as it is believed to be."""
        return self.sizer.model


def fresh(prior: WorkerModel, spec: SizingSpec) -> SizingState:
    """The state before anything was observed."""
    most = max(spec.prefill.maximum, spec.decode.maximum)
    return SizingState(
        prior=prior,
        prefill=fitting.prefill_prior(prior.prefill),
        decode=fitting.decode_prior(prior.decode),
        sizer=SimulatedSizer(prior, spec.targets, REPORTED_AFFINITY, most + 1),
    )


def learn_and_size(
    spec: SizingSpec,
    state: SizingState,
    seen: Measurements,
    steps: Iterable[ObservedStep],
    now: float,
    epoch_s: float,
    parked: int = 0,
) -> tuple[SloDecision, SizingState]:
    """One decision. `parked`: requests wait without any worker, which is reason enough to start a first pair."""
    state = with_steps(spec, state, steps)
    asleep = any(seen.pool(role).workers == 0 for role in spec.roles)
    if parked and asleep:
        decision = wake(spec, seen, state.memory, now, parked)
    else:
        decision = size(spec, seen, state.memory, now, state.sizer, epoch_s)
    return decision, replace(state, memory=decision.memory)


def with_steps(spec: SizingSpec, state: SizingState, steps: Iterable[ObservedStep]) -> SizingState:
    """The state after these steps; cached simulations are dropped when the step times moved."""
    prefill_steps: list[fitting.Step] = []
    decode_steps: list[fitting.Step] = []
    observed = tuple(steps)
    if len(observed) > MOST_STEPS:
        places = sorted(Random(len(observed)).sample(range(len(observed)), MOST_STEPS))
        observed = tuple(observed[place] for place in places)
    for step in observed:
        timing = step.timing
        if timing.prefill_tokens and not timing.decode_rows:
            features = fitting.prefill_features(timing.prefill_tokens, timing.prefill_pairs)
            prefill_steps.append((step.worker, features, timing.seconds))
        elif timing.decode_rows and not timing.prefill_tokens:
            features = fitting.decode_features(state.prior.decode, timing.decode_rows, timing.kv_tokens)
            decode_steps.append((step.worker, features, timing.seconds))
    prefill, decode = fitting.learn(state.prefill, prefill_steps), fitting.learn(state.decode, decode_steps)
    state = replace(state, prefill=prefill, decode=decode)
    model = replace(
        state.model,
        prefill=fitting.prefill_times(prefill),
        decode=fitting.decode_times(decode, state.prior.decode),
    )
    return _with_model(spec, state, model) if _has_moved(state.model, model) else state


def believed_worker(state: SizingState, prior: WorkerModel) -> WorkerModel:
    """A worker of another prior that differs from it as the observed workers differ from theirs."""
    prefill = fitting.restore(fitting.save(state.prefill), fitting.prefill_prior(prior.prefill).prior)
    decode = fitting.restore(fitting.save(state.decode), fitting.decode_prior(prior.decode).prior)
    return replace(prior, prefill=fitting.prefill_times(prefill), decode=fitting.decode_times(decode, prior.decode))


def with_kv_capacity(spec: SizingSpec, state: SizingState, kv_capacity_tokens: int) -> SizingState:
    """The state with the KV room that workers really have."""
    if state.model.kv_capacity_tokens == kv_capacity_tokens:
        return state
    prior, model = (of.with_kv_capacity(kv_capacity_tokens) for of in (state.prior, state.model))
    return _with_model(spec, replace(state, prior=prior), model)


def save(state: SizingState, now: float, epoch_s: float) -> str:
    """The part worth keeping over a restart, at most 4 KiB."""
    fits = {"p": fitting.save(state.prefill), "d": fitting.save(state.decode)}
    room = MAX_SAVED_BYTES - len(json.dumps({**fits, "m": ""}, separators=(",", ":")))
    text = memory.save(state.memory, now, epoch_s, limit=room * 3 // 4)  # quotes in it are escaped below
    return json.dumps({**fits, "m": text}, separators=(",", ":"))


def restore(text: str, prior: WorkerModel, spec: SizingSpec, now: float, epoch_s: float) -> SizingState:
    """A state from `save` over the same prior; what is not understood starts anew."""
    state = fresh(prior, spec)
    try:
        document = json.loads(text)
        parts = {name: document[name] for name in ("p", "d", "m")}
    except (ValueError, KeyError, TypeError):
        return state
    if not all(isinstance(part, str) for part in parts.values()):
        return state
    state = replace(
        state,
        prefill=fitting.restore(parts["p"], state.prefill.prior),
        decode=fitting.restore(parts["d"], state.decode.prior),
        memory=memory.restore(parts["m"], now, epoch_s),
    )
    return with_steps(spec, state, ())


def unknown(why: str, seen: Measurements) -> Measurements:
    """The same pools with demand unknown."""
    return replace(seen, arrivals=Unknown(why), queued_tokens=Unknown(why), running=Unknown(why))


def _with_model(spec: SizingSpec, state: SizingState, model: WorkerModel) -> SizingState:
    sizer = SimulatedSizer(model, spec.targets, state.sizer.prefix_affinity, state.sizer.max_workers)
    return replace(state, sizer=sizer)


def _has_moved(before: WorkerModel, after: WorkerModel) -> bool:
    return any(abs(b / a - 1.0) > MODEL_MOVED for a, b in zip(_typical(before), _typical(after), strict=True))


def _typical(model: WorkerModel) -> tuple[float, ...]:
    """Seconds of steps that distinguish models: small and large ones of each kind."""
    prefill, decode = model.prefill, model.decode
    return (
        prefill.seconds(1, 1),
        prefill.fixed_s + prefill.prompt_s(TYPICAL_PROMPT),
        prefill.fixed_s + prefill.prompt_s(8 * TYPICAL_PROMPT),
        decode.seconds(1, TYPICAL_CONTEXT),
        decode.seconds(TYPICAL_BATCH, TYPICAL_BATCH * TYPICAL_CONTEXT),
        decode.seconds(8 * TYPICAL_BATCH, 8 * TYPICAL_BATCH * TYPICAL_CONTEXT),
    )
