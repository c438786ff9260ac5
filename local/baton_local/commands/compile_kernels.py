"""`baton compile`: compiles the kernels of a model's workers ahead of time, on a machine with or without that GPU."""

from __future__ import annotations

import argparse
import os

from baton_local.errors import StartError
from baton_wire.models.errors import ModelError
from baton_worker import compile_ahead
from baton_worker.config import KERNELS_VARIABLE


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `baton compile`."""
    compile_ahead.add_options(parser)


def run_compile(options: argparse.Namespace) -> int:
    """Run `baton compile`. Raises StartError."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise StartError("TRITON_INTERPRET=1 interprets kernels: unset it to compile them")
    try:
        count = compile_ahead.compile_kernels(options)
    except (ModelError, ImportError) as error:
        raise StartError(str(error)) from error
    print(f"{options.to}: {count} kernels compiled; workers take them with {KERNELS_VARIABLE}={options.to.resolve()}")
    return 0
