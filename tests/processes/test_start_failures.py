"""A process that cannot start gives the reason in one line, exits with 2 and leaves nothing over. All cases run side
by side, once.

One case of each program is started anew. The others have their imports done (`baton_testing.processes.prepared`) and
run the same program from its arguments on.
"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from baton_testing.engine import tiny_llama
from baton_testing.processes.child_process import Ended, run_to_end
from baton_testing.processes.prepared import Prepared
from baton_wire.keys import write_new_key

pytestmark = pytest.mark.processes

LIMIT_S = 180.0
REFUSED = 2
ANEW = {"worker-port-taken", "prefill-port-taken", "gateway-port-taken"}


@dataclass(frozen=True, slots=True)
class Start:
    """A command line that must be refused, and words of the line that says so."""

    name: str
    argv: tuple[str, ...]
    words: tuple[str, ...]


def broken_copy(folder: Path, change: Callable[[Path], None]) -> Path:
    """A copy of the tiny model with something wrong in it."""
    target = folder / "model"
    target.mkdir(parents=True)
    for path in tiny_llama.FOLDER.iterdir():
        if path.suffix in (".json", ".safetensors"):
            shutil.copy(path, target)
    change(target)
    return target


def without(name: str) -> Callable[[Path], None]:
    return lambda model: (model / name).unlink()


def edit_config(**changed: object) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | changed))

    return change


def break_config(model: Path) -> None:
    (model / "config.json").write_text("{")


def truncate(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])


def lying_header(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(b"\xff" * 8 + weights.read_bytes()[8:])


other_family = edit_config(architectures=["GptX"], model_type="gptx")


def cases(folder: Path, taken_port: int) -> list[Start]:
    keys, no_keys, short = folder / "keys", folder / "no-keys", folder / "short-keys"
    for path in (keys, no_keys, short):
        path.mkdir()
    write_new_key(keys, "test")
    (short / "weak").write_text("abc")
    (short / "weak").chmod(0o600)

    def worker(role: str = "decode", **flags: str | Path) -> tuple[str, ...]:
        """A good command line, but for the given flags; None leaves one out."""
        chosen: dict[str, str | Path] = {
            "model": tiny_llama.FOLDER,
            "served_name": "tiny",
            "listen": "127.0.0.1:0",
            "keys": keys,
            **flags,
        }
        arguments = (f"--{name.replace('_', '-')}={value}" for name, value in chosen.items() if value != "")
        return ("-m", f"baton_{role}_worker", *arguments)

    def model(name: str, change: Callable[[Path], None]) -> Path:
        return broken_copy(folder / name, change)

    gateway_flags = (f"--keys={keys}", "--prefill-discovery=file:/nowhere", "--decode-discovery=file:/nowhere")
    bad_discovery = ("-m", "baton_gateway", "--listen=127.0.0.1:0", *gateway_flags[:2], "--decode-discovery=nonsense")
    taken = f"127.0.0.1:{taken_port}"
    return [
        Start("worker-port-taken", worker(listen=taken), ("listen", str(taken_port))),
        Start("prefill-port-taken", worker("prefill", listen=taken), ("listen", str(taken_port))),
        Start("pair-port-taken", worker(pair_listen=taken), ("pair-listen", str(taken_port))),
        Start("gateway-port-taken", ("-m", "baton_gateway", f"--listen={taken}", *gateway_flags), (str(taken_port),)),
        Start("gateway-bad-discovery", bad_discovery, ("decode-discovery",)),
        Start("no-model-folder", worker(model=folder / "nothing"), ("model", "nothing")),
        Start("empty-model-folder", worker(model=no_keys), ("model", ".json")),
        Start("no-weights", worker(model=model("a", without("model.safetensors"))), ("safetensors",)),
        Start("no-tokenizer", worker(model=model("b", without("tokenizer.json"))), ("tokenizer.json",)),
        Start("broken-config", worker(model=model("c", break_config)), ("config.json",)),
        Start("unknown-architecture", worker(model=model("d", other_family)), ("model_type", "gptx")),
        Start("weights-of-another-shape", worker(model=model("e", edit_config(intermediate_size=360))), ("shape",)),
        Start("a-layer-too-many", worker(model=model("f", edit_config(num_hidden_layers=5))), ("layers.4",)),
        Start("a-layer-too-few", worker(model=model("g", edit_config(num_hidden_layers=3))), ("layers.3",)),
        Start("truncated-weights", worker(model=model("h", truncate)), ("model.safetensors",)),
        Start("lying-header", worker(model=model("i", lying_header)), ("model.safetensors",)),
        Start("too-little-memory-for-blocks", worker(kv_cache_bytes="65536"), ("kv", "block")),
        Start("context-beyond-the-model", worker(max_context_tokens="100000"), ("context", "2048")),
        Start("landing-too-small", worker(landing_bytes="65536"), ("landing",)),
        Start("no-key", worker(keys=no_keys), ("key",)),
        Start("short-key", worker(keys=short), ("key", "weak")),
        Start("no-keys-folder", worker(keys=folder / "nowhere"), ("key", "nowhere")),
        Start("unknown-flag", worker(colour="red"), ("colour",)),
        Start("missing-flag", worker(served_name=""), ("served-name",)),
        Start("bad-number", worker(max_sequences="many"), ("max-sequences", "many")),
        Start("number-out-of-range", worker(block_tokens="0"), ("block-tokens", "0")),
        Start("bad-address", worker(listen="nowhere"), ("listen", "nowhere")),
        Start("ranks-that-no-model-allows", worker(tensor_parallel="9"), ("tensor-parallel", "9", "8")),
        Start("ranks-that-do-not-divide", worker(tensor_parallel="3"), ("tensor-parallel", "3", "heads", "1, 2, 4")),
        Start("ranks-on-gpus", worker(tensor_parallel="2", device="cuda"), ("device", "cuda")),
        Start(
            "truncated-weights-of-ranks",
            worker(tensor_parallel="2", model=model("j", truncate)),
            ("model.safetensors",),
        ),
        Start("too-little-memory-for-ranks", worker(tensor_parallel="2", kv_cache_bytes="65536"), ("kv", "block")),
        Start("bad-choice", worker(dtype="int3"), ("dtype", "int3")),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def others() -> frozenset[psutil.Process]:
    """Children of before: servers of other tests' forks."""
    return frozenset(psutil.Process().children(recursive=True))


