"""Plans of prompts that are encoded say all that their answers need, whatever becomes of the workers."""

from __future__ import annotations

import math

import pytest

from baton_gateway.openai_api.encoding_types import EncodeRequest, parse_classification, parse_score
from baton_gateway.requests.encode_plan import label_probabilities, plan_encoding
from baton_gateway.text.bundle import Bundle
from baton_wire.messages.encoding import EncodingLimits

BUNDLE = Bundle("0" * 64, "", "", {}, ())


@pytest.mark.parametrize("is_probability", [True, False])
@pytest.mark.parametrize(
    "request_of_labels",
    [
        parse_classification({"model": "m", "input": "a"}),
        parse_score({"model": "m", "text_1": "a", "text_2": "b"}),
    ],
)
def test_a_plan_says_if_labels_are_probabilities(request_of_labels: EncodeRequest, is_probability: bool) -> None:
    limits = EncodingLimits(8, labels=1, is_probability=is_probability, embeds=False, generates=False)
    assert plan_encoding(request_of_labels, limits, BUNDLE).is_probability is is_probability


def test_probabilities_of_labels_add_up_to_one() -> None:
    logits = [0.0, 1.0, -800.0, 3.0]
    probabilities = label_probabilities(logits, is_probability=True)
    assert math.fsum(probabilities) == pytest.approx(1.0)
    assert probabilities[3] / probabilities[1] == pytest.approx(math.exp(2.0))
    assert label_probabilities(logits, is_probability=False) == logits
