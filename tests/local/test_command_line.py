"""The command line itself: help without imports, the version, completion, and what is printed again and again."""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from baton_local.__main__ import main, run_command
from baton_local.commands.plan import three_digits
from baton_local.commands.status import watch
from baton_local.options import COMMANDS, NAME_HELP, command_line, parse_options

HEAVY = ("torch", "numpy", "aiohttp", "pydantic", "msgspec", "yaml", "tokenizers", "kubernetes", "opentelemetry")


@pytest.mark.parametrize(
    "arguments", [["--help"], [], *([name, "--help"] for name in ("up", "status", "top", "doctor", "explain", "key"))]
)
def test_help_imports_nothing_that_takes_long(arguments: list[str]) -> None:
    code = f"import sys; from baton_local.__main__ import main\ntry: main({arguments!r})\nexcept SystemExit: pass\n"
    code += f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stderr.strip() == "[]"
    assert ended.stdout.startswith("usage: baton")


def test_bare_baton_prints_help_and_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--version"], ["version"]])
def test_the_version_names_the_wire_too(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("baton ")
    assert "(wire version " in printed


def test_completion_knows_every_command_and_the_late_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    for word in ("up", "quantise", "--api-key-file", "--tensor-parallel", "--max-sequences", "--what-if"):
        assert word in script
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr


def watched(is_live: bool) -> str:
    """What is written for two pages."""
    pages, out = iter(["one", "two"]), io.StringIO()
    with pytest.raises(StopIteration):
        watch(lambda: next(pages), out, is_live=is_live, every_s=0.0)
    return out.getvalue()


def test_a_watched_page_is_written_until_something_ends_it() -> None:
    assert watched(is_live=False) == "one\ntwo\n"


def test_a_live_page_keeps_its_last_state_on_the_screen() -> None:
    assert "two" in watched(is_live=True).splitlines()[-1]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (27.8411, "27.8"),
        (6.19575e7, "62,000,000"),
        (0.00123456, "0.00123"),
        (999.6, "1,000"),
        (1.0, "1.00"),
        (0.0, "0"),
        (float("inf"), "inf"),
    ],
)
def test_figures_have_three_digits_and_no_exponent(value: float, shown: str) -> None:
    assert three_digits(value) == shown


def test_every_figure_of_a_plan_has_a_unit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan"]) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "llama-3.1-8b on 1× h200 per worker"
    for line in lines[: lines.index("")]:
        words = line.split()
        assert any(word.replace(",", "").replace(".", "").isdigit() for word in words[-8:-1]), line
        assert not words[-1].replace(",", "").replace(".", "").isdigit(), line
    assert main(["plan", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["weight_gb"] > 10


def test_the_script_of_the_package_is_this(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "baton_local", "frobnicate"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert ended.returncode == 2
    assert "invalid choice: 'frobnicate'" in ended.stderr


EVERY_COMMAND = sorted(COMMANDS)


@pytest.mark.parametrize("name", EVERY_COMMAND)
def test_every_help_has_a_description_an_example_and_words_for_each_option(name: str) -> None:
    parser = command_line(frozenset((name,))).commands[name]
    text = " ".join(parser.format_help().split())
    assert "example: " in text
    assert f" baton {name} " in text or f" baton {name}" in text[-len(name) - 7 :] or name == "completion"
    for action in parser._actions:
        if action.help is argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
            continue
        assert action.help, f"{action.dest} has no help"
        if action.default not in (None, False) and action.default != []:
            shown = parser._get_formatter()._expand_help(action)
            assert "default" in shown, f"{action.dest} does not name its default"


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["quantis"], "did you mean quantise?"),
        (["stauts"], "did you mean status?"),
        (["up", "folder", "--prot", "1"], "unrecognized argument --prot: did you mean --port?"),
        (
            ["up", "folder", "--max-context=9"],
            "unrecognized argument --max-context: did you mean --max-context-tokens?",
        ),
        (["quantise", "a", "b", "--format", "int9"], "did you mean int8?"),
        (["up", "folder", "--dtype", "bfloat61"], "did you mean bfloat16?"),
    ],
)
def test_what_is_mistyped_is_refused_with_what_was_meant(
    arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert meant in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "dest"),
    [
        (["plan", "--model", "qwen3-8b"], ["plan", "qwen3-8b"], "model"),
        (["plan", "--tpot", "20"], ["plan", "--tpot", "20ms"], "tpot"),
        (["ask", "Hi", "--model", "m"], ["ask", "Hi", "--served-name", "m"], "served_name"),
        (["up", "m", "--ready-timeout", "90"], ["up", "m", "--ready-timeout", "90s"], "ready_timeout"),
        (["simulate", "--startup-s", "30"], ["simulate", "--startup-time", "30s"], "startup_time"),
        (["simulate", "--worker-dies", "decode@90"], ["simulate", "--worker-dies", "decode@90s"], "worker_dies"),
        (["simulate", "--metrics-lost", "0-90"], ["simulate", "--metrics-lost", "0s-90s"], "metrics_lost"),
        (["bench", "--gpus", "2"], ["bench", "--accelerators", "2"], "accelerators"),
        (["bench", "--model", "m"], ["bench", "--served-name", "m"], "served_name"),
        (
            ["batch", "--model", "m", "i", "o", "--kv-cache-bytes", "1048576"],
            ["batch", "--model", "m", "i", "o", "--kv-memory", "1Mi"],
            "kv_memory",
        ),
        (
            ["compile", "m", "--to", "d", "--gpu", "h200"],
            ["compile", "m", "--to", "d", "--accelerator", "h200"],
            "accelerator",
        ),
    ],
)
def test_old_spellings_work_and_are_not_shown(old: list[str], new: list[str], dest: str) -> None:
    assert getattr(parse_options(old), dest) == getattr(parse_options(new), dest)
    flag = next((word for word in old[1:] if word.startswith("--") and word not in new), None)
    if flag is not None:
        assert f"{flag} " not in command_line(frozenset(old[:1])).commands[old[0]].format_help()


