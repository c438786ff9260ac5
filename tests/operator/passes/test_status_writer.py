"""The status as it is sent."""

from baton_operator.passes.status_writer import without_empty
from baton_operator.schema.status import DeploymentStatus


def test_what_is_not_known_is_left_out_and_zero_is_not() -> None:
    raw = {
        "observedGeneration": 1,
        "prefill": {"desired": 0, "revisions": ()},
        "decode": {},
        "slo": {},
        "conditions": (),
    }
    assert without_empty(DeploymentStatus.model_validate(raw)) == {"observedGeneration": 1, "prefill": {"desired": 0}}
