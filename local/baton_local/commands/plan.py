"""`baton plan`: what a model on an accelerator can do, from its sizes alone. Formulas: docs/sizing.md."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from baton_control.errors import ManifestError
from baton_control.sizing.inputs.model_shape import KNOWN_SHAPES, ModelShape
from baton_control.sizing.inputs.roofline import Degrees, balance_batch, worker_model
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.spec.served_model import ModelTask
from baton_control.spec.tensor_parallel import DEGREES
from baton_engine.model.model_directory import read_spec
from baton_local.argument_types import positive, time_or
from baton_local.command_parser import add_renamed
from baton_local.commands.planned_degrees import (
    PlannedDegrees,
    planned_degrees,
)
from baton_local.commands.planned_sessions import run_session_plan
from baton_local.commands.session_options import add_session_options
from baton_local.errors import StartError
from baton_local.fetching.default_deployment import detect_tasks
from baton_local.fleet.host import gpu_ids
from baton_local.hardware_arguments import MODEL, accelerator_named, shape_named
from baton_local.shared_options import add_pool_degrees
from baton_wire.messages.values import POOL_ROLES, Role
from baton_wire.models.errors import ModelError
from baton_wire.rules.hardware import ACCELERATORS, Accelerator
from baton_wire.rules.step_times import attended_pairs

CPU_TYPE = "cpu"
UTILISATION = 0.8
"""The share of a worker's rate that a plan counts on."""


