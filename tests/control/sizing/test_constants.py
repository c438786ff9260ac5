"""The constants of the decision stand in one table, with the values that they have."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path
from types import ModuleType

from baton_control.sizing.decision import (
    accelerator_choice,
    backtest,
    cache_floor,
    capacity,
    demand,
    forecast,
    pool_sizer,
)
from baton_control.sizing.inputs.sizing_spec import SizingSpec

PAGE = Path(__file__).resolve().parents[3] / "docs/sizing.md"
ROW = re.compile(r"^\| `(\w+\.\w+)` \| ([\d.]+) \| [^|]+ \| [^|]+ \| [^|]+ \|$", re.MULTILINE)


def read_table() -> dict[str, float]:
    return {name: float(value) for name, value in ROW.findall(PAGE.read_text())}


def of(module: ModuleType) -> dict[str, float]:
    """Its own numbers."""
    return {
        f"{module.__name__.rpartition('.')[2]}.{name}": float(value)
        for name, value in vars(module).items()
        if name.isupper() and type(value) in (int, float) and f"\n{name}" in "\n" + source(module)
    }


def source(module: ModuleType) -> str:
    lines = Path(str(module.__file__)).read_text().splitlines()
    assigned = (line.partition(" = ")[0] for line in lines if re.match(r"[A-Z][A-Z_, ]+ = ", line))
    return "\n".join(name for names in assigned for name in names.split(", "))


def test_the_table_has_every_constant_with_its_value() -> None:
    spec = {
        f"SizingSpec.{constant.name}": float(constant.default)
        for constant in fields(SizingSpec)
        if constant.default is not MISSING and type(constant.default) in (int, float)
    }
    modules = (demand, backtest, forecast, pool_sizer, capacity, accelerator_choice, cache_floor)
    expected = spec | {name: value for module in modules for name, value in of(module).items()}
    assert read_table() == expected
