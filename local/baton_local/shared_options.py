"""Options that several commands share, and the environment variable for the API key."""

from __future__ import annotations

import argparse
from pathlib import Path

from baton_local.argument_types import degree, integer, size

DEFAULT_PORT = 8000
"""Port of the API on this machine."""
KEY_VARIABLE = "BATON_API_KEY"
"""Environment variable with an API key: the one that `baton up` asks clients for, and that other commands send."""


def add_fetch_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where fetched models are kept."""
    parser.add_argument("--latest", action="store_true", help="with hf://: resolve the branch or tag again")
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="folder for fetched models (default: ~/.cache/baton/models)"
    )
    parser.add_argument("--cache-size", type=size, metavar="SIZE", help="maximum size of that folder (default: 100Gi)")


def add_degrees(parser: argparse.ArgumentParser) -> None:
    """Add the options for the ranks of workers that are started."""
    parser.add_argument(
        "--tensor-parallel",
        type=degree,
        metavar="N",
        help="with MODEL: ranks that share the model of each worker, with a GPU each if any: 1, 2, 4 or 8 (default: 1)",
    )
    add_pool_degrees(parser, "with MODEL: ")
    parser.add_argument(
        "--prefill-pipeline-parallel",
        type=integer(1, 8),
        metavar="N",
        help="with MODEL: stages that share out the layers of each prefill worker, on CPUs: 1 to 8 (default: 1)",
    )


def add_pool_degrees(parser: argparse.ArgumentParser, condition: str = "") -> None:
    """Add the options for the degree of tensor parallelism of one pool. `condition`: when they have an effect."""
    for pool in ("prefill", "decode"):
        parser.add_argument(
            f"--{pool}-tensor-parallel",
            type=degree,
            metavar="N",
            help=f"{condition}ranks of each {pool} worker (default: --tensor-parallel)",
        )
