"""Step times from a model's shape and an accelerator: what sizing believes until workers have been seen.

Sources of the formulas: docs/sizing.md#step-times. Checked there against measured runs of Llama-3.1-8B on an H200.
"""

from __future__ import annotations

from typing import NamedTuple

from baton_control.errors import FieldProblem, ManifestError
from baton_control.sizing.inputs.model_shape import ModelShape
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_wire.rules.hardware import Accelerator
from baton_wire.rules.step_times import DecodeTimes, PrefillTimes

KNEE_SHARE = 0.75
"""Products slow down before the batch where compute meets bandwidth: measured knee 135 where the quotient is 178."""
DECODE_ROWS = (1, 128)
"""Rows of a step between which all-reduces are taken to grow on a straight line, in decode and in prefill steps."""
PREFILL_ROWS = (256, 4096)


class Degrees(NamedTuple):
    """The ranks of a prefill worker and of a decode worker."""

    prefill: int
    decode: int


def worker_model(
    shape: ModelShape,
    accelerator: Accelerator,
    tensor_parallel: int | Degrees = 1,
    max_sequences: int = 512,
    max_step_tokens: int = 8192,
    context_tokens: int | None = None,
) -> WorkerModel:
    """Workers of `tensor_parallel` ranks, each on an accelerator. Raises ManifestError when the weights leave no room
    for KV.

    `context_tokens`: length of the sequences that it serves, None the model's longest. Layers with a window keep and
    read as much as sequences of that length have of it.
    """
    context = shape.max_context_tokens if context_tokens is None else context_tokens
    degrees = tensor_parallel if isinstance(tensor_parallel, Degrees) else Degrees(tensor_parallel, tensor_parallel)
    capacities = [kv_capacity_tokens(shape, accelerator, ranks, context) for ranks in degrees]
    return WorkerModel(
        prefill=prefill_times(shape, accelerator, degrees.prefill, context),
        decode=decode_times(shape, accelerator, degrees.decode, context),
        kv_capacity_tokens=capacities[1],
        max_sequences=max_sequences,
        max_step_tokens=max_step_tokens,
        kv=shape.kv,
        link_bytes_per_s=accelerator.link_bytes_per_s * min(degrees),
        layers=shape.layers,
        accelerators=degrees,
        prefill_kv_tokens=None if degrees.prefill == degrees.decode else capacities[0],
    )


def prefill_times(
    shape: ModelShape, accelerator: Accelerator, tensor_parallel: int, context_tokens: int | None = None
) -> PrefillTimes:
    """2 FLOP per parameter and token; 4 · heads · head_dim FLOP per layer, token and attended position.

    What layers with a window attend to counts with the token: on average it stands in the middle of its prompt.
    """
    dense = 2.0 * shape.block_parameters / (accelerator.dense_flops * tensor_parallel)
    full, seen = shape.attending((context_tokens or shape.max_context_tokens) / 2)
    attention = 4.0 * shape.heads * shape.head_dim / (accelerator.attention_flops * tensor_parallel)
    reduce_s, reduce_token_s = _reduce_s(shape, accelerator, tensor_parallel, PREFILL_ROWS)
    return PrefillTimes(
        accelerator.prefill_step_s + reduce_s, dense + seen * attention + reduce_token_s, full * attention
    )


def decode_times(
    shape: ModelShape, accelerator: Accelerator, tensor_parallel: int, context_tokens: int | None = None
) -> DecodeTimes:
    """Weights once per step; per sequence 2 FLOP per parameter, mostly hidden behind them below the knee. Each rank
    reads its own share.

    What is read of layers with a window counts with the sequence.
    """
    _, seen = shape.attending(context_tokens or shape.max_context_tokens)
    full, _ = shape.attending(0)
    of_layer = shape.kv_layer_bytes * shape.kv_share(tensor_parallel) / accelerator.kv_bytes_per_s
    weights = shape.rank_step_bytes(tensor_parallel) / accelerator.weight_bytes_per_s
    compute = 2.0 * shape.step_parameters / (accelerator.dense_flops * tensor_parallel)
    reduce_s, reduce_row_s = _reduce_s(shape, accelerator, tensor_parallel, DECODE_ROWS)
    return DecodeTimes(
        fixed_s=weights + accelerator.decode_step_s + reduce_s,
        per_sequence_s=0.25 * compute + seen * of_layer + reduce_row_s,
        over_knee_s=0.75 * compute,
        per_kv_token_s=full * of_layer,
        knee=KNEE_SHARE * balance_batch(shape, accelerator),
    )


def balance_batch(shape: ModelShape, accelerator: Accelerator) -> float:
    """The batch at which computing a step takes as long as reading its weights."""
    read_s = shape.step_weight_bytes / accelerator.weight_bytes_per_s
    return accelerator.dense_flops * read_s / (2.0 * shape.step_parameters)


def kv_capacity_tokens(
    shape: ModelShape, accelerator: Accelerator, tensor_parallel: int, context_tokens: int | None = None
) -> int:
    """Tokens of KV that fit next to the weights, in sequences of that length: as many as each rank has room for."""
    context = context_tokens or shape.max_context_tokens
    usable, share = accelerator.memory_bytes * accelerator.memory_share, shape.kv_share(tensor_parallel)
    room = usable - shape.rank_weight_bytes(tensor_parallel)
    if room < shape.kv.of(1024) * share:
        bits = 8 * (shape.layer_weight_bytes or shape.element_bytes)
        count = "one" if tensor_parallel == 1 else str(tensor_parallel)
        message = (
            f"{shape.name} needs {shape.weight_bytes / 1e9:,.0f} GB for its weights in {bits:.2g} bits; "
            f"{count} {accelerator.name} {'has' if tensor_parallel == 1 else 'have'} "
            f"{usable * tensor_parallel / 1e9:,.0f} GB for weights and KV"
        )
        raise ManifestError((FieldProblem("tensorParallel", message),))
    return int(room / (shape.kv.of(context) * share) * context)


def _reduce_s(
    shape: ModelShape, accelerator: Accelerator, tensor_parallel: int, rows: tuple[int, int]
) -> tuple[float, float]:
    """(seconds of a step, seconds of a row) for two all-reduces of a hidden vector in each layer."""
    row_bytes = shape.hidden * shape.element_bytes
    if tensor_parallel == 1:
        return 0.0, 0.0
    fixed_s, byte_s = accelerator.all_reduce.line(tensor_parallel, (rows[0] * row_bytes, rows[1] * row_bytes))
    return 2 * shape.layers * fixed_s, 2 * shape.layers * row_bytes * byte_s
