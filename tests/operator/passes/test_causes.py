"""The top line names the right cause within 30 s, is never Ready while a request would fail, and never not while none
would; when the cause is gone it says so."""

from __future__ import annotations

import pytest

from baton_testing.kube.causes import CAUSES
from baton_testing.kube.fetch_causes import FETCH_CAUSES
from baton_testing.kube.planted_causes import WITHIN_S, Planted, play

ALL = (*CAUSES, *FETCH_CAUSES)


@pytest.mark.parametrize("cause", ALL, ids=lambda cause: cause.name.replace(" ", "-"))
def test_the_top_line_names_the_cause(cause: Planted) -> None:
    complaint = play(cause)
    assert complaint.reason == cause.reason, complaint
    assert complaint.after_s < WITHIN_S
    assert (complaint.ready, complaint.available) == (str(cause.is_ready), cause.is_ready), complaint
    assert cause.says in complaint.message, complaint
    assert complaint.lies == ()
    assert complaint.recovered, f"{cause.name}: the cause is gone, and the status does not say so"


def test_there_are_enough_causes() -> None:
    assert len(ALL) >= 100
    assert len({cause.name for cause in ALL}) == len(ALL)
