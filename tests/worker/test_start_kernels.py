"""A worker's use of a folder of kernels: used or not and why, and what it covers."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from baton_engine.running.launches import Launches
from baton_kernels.ahead.kernel_folder import ABOUT, KernelFolder, read_folder, write_about
from baton_worker.building import start_kernels
from baton_worker.building.start_kernels import StartKernels

knobs = pytest.importorskip("triton").knobs
GPU = "NVIDIA H200"
LAUNCHES = Launches({"model_type": "llama"}, torch.bfloat16, torch.bfloat16, 64, 256, 8_192, True, False)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[Path]:
    cache, compilation = knobs.cache, knobs.compilation
    before = cache.manager_class, compilation.listener
    with cache.scope():
        cache.dir = str(tmp_path / "own")
        (tmp_path / "own").mkdir()
        yield tmp_path / "own"
    cache.manager_class, compilation.listener = before


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "kernels"
    path.mkdir()
    write_about(path, GPU, {LAUNCHES.digest: str(LAUNCHES)})
    return path


def test_folders_are_read_beside_the_loading_of_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashing Triton takes 0.7 s."""
    loaded = threading.Event()

    def late(path: Path) -> KernelFolder:
        assert loaded.wait(20.0), "the start waits for it"
        return read_folder(path)

    monkeypatch.setattr(start_kernels, "read_folder", late)
    kernels = StartKernels(folder, GPU)
    loaded.set()
    assert kernels.cover(LAUNCHES)


def test_a_fitting_folder_covers_what_it_says(folder: Path) -> None:
    kernels = StartKernels(folder, GPU)
    assert kernels.cover(LAUNCHES)
    assert not kernels.cover(replace(LAUNCHES, slots=128))
    assert not kernels.cover(replace(LAUNCHES, config={"model_type": "qwen2"}))


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("triton", "1.0", "they are of Triton 1.0, here is"),
        ("key", "0" * 64, "another build of Triton or of other sources"),
        ("gpu", "NVIDIA H100 80GB HBM3", "they are for NVIDIA H100 80GB HBM3, here is NVIDIA H200"),
    ],
)
def test_an_unfit_folder_covers_nothing_and_is_said(
    folder: Path, field: str, value: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    about = json.loads((folder / ABOUT).read_text())
    (folder / ABOUT).write_text(json.dumps({**about, field: value}))
    kernels = StartKernels(folder, GPU)
    assert not kernels.cover(LAUNCHES)
    assert why in caplog.text


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"triton": "3", "key": "a", "gpu": "b", "covered": 1}'])
def test_a_folder_without_a_whole_description_is_said_and_left(
    folder: Path, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / ABOUT).unlink()
    if content is not None:
        (folder / ABOUT).write_text(content)
    assert not StartKernels(folder, GPU).cover(LAUNCHES)
    assert ABOUT in caplog.text


def test_a_start_that_is_through_covers_the_next_one_with_the_same_cache(own_cache: Path) -> None:
    first = StartKernels(None, GPU)
    assert not first.cover(LAUNCHES)
    first.keep(LAUNCHES)
    assert StartKernels(None, GPU).cover(LAUNCHES)
    other = replace(LAUNCHES, decodes=False)
    second = StartKernels(None, GPU)
    second.keep(other)
    assert read_folder(own_cache).covered.keys() == {LAUNCHES.digest, other.digest}


def test_what_is_of_another_gpu_is_replaced(own_cache: Path) -> None:
    write_about(own_cache, "another", {"digest": "words"})
    StartKernels(None, GPU).keep(LAUNCHES)
    assert read_folder(own_cache).covered.keys() == {LAUNCHES.digest}


def test_kernels_that_are_compiled_are_named_and_late_ones_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    class Source:
        name = "_a_kernel"

    class Times:
        total = 1_500_000

    kernels = StartKernels(None, GPU)
    with caplog.at_level(logging.INFO):
        knobs.compilation.listener(src=Source, metadata={}, metadata_group={}, times=Times, cache_hit=True)
        knobs.compilation.listener(src=Source, metadata={}, metadata_group={}, times=Times, cache_hit=False)
        kernels.ready()
        assert "1 found, 1 compiled here: _a_kernel" in caplog.text
        knobs.compilation.listener(src=Source, metadata={}, metadata_group={}, times=Times, cache_hit=False)
    assert "kernel _a_kernel was compiled while serving: 1.50 s" in caplog.text
    assert kernels.here.found == 1
    assert kernels.here.names == ["_a_kernel"] * 2
