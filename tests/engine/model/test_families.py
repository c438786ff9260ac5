"""Random configs of the families that differ most from Llama: logits of transformers, or a refusal by field.

`make campaign RUN="families --count 200"` draws more of them.
"""

from __future__ import annotations

import pytest

from baton_testing.engine.drawn_configs import CASES, compare_random_configs

SLOW = ("gemma3", "gpt-oss", "glm", "glm4", "qwen3-moe", "mixtral", "phi3")


@pytest.mark.parametrize("family", CASES)
def test_random_configs_give_the_logits_of_transformers_or_are_refused(family: str) -> None:
    count = 8 if family in SLOW else 30
    assert compare_random_configs(family, count) >= min(count, 8)
