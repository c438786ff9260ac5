"""The runner on a GPU: captured decode steps against eager CPU steps, in float32, where both must draw the same ids."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
from msgspec.structs import replace

from baton_engine.memory.kv_pool import KvPool, kv_geometry
from baton_engine.model.loading import LoadedModel, load_model
from baton_engine.scheduling.step_plan import BlockCopy, StepPlan
from baton_kernels.kv.kv_scales import KV_FP8
from baton_testing.engine.model_steps import GREEDY, RunnerSteps, blocks_of, chunk, opened, updates
from baton_wire.kv_shape import Units
from baton_wire.messages.values import SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

DRAWN = replace(GREEDY, temperature=0.8, top_p=0.9, top_k=40, seed=11)
OPTIONS = {
    "greedy": GREEDY,
    "drawn": DRAWN,
    "penalised": replace(GREEDY, frequency_penalty=1.5, presence_penalty=0.5, repetition_penalty=1.3),
    "biased": replace(GREEDY, logit_bias=((7, 5.0), (9, -5.0))),
    "stops forbidden": replace(GREEDY, min_tokens=6, stop_token_ids=(3, 5)),
    "logprobs": replace(GREEDY, logprobs=3),
}
FAMILIES = ["llama-gqa", "qwen3", "mistral-window"]


def on_gpu(model: Any) -> LoadedModel:
    return load_model(model.directory, torch.float32, torch.device("cuda"))


def counted(steps: RunnerSteps, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every eager pass through the layers from now on."""
    seen: list[int] = []
    rows = steps.runner._slots.rows

    def rows_seen(*args: Any) -> Any:
        ids, metadata = rows(*args)
        seen.append(len(ids))
        return ids, metadata

    monkeypatch.setattr(steps.runner._slots, "rows", rows_seen)
    return seen


