"""`baton batch IN OUT`: answers a file of requests with one engine in this process, for throughput alone. Started again
with the same files, it resumes.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from baton_gateway.batches.lines import BadLine
from baton_local.argument_types import DTYPES, device, integer, manifest_file, size, volume
from baton_local.batch.answers import Answers
from baton_local.batch.input_file import read_input
from baton_local.batch.refusals import Refusals
from baton_local.command_parser import add_renamed
from baton_local.errors import StartError
from baton_local.shared_options import add_fetch_options

ALL_REFUSED = 1
"""Exit status when no request of the input has an answer but a refusal."""
BATCH_DTYPES = tuple(name for name in DTYPES if name != "auto")
RANDOM_SCHEME = "random://"


def run_batch(options: argparse.Namespace) -> int:
    """Run `baton batch`; exit status 0 when every line has an answer, and not all answers are refusals. Raises
    StartError, ManifestError, UnsupportedError, LocalError."""
    with Answers(options.output, options.input) as answers:
        counts = _counts(options.input, answers, options.retry_refused)
        if options.retry_refused and answers.refused:
            _say(f"refusals removed from {options.output}, to ask their requests again: {len(answers.refused):,}")
            answers.drop_refused()
        if not counts.left:
            _report_nothing_left(options.output, counts)
            return ALL_REFUSED if 0 < counts.total == counts.refused.total else 0
        if answers.done:
            _say(f"{counts.total - counts.left:,} of {counts.total:,} requests are already answered")
            _report_former_refusals(options.output, counts)
        if counts.bad_left:
            _say(f"{counts.bad_left:,} lines are not valid requests: their answers say why")
        from baton_local.batch.engine_batch import answer_left  # imports torch

        progress = answer_left(options, answers, counts.left)
        refused = counts.refused.total + progress.refusals.total
        return ALL_REFUSED if refused == counts.total else 0


@dataclass(frozen=True, slots=True)
class _InputCounts:
    """Numbers of lines of the input."""

    total: int
    left: int
    """Lines without an answer."""
    bad_left: int
    """Invalid lines among them."""
    refused: Refusals
    """Refusals among the answers that the output has already."""
    stale: int
    """Refusals in the output of lines that the input does not have."""


def _counts(path: Path, answers: Answers, retries_refused: bool) -> _InputCounts:
    """Count the lines of the input. `retries_refused`: a refusal is no answer. Raises StartError when no line is a
    request."""
    total = left = bad_left = requests = 0
    first: BadLine | None = None
    refused = Refusals()
    for line in read_input(path):
        status = answers.refused.get(line.id)
        is_bad = isinstance(line, BadLine)
        is_left = line.id not in answers.done or (retries_refused and status is not None)
        total, left, bad_left = total + 1, left + is_left, bad_left + (is_bad and is_left)
        if status is not None and not retries_refused:
            refused.note(status, answers.first_refusal)
        if isinstance(line, BadLine):
            first = first or line
        else:
            requests += 1
    if first is not None and not requests:
        raise StartError(f"{path}: no line is a request; line {first.number}: {first.message}")
    stale = 0 if retries_refused else len(answers.refused) - refused.total
    return _InputCounts(total, left, bad_left, refused, stale)


def _report_nothing_left(output: Path, counts: _InputCounts) -> None:
    _say(f"{output} has an answer for each of the {counts.total:,} requests")
    _report_former_refusals(output, counts)


def _report_former_refusals(output: Path, counts: _InputCounts) -> None:
    """Say what a run that resumes will not ask again, and how to make it do so."""
    refused = counts.refused
    if refused.total:
        _say(f"of them {refused.in_words()}; first: {refused.first}")
    if counts.stale:
        _say(f"other refusals in {output}, of lines that IN does not have (any more): {counts.stale:,}")
    if refused.total or counts.stale:
        _say("--retry-refused removes the refusals from OUT and asks their requests again")


def _say(text: str) -> None:
    print(f"baton: {text}", file=sys.stderr)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `baton batch`."""
    add = parser.add_argument
    add("input", type=Path, metavar="IN", help="requests, one JSON object per line (OpenAI's batch format)")
    add("output", type=Path, metavar="OUT", help="answers are appended here; requests answered in it are skipped")
    add("--retry-refused", action="store_true", help="remove refusals from OUT and ask their requests again")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("-f", "--file", type=manifest_file, metavar="FILE", help="manifest of an LLMDeployment (YAML)")
    model = f"model folder, hf://ORG/NAME[@REVISION], s3://…, oci://…, or {RANDOM_SCHEME}CONFIG_JSON to measure"
    source.add_argument("--model", metavar="MODEL", help=model)
    add("--served-name", metavar="NAME", help="with --model: model name in requests (default: the model's own name)")
    add("--no-generation-defaults", action="store_true", help="ignore the model's generation_config.json")
    add(
        "--dtype",
        choices=BATCH_DTYPES,
        help="with --model: type of weights and arithmetic (default: the model's own, on CPUs float32)",
    )
    add(
        "--max-context-tokens",
        type=integer(16, 1 << 20),
        metavar="N",
        help="with --model: maximum tokens of prompt and answer together (default: the model's own)",
    )
    add(
        "--volume",
        type=volume,
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="folder for pvc://NAME",
    )
    add_fetch_options(parser)
    add("--device", type=device, metavar="cpu|cuda", help="device to compute on, whatever FILE asks for")
    add(
        "--max-sequences",
        type=integer(1, 4_096),
        metavar="N",
        help="sequences that are computed at once (default: 64, on GPUs 512)",
    )
    add(
        "--max-step-tokens",
        type=integer(16, 1 << 20),
        metavar="N",
        help="maximum prompt tokens of one step (default: 8192)",
    )
    add("--kv-memory", type=size, metavar="SIZE", help="memory for KV (default: a share of what is free)")
    add_renamed(parser, "--kv-cache-bytes", "--kv-memory", type=integer(1 << 16, 1 << 46))
    add("--json", action="store_true", help="print the summary as JSON")
