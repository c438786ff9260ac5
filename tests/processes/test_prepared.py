"""Forked workers are processes like started ones: their status, output, environment and end."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from baton_testing.engine import tiny_llama
from baton_testing.processes.child_process import Child, orphans_of, run_to_end
from baton_testing.processes.prepared import Forked, Prepared
from baton_wire.keys import write_new_key

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="where GPUs are nothing is forked"),
]

UNKNOWN = ("-m", "baton_decode_worker", "--colour=red")


ROUNDS = 200


def test_threads_that_ask_at_the_same_time_whether_a_process_runs_all_read_its_status() -> None:
    """A rig watches its processes from one thread while another thread waits for them."""

    def ended(process: Forked) -> int:
        while (code := process.poll()) is None:
            pass
        return code

    with ThreadPoolExecutor(2) as threads:
        for _ in range(ROUNDS):
            reader, writer = os.pipe()
            os.write(writer, b"123\n")
            process = Forked(reader)
            asked = [threads.submit(ended, process) for _ in range(2)]
            os.write(writer, b"-9\n")
            os.close(writer)
            assert [future.result(60.0) for future in asked] == [-9, -9]


def worker(folder: Path, name: str, starts: Prepared) -> Child:
    """A decode worker that is ready."""
    keys = folder / "keys"
    if not keys.exists():
        keys.mkdir()
        write_new_key(keys, "test")
    announce = folder / f"{name}.json"
    flags = ("--model", str(tiny_llama.FOLDER), "--served-name=tiny", "--listen=127.0.0.1:0", f"--keys={keys}")
    argv = ("-m", "baton_decode_worker", *flags, f"--announce={announce}", "--kv-cache-bytes=16777216")
    child = Child(name, argv, folder, starts=starts)
    assert child.await_file(announce, 120)["port"]
    return child


def test_a_refusal_is_word_for_word_that_of_a_started_process(prepared: Prepared) -> None:
    assert prepared.run_to_end(UNKNOWN, 60) == run_to_end(UNKNOWN, 60)


def test_the_environment_is_that_of_the_moment(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared.run_to_end(UNKNOWN, 60)  # the server runs, with the environment of before
    monkeypatch.setenv("BATON_LOG_LEVEL", "LOUD")
    ended = prepared.run_to_end(UNKNOWN, 60)
    assert ended.code == 2
    assert "'LOUD' is none of" in ended.stderr


def test_signals_end_one_and_leave_the_others(prepared: Prepared, tmp_path: Path) -> None:
    one, other, third = (worker(tmp_path, name, prepared) for name in ("one", "other", "third"))
    assert len({one.pid, other.pid, third.pid, prepared.pid, os.getpid()}) == 5
    assert psutil.Process(one.pid).ppid() == prepared.pid
    one.send(signal.SIGKILL)
    assert one.wait(30) == -signal.SIGKILL
    assert not one.is_running()
    with pytest.raises(subprocess.TimeoutExpired):
        other.wait(0.1)
    other.send(signal.SIGTERM)
    assert other.wait(60) == 0
    assert third.is_running()
    assert third.stop() == 0
    assert not prepared.can_start(("-m", "baton_local"))
    assert not prepared.can_start(("-c", "baton_decode_worker"))


def test_a_signal_to_one_whose_end_was_not_told_yet_is_no_error() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(60)
    reader, writer = os.pipe()
    os.write(writer, f"{gone.pid}\n".encode())
    child = Forked(reader)
    child.send_signal(signal.SIGTERM)
    child.kill()
    os.write(writer, b"3\n")
    os.close(writer)
    assert child.wait(60) == 3


PARENT = """
import sys
from pathlib import Path
from baton_testing.processes.prepared import service
from test_prepared import worker
print(worker(Path(sys.argv[1]), "left", service()).pid, flush=True)
sys.stdin.read()
"""


def test_forked_workers_end_with_whoever_asked_for_them(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    with parent.stdin, parent.stdout:
        left = psutil.Process(int(parent.stdout.readline()))
        both = [left, psutil.Process(left.ppid())]
        parent.kill()
        parent.wait(30)
    assert orphans_of(both) == []


def test_a_process_that_no_caller_waited_for_leaves_no_pipe_open(recwarn: pytest.WarningsRecorder) -> None:
    with Prepared((), is_for_programs=True) as prepared, Path(os.devnull).open("wb") as nothing:
        argv = ("-c", "import time; time.sleep(600)")
        forked = [prepared.start(argv, nothing.fileno(), nothing.fileno()) for _ in range(2)]
        processes = [psutil.Process(process.pid) for process in forked]
        forked.pop().kill()  # the other one is left to the server
        forked.clear()
    gc.collect()
    assert not [warning for warning in recwarn if issubclass(warning.category, ResourceWarning)]
    assert orphans_of(processes) == []


def test_a_process_that_is_left_to_the_server_counts_as_killed_by_it() -> None:
    with Prepared((), is_for_programs=True) as prepared, Path(os.devnull).open("wb") as nothing:
        forked = prepared.start(("-c", "import time; time.sleep(600)"), nothing.fileno(), nothing.fileno())
    assert (forked.poll(), forked.wait(1.0)) == (-signal.SIGKILL, -signal.SIGKILL)
