"""Writes the step times of the emulated workers: `step_times.py CONFIG`, a model's config.json, on CPUs by roofline.

That is what sizing believes of such a worker before it has seen one, so that nothing has to be learned in a short test.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec

from baton_control.sizing.model_shape import shape_from_config
from baton_control.sizing.roofline import worker_model
from baton_wire.rules.hardware import CPU
from baton_wire.rules.step_times import PacedTimes

KV_TOKENS = 16_384
STARTUP_S = 3.0


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    model = worker_model(shape_from_config("paced", config), CPU)
    label = "steps take as long as those of a small Llama on CPUs by roofline"
    times = PacedTimes(label, model.prefill, model.decode, KV_TOKENS, STARTUP_S)
    print(msgspec.json.encode(times).decode())


if __name__ == "__main__":
    main()
