"""Memory needed against memory there, and a checkpoint's tensors, before any process starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from baton_control.worker_specs import Device
from baton_local.__main__ import main
from baton_local.errors import StartError
from baton_local.fleet.memory_check import RANK_PROCESS_BYTES, MemoryNeed, check_memory, memory_need
from baton_testing.engine.tiny_llama import FOLDER
from baton_testing.kube.manifests import deployment
from baton_wire.messages.values import Role
from baton_worker.building.memory_limit import _cgroup_room

GB = 10**9
CPUS = {Role.PREFILL: Device.CPU, Role.DECODE: Device.CPU}


def test_two_copies_that_do_not_fit_are_refused_with_both_figures_and_what_helps() -> None:
    need = MemoryNeed(2, 28 * GB, 0, "float32")
    with pytest.raises(StartError) as refused:
        check_memory(need, 22 * GB, None)
    message = str(refused.value)
    assert message.startswith(
        "the workers need 2 × 28.0 GB for weights in float32, 22.0 GB are free: each worker holds"
    )
    assert "--dtype bfloat16" in message
    assert "baton quantise" in message
    check_memory(need, 56 * GB, None)


def test_kv_that_was_asked_for_counts() -> None:
    with pytest.raises(StartError, match=r"and 4\.0 GB for KV, 5\.0 GB are free"):
        check_memory(MemoryNeed(1, 2 * GB, 4 * GB, "bfloat16"), 5 * GB, None)


def test_the_limit_of_a_process_counts_for_each_worker() -> None:
    with pytest.raises(StartError, match=r"a process may have 12\.0 GB \(ulimit -v\)"):
        check_memory(MemoryNeed(2, 28 * GB, 0, "float32"), 100 * GB, 12 * GB)
    check_memory(MemoryNeed(2, 8 * GB, 0, "float32"), 100 * GB, 12 * GB)


def test_a_need_is_counted_from_headers_dtype_and_the_workers_that_start_at_once() -> None:
    model = FOLDER
    wide = memory_need(deployment(decode__replicas={"min": 2, "max": 5}), model, CPUS)
    narrow = memory_need(deployment(model__dtype="bfloat16", prefill__engine={"kvCacheMemory": "64Mi"}), model, CPUS)
    assert (wide.workers, wide.dtype, wide.kv) == (3, "float32", 0)
    assert (narrow.workers, narrow.kv) == (2, 64 << 20)
    assert wide.weights == 2 * narrow.weights > 0
    assert memory_need(deployment(), model, dict.fromkeys(CPUS, Device.CUDA)).total == 0


def test_ranks_share_the_weights_and_each_holds_the_embeddings() -> None:
    alone = memory_need(deployment(), FOLDER, CPUS)
    shared = memory_need(deployment(prefill__tensorParallel=2, decode__tensorParallel=4), FOLDER, CPUS)
    embeddings = (shared.repeated - 6 * RANK_PROCESS_BYTES) // 4
    assert (shared.weights, shared.workers, alone.repeated) == (alone.weights, 2, 0)
    assert embeddings == 1024 * 128 * 4, "one and three more ranks hold them"
    assert shared.total == alone.total + shared.repeated
    assert alone.largest == alone.weights
    assert shared.largest == (alone.weights - embeddings) // 2 + embeddings, "of the pool with fewer ranks"
    with pytest.raises(StartError, match=r"for ranks and 1\.0 GB for KV"):
        check_memory(MemoryNeed(2, 28 * GB, GB, "float32", 4 * GB), 57 * GB, None)
    check_memory(MemoryNeed(2, 28 * GB, 0, "float32", 4 * GB, 14 * GB), 60 * GB, 20 * GB)


def group(root: Path, limit: str, used: int, cached: int = 0) -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / "memory.max").write_text(limit)
    (root / "memory.current").write_text(str(used))
    (root / "memory.stat").write_text(f"anon 1\ninactive_file {cached}\n")


def test_the_tightest_control_group_above_a_process_counts(tmp_path: Path) -> None:
    assert _cgroup_room(tmp_path, "0::/a/b") is None
    group(tmp_path / "a", "1000", 400, cached=300)
    group(tmp_path / "a" / "b", "max", 100)
    assert _cgroup_room(tmp_path, "0::/a/b") == 900, "the kernel gives up cached pages"
    group(tmp_path / "a" / "b", "500", 450)
    assert _cgroup_room(tmp_path, "0::/a/b") == 50
    assert _cgroup_room(tmp_path, "0::/x") is None


def test_the_first_version_of_control_groups_counts_too(tmp_path: Path) -> None:
    old = tmp_path / "memory" / "pod"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text("2000")
    (old / "memory.usage_in_bytes").write_text("500")
    lines = "9:name=systemd:/\n5:cpu,memory:/pod\n"
    assert _cgroup_room(tmp_path, lines) == 1500
    (old / "memory.limit_in_bytes").write_text(str((1 << 63) - 4096))
    assert _cgroup_room(tmp_path, lines) is None


def copied(tmp_path: Path, **changes: object) -> Path:
    """The tiny model with another config."""
    for path in filter(Path.is_file, FOLDER.iterdir()):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    return tmp_path


def refusal(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["up", str(folder), "--port", "0"]) == 2
    printed = capsys.readouterr().err
    assert "started (pid" not in printed
    return printed


def test_weights_that_do_not_fit_the_config_are_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refusal(copied(tmp_path, num_hidden_layers=126), capsys)
    assert "missing tensors: model.layers." in message


def test_a_torn_weight_file_is_refused_by_its_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copied(tmp_path)
    weights = next(folder.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "is not a whole safetensors file: it has" in refusal(folder, capsys)


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, b"\x02\0\0\0\0\0\0\0[]", b"\x04\0\0\0\0\0\0\0{}"])
def test_what_is_no_safetensors_file_is_refused(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied(tmp_path)
    next(folder.glob("*.safetensors")).write_bytes(content)
    assert "is not a whole safetensors file" in refusal(folder, capsys)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["model.Q4_K_M.gguf"], "GGUF is not read; serve the model's original folder"),
        (["config.json", "model.gguf"], "GGUF is not read"),
        (["config.json", "pytorch_model.bin"], "convert them where you trust them"),
        (["adapter_config.json", "adapter_model.safetensors"], "this is a LoRA adapter"),
        ([], "no config.json: a model is a folder with config.json, safetensors and tokenizer"),
    ],
)
def test_other_formats_are_named_with_what_to_do(
    files: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = FOLDER
    for name in files:
        (tmp_path / name).write_bytes((source / name).read_bytes() if name == "config.json" else b"x")
    assert words in refusal(tmp_path, capsys)


def test_a_path_that_is_no_folder_is_answered_with_what_to_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "chat.yaml").write_text("kind: LLMDeployment")
    (tmp_path / "model.gguf").write_text("x")
    (tmp_path / "qwen3").mkdir()
    assert f"`baton up -f {tmp_path}/chat.yaml`" in refusal(tmp_path / "chat.yaml", capsys)
    assert "GGUF is not read" in refusal(tmp_path / "model.gguf", capsys)
    assert "no such folder: did you mean qwen3?" in refusal(tmp_path / "qwen", capsys)
    assert "a model of the hub is hf://Qwen/Qwen3-0.6B" in refusal(Path("Qwen/Qwen3-0.6B"), capsys)
