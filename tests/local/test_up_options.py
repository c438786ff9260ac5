"""Options of `baton up` that override the manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from baton_control.spec.gateway_fields import UnknownFieldsPolicy
from baton_local.__main__ import main
from baton_local.commands import up
from baton_testing.kube.manifests import deployment

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "tiny.yaml")


def asked(monkeypatch: pytest.MonkeyPatch, *flags: str) -> tuple[int, UnknownFieldsPolicy, bool]:
    """Gateway processes, what becomes of unknown fields, and whether the model's sampling counts."""
    seen: list[up.UpOptions] = []

    def run(options: up.UpOptions) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr(up, "run_up", run)
    assert main(["up", "-f", EXAMPLE, *flags]) == 0
    spec = up.apply_options(deployment(), seen[0]).spec
    return spec.gateway.processes, spec.gateway.unknown_fields, spec.model.generation_defaults


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), (1, UnknownFieldsPolicy.REFUSE, True)),
        (("--ignore-unknown-fields",), (1, UnknownFieldsPolicy.IGNORE, True)),
        (("--processes=3",), (3, UnknownFieldsPolicy.REFUSE, True)),
        (("--processes=3", "--ignore-unknown-fields"), (3, UnknownFieldsPolicy.IGNORE, True)),
        (("--no-generation-defaults",), (1, UnknownFieldsPolicy.REFUSE, False)),
    ],
)
def test_a_flag_goes_before_the_manifest(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], expected: tuple[Any, ...]
) -> None:
    assert asked(monkeypatch, *flags) == expected