def test_an_old_spelling_says_the_new_one(capsys: pytest.CaptureFixture[str]) -> None:
    parse_options(["bench", "--gpus", "2"])
    assert "--gpus is now --accelerators; it goes with version" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["status", "top", "ask", "chat", "logs", "down", "explain", "usage", "history", "bench"]
)
def test_every_command_that_chooses_a_deployment_takes_its_name_in_one_way(name: str) -> None:
    words = [name, "--name", "team.chat", *(["Hi"] if name == "ask" else [])]
    assert parse_options(words).name == "team.chat"


def test_the_commands_that_choose_a_deployment_are_those_with_the_same_help() -> None:
    parser = command_line(frozenset(COMMANDS))
    choosing = {
        name for name, command in parser.commands.items() if NAME_HELP in str([a.help for a in command._actions])
    }
    assert choosing == {"status", "top", "ask", "chat", "logs", "down", "explain", "usage", "history", "bench"}


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["serve", "folder"], "argument COMMAND: invalid choice: 'serve': did you mean up?"),
        (["ps"], "argument COMMAND: invalid choice: 'ps': did you mean status?"),
        (["stop"], "argument COMMAND: invalid choice: 'stop': did you mean down?"),
        (["up", "folder", "--gpu"], "unrecognized argument --gpu: did you mean --device cuda?"),
        (["up", "--model", "m"], "unrecognized argument --model: did you mean MODEL without a flag?"),
        (["up", "m", "--max-model-len", "9"], "--max-model-len: did you mean --max-context-tokens?"),
        (["status", "chat"], "unrecognized arguments: chat: did you mean --name chat?"),
        (["chat", "my-model"], "unrecognized arguments: my-model: did you mean --name my-model?"),
    ],
)
def test_words_of_other_programs_are_refused_with_our_own(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert line in capsys.readouterr().err


def test_a_wrong_flag_gets_one_line_and_no_page_of_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["up", "folder", "--prot", "1"])
    [line] = capsys.readouterr().err.splitlines()
    assert line == "baton up: error: unrecognized argument --prot: did you mean --port? (see `baton up --help`)"


@pytest.mark.parametrize(
    ("arguments", "statuses"),
    [(["version"], {141}), (["plan"], {141}), (["--help"], {0, 141}), (["up", "--help"], {0, 141}), ([], {0, 141})],
)
def test_output_that_nobody_reads_ends_a_command_silently(arguments: list[str], statuses: set[int]) -> None:
    """Newer versions of argparse ignore that a help text cannot be written."""
    code = f"import os, sys; from baton_local.__main__ import main; sys.stdin.read(); sys.exit(main({arguments!r}))"
    read, write = os.pipe()
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    os.close(read)  # nobody reads from here on
    _, errors = child.communicate(b"", timeout=120)
    assert errors == b""
    assert child.returncode in statuses


def test_a_connection_that_breaks_is_no_closed_output(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(options: argparse.Namespace) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    assert run_command(broken, argparse.Namespace()) == 1
    assert "Broken pipe" in capsys.readouterr().err


def test_an_answer_that_nobody_reads_is_no_broken_answer() -> None:
    code = "from baton_local.commands.ask import show; from baton_local.errors import OutputClosedError; import sys\n"
    code += "sys.stdin.read()\ntry: show('x')\nexcept OutputClosedError: import os; os._exit(3)"
    read, write = os.pipe()
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=write)
    os.close(write)
    os.close(read)
    child.communicate(b"", timeout=120)
    assert child.returncode == 3
