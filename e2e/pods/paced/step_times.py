"""Writes the step times of the emulated workers by roofline: `step_times.py CONFIG ACCELERATOR SLOWER`, of a model's
config.json, each step SLOWER times as long.

On CPUs they are what sizing believes of such a worker before it has seen one, so that nothing has to be learned in a
short test. A GPU would be through with so small a model before the machine that emulates it, so it is slowed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec

from baton_control.sizing.inputs.model_shape import shape_from_config
from baton_control.sizing.inputs.roofline import worker_model
from baton_wire.rules.hardware import ACCELERATORS
from baton_wire.rules.step_times import PacedTimes

KV_TOKENS = 16_384
STARTUP_S = 3.0


def main() -> None:
    path, name, slower = sys.argv[1:]
    config = json.loads(Path(path).read_text(encoding="utf-8"))
    model = worker_model(shape_from_config("paced", config), ACCELERATORS[name]).slowed(float(slower), float(slower))
    label = f"steps take {slower} times as long as those of a small Llama on {name} by roofline"
    times = PacedTimes(label, model.prefill, model.decode, KV_TOKENS, STARTUP_S)
    print(msgspec.json.encode(times).decode())


if __name__ == "__main__":
    main()
