"""`baton quantise`: a copy of a model with weights of 8 or 4 bits, rounded to the nearest. No calibration."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from baton_engine.model.quantising import FORMATS, quantise_model
from baton_local.errors import StartError
from baton_wire.models.errors import ModelError


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `baton quantise`."""
    parser.add_argument("source", type=Path, metavar="SRC", help="directory of an unquantised model")
    parser.add_argument("target", type=Path, metavar="DST", help="new directory for the copy")
    parser.add_argument("--format", choices=FORMATS, required=True, help="fp8: e4m3; int8, int4: integers")


def run_quantise(options: argparse.Namespace) -> int:
    """Run `baton quantise`. Raises StartError."""
    try:
        quantise_model(options.source, options.target, options.format, _show_progress)
    except ModelError as error:
        raise StartError(str(error)) from error
    before, after = (_weight_bytes(path) for path in (options.source, options.target))
    print(f"{options.target}: {after / 1e9:.3g} GB of weights, {after / before:.0%} of {before / 1e9:.3g} GB")
    return 0


def _show_progress(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    if sys.stderr.isatty() or end:
        print(f"\r{done} of {total} tensors", end=end, file=sys.stderr, flush=True)


def _weight_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))
