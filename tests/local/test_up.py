"""`baton up` as users start it, with small stand-ins for workers and gateway: start, restart, stop, no orphans."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from baton_control.spec.manifest import read_manifest
from baton_local.fetching.default_deployment import as_yaml
from baton_local.fleet.record import read_record
from baton_local.fleet.run_dir import RunDir
from baton_testing.engine import tiny_llama
from baton_testing.kube.manifests import manifest
from baton_testing.processes.baton_up import BATON, Up
from baton_testing.processes.child_process import Child, Ended, environment, orphans_of, run_to_end, still_alive
from baton_testing.processes.impatient_up import PATIENCE
from baton_testing.processes.stand_in import BAD_CONFIGURATION, CRASH, DEAF, PARENT, SILENT, VARIABLE, write_stand_ins

pytestmark = pytest.mark.processes

SUPPORT = Path(__file__).parents[1] / "support"
WAIT_S = 120.0
"""Nothing here takes long; a busy machine does."""


def eventually(holds: Callable[[], bool], what: str) -> None:
    give_up_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < give_up_s, what
        time.sleep(0.02)


def guards_of(processes: list[psutil.Process]) -> list[psutil.Process]:
    """The orphan guards among them; one that has ended, or has not become one yet, is none."""
    guards = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie is none either
            if any(part.endswith("orphan_guard.py") for part in process.cmdline()):
                guards.append(process)
    return guards


class Rig:
    """One `baton up` in a directory of its own."""

    up: Up
    troubles: Path

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.behaviours: dict[str, str] = {}
        self.keys: dict[str, str] = {}

    @property
    def extra(self) -> dict[str, str]:
        return {
            "PYTHONPATH": f"{self.directory / 'stand_ins'}:{SUPPORT}:{os.environ.get('PYTHONPATH', SUPPORT)}",
            "XDG_RUNTIME_DIR": str(self.directory / "runtime"),
            VARIABLE: json.dumps(self.behaviours),
            **self.keys,
        }

    def baton(self, *arguments: str) -> Ended:
        (self.directory / "runtime").mkdir(mode=0o700, exist_ok=True)  # without it the machine's own would be taken
        return run_to_end((*BATON, *arguments), WAIT_S, self.extra)

    def start(self, *arguments: str, **fields: object) -> Child:
        self.up = Up(
            self.directory, manifest(**{"model__source": "file://model", **fields}), *arguments, extra=self.extra
        )
        return self.up.child

    def start_impatient(self) -> None:
        """Start with short limits on a machine with `troubles`, and wait until it is ready."""
        self.troubles = self.directory / "troubles"
        self.troubles.mkdir()
        program = ("-m", "baton_testing.processes.impatient_up", str(self.troubles))
        self.up = Up(self.directory, manifest(model__source="file://model"), extra=self.extra, program=program)
        self.up.await_ready()

    def start_ready(self, **fields: object) -> str:
        """Start and wait for the line that says where; returns the address."""
        self.start(**fields)
        return self.up.await_ready()

    def progress(self) -> str:
        return self.up.child.output()

    def pids(self, role: str) -> list[int]:
        """Process ids of the ready processes of a role, from the run record."""
        processes = read_record(self.up.run_dir).processes
        return [
            process.pid for process in processes if process.pid and process.role == role and process.phase == "ready"
        ]

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.up.child.pid).children(recursive=True)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.up.child.send(number)
        return self.up.child.wait(WAIT_S)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    (tmp_path / "stand_ins").mkdir()
    (tmp_path / "model").symlink_to(tiny_llama.FOLDER)
    write_stand_ins(tmp_path / "stand_ins")
    rig = Rig(tmp_path)
    yield rig
    if hasattr(rig, "up"):
        rig.up.child.send(signal.SIGKILL)
        rig.up.child.wait(WAIT_S)


def test_it_starts_every_worker_says_ready_once_and_stops_on_sigterm(rig: Rig) -> None:
    two = {"replicas": {"min": 2, "max": 2}}
    address = rig.start_ready(prefill=two, decode=two)
    eventually(lambda: (len(rig.pids("prefill")), len(rig.pids("decode"))) == (2, 2), rig.progress())
    status = rig.up.status()
    assert (status["endpoint"], status["ready"]) == (address, True)
    children = rig.descendants()
    assert len(children) == 6  # gateway, four workers, the guard
    assert rig.end() == 0
    assert not orphans_of(children, WAIT_S)
    lines = rig.progress().splitlines()
    assert [line for line in lines if not line.startswith("baton: ")] == [f"ready {address}"]
    assert rig.baton("status").code == 2


def test_ctrl_c_is_a_clean_stop_too(rig: Rig) -> None:
    rig.start_ready()
    assert rig.end(signal.SIGINT) == 0
    assert not rig.up.run_dir.keys.exists()


@pytest.mark.parametrize("victim", ["the runtime", "the runtime and its guard"])
def test_killing_it_leaves_nothing_not_even_grandchildren(rig: Rig, victim: str) -> None:
    rig.behaviours = {"gateway": PARENT, "decode": DEAF}
    rig.start_ready()
    children = rig.descendants()
    guards = guards_of(children)
    assert (len(children), len(guards)) == (5, 1)
    if victim == "the runtime and its guard":
        guards[0].kill()
        # Counting the processes is not enough: the old guard, not reaped yet, is one of five.
        eventually(lambda: guards_of(rig.descendants()) not in ([], guards), "no new guard")
    assert rig.end(signal.SIGKILL) == -signal.SIGKILL
    eventually(lambda: not still_alive(children), f"left behind: {children}")


def test_a_killed_worker_comes_back_at_a_new_address_that_is_published(rig: Rig) -> None:
    rig.start_ready()
    discovery = rig.up.run_dir.discovery("decode")
    before, (pid,) = json.loads(discovery.read_text()), rig.pids("decode")
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: rig.pids("decode") not in ([pid], []), rig.progress())
    after = json.loads(discovery.read_text())
    assert len(after) == 1
    assert after != before
    assert "killed by SIGKILL" in rig.progress()


def test_a_killed_gateway_comes_back_on_its_port_without_its_old_children(rig: Rig) -> None:
    rig.behaviours = {"gateway": PARENT}
    address = rig.start_ready()
    (pid,) = rig.pids("gateway")
    children = psutil.Process(pid).children()
    assert len(children) == 1
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: rig.pids("gateway") not in ([pid], []), rig.progress())
    assert rig.up.status()["endpoint"] == address
    eventually(lambda: not still_alive(children), "the old gateway's child lives")


@pytest.mark.parametrize("role", ["decode", "gateway"])
def test_a_process_that_hangs_is_killed_and_started_again(rig: Rig, role: str) -> None:
    rig.start_impatient()
    (pid,) = rig.pids(role)
    others = {other: rig.pids(other) for other in ("prefill", "decode", "gateway") if other != role}
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: rig.pids(role) not in ([pid], []), rig.progress())
    texts = (rig.progress(), rig.baton("logs", "up").stdout, rig.baton("status").stdout)
    assert [f"killed by Baton: it did not answer for {PATIENCE.silent_s:g} s" in text for text in texts] == [True] * 3
    assert {other: rig.pids(other) for other in others} == others
    eventually(lambda: rig.up.status()["ready"], rig.progress())


def test_time_in_which_up_itself_stood_still_is_nobodys_silence(rig: Rig) -> None:
    rig.start_impatient()
    before = {role: rig.pids(role) for role in ("prefill", "decode", "gateway")}
    rig.up.child.send(signal.SIGSTOP)
    time.sleep(PATIENCE.silent_s + 2.0)
    rig.up.child.send(signal.SIGCONT)
    time.sleep(1.5)
    assert {role: rig.pids(role) for role in before} == before
    assert "killed" not in rig.progress()


def test_a_full_disk_ends_nothing_and_what_is_missing_is_written_later(rig: Rig) -> None:
    rig.start_impatient()
    (pid,), (gateway,) = rig.pids("decode"), rig.pids("gateway")
    (rig.troubles / "full").touch()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: "decode.json: No space left on device; going on" in rig.progress(), rig.progress())
    eventually(lambda: rig.progress().count("-0: started (pid") == 3, rig.progress())
    time.sleep(1.5)
    assert rig.up.child.is_running()
    assert psutil.pid_exists(gateway)
    assert rig.progress().count("No space left") == 1, "printed once"
    (rig.troubles / "full").unlink()
    eventually(lambda: rig.pids("decode") not in ([pid], []), rig.progress())
    eventually(lambda: "all files are written again" in rig.progress(), rig.progress())
    assert rig.pids("gateway") == [gateway]


def test_a_machine_that_starts_no_process_for_a_while_ends_nothing(rig: Rig) -> None:
    rig.start_impatient()
    (pid,), (gateway,) = rig.pids("decode"), rig.pids("gateway")
    (rig.troubles / "tired").touch()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: rig.progress().count("cannot be started: Resource temporarily") >= 2, rig.progress())
    (rig.troubles / "tired").unlink()
    eventually(lambda: rig.pids("decode") not in ([pid], []), rig.progress())
    assert rig.pids("gateway") == [gateway]


def test_a_worker_that_refuses_its_configuration_ends_everything_with_its_line(rig: Rig) -> None:
    rig.behaviours = {"decode": BAD_CONFIGURATION}
    up = rig.start()
    assert up.wait(WAIT_S) == 1
    assert "stopped: baton-decode: --model: nothing here" in rig.progress().splitlines()[-1]


def test_a_worker_that_only_crashes_is_given_up(rig: Rig) -> None:
    rig.behaviours = {"prefill": CRASH}
    up = rig.start()
    assert up.wait(WAIT_S) == 1
    last = rig.progress().splitlines()[-1]
    assert "ended with status 1; its last log line: it broke; logs are in" in last
    logs = rig.baton("logs")
    assert logs.stdout.count("stand-in prefill says hello") == 3


def test_what_is_never_ready_is_given_up_after_the_time_asked(rig: Rig) -> None:
    rig.behaviours = {"decode": SILENT}
    assert rig.start("--ready-timeout", "2").wait(WAIT_S) == 1
    # On a busy machine others may not be ready by then either.
    assert re.search(r"not ready after 2 s: (chat-\S+, )*chat-decode-\S+(, chat-\S+)* not ready", rig.progress())


def test_a_second_signal_ends_what_would_not_stop(rig: Rig) -> None:
    """A shell that ends sends SIGHUP, the kernel another one, a service manager SIGTERM: all of that is one stop."""
    rig.behaviours = {"gateway": DEAF}
    rig.start_ready()
    children, [gateway] = rig.descendants(), rig.pids("gateway")
    rig.up.child.send(signal.SIGHUP)
    eventually(lambda: "stopping" in rig.progress(), "nothing happens")
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM):
        rig.up.child.send(number)
        time.sleep(0.1)
    assert psutil.Process(gateway).status() != psutil.STATUS_ZOMBIE
    assert rig.end(signal.SIGINT) == 0
    assert not orphans_of(children, WAIT_S)


def test_the_same_deployment_is_refused_while_it_runs(rig: Rig) -> None:
    rig.start_ready()
    again = rig.baton("up", "-f", str(rig.directory / "chat.yaml"), "--port", "0")
    assert (again.code, again.stdout) == (2, "")
    holder = f"default.chat is already running (pid {rig.up.child.pid})"
    assert again.stderr == f"baton: {holder}: stop it with `baton down --name chat`, or use another metadata.name\n"


def test_the_logs_of_one_process_or_of_all_are_shown(rig: Rig) -> None:
    rig.start_ready()
    everything = rig.baton("logs").stdout.splitlines()
    assert "chat-gateway | stand-in gateway says hello" in everything
    assert rig.baton("logs", "chat-gateway").stdout == "stand-in gateway says hello\n"
    unknown = rig.baton("logs", "nobody")
    assert (unknown.code, unknown.stderr.startswith("baton: no process nobody: there are chat-")) == (2, True)


def test_followed_logs_go_on_until_the_deployment_stops(rig: Rig) -> None:
    rig.start_ready()
    command = [sys.executable, "-m", "baton_local", "logs", "-f", "chat-gateway"]
    with subprocess.Popen(command, env=environment(rig.extra), stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "stand-in gateway says hello\n"
        with rig.up.run_dir.log("chat-gateway").open("a") as log:
            log.write("something happened\n")
        assert following.stdout.readline() == "something happened\n"
        rig.end()
        assert following.wait(WAIT_S) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("up", "-f", "missing.yaml"), "baton: missing.yaml: cannot be read: No such file or directory"),
        (("up", "-f", "x", "--port", "70000"), "'70000' is not allowed: must be an integer from 0 to 65535"),
        (("up", "-f", "x", "--volume", "models"), "'models' is not allowed: must be NAME=PATH"),
        (("up", "-f", "x", "--device", "tpu"), "argument --device: 'tpu' is not allowed: must be one of cpu, cuda"),
        (("up", "-f", "x", "--processes", "0"), "must be an integer from 1 to 64"),
        (("up",), "one of the arguments MODEL -f/--file is required"),
        (("ask", "hello", "--max-tokens", "0"), "must be an integer from 1 to"),
    ],
)
def test_a_wrong_command_line_is_refused_with_status_2(rig: Rig, arguments: tuple[str, ...], message: str) -> None:
    refused = rig.baton(*arguments)
    assert refused.code == 2
    assert message in refused.stderr.splitlines()[-1]


def test_a_key_reaches_the_gateway_as_a_file_and_stands_nowhere_else(rig: Rig) -> None:
    key = "sk-of-no-one"
    rig.keys = {"BATON_API_KEY": key}
    rig.start_ready()
    (gateway,) = rig.pids("gateway")
    flag = f"--api-keys={rig.up.run_dir.api_keys}"
    assert flag in psutil.Process(gateway).cmdline()
    assert rig.up.run_dir.api_keys.read_text().strip() == key
    for process in rig.descendants():
        assert key not in " ".join(process.cmdline())
        assert key not in process.environ().values()
    assert key not in rig.progress()
    assert [path for path in rig.up.run_dir.root.rglob("*") if key in text_of(path)] == [rig.up.run_dir.api_keys]
    assert rig.end() == 0
    assert not rig.up.run_dir.api_keys.exists()


def text_of(path: Path) -> str:
    """Text of a file; empty for one that was replaced since its folder was listed."""
    try:
        return path.read_text() if path.is_file() else ""
    except FileNotFoundError:
        return ""


NOT_SERVED: list[tuple[dict[str, object], str]] = [
    (
        {"model_type": "falcon"},
        'spec.model.source: .*/config.json: model_type: "falcon" is not supported; allowed: llama',
    ),
    ({"quantization_config": {"quant_method": "bitsandbytes"}}, "spec.model.source: .*: quantization_config"),
    ({"rope_scaling": {"rope_type": "longrope", "long_factor": [1.0] * 48}}, 'rope_type: "longrope" is not supported'),
    ({"max_position_embeddings": 256}, "spec.model.maxContextTokens: 512 is not supported; allowed: 1 to 256"),
]


def test_a_model_that_cannot_be_served_is_refused_before_anything_starts(rig: Rig) -> None:
    for place, (config, message) in enumerate(NOT_SERVED):
        folder = rig.directory / f"model-{place}"
        shutil.copytree(tiny_llama.FOLDER, folder)
        known = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**known, **config}))
        child = rig.start(model__source=f"file://{folder}")
        assert child.wait(WAIT_S) == 2
        assert re.search(message, rig.progress()), rig.progress()
        assert len(rig.progress().splitlines()) == 1
    (folder / "tokenizer.json").unlink()
    assert rig.start(model__source=f"file://{folder}").wait(WAIT_S) == 2
    assert "has no tokenizer.json" in rig.progress()


def test_a_model_alone_is_served_and_written_down_as_a_file_that_serves_the_same(rig: Rig) -> None:
    (rig.directory / "runtime").mkdir(mode=0o700)
    child = Child("up", (*BATON, "up", str(tiny_llama.FOLDER), "--port", "0"), rig.directory, rig.extra)
    try:
        eventually(lambda: "ready http://" in child.output(), child.output())
        base = rig.directory / "runtime" / "baton" / f"default.{tiny_llama.FOLDER.name}"
        written = read_manifest(base / "deployment.yaml")
        assert written.spec.model.source == f"file://{tiny_llama.FOLDER.resolve()}"
        assert written.spec.model.served_name == tiny_llama.FOLDER.name
        assert read_record(RunDir(base)).served_name == written.spec.model.served_name
    finally:
        child.send(signal.SIGTERM)
        assert child.wait(WAIT_S) == 0
    again = rig.directory / "again.yaml"
    again.write_text(as_yaml(written))
    assert read_manifest(again) == written


def test_an_address_that_others_reach_is_refused_before_anything_starts(rig: Rig) -> None:
    child = rig.start("--host", "0.0.0.0")
    assert child.wait(WAIT_S) == 2
    assert "or --open" in rig.progress()
    assert "started" not in rig.progress()
