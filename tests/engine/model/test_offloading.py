"""Layers in the host's memory: the same logits, two of them on the device, and none read too early."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from baton_engine.model.loading import load_model
from baton_engine.model.offloading import PLACES, LayerRing, assemble_layers, offloaded_numbers, tensors_of
from baton_testing.engine.model_steps import RunnerSteps
from baton_testing.engine.models import write_random_model
from baton_wire.models.errors import ModelError

CPU = torch.device("cpu")
LAYERS = 6
PROMPT = [3, 17, 90, 5, 41, 8, 150, 77]


@dataclass(frozen=True, slots=True)
class Toy:
    """A layer with a tensor that is not contiguous, one in a tuple, and what is no tensor."""

    weight: Tensor
    parts: tuple[Tensor, ...]
    eps: float
    absent: Tensor | None = None

    def values(self) -> list[float]:
        return [float(value) for part in (self.weight, *self.parts) for value in part.flatten()]


def toy(number: int) -> Toy:
    wide = torch.full((3, 4), float(number))
    return Toy(wide.t(), (torch.full((5,), number + 0.25, dtype=torch.float64), wide[:, :2]), 1e-5)


@given(st.integers(2, 100), st.data())
def test_offloaded_layers_are_spread_and_the_last_one_stays(layers: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, layers - 1))
    numbers = offloaded_numbers(layers, count)
    assert len(set(numbers)) == count
    assert numbers == tuple(sorted(numbers))
    assert numbers[0] >= 0
    assert numbers[-1] < layers - 1
    gaps = [later - earlier for earlier, later in zip((-1, *numbers), numbers, strict=False)]
    assert max(gaps) - min(gaps) <= 1


@settings(max_examples=60)
@given(st.integers(2, 12), st.data())
def test_every_pass_finds_each_layers_weights_wherever_the_pass_before_ended(layers: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, layers - 1))
    built, ring = assemble_layers(layers, count, CPU, toy)
    assert ring is not None
    for ends in (*data.draw(st.lists(st.integers(0, layers), max_size=4)), layers):
        for number in range(ends):
            ring.enter(number)
            assert built[number].values() == toy(number).values()
            assert built[number].weight.stride() == toy(number).weight.stride()
            ring.leave(number)


def test_the_device_holds_two_layers_however_many_are_offloaded() -> None:
    layers, ring = assemble_layers(9, 8, CPU, toy)
    assert ring is not None
    places = {tensor.untyped_storage().data_ptr() for layer in layers[:8] for tensor in tensors_of(layer)}
    assert len(places) == PLACES
    assert ring.host_bytes >= 8 * sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(toy(0)))


def test_a_layer_that_is_not_offloaded_is_as_it_was_built() -> None:
    layers, ring = assemble_layers(4, 0, CPU, toy)
    assert ring is None
    assert [layer.values() for layer in layers] == [toy(number).values() for number in range(4)]
    with pytest.raises(ValueError, match="4 offloaded layers: this model has 4"):
        assemble_layers(4, 4, CPU, toy)


def test_a_skipped_arrival_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    layers, ring = assemble_layers(6, 5, CPU, toy)
    assert ring is not None
    monkeypatch.setattr(LayerRing, "_load", lambda self, turn: None)
    ring.enter(0)
    assert layers[0].values() != toy(0).values() or layers[1].values() != toy(1).values()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama-biases", "qwen3", "qwen3-moe", "glm4", "gpt-oss"])
@pytest.mark.parametrize("count", [1, 4, LAYERS - 1])
def test_answers_are_those_of_a_model_that_is_whole_on_the_device(
    tmp_path: Path, family: str, dtype: torch.dtype, count: int
) -> None:
    folder = write_random_model(tmp_path, family, num_hidden_layers=LAYERS)
    whole, offloaded = (load_model(folder, dtype, CPU, offloaded=offloaded_count) for offloaded_count in (0, count))
    assert offloaded.model.ring is not None
    assert offloaded.model_hash == whole.model_hash
    for prompt in (PROMPT, PROMPT[::-1]):
        assert _generated(offloaded, prompt) == _generated(whole, prompt)


def _generated(loaded: object, prompt: list[int]) -> tuple[list[int], list[list[float]]]:
    steps = RunnerSteps(loaded)  # type: ignore[arg-type]
    ids = steps.generate(prompt, 6)
    return ids, [logits.flatten().tolist() for _, logits in steps.seen]


def test_more_layers_than_there_are_is_refused_by_their_number(tiny: Callable[[str], object], tmp_path: Path) -> None:
    folder = write_random_model(tmp_path, "llama-gqa")
    with pytest.raises(ModelError, match="3 offloaded layers: the model has 3; allowed: up to 2"):
        load_model(folder, None, CPU, offloaded=3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("count", [1, 4, 11])
def test_on_a_gpu_no_step_overtakes_a_copy(tmp_path: Path, count: int) -> None:
    folder = write_random_model(tmp_path, "llama-gqa", num_hidden_layers=12, hidden_size=256, intermediate_size=1024)
    device = torch.device("cuda")
    whole = RunnerSteps(load_model(folder, torch.float32, device))
    offloaded = RunnerSteps(load_model(folder, torch.float32, device, offloaded=count))
    draw = random.Random(1)
    for _ in range(20):
        prompt = [draw.randrange(5, 190) for _ in range(draw.randrange(1, 100))]
        assert offloaded.generate(prompt, 4) == whole.generate(prompt, 4)
