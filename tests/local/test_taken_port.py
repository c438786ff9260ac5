"""A taken port hides no other refusal of `baton up`, and is named with the deployment that has it."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
import pytest

from baton_local.__main__ import main
from baton_local.commands import up
from baton_local.fleet.record import RunRecord, TargetRecord
from baton_local.fleet.run_dir import base_directory, claimed, write_json
from baton_testing.engine import tiny_llama

TARGET = TargetRecord(0.5, 95)


def test_errors_of_the_model_and_of_the_name_come_before_the_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found: with the port taken, a missing folder and a second start of a model were refused for the port alone."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(up, "die_with_parent", lambda number: None)
    model = tmp_path / "model"
    model.symlink_to(tiny_llama.FOLDER)

    def refusal(*arguments: str) -> str:
        assert main(["up", *arguments, "--device", "cpu", "--port", str(port)]) == 2
        return capsys.readouterr().err

    with socket.create_server(("127.0.0.1", 0)) as taken, claimed(base_directory(), "default.chat") as run:
        port = taken.getsockname()[1]
        record = RunRecord(
            "chat", "default", 1, f"http://127.0.0.1:{port}", "chat", True, "", TARGET, TARGET, processes=()
        )
        write_json(run.record, msgspec.to_builtins(record))
        assert "no such folder: did you mean model?" in refusal(str(tmp_path / "modle"))
        assert "a model of the hub is hf://ORG/NAME" in refusal("ORG/NAME")
        assert "default.chat is already running" in refusal(str(model), "--served-name", "chat")
        assert "default.chat is already running" in refusal("hf://org/chat"), "before anything is fetched"
        other = refusal(str(model), "--served-name", "other")
        assert "Address already in use by default.chat (`baton down --name default.chat` stops it)" in other
        assert "Address already in use" in refusal("hf://org/other"), "before anything is fetched"
