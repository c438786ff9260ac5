"""`baton`: runs a command and turns every expected error into one line and an exit status.

Exit statuses: 0 done, 1 failed while running, 2 refused before anything ran, 130 interrupted, 141 nobody reads the
output any more. Each command imports what it needs itself, so that `baton --help` starts as fast as Python.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from baton_local.closed_output import discard_output, is_output_closed
from baton_local.options import DISTRIBUTION, HEAVY_COMMANDS, command_line, parse_options
from baton_local.shared_options import KEY_VARIABLE

FAILED = 1
REFUSED = 2
INTERRUPTED = 130
CLOSED_OUTPUT = 141
"""The reader of standard output has gone, as in `baton status | head -1`: the status of a shell for SIGPIPE."""
WATCH_S = 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    try:
        options = parse_options(sys.argv[1:] if arguments is None else arguments)
    except BrokenPipeError:  # of a help text: argparse ignores it from Python 3.11.7 on
        discard_output()
        return CLOSED_OUTPUT
    except SystemExit:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            discard_output()
        raise
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "up": _up,
        "demo": _demo,
        "status": _status,
        "top": _top,
        "explain": _explain,
        "usage": _usage,
        "history": _history,
        "ask": _ask,
        "chat": _chat,
        "logs": _logs,
        "down": _down,
        "doctor": _doctor,
        "validate": _validate,
        "key": _key,
        "batch": _batch,
        "simulate": _simulate,
        "plan": _plan,
        "quantise": _quantise,
        "compile": _compile,
        "bench": _bench,
        "quality": _quality,
        "version": _version,
        "completion": _completion,
    }
    if options.version:
        return run_command(_version, options)
    if options.command is None:
        return run_command(_help, options)
    return run_command(commands[options.command], options)


def run_command(command: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run a command, and turn an expected error into one line and an exit status. Whether standard output is still read
    is found out here too, because Python itself would only find out after the end."""
    from baton_local.errors import OutputClosedError

    try:
        status = _run_to_status(command, options)
        sys.stdout.flush()
    except (BrokenPipeError, OutputClosedError):
        discard_output()
        return CLOSED_OUTPUT
    return status


