"""`--emulate`: what may be asked for, and that workers get what sizing believes."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton_local.errors import StartError
from baton_local.fleet.emulation import parse_emulation, write_paced
from baton_testing.kube.manifests import deployment
from baton_wire.rules.prompt_order import BUSY_S
from baton_worker.building.paced import read_times


def test_workers_take_the_time_that_sizing_believes_in(tmp_path: Path) -> None:
    emulation = parse_emulation("h200x2:llama-3.1-70b/4@12.5", deployment())
    plain = parse_emulation("h200x2:llama-3.1-70b", deployment())
    path = tmp_path / "paced.json"
    write_paced(path, emulation)
    times = read_times(path)
    assert times.startup_s == 12.5
    assert times.prefill == emulation.model.prefill == plain.model.prefill.slowed(4)
    assert times.decode == emulation.model.decode == plain.model.decode.slowed(4)
    assert emulation.model.hold_s == BUSY_S
    assert "4 times as long as llama-3.1-70b on 2 h200" in times.label


@pytest.mark.parametrize(
    "text", ["h200", "h200:", "b300:llama-3.1-8b", "h200:gpt-5", "h200x9:llama-3.1-8b", "h200:llama-3.1-8b@x"]
)
def test_what_is_not_known_is_refused_by_option(text: str) -> None:
    with pytest.raises(StartError, match="--"):
        parse_emulation(text, deployment())


def test_an_emulated_worker_has_no_ranks_but_the_times_of_several_accelerators() -> None:
    wanted = deployment(decode__tensorParallel=2)
    with pytest.raises(StartError, match=r"not allowed with tensorParallel 2 of decode.*h200x2:llama-3\.1-8b"):
        parse_emulation("h200:llama-3.1-8b", wanted)
