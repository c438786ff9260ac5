"""`baton explain`: where a request, or the slowest ones, lost their time."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from baton_gateway.records.record_query import MAX_ANSWERED, RecordQuery
from baton_local.errors import LocalError
from baton_local.explain.neighbours import asks_for_neighbours, long_prompts, neighbours_text
from baton_local.explain.perfetto import trace_events
from baton_local.explain.record_sources import FoundRecords, ask_gateways, token_of
from baton_local.explain.story import list_records, tell_story
from baton_local.fleet.record import read_record
from baton_local.fleet.run_dir import RunDir, base_directory, find_run, find_running
from baton_local.shared_options import KEY_VARIABLE

DEFAULT_SLOWEST = 10
SLOWEST = RecordQuery(slowest=MAX_ANSWERED)
"""The query for requests that may have been in the way of others: long prompts are among the slowest."""


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """The options of `baton explain`."""

    id: str | None = None
    slowest: int | None = None
    missed: bool = False
    tenant: str | None = None
    format: str = "text"
    name: str | None = None
    url: str | None = None
    link_keys: Path | None = None


def run_explain(options: ExplainOptions) -> int:
    """Ask and print. Returns 1 where no record was found. Raises LocalError."""
    query = query_of(options)
    answer = join_answers(_ask(options, query))
    status = print_answer(answer, query, options.format)
    if options.format == "text" and query.id is not None and any(map(asks_for_neighbours, answer.records)):
        others = join_answers(_ask(options, SLOWEST)).records
        for record in answer.records:
            if text := neighbours_text(long_prompts(record, others)):
                print(f"\n{text}")
    return status


def join_answers(answers: Sequence[FoundRecords]) -> FoundRecords:
    """Join the answers of several deployments."""
    return FoundRecords(
        [record for answer in answers for record in answer.records],
        sum(answer.kept for answer in answers),
        sum(answer.fell_out for answer in answers),
        tuple(name for answer in answers for name in answer.silent),
    )


def with_names(answer: FoundRecords, names: Mapping[str, str]) -> FoundRecords:
    """The answer with the names of processes, by which status and logs know them, next to their addresses."""
    records = [
        msgspec.structs.replace(
            record,
            workers={
                epoch: f"{names[address]} ({address})" if address in names else address
                for epoch, address in record.workers.items()
            },
        )
        for record in answer.records
    ]
    return replace(answer, records=records)


def query_of(options: ExplainOptions) -> RecordQuery:
    """Make the query that the options ask for."""
    slowest = DEFAULT_SLOWEST if options.id is None and options.slowest is None else options.slowest
    return RecordQuery(options.id, options.tenant, options.missed, slowest)


def print_answer(answer: FoundRecords, query: RecordQuery, form: str) -> int:
    """Print the records in a form, and what the answer may lack. Returns 1 where no record was found."""
    print(_format(answer, query, form))
    for text in _gaps(answer, query):
        print(f"baton: {text}", file=sys.stderr)
    return 0 if answer.records else 1


def _ask(options: ExplainOptions, query: RecordQuery) -> list[FoundRecords]:
    """Ask the gateways at the URL, or those of this machine. An id is looked for in all deployments that run here: one
    that cannot be asked is named among the silent ones. Raises LocalError."""
    if options.url is not None:
        token = os.environ.get(KEY_VARIABLE) if options.link_keys is None else token_of(options.link_keys)
        return [ask_gateways(options.url, query, token)]
    if options.link_keys is not None:
        raise LocalError("--link-keys: only with --url: this machine's own deployment needs none")
    base = base_directory()
    runs = find_running(base) if options.id is not None and options.name is None else []
    if len(runs) < 2:
        return [_ask_run(find_run(base, options.name), query)]
    answers = []
    for run in runs:
        try:
            answers.append(_ask_run(run, query))
        except LocalError as error:
            answers.append(FoundRecords([], 0, 0, (f"{run.root.name} ({error})",)))
    return answers


def _ask_run(run: RunDir, query: RecordQuery) -> FoundRecords:
    """Ask the gateway of a deployment of this machine. Raises LocalError."""
    record = read_record(run)
    port = next((process.admin_port for process in record.processes if process.admin_port), None)
    if port is None:
        raise LocalError("the gateway of this deployment is not running")
    return with_names(ask_gateways(f"http://127.0.0.1:{port}", query, None), record.names)


def _format(answer: FoundRecords, query: RecordQuery, form: str) -> str:
    if form == "perfetto":
        return json.dumps(trace_events(answer.records))
    if form == "json":
        return msgspec.json.encode({"records": answer.records, "silent": answer.silent}).decode()
    if not answer.records:
        return "no record was found"
    if query.id is None:
        worst = max(answer.records, key=lambda record: record.duration_ns)
        return f"{list_records(answer.records)}\n\nThe slowest:\n\n{tell_story(worst)}"
    return "\n\n".join(map(tell_story, answer.records))


def _gaps(answer: FoundRecords, query: RecordQuery) -> list[str]:
    """Say what the answer may lack."""
    texts = [f"{name} did not answer: its records are missing" for name in answer.silent]
    if not answer.records and query.id is not None:
        texts.append(
            f"no record has the id {query.id[:128]!r}, neither of a request (X-Request-Id, access log) nor of its "
            "answer: a record is kept once its request has ended, until its gateway process ends"
        )
    if not answer.records and query.id is not None and answer.fell_out:
        texts.append(
            f"the record may have made room for later ones: "
            f"{answer.kept} are kept, {answer.fell_out} older ones are gone"
        )
    return texts
