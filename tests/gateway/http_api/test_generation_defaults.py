"""Sampling that a request leaves open follows the model's own generation_config.json, field by field."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from baton_gateway.text.generation_defaults import API_DEFAULTS, GenerationDefaults, read_defaults
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import answer, running_gateway, tokenizer
from baton_testing.gateway.http_client import CHAT, COMPLETIONS, HttpClient
from baton_wire.messages.values import Role, SamplingParams

QWEN: dict[str, object] = {
    "temperature": 0.6,
    "top_p": 0.95,
    "top_k": 20,
    "min_p": 0.05,
    "repetition_penalty": 1.05,
    "do_sample": True,
}


async def drawn(folder: Path, body: dict[str, Any], *flags: str, path: str = CHAT) -> SamplingParams:
    """How a model with those defaults is sampled for a request."""
    pool = FakePool(folder, dataclasses.replace(tokenizer(), generation=QWEN), answer)
    await pool.add(Role.PREFILL)
    await pool.add(Role.DECODE)
    try:
        async with running_gateway(pool, *flags) as gateway, aiohttp.ClientSession() as http:
            client = HttpClient(gateway, http)
            await client.ask(path, **body)
            return client.sampling()
    finally:
        await pool.stop()


def told(sampling: SamplingParams) -> tuple[float, float, int | None, float, float]:
    chosen = sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.repetition_penalty
    return (*chosen,)


OFF = "--generation-defaults=off"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("flags", "body", "expected"),
    [
        ((), {}, (0.6, 0.95, 20, 0.05, 1.05)),
        ((), {"temperature": 0}, (0, 0.95, 20, 0.05, 1.05)),
        ((), {"top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}, (0.6, 1, None, 0, 1)),
        ((), {"top_k": -1, "temperature": 1}, (1, 0.95, None, 0.05, 1.05)),
        ((), {"top_k": 3, "temperature": None}, (0.6, 0.95, 3, 0.05, 1.05)),
        ((OFF,), {}, (1, 1, None, 0, 1)),
        ((OFF,), {"top_k": 0, "temperature": 0.3}, (0.3, 1, None, 0, 1)),
    ],
)
async def test_what_a_request_leaves_open_is_the_models(
    flags: tuple[str, ...], body: dict[str, Any], expected: tuple[float, ...], path: str, tmp_path: Path
) -> None:
    assert told(await drawn(tmp_path, body, *flags, path=path)) == expected


@pytest.mark.parametrize(
    ("config", "defaults", "complaints"),
    [
        ({}, API_DEFAULTS, 0),
        ({"temperature": 1, "top_k": 50}, GenerationDefaults(top_k=50), 0),
        ({"top_k": 0, "top_p": None, "max_length": 4096, "do_sample": False}, API_DEFAULTS, 0),
        ({"temperature": 3, "top_p": 0, "min_p": "x", "repetition_penalty": True, "top_k": 1.5}, API_DEFAULTS, 5),
        ({"temperature": float("nan"), "top_k": True, "min_p": -0.1}, API_DEFAULTS, 3),
        ({"temperature": 0.7, "top_p": 7}, GenerationDefaults(temperature=0.7), 1),
    ],
)
def test_a_value_that_no_request_could_have_is_left_out_and_logged(
    config: dict[str, object], defaults: GenerationDefaults, complaints: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert read_defaults(config) == defaults
    assert len(caplog.records) == complaints
