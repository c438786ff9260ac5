"""`transformers` on a part of an offline set, with random weights of the same shape on the same device."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

ONE_BY_ONE: Final = 4
PADDED: Final = 32
CONTINUOUS: Final = 200
"""Requests of each measurement: the set's first."""

Pairs = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    lengths: tuple[tuple[int, int], ...]
    """(prompt, output) tokens of the requests computed."""
    seconds: float
    note: str


def measure_transformers(config: dict[str, object], device: str, lengths: Pairs, seed: int) -> Iterator[Result]:
    """One request at a time, one padded batch, continuous batching; each warmed up by its own first request."""
    draw = random.Random(seed)
    size = int(str(config["vocab_size"]))
    prompts = [draw.choices(range(10, size), k=prompt) for prompt, _ in lengths]
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    fields = {name: value for name, value in config.items() if name not in ("model_type", "torch_dtype")}
    shape = AutoConfig.for_model(str(config["model_type"]), **fields)
    with torch.device(device):
        model: Any = AutoModelForCausalLM.from_config(shape, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    for name, count, work in (
        ("transformers, one by one", ONE_BY_ONE, _one_by_one),
        ("transformers, a padded batch", PADDED, _padded),
        ("transformers, continuous", CONTINUOUS, _continuous),
    ):
        part = tuple(lengths[:count])
        work(model, prompts[:1], [(lengths[0][0], 8)])
        began = _now(device)
        note = work(model, prompts[:count], part)
        yield Result(name, part, _now(device) - began, note)


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _generation(tokens: int) -> GenerationConfig:
    return GenerationConfig(max_new_tokens=tokens, do_sample=False, pad_token_id=0, use_cache=True)


@torch.inference_mode()
def _one_by_one(model: Any, prompts: Sequence[list[int]], lengths: Pairs) -> str:
    for prompt, (_, output) in zip(prompts, lengths, strict=True):
        inputs = torch.tensor([prompt], device=model.device)
        model.generate(inputs, attention_mask=torch.ones_like(inputs), generation_config=_generation(output))
    return "generate() as it is called by default"


@torch.inference_mode()
def _padded(model: Any, prompts: Sequence[list[int]], lengths: Pairs) -> str:
    longest = max(map(len, prompts))
    inputs = torch.zeros((len(prompts), longest), dtype=torch.int64, device=model.device)
    mask = torch.zeros_like(inputs)
    for place, prompt in enumerate(prompts):
        inputs[place, longest - len(prompt) :] = torch.tensor(prompt, device=model.device)
        mask[place, longest - len(prompt) :] = 1
    tokens = max(output for _, output in lengths)
    model.generate(inputs, attention_mask=mask, generation_config=_generation(tokens))
    return f"one batch of {len(prompts)}, until the longest answer is done"


def _continuous(model: Any, prompts: Sequence[list[int]], lengths: Pairs) -> str:
    """All answers as long as the mean: `generate_batch` takes one length for all of its requests."""
    mean = sum(output for _, output in lengths) // len(lengths)
    generate: Callable[..., Any] = model.generate_batch
    answers = generate(inputs=[list(prompt) for prompt in prompts], generation_config=_generation(mean))
    written = sum(len(answer.generated_tokens) for answer in answers.values())
    return f"generate_batch(), {written:,} tokens written"