Figure = tuple[str, str, float | None]
"""Name, words with unit, value."""
OF_ANSWERS = frozenset(
    {
        "sequences",
        "decode_ranks",
        "balance_batch",
        "hand_over_ms",
        "tpot_floor_ms",
        "decode_batch",
        "tpot_expected_ms",
        "decode_tokens_per_s",
        "prefill_per_decode",
        "decode_workers",
        "requests_per_s_per_accelerator",
        "decode_cost_per_million_output_tokens",
        "cost_per_million_output_tokens",
    }
)
"""Figures that a model without answers does not have: they are None."""


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the model and the accelerator."""
    parser.add_argument(
        "model",
        nargs="?",
        default="llama-3.1-8b",
        metavar="MODEL",
        help=f"{', '.join(KNOWN_SHAPES)}, or a folder with config.json (default: llama-3.1-8b)",
    )
    add_renamed(parser, "--model", "MODEL", dest="model")
    parser.add_argument(
        "--accelerator", default="h200", metavar="NAME", help=f"type: {', '.join(ACCELERATORS)} (default: h200)"
    )
    parser.add_argument(
        "--tensor-parallel",
        type=int,
        choices=DEGREES,
        metavar="N",
        help="ranks of a worker, each on an accelerator: 1, 2, 4 or 8 (default: plan chooses, simulate takes 1)",
    )
    parser.add_argument(
        "--max-step-tokens",
        type=int,
        default=4096,
        metavar="N",
        help="maximum prompt tokens of one prefill step (default: 4096)",
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `baton plan`."""
    add_model_options(parser)
    add_pool_degrees(parser)
    parser.add_argument("--prompt", type=int, default=1155, metavar="N", help="mean prompt tokens")
    parser.add_argument("--output", type=int, default=211, metavar="N", help="mean answer tokens")
    parser.add_argument(
        "--rate", type=positive, metavar="R", help="requests per second, for which workers are counted (default: none)"
    )
    parser.add_argument(
        "--tpot",
        type=time_or("ms"),
        default="25ms",
        metavar="TIME",
        help="TPOT target, which limits the batch of a decode worker",
    )
    add_session_options(parser).add_argument(
        "--ttft", type=time_or("ms"), default="2s", metavar="TIME", help="TTFT target of a turn"
    )
    parser.set_defaults(prompt_tokens=None, output_tokens=None, shared_tokens=None, beginnings=None)
    parser.set_defaults(rate_scale=1.0, duration=None)
    parser.add_argument(
        "--price",
        metavar="X,…",
        help="price of one accelerator for an hour, one for each --accelerator (default: no costs are shown)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_plan(options: argparse.Namespace) -> int:
    """Run the command; raises StartError and ManifestError. Several accelerators, as `--accelerator h200,h100`, are
    printed side by side."""
    if min(options.prompt, options.output, options.tpot) <= 0:
        raise StartError("--prompt, --output and --tpot must be over 0")
    shape = shape_named(options.model)
    generates = _generates(options.model)
    if options.sessions is not None:
        if not generates:
            raise StartError(f"--sessions: not allowed for {shape.name}, which generates no answers")
        if options.rate is not None:
            raise StartError("--rate: not allowed with --sessions, whose load has its own")
        return run_session_plan(options)
    accelerators = [accelerator_named(name) for name in options.accelerator.split(",")]
    prices: list[float | None] = [None] * len(accelerators) if options.price is None else _prices(options.price)
    if len(prices) != len(accelerators):
        raise StartError(f"--price: {options.price} is not allowed: must be one for each of {options.accelerator}")
    roles = POOL_ROLES if generates else (Role.PREFILL,)
    try:
        planned = [planned_degrees(options, shape, accelerator, roles) for accelerator in accelerators]
        columns = [
            _figures(options, shape, accelerator, plan.degrees, price, generates)
            for accelerator, plan, price in zip(accelerators, planned, prices, strict=True)
        ]
    except ManifestError as error:
        reasons = "; ".join(problem.message for problem in error.problems)
        raise StartError(f"{reasons}; {what_fits(shape)}") from error
    if options.json:
        documents = [{name: value for name, _, value in figures} for figures in columns]
        print(
            json.dumps(documents[0] if len(documents) == 1 else dict(zip(_names(accelerators), documents, strict=True)))
        )
        return 0
    if options.model not in KNOWN_SHAPES and not gpu_ids(os.environ) and CPU_TYPE not in _names(accelerators):
        there = f"this machine has no {' or '.join(_names(accelerators))}"
        print(f"baton: {there}: --accelerator {CPU_TYPE} estimates for CPUs", file=sys.stderr)
    _print_columns(shape, accelerators, planned, columns, _assumptions(options, generates=generates))
    for accelerator, plan, figures in zip(accelerators, planned, columns, strict=True):
        if plan.reason is not None:
            print(f"Ranks on {accelerator.name}: {plan.reason}.")
        print(_conclusion(options, accelerator, plan.degrees, {name: value for name, _, value in figures}))
    return 0


def _print_columns(
    shape: ModelShape,
    accelerators: list[Accelerator],
    planned: Sequence[PlannedDegrees],
    columns: Sequence[Sequence[Figure]],
    assumed: str,
) -> None:
    """Print the figures of each type of accelerator side by side."""
    print(_title(shape, accelerators, planned))
    print(assumed)
    if len(columns) > 1:
        print(f"  {'':<52} " + " ".join(f"{name:>10}" for name in _names(accelerators)))
    for rows in zip(*columns, strict=True):
        words, _, unit = rows[0][1].partition(", ")
        known = [three_digits(value) for _, _, value in rows if value is not None]
        if known:
            print(f"  {words:<52} {' '.join(f'{value:>10}' for value in known)} {unit}".rstrip())
    print()


def _assumptions(options: argparse.Namespace, *, generates: bool) -> str:
    """The load that the figures hold for, and the options that change it."""
    rate = "no rate (--rate counts workers)" if options.rate is None else f"{options.rate:g} requests/s (--rate)"
    if not generates:
        return f"Load: prompts of {options.prompt} tokens (--prompt), {rate}"
    lengths = f"prompts of {options.prompt} and answers of {options.output} tokens (--prompt, --output)"
    return f"Load: {lengths}, TPOT {options.tpot * 1e3:g} ms (--tpot), {rate}"


def _title(shape: ModelShape, accelerators: list[Accelerator], planned: Sequence[PlannedDegrees]) -> str:
    """The model and the accelerators of a worker, by type and pool where they differ."""
    names = ", ".join(_names(accelerators))
    degrees = {degree for plan in planned for degree in plan.degrees}
    if len(degrees) == 1:
        return f"{shape.name} on {degrees.pop()}× {names} per worker"
    parts = [
        f"{plan.degrees.prefill}× {accelerator.name} per prefill worker and {plan.degrees.decode}× per decode worker"
        for plan, accelerator in zip(planned, accelerators, strict=True)
    ]
    return f"{shape.name} on {', '.join(parts)}"


def _conclusion(
    options: argparse.Namespace, accelerator: Accelerator, degrees: Degrees, figures: Mapping[str, float | None]
) -> str:
    """A sentence that says what fits."""
    known = {name: three_digits(value) for name, value in figures.items() if value is not None}
    subject = f"One {accelerator.name} holds" if degrees.decode == 1 else f"{degrees.decode} {accelerator.name} hold"
    held = f"{subject} the {known['weight_gb']} GB of weights and {known['kv_capacity_tokens']} tokens of KV"
    if "decode_batch" not in known:
        return (
            f"{held}. The model generates no answers, so it has no decode pool: "
            f"a prefill worker reads {known['prefill_tokens_per_s']} tokens/s."
        )
    return (
        f"{held}: "
        f"{known['sequences']} sequences of {options.prompt}+{options.output} tokens; "
        f"a decode worker runs {known['decode_batch']} at once within {options.tpot * 1e3:g} ms."
    )


def what_fits(shape: ModelShape) -> str:
    """Which accelerators hold a model, as it is or with weights of fewer bits."""
    held = _holders(shape)
    if held:
        return f"it fits on one {held}"
    ways = []
    for bits in (8, 4):
        held = _holders(replace(shape, layer_weight_bytes=bits / 8))
        if held and bits / 8 < (shape.layer_weight_bytes or shape.element_bytes):
            ways.append(f"with {bits}-bit weights (`baton quantise --format int{bits}`) it fits on one {held}")
    return "; ".join(ways) or "no known accelerator holds it, not even with 4-bit weights"


def _holders(shape: ModelShape) -> str:
    """The accelerators of which one holds the weights and some KV, in words."""
    names = [
        accelerator.name
        for accelerator in ACCELERATORS.values()
        if accelerator.memory_bytes * accelerator.memory_share > shape.weight_bytes + shape.kv.of(1024)
        and accelerator.name != "cpu"
    ]
    return " or ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def _names(accelerators: list[Accelerator]) -> list[str]:
    return [accelerator.name for accelerator in accelerators]


def _generates(model: str) -> bool:
    """False: the folder's model makes embeddings or rankings only. Raises StartError."""
    if model in KNOWN_SHAPES:
        return True
    folder = Path(model)
    try:
        return ModelTask.GENERATE in detect_tasks(read_spec(folder), folder.resolve().name)
    except ModelError as error:
        raise StartError(f"{MODEL}: {model} cannot be served: {error}") from error


def _prices(text: str) -> list[float | None]:
    try:
        prices = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise StartError(f"--price: {text!r} is not allowed: must be numbers with commas between") from error
    if not all(0 <= price < 1e6 for price in prices):
        raise StartError(f"--price: {text} is not allowed: must be from 0 to under 1000000")
    return list(prices)


def _figures(
    options: argparse.Namespace,
    shape: ModelShape,
    accelerator: Accelerator,
    degrees: Degrees,
    price: float | None,
    generates: bool,
) -> list[Figure]:
    model = worker_model(
        shape,
        accelerator,
        degrees,
        max_step_tokens=options.max_step_tokens,
        context_tokens=options.prompt + options.output,
    )
    figures = plan_figures(shape, accelerator, model, options.prompt, options.output, options.tpot, price)
    figures += _counted_workers(options, {name: value for name, _, value in figures})
    return [(name, words, value if generates or name not in OF_ANSWERS else None) for name, words, value in figures]


def _counted_workers(options: argparse.Namespace, figures: Mapping[str, float | None]) -> list[Figure]:
    """The workers that a rate of requests needs at 80 % use; None without a rate."""
    counts = []
    for role, tokens in ((Role.PREFILL, options.prompt), (Role.DECODE, options.output)):
        per_s = figures[f"{role.value}_tokens_per_s"]
        count = None if options.rate is None or not per_s else math.ceil(options.rate * tokens / (UTILISATION * per_s))
        words = f"{role.value} workers for {options.rate or 0:g} requests/s at 80 % use, workers"
        counts.append((f"{role.value}_workers", words, count))
    return counts


def plan_figures(
    shape: ModelShape,
    accelerator: Accelerator,
    model: WorkerModel,
    prompt: int,
    output: int,
    tpot_s: float,
    price: float | None,
) -> list[Figure]:
    """(name, words with unit, value); formulas in docs/sizing.md#plan. `price`: per accelerator and hour; None: costs
    are None."""
    context = prompt + output / 2
    batch = decode_batch(model, context, tpot_s)
    step_s = model.decode.seconds(batch, batch * context)
    prefill_s = model.prefill.prompt_s(prompt)
    prefill_rate = UTILISATION / prefill_s
    decode_rate = UTILISATION * batch / (output * step_s)
    per_request_gpu_s = sum(
        accelerators / rate for accelerators, rate in zip(model.accelerators, (prefill_rate, decode_rate), strict=True)
    )
    kv_per_token = model.kv.of(prompt + output) / (prompt + output)
    per_s = None if price is None else price / 3600
    kv_tail_s = model.kv.of(prompt) / model.link_bytes_per_s / model.layers + model.hand_over_s
    return [
        ("prefill_ranks", "ranks of a prefill worker, ranks", model.accelerators[0]),
        ("decode_ranks", "ranks of a decode worker, ranks", model.accelerators[1]),
        ("parameters", "parameters, billions", shape.parameters / 1e9),
        ("weight_gb", "weights, GB", shape.weight_bytes / 1e9),
        ("kv_bytes_per_token", "KV per token of such a sequence, bytes", kv_per_token),
        ("kv_capacity_tokens", "KV that fits next to the weights, tokens", float(model.kv_capacity_tokens)),
        (
            "sequences",
            f"sequences of {prompt}+{output} tokens that fit, sequences",
            model.kv_capacity_tokens // (prompt + output),
        ),
        ("balance_batch", "batch where computing meets reading weights, sequences", balance_batch(shape, accelerator)),
        ("ttft_floor_ms", "TTFT of a prompt alone, ms", 1e3 * model.prefill.seconds(prompt, attended_pairs(prompt, 0))),
        ("ttft_expected_ms", "mean TTFT of one worker at 80 % use, ms", 1e3 * _expected_ttft_s(model, prompt)),
        ("hand_over_ms", "KV that streaming cannot hide, ms", 1e3 * kv_tail_s),
        ("tpot_floor_ms", "TPOT of a sequence alone, ms", 1e3 * model.decode.seconds(1, context)),
        ("decode_batch", f"decode batch within {tpot_s * 1000:g} ms, sequences", float(batch)),
        ("tpot_expected_ms", "TPOT at that batch, ms", 1e3 * step_s),
        ("prefill_tokens_per_s", "prefill worker, prompt tokens/s", prompt / prefill_s),
        ("decode_tokens_per_s", "decode worker, tokens/s", batch / step_s),
        ("prefill_per_decode", "prefill workers per decode worker, workers", decode_rate / prefill_rate),
        ("requests_per_s_per_accelerator", "load per accelerator at 80 % use, requests/s", 1 / per_request_gpu_s),
        (
            "prefill_cost_per_million_prompt_tokens",
            "prefill pool per million prompt tokens, in the currency of --price",
            None if per_s is None else per_s * model.accelerators[0] / (prefill_rate * prompt) * 1e6,
        ),
        (
            "decode_cost_per_million_output_tokens",
            "decode pool per million answer tokens, in the currency of --price",
            None if per_s is None else per_s * model.accelerators[1] / (decode_rate * output) * 1e6,
        ),
        (
            "cost_per_million_output_tokens",
            "both pools per million answer tokens, in the currency of --price",
            None if per_s is None else per_s * per_request_gpu_s / output * 1e6,
        ),
    ]


def three_digits(value: float) -> str:
    """A figure as people compare it: three digits, thousands in groups, no exponent."""
    if isinstance(value, int) and abs(value) < 1000:
        return str(value)
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    decimals = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    return f"{rounded:,.0f}" if decimals <= 0 else f"{rounded:.{decimals}f}"


def decode_batch(model: WorkerModel, context: float, tpot_s: float) -> int:
    """The largest batch whose steps stay within the target and whose KV fits; at least 1."""
    most = int(min(model.max_sequences, model.kv_capacity_tokens / context))
    batch = 1
    while batch < most and model.decode.seconds(batch + 1, (batch + 1) * context) <= tpot_s:
        batch += 1
    return batch


def _expected_ttft_s(model: WorkerModel, prompt: int) -> float:
    """M/D/1: the prompt's own time, and half a service time times u/(1 - u)."""
    own = model.prefill.seconds(prompt, attended_pairs(prompt, 0))
    return own * (1 + UTILISATION / (2 * (1 - UTILISATION))) + model.gateway_s