@pytest.mark.parametrize("sampling", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_captured_steps_draw_what_eager_cpu_steps_draw(
    tiny: Callable[[str], Any], family: str, sampling: SamplingParams
) -> None:
    model = tiny(family)
    expected = RunnerSteps(model.loaded).generate(model.tokens, 24, sampling)
    assert RunnerSteps(on_gpu(model)).generate(model.tokens, 24, sampling) == expected


def test_rows_of_a_batch_draw_what_they_draw_alone(tiny: Callable[[str], Any]) -> None:
    model = tiny("llama-gqa")
    alone = [RunnerSteps(model.loaded).generate(model.tokens[:n], 12) for n in (15, 16, 17)]
    steps = RunnerSteps(on_gpu(model))
    opens = [opened(slot, prompt=model.tokens[:n]) for slot, n in enumerate((15, 16, 17))]
    chunks = [chunk(slot, model.tokens[:n], sample=[slot]) for slot, n in enumerate((15, 16, 17))]
    results = [steps.execute(opens, chunks), *(steps.execute(decode=[2, 0, 1]) for _ in range(11))]
    for slot in range(3):
        assert [entry.ids[0] for result in results for entry in result.tokens if entry.slot == slot] == alone[slot]


def joined(steps: RunnerSteps, tokens: list[int], sampling: SamplingParams) -> dict[int, list[int]]:
    """Prompts come in pieces while others decode, several in a step, with a prefix in the pool or none."""
    ids: dict[int, list[int]] = {}

    def step(opens: Any = (), chunks: Any = (), decode: Any = ()) -> None:
        for entry in steps.execute(opens, chunks, decode).tokens:
            ids.setdefault(entry.slot, []).extend(entry.ids)

    def begin(slot: int, length: int) -> Any:
        return opened(slot, sampling, prompt=tokens[:length])

    step([begin(0, 15)], [chunk(0, tokens[:15], sample=[0])])
    step([begin(1, 33)], [chunk(1, tokens[:16])], [0])
    step([begin(2, 9)], [chunk(1, tokens[16:33], 16, sample=[1]), chunk(2, tokens[:9], sample=[2])], [0])
    step((), (), [2, 0, 1])
    step([begin(3, 40)], [chunk(3, tokens[:1])], [0, 1, 2])
    step((), [chunk(3, tokens[1:40], 1, sample=[3])], [1, 2, 0])
    for _ in range(6):
        step((), (), [0, 1, 2, 3])
    return ids


@pytest.mark.parametrize("sampling", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_captured_steps_with_prompts_draw_what_eager_cpu_steps_draw(
    tiny: Callable[[str], Any], family: str, sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(family)
    steps = RunnerSteps(on_gpu(model))
    eager = counted(steps, monkeypatch)
    expected = joined(RunnerSteps(model.loaded), list(model.tokens), sampling)
    assert joined(steps, list(model.tokens), sampling) == expected
    assert eager == []


def test_a_worker_that_only_prefills_draws_first_tokens_and_tells_of_layers(
    tiny: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """KV of reported layers is in the pool for a reader on another stream, while the step goes on."""
    from baton_engine.running import layer_notices, step_shapes

    monkeypatch.setattr(step_shapes, "PART_BYTES", 4_096)
    monkeypatch.setattr(layer_notices, "NOTICE_BYTES", 1)
    model = tiny("llama-gqa")
    expected = [RunnerSteps(model.loaded).generate(model.tokens[:n], 1) for n in (37, 5)]
    steps = RunnerSteps(on_gpu(model), decodes=False)
    eager = counted(steps, monkeypatch)
    layers = steps.pool.geometry.layers
    notices: list[tuple[int, torch.Tensor]] = []
    beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    everything = threading.Event()

    def tell(step: int, count: int) -> None:
        with torch.cuda.stream(beside):
            notices.append((count, steps.pool.tensor[:, :count].cpu()))
        if count == layers:
            everything.set()

    steps.runner.watch_layers(tell)
    prompts = [model.tokens[:37], model.tokens[:5]]
    chunks = [chunk(slot, prompt, sample=[slot]) for slot, prompt in enumerate(prompts)]
    result = steps.execute([opened(0), opened(1)], chunks)
    assert [list(entry.ids) for entry in result.tokens] == expected
    assert everything.wait(10)
    assert eager == []
    assert len(notices) == layers
    for count, seen in notices:
        assert torch.equal(seen.nan_to_num(), steps.pool.tensor[:, :count].cpu().nan_to_num())
    assert steps.execute(decode=[0, 1]).tokens
    assert eager == [2], "decode rows have no graph there"


def test_choices_of_one_prompt_share_blocks_and_part(tiny: Callable[[str], Any]) -> None:
    def run(steps: RunnerSteps) -> list[tuple[int, ...]]:
        prompt = model.tokens[:37]
        opens = [opened(slot, DRAWN, choice=slot, prompt=prompt) for slot in range(3)]
        first = steps.execute(opens, [chunk(0, prompt, sample=[0, 1, 2])])
        shared = blocks_of(0, 4, 8)
        forks = tuple(update for slot in (1, 2) for update in updates(slot, shared[:2]))
        copies = tuple(BlockCopy(shared[2], blocks_of(slot, 4, 8)[2]) for slot in (1, 2))
        results = [first, steps.runner.execute(StepPlan(2, blocks=forks, copies=copies, decode=(0, 1, 2)))]
        results += [steps.execute(decode=[2, 0, 1]) for _ in range(6)]
        return [entry.ids for result in results for entry in result.tokens]

    model = tiny("qwen3")
    assert run(RunnerSteps(on_gpu(model))) == run(RunnerSteps(model.loaded))


def test_a_sequence_returns_from_preemption_in_another_slot(tiny: Callable[[str], Any]) -> None:
    model = tiny("llama-gqa")
    steps = RunnerSteps(on_gpu(model))
    ids = RunnerSteps(model.loaded).generate(model.tokens, 16)
    steps.generate(model.tokens, 7)
    forced = [*model.tokens, *ids[:6]]
    again = opened(3, prompt=model.tokens, outputs=ids[:6])
    rest = [steps.execute([again], [chunk(3, forced, sample=[3])]), *(steps.execute(decode=[3]) for _ in range(9))]
    assert [result.tokens[0].ids[0] for result in rest] == ids[6:]


def test_a_step_launched_ahead_takes_its_token_from_the_device(tiny: Callable[[str], Any]) -> None:
    model = tiny("llama-gqa")
    expected = RunnerSteps(model.loaded).generate(model.tokens, 12)
    steps = RunnerSteps(on_gpu(model))
    steps.runner.launch(steps.plan([opened(0, prompt=model.tokens)], [chunk(0, model.tokens, sample=[0])]))
    ids = []
    for _ in range(11):
        steps.runner.launch(steps.plan(decode=[0]))
        ids.append(steps.runner.collect().tokens[0].ids[0])
    ids.append(steps.runner.collect().tokens[0].ids[0])
    assert ids == expected


def test_a_float8_pool_answers_like_float32_and_moves_like_any_other() -> None:
    """The trained model leads by 6 in logits at every step: 8 bits of KV must not change an answer."""
    from baton_engine.running.runner import ModelRunner
    from baton_testing.engine.tiny_llama import FOLDER, chat_ids, greedy

    loaded = load_model(FOLDER, torch.bfloat16, torch.device("cuda"))
    steps = RunnerSteps(loaded)
    steps.pool, other = (KvPool(kv_geometry(loaded.config, KV_FP8, 16), 32, KV_FP8, loaded.device) for _ in range(2))
    steps.runner = ModelRunner(loaded, steps.pool, 4)
    prompt = chat_ids("What is Baton?")
    assert steps.generate(list(prompt), 60) == list(greedy(prompt, 60).ids)

    whole = steps.pool.geometry.whole
    sent, landed = (Units(blocks, 16, 0, 8, whole) for blocks in (blocks_of(0, 4, 8), list(range(8))))
    stream = bytearray(8 * 16 * steps.pool.geometry.token_bytes)
    steps.pool.pack(sent, memoryview(stream))
    checksums = other.scatter(memoryview(stream), landed)
    assert checksums == steps.pool.checksums(sent) == other.checksums(landed)


def test_nothing_is_compiled_after_the_runner_is_there(
    tiny: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("llama-gqa")
    steps = RunnerSteps(load_model(model.directory, torch.bfloat16, torch.device("cuda")))
    compiled: list[str] = []
    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", lambda **entry: compiled.append(entry["repr"]))
    for length in (1, 15, 16, 17, 33, 61, 100):
        for sampling in (GREEDY, DRAWN):
            steps.generate((model.tokens * 4)[:length], 6, sampling)
            joining = [opened(1, sampling, prompt=model.tokens[:5])]
            steps.execute(joining, [chunk(1, model.tokens[:5], sample=[1])], decode=[0])
            steps.execute(closes=[0, 1])
    assert compiled == []
