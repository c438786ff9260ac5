"""Random configs of every family against transformers: `make campaign RUN="families --count 200"`.

Each config is a tiny model with random weights. Its logits must be those of transformers within 1e-4, in a prompt and
in decoding. `--family` names one family; without it all of them are drawn. Ends with 1 at the first difference, after
naming the fields of the smallest config that differs.
"""

from __future__ import annotations

import argparse
import sys

import torch

from baton_testing.engine.drawn_configs import CASES, compare_random_configs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="configs of each family")
    parser.add_argument("--family", choices=CASES, action="append", help="only this one; may be repeated")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for family in options.family or CASES:
        print(f"{family}: {compare_random_configs(family, options.count)} configs equal", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
