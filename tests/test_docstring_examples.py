"""The examples in docstrings of public entry points run as they are written."""

from __future__ import annotations

import doctest
import importlib

import pytest

WITH_EXAMPLES = (
    "baton_engine.memory.blocks",
    "baton_engine.memory.prefix",
    "baton_engine.running.step_shapes",
    "baton_engine.scheduling.engine_config",
    "baton_engine.scheduling.scheduler",
)
"""Modules whose docstrings have examples, in order."""


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_of_a_module_run(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert results.attempted > 0
    assert results.failed == 0
