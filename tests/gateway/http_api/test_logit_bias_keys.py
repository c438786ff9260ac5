"""A token id has one spelling as a key of `logit_bias`: two keys of one id would leave it to chance which counts."""

from __future__ import annotations

import pytest

from baton_gateway.errors import RefusedError
from baton_gateway.openai_api.openai_types import parse_completion


def biases(given: dict[str, float]) -> tuple[tuple[int, float], ...]:
    return parse_completion({"model": "tiny", "prompt": "a", "logit_bias": given}).options.logit_bias


def test_plain_ids_are_taken() -> None:
    assert biases({"0": 1, "10": -2, "16777215": 3}) == ((0, 1.0), (10, -2.0), (16_777_215, 3.0))


@pytest.mark.parametrize(
    "key",
    [
        "01",
        "00",
        "+1",
        "-1",
        " 1",
        "1 ",
        "1\n",
        "1_0",
        "1.0",
        "1e1",
        "0x1",
        "\u0661",
        "\uff11",
        "16777216",
        "",
        "9" * 9,
    ],
)
def test_any_other_spelling_is_refused_by_name(key: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        biases({"1": 5, key: -5})
    problem = refusal.value.problem
    assert (problem.status, problem.param, problem.code) == (400, "logit_bias", "invalid_value")
    assert repr(key) in problem.message
    assert "without leading zeros" in problem.message
