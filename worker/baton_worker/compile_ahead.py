"""`python -m baton_worker.compile_ahead`: compile the kernels of workers for a GPU that this machine need not have.

The folder goes into an image or onto a volume, and workers get it by `--kernels`. It covers all roles with the given
sizes; with another size a worker compiles the kernels that are missing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from baton_engine.model.blank_weights import blank_model
from baton_engine.model.loading import DTYPES, default_dtype
from baton_engine.model.model_directory import read_json_object, read_spec
from baton_engine.model.servable import CONFIG
from baton_engine.running.launches import Launches, compile_ahead
from baton_kernels.ahead.described_gpu import GPUS, META, compiling_for
from baton_kernels.ahead.kernel_folder import CompiledHere, fill_folder, write_about
from baton_kernels.kv.kv_scales import KV_FP8
from baton_wire.models.errors import ModelError
from baton_worker.building.engine import BLOCK_TOKENS
from baton_worker.config import KV_CACHE_DTYPES, MAX_SEQUENCES, whole_number

ROLES: Final = ((True, False), (False, True), (True, True))
"""Decodes, hands over: a decode worker, a prefill worker, one that does both."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options. The sizes are a worker's flags, with the same defaults."""
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="folder with config.json; weights need not be there")
    accelerator = parser.add_mutually_exclusive_group(required=True)
    accelerator.add_argument(
        "--accelerator", choices=tuple(GPUS), metavar="NAME", help=f"what workers will run on: {', '.join(GPUS)}"
    )
    accelerator.add_argument("--gpu", dest="accelerator", choices=tuple(GPUS), help=argparse.SUPPRESS)
    add("--to", type=Path, required=True, metavar="DIR", help="folder for the kernels; others in it stay")
    types = "type of weights and arithmetic (default: auto, the model's own)"
    add("--dtype", choices=("auto", *DTYPES), default="auto", help=types)
    add("--kv-cache-dtype", choices=KV_CACHE_DTYPES, default="auto", help="type of the KV cache (default: auto)")
    context = "maximum tokens of prompt and answer together (default: the model's own)"
    add("--max-context-tokens", type=whole_number(16, 1 << 20), metavar="N", help=context)
    tokens, sequences = BLOCK_TOKENS["cuda"], MAX_SEQUENCES
    block = f"tokens per KV block (default: {tokens})"
    add("--block-tokens", type=whole_number(1, 4_096), default=tokens, metavar="N", help=block)
    batch = f"sequences that are computed together (default: {sequences})"
    add("--max-sequences", type=whole_number(1, 4_096), default=sequences, metavar="N", help=batch)


def compile_kernels(options: argparse.Namespace) -> int:
    """Compile all kernels that are missing. Returns how many were compiled. Raises ModelError."""
    raw, spec = read_json_object(options.model / CONFIG), read_spec(options.model)
    if spec.formats.method is not None:  # what is stored is checked while it is unpacked, and here it has no values
        raise ModelError(
            f"quantization_config: weights stored as {spec.formats.method} cannot be compiled for ahead; allowed: none"
        )
    context = spec.context_within(options.max_context_tokens)
    dtype = default_dtype(spec, META) if options.dtype == "auto" else DTYPES[options.dtype]
    kv_dtype = KV_FP8 if options.kv_cache_dtype == "fp8" else dtype
    gpu, here = GPUS[options.accelerator], CompiledHere()
    covered = {}
    with fill_folder(options.to, here), compiling_for(gpu):
        model = blank_model(options.model, spec, dtype, META, context)
        for decodes, hands_over in ROLES:
            launches = Launches(
                *(raw, dtype, kv_dtype, options.block_tokens, options.max_sequences, context),
                decodes=decodes,
                hands_over=hands_over,
            )
            compile_ahead(model, spec, launches)
            covered[launches.digest] = str(launches)
            print(f"{launches}: {len(here.names)} kernels compiled so far", file=sys.stderr, flush=True)
        write_about(options.to, gpu.name, covered)
    return len(here.names)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m baton_worker.compile_ahead", description=__doc__, allow_abbrev=False
    )
    add_options(parser)
    options = parser.parse_args(argv)
    began = time.monotonic()
    try:
        count = compile_kernels(options)
    except ModelError as error:
        print(f"baton: {error}", file=sys.stderr)
        return 2
    print(f"{options.to}: {count} kernels compiled in {time.monotonic() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