@pytest.fixture(scope="module")
def outcomes(
    tmp_path_factory: pytest.TempPathFactory, prepared: Prepared, others: frozenset[psutil.Process]
) -> Iterator[dict[str, tuple[Start, Ended]]]:
    def run(start: Start) -> Ended:
        if start.name in ANEW:
            return run_to_end(start.argv, LIMIT_S)
        return prepared.run_to_end(start.argv, LIMIT_S)

    with socket.create_server(("127.0.0.1", 0)) as occupant, ThreadPoolExecutor(2) as pool:
        starts = cases(tmp_path_factory.mktemp("starts"), occupant.getsockname()[1])
        ended = pool.map(run, starts)
        yield {start.name: (start, end) for start, end in zip(starts, ended, strict=True)}


NAMES = (
    "worker-port-taken",
    "prefill-port-taken",
    "pair-port-taken",
    "gateway-port-taken",
    "gateway-bad-discovery",
    "no-model-folder",
    "empty-model-folder",
    "no-weights",
    "no-tokenizer",
    "broken-config",
    "unknown-architecture",
    "weights-of-another-shape",
    "a-layer-too-many",
    "a-layer-too-few",
    "truncated-weights",
    "lying-header",
    "too-little-memory-for-blocks",
    "context-beyond-the-model",
    "landing-too-small",
    "no-key",
    "short-key",
    "no-keys-folder",
    "unknown-flag",
    "missing-flag",
    "bad-number",
    "number-out-of-range",
    "bad-address",
    "ranks-that-no-model-allows",
    "ranks-that-do-not-divide",
    "ranks-on-gpus",
    "truncated-weights-of-ranks",
    "too-little-memory-for-ranks",
    "bad-choice",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_bad_start_is_one_clear_line(outcomes: dict[str, tuple[Start, Ended]], name: str) -> None:
    start, ended = outcomes[name]
    assert ended.code == REFUSED, ended
    lines = [line for line in ended.stderr.splitlines() if line.startswith("baton")]
    assert len(lines) == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    for word in start.words:
        assert word in lines[0].lower() or word in lines[0], lines[0]


def test_no_case_is_left_out(outcomes: dict[str, tuple[Start, Ended]]) -> None:
    assert set(outcomes) == set(NAMES)
    assert set(NAMES) > ANEW


def test_nothing_of_them_still_runs(
    outcomes: dict[str, tuple[Start, Ended]], prepared: Prepared, others: frozenset[psutil.Process]
) -> None:
    """A fork has the command line of its parent."""
    now = frozenset(psutil.Process().children(recursive=True))
    children = [child for child in now - others if child.pid != prepared.pid]
    assert not [child for child in children if any("baton_" in part for part in child.cmdline())]
