"""The command line itself: help without imports, the version, completion, and what is printed again and again."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from baton_local.__main__ import main
from baton_local.commands.plan import three_digits
from baton_local.commands.status import HOME_AND_CLEAR, watch

HEAVY = ("torch", "numpy", "aiohttp", "pydantic", "msgspec", "yaml", "tokenizers")


@pytest.mark.parametrize("arguments", [["--help"], [], ["up", "--help"], ["status", "--help"]])
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


def test_a_watched_page_is_written_until_something_ends_it() -> None:
    pages = iter(["one", "two"])
    for is_clearing, expected in ((False, "one\ntwo\n"), (True, f"{HOME_AND_CLEAR}one\n{HOME_AND_CLEAR}two\n")):
        pages, out = iter(["one", "two"]), io.StringIO()
        with pytest.raises(StopIteration):
            watch(lambda pages=pages: next(pages), out, is_clearing=is_clearing, every_s=0.0)  # type: ignore[misc]
        assert out.getvalue() == expected


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
