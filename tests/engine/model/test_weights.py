"""Checkpoints: shards, casts, harmless extras, the hash; and every way in which a directory can be wrong."""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton_engine.model import checkpoint_files
from baton_engine.model.checkpoint_files import content_hash
from baton_engine.model.errors import WeightsError
from baton_engine.model.loading import LoadedModel, load_model
from baton_testing.engine.model_steps import ModelSteps, chunk
from baton_testing.engine.models import edit_config, reference_logits, write_random_model
from baton_wire.models.config_fields import JsonObject
from baton_wire.models.errors import ModelConfigError, ModelError

CPU = torch.device("cpu")
TOKENS = list(range(3, 30))
Tensors = dict[str, torch.Tensor]
INDEX = "model.safetensors.index.json"


@pytest.fixture
def directory(tiny: Callable[[str], Any], tmp_path: Path) -> Path:
    """A copy of a model directory that a test may spoil."""
    return Path(shutil.copytree(tiny("llama-gqa").directory, tmp_path / "model"))


def load(source: Path | str) -> LoadedModel:
    return load_model(source, torch.float32, CPU)


def logits_of(source: Path | str) -> torch.Tensor:
    return ModelSteps(load(source)).prefill(chunk(0, TOKENS))


def edit_tensors(directory: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def shard(directory: Path, count: int = 3) -> dict[str, str]:
    """Split model.safetensors into shards with an index; returns the index's map."""
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    places = {name: f"part-{place % count}.safetensors" for place, name in enumerate(sorted(tensors))}
    for file in set(places.values()):
        save_file({name: tensors[name] for name in tensors if places[name] == file}, directory / file)
    write_index(directory, places)
    return places


def write_index(directory: Path, places: object) -> None:
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def test_shards_with_an_index_are_the_same_model(directory: Path) -> None:
    whole = logits_of(directory)
    shard(directory)
    assert torch.equal(logits_of(directory), whole)


def test_the_only_file_is_the_model_whatever_its_name(directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    (copy / "model.safetensors").rename(copy / "gptq_model-4bit-128g.safetensors")
    (copy / "consolidated.safetensors").write_bytes(b"another layout")
    (copy / "adapter_model.safetensors").write_bytes(b"no model")
    assert load_model(copy, torch.float32, CPU).model_hash == load_model(directory, torch.float32, CPU).model_hash


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_are_cast_to_the_dtype_that_is_asked_for(dtype: torch.dtype, directory: Path) -> None:
    edit_tensors(directory, lambda tensors: tensors.update({name: t.to(dtype) for name, t in tensors.items()}))
    loaded = load(directory)
    assert loaded.model.embedding.dtype == torch.float32
    rounded = load_file(directory / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(loaded.model.embedding, rounded.float())


def test_a_model_is_loaded_before_its_files_are_hashed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading does not wait for the hash; reading the hash does."""
    whole = load(directory).model_hash
    may_hash = threading.Event()

    def late(config: JsonObject, paths: tuple[Path, ...]) -> str:
        assert may_hash.wait(60)
        return content_hash(config, paths)

    monkeypatch.setattr(checkpoint_files, "content_hash", late)
    loaded = load(directory)
    assert not loaded.content.is_known
    may_hash.set()
    assert loaded.model_hash == whole


def test_a_file_that_goes_away_while_it_is_hashed_is_told(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(config: JsonObject, paths: tuple[Path, ...]) -> str:
        raise FileNotFoundError(paths[0])

    monkeypatch.setattr(checkpoint_files, "content_hash", gone)
    loaded = load(directory)
    with pytest.raises(WeightsError, match=r"model\.safetensors"):
        _ = loaded.model_hash


def test_an_old_layout_of_rope_options_gives_the_same_logits(tmp_path: Path) -> None:
    directory = write_random_model(tmp_path, "llama-llama3-rope")
    new = logits_of(directory)
    config = json.loads((directory / "config.json").read_text())
    rope = config.pop("rope_parameters")
    theta = rope.pop("rope_theta")
    (directory / "config.json").write_text(json.dumps({**config, "rope_theta": theta, "rope_scaling": rope}))
    assert torch.equal(logits_of(directory), new)


def test_harmless_extra_tensors_are_passed_over(tmp_path: Path, tiny: Callable[[str], Any]) -> None:
    tied = tiny("llama-tied")
    directory = Path(shutil.copytree(tied.directory, tmp_path / "model"))
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6)}
    edit_tensors(directory, lambda tensors: tensors.update(buffer))
    embedding = load_file(directory / "model.safetensors")["model.embed_tokens.weight"].bfloat16()
    edit_tensors(directory, lambda tensors: tensors.update({"lm_head.weight": embedding}))
    torch.testing.assert_close(logits_of(directory), reference_logits(tied.reference, TOKENS), rtol=0, atol=1e-4)


@pytest.mark.parametrize("change", [lambda head: head * 2, lambda head: head[:-1]])
def test_a_head_that_is_not_the_embedding_is_refused_where_the_config_says_that_it_is(
    change: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path, tiny: Callable[[str], Any]
) -> None:
    directory = Path(shutil.copytree(tiny("llama-tied").directory, tmp_path / "model"))
    head = change(load_file(directory / "model.safetensors")["model.embed_tokens.weight"])
    edit_tensors(directory, lambda tensors: tensors.update({"lm_head.weight": head}))
    with pytest.raises(WeightsError, match=r"lm_head\.weight: is not model\.embed_tokens.*tie_word_embeddings: false"):
        load_model(directory, torch.float32, CPU)


def test_the_default_dtype_is_float32_on_a_cpu(directory: Path) -> None:
    assert load_model(directory, None, CPU).dtype == torch.float32


def test_the_hash_depends_on_weights_and_config_but_not_on_who_wrote_them(directory: Path) -> None:
    first = load(directory).model_hash
    assert len(first) == 64
    edit_config(directory, transformers_version="9.9", _name_or_path="elsewhere")
    assert load(directory).model_hash == first
    edit_config(directory, rms_norm_eps=1e-3)
    second = load(directory).model_hash
    assert second != first
    path = directory / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert load(directory).model_hash not in (first, second)


def test_a_loaded_model_does_not_depend_on_its_files(directory: Path) -> None:
    loaded = load(directory)
    before = ModelSteps(loaded).prefill(chunk(0, TOKENS))
    (directory / "model.safetensors").write_bytes(b"")
    assert torch.equal(ModelSteps(loaded).prefill(chunk(0, TOKENS)), before)


def test_random_weights_need_only_a_config(directory: Path) -> None:
    source = f"random://{directory / 'config.json'}?seed=5"
    (directory / "model.safetensors").unlink()
    first, again, other = load(source), load(source), load(source.replace("=5", "=6"))
    assert torch.equal(first.model.embedding, again.model.embedding)
    assert not torch.equal(first.model.embedding, other.model.embedding)
    assert first.model_hash == again.model_hash != other.model_hash
    assert ModelSteps(first).prefill(chunk(0, TOKENS)).isfinite().all()


def test_rope_tables_are_as_long_as_the_context_that_is_asked_for(directory: Path) -> None:
    assert load_model(directory, None, CPU, 100).model.ropes[0].cos.shape[0] == 100
    assert load(directory).max_context_tokens == 256
    for asked in (0, 257):
        with pytest.raises(ModelConfigError, match=f"max_context_tokens: {asked}.*1 to 256"):
            load_model(directory, None, CPU, asked)


# What is wrong with a directory
# --------------------------------------------------------------------------------------


def drop(name: str) -> Callable[[Path], object]:
    return lambda directory: edit_tensors(directory, lambda tensors: tensors.pop(name))


def put(name: str, tensor: torch.Tensor) -> Callable[[Path], object]:
    return lambda directory: edit_tensors(directory, lambda tensors: tensors.update({name: tensor}))


def truncate(directory: Path) -> None:
    path = directory / "model.safetensors"
    os.truncate(path, path.stat().st_size - 100)


def rewrite_header(directory: Path) -> None:
    """A header that says it is longer than the file."""
    path = directory / "model.safetensors"
    path.write_bytes((1 << 40).to_bytes(8, "little") + path.read_bytes()[8:])


def only(name: str) -> Callable[[Path], object]:
    """Replace the weights by a file of another kind."""

    def change(directory: Path) -> None:
        (directory / "model.safetensors").unlink()
        (directory / name).write_bytes(b"\x80\x04cos\nsystem\n")

    return change


def index_naming(shard_name: object) -> Callable[[Path], object]:
    def change(directory: Path) -> None:
        places = shard(directory)
        write_index(directory, {**places, "lm_head.weight": shard_name})

    return change


def place_elsewhere(directory: Path) -> None:
    """The index says that a tensor is in another shard than it is."""
    places = shard(directory, count=2)
    other = {"part-0.safetensors": "part-1.safetensors", "part-1.safetensors": "part-0.safetensors"}
    write_index(directory, {**places, "lm_head.weight": other[places["lm_head.weight"]]})


def forget_in_index(directory: Path) -> None:
    places = shard(directory)
    places.pop("lm_head.weight")
    write_index(directory, places)


def name_absent_tensor(directory: Path) -> None:
    write_index(directory, {**shard(directory), "model.norm.bias": "part-0.safetensors"})


def duplicate_tensor(directory: Path) -> None:
    places = shard(directory, count=2)
    tensors = {file: load_file(directory / file) for file in ("part-0.safetensors", "part-1.safetensors")}
    home = places["lm_head.weight"]
    for file, content in tensors.items():
        save_file({**content, "lm_head.weight": tensors[home]["lm_head.weight"].clone()}, directory / file)


def shard_link_out(directory: Path) -> None:
    places = shard(directory)
    outside = directory.parent / "outside.safetensors"
    shutil.move(directory / "part-0.safetensors", outside)
    (directory / "part-0.safetensors").symlink_to(outside)
    assert "part-0.safetensors" in places.values()


def single_link_out(directory: Path) -> None:
    outside = directory.parent / "outside.safetensors"
    shutil.move(directory / "model.safetensors", outside)
    (directory / "model.safetensors").symlink_to(outside)


def renamed(name: str) -> Callable[[Path], object]:
    return lambda directory: (directory / "model.safetensors").rename(directory / name)


def two_files(directory: Path) -> None:
    shutil.copyfile(directory / "model.safetensors", directory / "b.safetensors")
    renamed("a.safetensors")(directory)


def other_name_linked_out(directory: Path) -> None:
    outside = directory.parent / "outside.safetensors"
    shutil.move(directory / "model.safetensors", outside)
    (directory / "a.safetensors").symlink_to(outside)


def index_with(content: object) -> Callable[[Path], object]:
    def change(directory: Path) -> None:
        shard(directory)
        (directory / INDEX).write_text(json.dumps(content))

    return change


Q = "model.layers.1.self_attn.q_proj.weight"
BAD: list[tuple[str, Callable[[Path], object], type[ModelError], str]] = [
    ("missing tensor", drop(Q), WeightsError, f"missing tensors: {Q}"),
    ("missing head", drop("lm_head.weight"), WeightsError, "missing tensors: lm_head.weight"),
    ("missing many", lambda d: edit_config(d, num_hidden_layers=9), WeightsError, "missing tensors.* and 48 more"),
    ("extra tensor", put("model.layers.0.extra", torch.ones(2)), WeightsError, "does not have: model.layers.0.extra"),
    ("extra bias", put(Q.replace("weight", "bias"), torch.ones(48)), WeightsError, "does not have.*q_proj.bias"),
    ("extra layers", lambda d: edit_config(d, num_hidden_layers=2), WeightsError, "does not have.*layers.2"),
    ("misshaped", put(Q, torch.ones(48, 47)), WeightsError, rf"tensor {Q}: shape \[48, 47\].*asks for \[128, 48\]"),
    ("transposed", put("lm_head.weight", torch.ones(48, 199)), WeightsError, r"lm_head.weight: shape \[48, 199\]"),
    ("integers", put(Q, torch.ones(128, 48, dtype=torch.int8)), WeightsError, f"{Q}: has dtype I8; allowed: F32"),
    ("other vocabulary", lambda d: edit_config(d, vocab_size=200), WeightsError, r"embed_tokens.*asks for \[200, 48\]"),
    ("truncated", truncate, WeightsError, "model.safetensors: is not a whole safetensors file"),
    ("long header", rewrite_header, WeightsError, "model.safetensors: is not a whole safetensors file"),
    ("empty file", lambda d: (d / "model.safetensors").write_bytes(b""), WeightsError, "not a whole safetensors file"),
    ("pickled bin", only("pytorch_model.bin"), WeightsError, "only safetensors.*pytorch_model.bin"),
    ("pickled pt", only("model.pt"), WeightsError, "only safetensors.*model.pt"),
    ("gguf", only("model.gguf"), WeightsError, "model.gguf: GGUF is not read.*safetensors"),
    ("no weights", lambda d: (d / "model.safetensors").unlink(), WeightsError, "no weights: neither model.safetensors"),
    ("two other names", two_files, WeightsError, "found a.safetensors, b.safetensors"),
    ("a shard alone", renamed("model-00001-of-00002.safetensors"), WeightsError, "found model-00001-of"),
    ("Mistral's layout alone", renamed("consolidated.safetensors"), WeightsError, "found consolidated.safetensors"),
    ("one other name, linked out", other_name_linked_out, WeightsError, "a.safetensors: is a link.*outside"),
    ("missing shard", index_naming("part-9.safetensors"), WeightsError, "part-9.safetensors: named by.*but missing"),
    ("shard above", index_naming("../part.safetensors"), WeightsError, "part.safetensors'.*refused"),
    ("absolute shard", index_naming("/tmp/part.safetensors"), WeightsError, "part.safetensors'.*refused"),
    ("shard of pickles", index_naming("part.bin"), WeightsError, "part.bin.*only safetensors"),
    ("shard as number", index_naming(3), WeightsError, "weight_map.*3 is refused"),
    ("shard linked out", shard_link_out, WeightsError, "part-0.safetensors: is a link.*outside"),
    ("file linked out", single_link_out, WeightsError, "model.safetensors: is a link.*outside"),
    ("wrong shard", place_elsewhere, WeightsError, "holds tensor lm_head.weight.*does not place there"),
    ("forgotten in index", forget_in_index, WeightsError, "holds tensor lm_head.weight.*does not place there"),
    ("absent tensor", name_absent_tensor, WeightsError, "lacks tensors.*model.norm.bias"),
    ("tensor twice", duplicate_tensor, WeightsError, "lm_head.weight"),
    ("index without map", index_with({}), WeightsError, "weight_map must be"),
    ("index with list", index_with({"weight_map": ["a"]}), WeightsError, "weight_map must be"),
    ("index as list", index_with([]), ModelConfigError, "must hold a JSON object"),
    ("no directory", lambda d: shutil.rmtree(d), ModelError, "no such model directory"),
    ("no config", lambda d: (d / "config.json").unlink(), ModelConfigError, "config.json: cannot be read"),
    ("custom code", lambda d: edit_config(d, auto_map={"AutoConfig": "x.Y"}), ModelConfigError, "auto_map"),
]


@pytest.mark.parametrize(("spoil", "error", "message"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_a_spoilt_directory_is_refused(
    spoil: Callable[[Path], object], error: type[ModelError], message: str, directory: Path
) -> None:
    spoil(directory)
    with pytest.raises(error, match=message):
        load(directory)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "name", ["model.embed_tokens.weight", "model.norm.weight", "model.layers.1.mlp.up_proj.weight", "lm_head.weight"]
)
def test_weights_that_are_no_numbers_are_refused_by_name(
    name: str, dtype: torch.dtype, value: float, directory: Path
) -> None:
    def spoil(tensors: Tensors) -> None:
        tensors[name] = tensors[name].to(dtype)
        tensors[name].view(-1)[7] = value

    edit_tensors(directory, spoil)
    with pytest.raises(WeightsError, match=rf"^tensor {name}: holds an infinity or no number; allowed: finite"):
        load(directory)


@pytest.mark.parametrize("query", ["?seed=-1", "?seed=x", "?sed=1", "?seed=1&seed=2", "?seed="])
def test_a_random_source_with_other_options_is_refused(query: str, directory: Path) -> None:
    with pytest.raises(ModelError, match="allowed: random://"):
        load(f"random://{directory / 'config.json'}{query}")


def test_no_damage_to_a_header_gets_past_the_loader(directory: Path) -> None:
    """Every mutated file is either refused as a model error or still the whole model."""
    path = directory / "model.safetensors"
    good = path.read_bytes()
    header_bytes = 8 + int.from_bytes(good[:8], "little")
    chooser = random.Random(0)
    refused = 0
    for _ in range(150):
        damaged = bytearray(good)
        for _ in range(chooser.randint(1, 3)):
            damaged[chooser.randrange(header_bytes)] = chooser.randrange(256)
        path.write_bytes(damaged)
        try:
            loaded = load(directory)
        except ModelError:
            refused += 1
        else:
            assert loaded.model.embedding.shape == (199, 48)
    assert refused > 100
