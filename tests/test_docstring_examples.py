"""The examples in docstrings of public entry points run as they are written."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = (
    "baton_control.hashes",
    "baton_control.names",
    "baton_control.pool_flips",
    "baton_control.rollout",
    "baton_control.spec.manifest",
    "baton_control.spec.model_source",
    "baton_control.spec.quantities",
    "baton_control.spec.reserved_env",
    "baton_control.telemetry.pairs",
    "baton_control.telemetry.telemetry_server",
    "baton_engine.memory.blocks",
    "baton_engine.memory.prefix",
    "baton_engine.running.step_shapes",
    "baton_engine.scheduling.engine_config",
    "baton_engine.scheduling.scheduler",
    "baton_kv_transfer.layout",
    "baton_kv_transfer.prefill.machine",
    "baton_gateway.batches.lenient_id",
    "baton_local.fetching.model_argument",
    "baton_local.load_test.length_distribution",
    "baton_local.load_test.rate_search",
    "baton_local.quality.scoring",
    "baton_local.text_table",
    "baton_model_fetch.progress",
    "baton_wire.expiring",
    "baton_wire.listening.handshake_pool",
    "baton_wire.liveness",
    "baton_wire.round_robin",
    "baton_wire.rules.fair_share",
    "baton_wire.rules.gateway_rounds",
    "baton_wire.rules.hardware",
    "baton_wire.rules.piece_size",
    "baton_wire.rules.prompt_order",
    "baton_wire.rules.prompt_placement",
    "baton_wire.sketch",
)
"""Modules whose docstrings have examples, in order."""


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert results.attempted > 0
    assert results.failed == 0
