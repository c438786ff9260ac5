"""Step times from a model's shape and an accelerator: what sizing believes until workers have been seen.

Sources of the formulas: docs/sizing.md#step-times. Checked there against measured runs of Llama-3.1-8B on an H200.
"""

from __future__ import annotations

from baton_control.errors import FieldProblem, ManifestError
from baton_control.sizing.inputs.model_shape import ModelShape
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_wire.rules.hardware import Accelerator
from baton_wire.rules.step_times import DecodeTimes, PrefillTimes

KNEE_SHARE = 0.75
"""Products slow down before the batch where compute meets bandwidth: measured knee 135 where the quotient is 178."""


def worker_model(
    shape: ModelShape,
    accelerator: Accelerator,
    tensor_parallel: int = 1,
    max_sequences: int = 512,
    max_step_tokens: int = 8192,
    context_tokens: int | None = None,
) -> WorkerModel:
    """A worker of `tensor_parallel` accelerators. Raises ManifestError when the weights leave no room for KV.

    `context_tokens`: length of the sequences that it serves, None the model's longest. Layers with a window keep and
    read as much as sequences of that length have of it.
    """
    context = shape.max_context_tokens if context_tokens is None else context_tokens
    return WorkerModel(
        prefill=prefill_times(shape, accelerator, tensor_parallel, context),
        decode=decode_times(shape, accelerator, tensor_parallel, context),
        kv_capacity_tokens=kv_capacity_tokens(shape, accelerator, tensor_parallel, context),
        max_sequences=max_sequences,
        max_step_tokens=max_step_tokens,
        kv=shape.kv,
        link_bytes_per_s=accelerator.link_bytes_per_s * tensor_parallel,
        layers=shape.layers,
        accelerators=(tensor_parallel, tensor_parallel),
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
    per_token = dense + seen * attention + _reduce_s(shape, accelerator, tensor_parallel)
    return PrefillTimes(accelerator.prefill_step_s, per_token, full * attention)


def decode_times(
    shape: ModelShape, accelerator: Accelerator, tensor_parallel: int, context_tokens: int | None = None
) -> DecodeTimes:
    """Weights once per step; per sequence 2 FLOP per parameter, mostly hidden behind them below the knee.

    What is read of layers with a window counts with the sequence.
    """
    kv_rate = accelerator.kv_bytes_per_s * tensor_parallel
    _, seen = shape.attending(context_tokens or shape.max_context_tokens)
    full, _ = shape.attending(0)
    of_layer = shape.kv_layer_bytes / kv_rate
    weights = shape.step_weight_bytes / (accelerator.weight_bytes_per_s * tensor_parallel)
    compute = 2.0 * shape.step_parameters / (accelerator.dense_flops * tensor_parallel)
    latency = 2 * shape.layers * accelerator.collective_s if tensor_parallel > 1 else 0.0
    return DecodeTimes(
        fixed_s=weights + accelerator.decode_step_s + latency,
        per_sequence_s=0.25 * compute + seen * of_layer + _reduce_s(shape, accelerator, tensor_parallel),
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
    """Tokens of KV that fit next to the weights, in sequences of that length."""
    context = context_tokens or shape.max_context_tokens
    usable = accelerator.memory_bytes * accelerator.memory_share * tensor_parallel
    room = usable - shape.weight_bytes
    if room < shape.kv.of(1024):
        bits = 8 * (shape.layer_weight_bytes or shape.element_bytes)
        count = "one" if tensor_parallel == 1 else str(tensor_parallel)
        message = (
            f"{shape.name} needs {shape.weight_bytes / 1e9:,.0f} GB for its weights in {bits:.2g} bits; "
            f"{count} {accelerator.name} {'has' if tensor_parallel == 1 else 'have'} {usable / 1e9:,.0f} GB "
            f"for weights and KV"
        )
        raise ManifestError((FieldProblem("tensorParallel", message),))
    return int(room / shape.kv.of(context) * context)


def _reduce_s(shape: ModelShape, accelerator: Accelerator, tensor_parallel: int) -> float:
    """Two ring all-reduces per layer and token: each rank sends 2 · (n - 1) / n of a hidden vector."""
    if tensor_parallel == 1:
        return 0.0
    share = 2.0 * (tensor_parallel - 1) / tensor_parallel
    return 2 * shape.layers * shape.hidden * shape.element_bytes * share / accelerator.collective_bytes_per_s
