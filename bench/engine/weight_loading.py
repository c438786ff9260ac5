"""Llama-3.1-8B's shape from files onto a GPU, with and without a look at every weight: part `loading` of `bench gpu`.

16.06 GB of bf16 are drawn and written once, to $TMPDIR, and read from the page cache then: what a look costs shows best
where nothing waits for a disk. Loads with and without it take turns. No hash is computed meanwhile.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final

import torch
from bench.engine.gpu_model import GPU, SHAPES
from bench.kernels.gpu import Row, row
from safetensors.torch import save_file
from torch import Tensor

from baton_engine.model.assembly import assemble
from baton_engine.model.checkpoint_files import INDEX, find_checkpoint
from baton_engine.model.finite_weights import FiniteWeights
from baton_engine.model.staged_weights import staged
from baton_engine.model.weights import RandomWeights, check_parameters, open_safetensors
from baton_wire.models.decoder_spec import DecoderSpec
from baton_wire.models.parsing import parse_spec

SHAPE: Final = "Llama-3.1-8B"
ROUNDS: Final = 5
FILE_BYTES: Final = 4 << 30
CONTEXT: Final = 8_192


def write_checkpoint(folder: Path, config: DecoderSpec) -> float:
    """Writes the files. GB of weights."""
    source = RandomWeights(config, 0, GPU)
    places: dict[str, str] = {}
    held: dict[str, Tensor] = {}
    total = size = 0
    names = list(source.headers)
    for name in names:
        held[name] = source.read(name).to(torch.bfloat16).cpu()
        size += held[name].nbytes
        if size >= FILE_BYTES or name == names[-1]:
            file = f"part-{len(set(places.values()))}.safetensors"
            save_file(held, folder / file, metadata={"format": "pt"})
            places |= dict.fromkeys(held, file)
            total, size, held = total + size, 0, {}
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))
    return total / 1e9


def loaded_s(folder: Path, config: DecoderSpec, is_looked_at: bool) -> float:
    """Seconds until the decoder is built and the GPU is idle."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    with open_safetensors(find_checkpoint(folder)) as opened:
        check_parameters(opened, config)
        with staged(opened, GPU) as moved:
            weights = FiniteWeights(moved)
            model = assemble(config, weights if is_looked_at else moved, torch.bfloat16, GPU, CONTEXT)
            weights.check()
            torch.cuda.synchronize()
            seconds = time.perf_counter() - began
    del model
    torch.cuda.empty_cache()
    return seconds


def looks_ms(folder: Path) -> tuple[float, float]:
    """Time to look at all weights that are on the GPU: ms of the device, and ms of the host to launch the looks."""
    with open_safetensors(find_checkpoint(folder)) as opened, staged(opened, GPU) as moved:
        held = [moved.read(name) for name in moved.headers]
    device, host = [], []
    for _ in range(ROUNDS):
        begin, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        began = time.perf_counter()
        begin.record()
        for tensor in held:
            torch.aminmax(tensor)
        host.append((time.perf_counter() - began) * 1e3)
        end.record()
        end.synchronize()
        device.append(begin.elapsed_time(end))
    return median(device), median(host)


def loading() -> Iterator[Row]:
    config = parse_spec(SHAPES[SHAPE])
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        size = write_checkpoint(folder, config)
        torch.cuda.empty_cache()
        times: dict[bool, list[float]] = {False: [], True: []}
        loaded_s(folder, config, True)  # kernels are loaded, files are in the page cache
        for number in range(ROUNDS):
            for is_looked_at in (number % 2 == 0, number % 2 == 1):
                times[is_looked_at].append(loaded_s(folder, config, is_looked_at))
        device_ms, host_ms = looks_ms(folder)
        torch.cuda.empty_cache()
    for is_looked_at, what in ((False, "load, weights not looked at"), (True, "load, every weight looked at")):
        spread = ", ".join(f"{seconds:.3f}" for seconds in sorted(times[is_looked_at]))
        yield row(what, f"{size:.2f} GB bf16", median(times[is_looked_at]) * 1e3, "ms", None, f"s: {spread}")
    beside = f"{size / device_ms:.2f} TB/s; launches {host_ms:.1f} ms"
    yield row("looks at all weights, on the GPU already", f"{size:.2f} GB bf16", device_ms, "ms", None, beside)
