"""Models shared by 2, 4 and 8 ranks against one rank: `make campaign RUN=tensor_parallel`.

Every family with 1, 2 and 8 KV heads, and every weight format. Logits over two prompts and their decoding must be those
of one rank within 1e-5 (Gemma 3: 5e-5), and the same bits in every rank and in a second run. `--bfloat16` measures
instead how far bfloat16 of ranks is from bfloat16 of one, and how many greedy tokens agree.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import torch

from baton_engine.model.servable import servable_model
from baton_testing.engine import quantised_models as written
from baton_testing.engine.models import FAMILIES, write_random_model
from baton_testing.engine.quantised_models import Form
from baton_testing.engine.sharded_models import (
    DEGREES,
    KV_HEADS,
    OWN_ERROR,
    TOLERANCE,
    load_share,
    logits_of_ranks,
    logits_over_steps,
    write_shareable_model,
)
from baton_testing.published.configs import PUBLISHED
from baton_testing.published.quantised import QUANTISED
from baton_testing.published.small_models import write_published
from baton_wire.models.sharding.degrees import allowed_degrees


def forms() -> dict[str, Form]:
    """All stored forms, and packed integers in another order of columns with every size of groups."""
    made = written.forms()
    for bits, group, symmetric in product((4, 8), (32, 64, 128), (True, False)):
        name = f"packed-{bits}-{group}-{'symmetric' if symmetric else 'zeros'}-order"
        made[name] = written.packed(bits, group, symmetric, by_order=True)
    return made


def models(folder: Path, families: list[str]) -> Iterator[tuple[str, Path, float]]:
    """Name, directory and tolerance of each model."""
    for family, kv_heads in product(families, KV_HEADS):
        path = write_shareable_model(folder / f"{family}-{kv_heads}", family, kv_heads)
        yield f"{family}, {kv_heads} KV heads", path, OWN_ERROR.get(family, TOLERANCE)


def quantised_models(folder: Path) -> Iterator[tuple[str, Path, float]]:
    sizes = {"hidden_size": 1024, "intermediate_size": 1024, "num_hidden_layers": 1, "num_attention_heads": 8}
    dense = write_random_model(folder / "dense", "qwen2", num_key_value_heads=2, **sizes)
    for name, form in forms().items():
        yield name, written.write_quantised(dense, folder / name, form).quantised, TOLERANCE
    plain = write_shareable_model(folder / "plain", "gpt-oss", 2, intermediate_size=256)
    written.write_mxfp4(plain, folder / "mxfp4")
    yield "gpt-oss in MXFP4", folder / "mxfp4", TOLERANCE


def published_models(folder: Path) -> Iterator[tuple[str, Path, float]]:
    """Published checkpoints made small, which may allow fewer degrees."""
    served = [*PUBLISHED, *(name for name, model in QUANTISED.items() if not model.refused)]
    for number, name in enumerate(served):
        tolerance = 1e-4 if "gemma" in name.lower() else 2e-5
        yield name, write_published(name, folder / str(number)).quantised, tolerance


def compare(name: str, path: Path, tolerance: float) -> bool:
    expected = logits_over_steps(load_share(path))
    allowed = allowed_degrees(servable_model(path))
    differences = []
    for ranks in (ranks for ranks in DEGREES if ranks in allowed):
        logits = logits_of_ranks(path, ranks)
        if not torch.equal(logits, logits_of_ranks(path, ranks)):
            print(f"{name}: a second run of {ranks} ranks has other bits", flush=True)
            return False
        differences.append((ranks, float((logits - expected).abs().max())))
    shown = ", ".join(f"{ranks} ranks {error:.1e}" for ranks, error in differences) or "refused"
    print(f"{name}: {shown}", flush=True)
    return all(error <= tolerance for _, error in differences)


def measure_bfloat16(name: str, path: Path) -> None:
    exact = logits_over_steps(load_share(path)).double()
    one = logits_over_steps(load_share(path, dtype=torch.bfloat16)).double()
    own = float((one - exact).square().mean().sqrt())
    shown = []
    for ranks in DEGREES:
        logits = logits_of_ranks(path, ranks, torch.bfloat16).double()
        error = float((logits - exact).square().mean().sqrt())
        agree = float((logits.argmax(-1) == one.argmax(-1)).double().mean())
        shown.append(f"{ranks} ranks {error / own:.2f} x its error, {agree:.1%} of greedy tokens")
    print(f"{name}: one rank's error {own:.1e}; {'; '.join(shown)}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bfloat16", action="store_true", help="measure bfloat16 instead")
    parser.add_argument("--published", action="store_true", help="published checkpoints made small instead")
    parser.add_argument("--family", choices=FAMILIES, action="append", help="only this one; may be repeated")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        families = options.family or list(FAMILIES)
        cases = published_models(Path(folder)) if options.published else models(Path(folder), families)
        if options.bfloat16:
            for name, path, _ in cases:
                measure_bfloat16(name, path)
            return 0
        agree = [compare(*case) for case in cases]
        if not options.family and not options.published:
            agree += [compare(*case) for case in quantised_models(Path(folder))]
    print(f"{sum(agree)} of {len(agree)} models agree")
    return 0 if all(agree) else 1


if __name__ == "__main__":
    sys.exit(main())
