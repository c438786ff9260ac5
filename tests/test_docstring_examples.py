"""The examples in docstrings of public entry points run as they are written."""

from __future__ import annotations

import doctest
import importlib

import pytest

WITH_EXAMPLES = (
    "baton_kv_transfer.layout",
    "baton_kv_transfer.prefill.machine",
    "baton_model_fetch.progress",
    "baton_wire.expiring",
    "baton_wire.listening.handshake_pool",
    "baton_wire.liveness",
    "baton_wire.rules.fair_share",
    "baton_wire.rules.gateway_rounds",
    "baton_wire.rules.hardware",
    "baton_wire.rules.piece_size",
    "baton_wire.rules.prompt_order",
    "baton_wire.rules.prompt_placement",
    "baton_wire.sketch",
)
"""Modules whose docstrings have examples, in order."""


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_of_a_module_run(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert results.attempted > 0
    assert results.failed == 0