def _run_to_status(command: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run a command. Raises BrokenPipeError where nobody reads its output any more."""
    from baton_control.errors import ManifestError, OperatorError
    from baton_local.errors import LocalError, NotRunningError, StartError
    from baton_wire.errors import BadMessageError

    try:
        return command(options)
    except ManifestError as error:
        for problem in error.problems:
            print(f"baton: {problem}", file=sys.stderr)
    except (StartError, NotRunningError, OperatorError) as error:
        print(f"baton: {error}", file=sys.stderr)
    except (LocalError, BadMessageError, OSError) as error:
        if isinstance(error, BrokenPipeError) and is_output_closed():
            raise
        print(f"baton: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return REFUSED


def _help(options: argparse.Namespace) -> int:
    command_line(frozenset()).print_help()
    return 0


def _version(options: argparse.Namespace) -> int:
    from importlib.metadata import PackageNotFoundError, version

    from baton_wire.messages.values import WIRE_VERSION

    try:
        installed = version(DISTRIBUTION)
    except PackageNotFoundError:
        installed = "not installed as a package"
    print(f"baton {installed} (wire version {WIRE_VERSION})")
    return 0


def _completion(options: argparse.Namespace) -> int:
    import shtab

    print(shtab.complete(command_line(HEAVY_COMMANDS), options.shell))
    return 0


def _history(options: argparse.Namespace) -> int:
    from baton_local.commands.history import HistoryOptions, run_history

    return run_history(HistoryOptions(options.name, options.since, options.kind, options.format))


def _key(options: argparse.Namespace) -> int:
    from baton_local.commands.make_key import run_key

    return run_key(options.expires)


def _batch(options: argparse.Namespace) -> int:
    from baton_local.batch.command import run_batch

    return run_batch(options)


def _simulate(options: argparse.Namespace) -> int:
    from baton_local.commands.simulate import run_simulate

    return run_simulate(options)


def _plan(options: argparse.Namespace) -> int:
    from baton_local.commands.plan import run_plan

    return run_plan(options)


def _quantise(options: argparse.Namespace) -> int:
    from baton_local.commands.quantise import run_quantise

    return run_quantise(options)


def _compile(options: argparse.Namespace) -> int:
    from baton_local.commands.compile_kernels import run_compile

    return run_compile(options)


def _bench(options: argparse.Namespace) -> int:
    from baton_local.commands.bench import run_bench

    return run_bench(options)


def _quality(options: argparse.Namespace) -> int:
    from baton_local.quality.measuring import run_quality

    return run_quality(options)


def _up(options: argparse.Namespace) -> int:
    from baton_local.fleet.run_dir import base_directory
    from baton_local.fleet.starts import announced_start

    with announced_start(base_directory()):  # before the imports below, which take seconds
        return _up_announced(options)


def _up_announced(options: argparse.Namespace) -> int:
    from baton_local.commands.up import UpOptions, run_up
    from baton_local.fetching.default_deployment import DefaultOptions
    from baton_local.fetching.local_model import SourceRequest
    from baton_local.fetching.model_cache import open_cache
    from baton_local.fleet.client_keys import KeyOptions
    from baton_wire.log_format import LOG_FORMAT_VARIABLE

    if options.file is not None:
        _refuse_model_options(options)
    os.environ[LOG_FORMAT_VARIABLE] = options.log_format  # for every process that is started
    up = UpOptions(
        manifest=options.file,
        source=None
        if options.source is None
        else SourceRequest(
            options.source,
            options.served_name,
            options.max_context_tokens,
            options.latest,
            DefaultOptions(
                options.prefill,
                options.decode,
                options.dtype,
                options.kv_memory,
                options.prefill_tensor_parallel or options.tensor_parallel,
                options.decode_tensor_parallel or options.tensor_parallel,
                options.prefill_pipeline_parallel,
            ),
        ),
        cache=open_cache(options.cache, options.cache_size, os.environ),
        host=options.host,
        port=options.port,
        volumes=dict(options.volume),
        device=options.device,
        processes=options.processes,
        emulate=options.emulate,
        keys=KeyOptions(options.api_key, options.api_key_file, options.open),
        generation_defaults=not options.no_generation_defaults,
        ignore_unknown_fields=options.ignore_unknown_fields,
        clamp_max_tokens=options.clamp_max_tokens,
    )
    return run_up(
        replace(up, patience=replace(up.patience, first_ready_s=options.ready_timeout, start_s=options.ready_timeout))
    )


def _refuse_model_options(options: argparse.Namespace) -> None:
    """Refuse options of MODEL next to a manifest, which would be ignored. Raises StartError."""
    from baton_local.errors import StartError

    degrees = ("tensor_parallel", "prefill_tensor_parallel", "decode_tensor_parallel", "prefill_pipeline_parallel")
    names = ("served_name", "max_context_tokens", "prefill", "decode", *degrees, "dtype", "kv_memory")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name) is not None]
    if given:
        raise StartError(f"{', '.join(given)}: not allowed with -f: the manifest says it")


def _demo(options: argparse.Namespace) -> int:
    from baton_local.commands.demo import DemoOptions, run_demo

    passed = ["--port", str(options.port), "--host", options.host, "--ready-timeout", f"{options.ready_timeout:g}s"]
    passed += [text for name, path in options.volume for text in ("--volume", f"{name}={path}")]
    passed += ["--device", options.device] if options.device else []
    passed += ["--processes", str(options.processes)] if options.processes else []
    passed += ["--emulate", options.emulate] if options.emulate else []
    passed += ["--api-key-file", str(options.api_key_file)] if options.api_key_file else []
    passed += ["--open"] if options.open else []
    passed += ["--cache", str(options.cache)] if options.cache else []
    passed += ["--cache-size", str(options.cache_size)] if options.cache_size else []
    passed += ["--no-generation-defaults"] if options.no_generation_defaults else []
    passed += ["--ignore-unknown-fields"] if options.ignore_unknown_fields else []
    passed += ["--clamp-max-tokens"] if options.clamp_max_tokens else []
    if options.api_key is not None:  # every user of the machine can read a child's arguments
        os.environ[KEY_VARIABLE] = options.api_key
    return run_demo(
        DemoOptions(options.file, tuple(passed), options.question, options.max_tokens, options.ready_timeout)
    )


def _status(options: argparse.Namespace) -> int:
    import json

    from baton_local.commands.status import as_json, as_text, run_text, watch
    from baton_local.fleet.observation import observe
    from baton_local.fleet.record import read_record
    from baton_local.fleet.run_dir import base_directory, find_run, find_running

    def page() -> str:
        base = base_directory()
        if not options.json and options.name is None and len(runs := find_running(base)) > 1:
            return "\n\n".join(map(run_text, runs))
        seen = observe(read_record(find_run(base, options.name)))
        return json.dumps(as_json(seen), indent=None if options.watch else 2) if options.json else as_text(seen)

    if options.watch:
        watch(page, sys.stdout, is_live=sys.stdout.isatty() and not options.json, every_s=WATCH_S)
    print(page())
    return 0


def _top(options: argparse.Namespace) -> int:
    from baton_local.commands.status import watch
    from baton_local.commands.top import page
    from baton_local.fleet.observation import observe, with_lost_time
    from baton_local.fleet.record import read_record
    from baton_local.fleet.run_dir import base_directory, find_run

    def shown() -> str:
        seen = with_lost_time(observe(read_record(find_run(base_directory(), options.name))))
        return page(seen, options.format, not options.once)

    if not options.once:
        watch(shown, sys.stdout, is_live=sys.stdout.isatty() and options.format == "text", every_s=WATCH_S)
    print(shown())
    return 0


def _explain(options: argparse.Namespace) -> int:
    from baton_local.commands.explain import ExplainOptions, run_explain

    return run_explain(
        ExplainOptions(
            id=options.id,
            slowest=options.slowest,
            missed=options.missed,
            tenant=options.tenant,
            format=options.format,
            name=options.name,
            url=options.url,
            link_keys=options.link_keys,
        )
    )


def _usage(options: argparse.Namespace) -> int:
    from baton_local.usage.command import run_usage

    return run_usage(options)


def _ask(options: argparse.Namespace) -> int:
    from baton_local.commands.ask import AskOptions, run_ask

    return run_ask(
        AskOptions(
            text=options.question,
            name=options.name,
            model=options.served_name,
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            stream=not options.no_stream,
        )
    )


def _chat(options: argparse.Namespace) -> int:
    from baton_local.commands.chat import TerminalChat, check_settings, run_chat

    settings = check_settings(options.max_tokens, options.temperature)
    return run_chat(
        options.name, lambda served: TerminalChat(options.served_name or served, options.system, dict(settings))
    )


def _down(options: argparse.Namespace) -> int:
    from baton_local.commands.down import chosen_name, run_down

    return run_down(chosen_name(options.deployment, options.name), options.timeout)


def _doctor(options: argparse.Namespace) -> int:
    from baton_local.commands.doctor import DoctorOptions, run_doctor

    return run_doctor(
        DoctorOptions(
            is_cluster=options.cluster or options.context is not None,
            context=options.context,
            namespace=options.namespace,
            operator_namespace=options.operator_namespace,
            port=options.port,
            limit_s=options.timeout,
            is_json=options.format == "json",
        )
    )


def _validate(options: argparse.Namespace) -> int:
    from baton_local.commands.validate import run_validate

    return run_validate(options.files, options.pod_policy)


def _logs(options: argparse.Namespace) -> int:
    from baton_local.commands.show_logs import run_logs

    return run_logs(options.process, options.name, options.follow)


if __name__ == "__main__":
    sys.exit(main())
