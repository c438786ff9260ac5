"""Quality lost by keeping KV in float8 (e4m3): the trained model of `examples/tiny-llama` in bfloat16 on a GPU.

`python -m bench kv_precision`: greedy answers to 30 questions with a bfloat16 pool; the same tokens forced
with a float8 pool, decode step by decode step, give logit errors, agreement of the greatest logit and perplexity;
answers drawn freely with the float8 pool are compared as wholes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from baton_engine.memory.kv_pool import KvPool, kv_geometry
from baton_engine.model.loading import LoadedModel, load_model
from baton_kernels.kv.kv_scales import KV_FP8
from baton_testing.engine.model_steps import ModelSteps, chunk
from baton_testing.engine.tiny_llama import FOLDER, LONG_ANSWERS, chat_ids

STEPS = 120
BLOCK_TOKENS = 64
BLOCKS_PER_SLOT = 4


@dataclass(frozen=True, slots=True)
class Answers:
    tokens: Tensor
    """[questions, STEPS], those that went in."""
    logits: Tensor
    """[STEPS, questions, vocab] float32: logits for the token after each."""


def answer(loaded: LoadedModel, dtype: torch.dtype, forced: Tensor | None) -> Answers:
    """Prefill the questions, then STEPS decode steps of all, with the greatest logit's token or a forced one."""
    steps = ModelSteps(loaded, len(LONG_ANSWERS), BLOCK_TOKENS, BLOCKS_PER_SLOT)
    blocks = len(LONG_ANSWERS) * BLOCKS_PER_SLOT
    steps.pool = KvPool(kv_geometry(loaded.config, dtype, BLOCK_TOKENS), blocks, dtype, loaded.device)
    first = [steps.prefill(chunk(slot, chat_ids(question)))[-1] for slot, question in enumerate(LONG_ANSWERS)]
    logits = [torch.stack(first)]
    tokens: list[Tensor] = []
    for step in range(STEPS):
        tokens.append(logits[-1].argmax(-1) if forced is None else forced[:, step])
        logits.append(steps.decode(dict(enumerate(tokens[-1].tolist()))))
    return Answers(torch.stack(tokens, 1), torch.stack(logits[:-1]).float())


def perplexity(answers: Answers) -> float:
    """Perplexity of the tokens that went in."""
    chosen = answers.logits.log_softmax(-1).gather(-1, answers.tokens.t()[:, :, None])
    return float((-chosen.mean()).exp())


def main() -> None:
    loaded = load_model(FOLDER, torch.bfloat16, torch.device("cuda"))
    exact = answer(loaded, torch.bfloat16, None)
    forced = answer(loaded, KV_FP8, exact.tokens)
    free = answer(loaded, KV_FP8, None)
    error = (forced.logits - exact.logits).abs()
    spread = exact.logits.std(-1).mean()
    agreed = (forced.logits.argmax(-1) == exact.logits.argmax(-1)).float().mean()
    same = int((free.tokens == exact.tokens).all(1).sum())
    divergence = (exact.logits.softmax(-1) * (exact.logits.log_softmax(-1) - forced.logits.log_softmax(-1))).sum(-1)
    print(f"{len(LONG_ANSWERS)} questions x {STEPS} decode steps, bfloat16 model, float8 against bfloat16 KV:")
    print(f"logit error mean {error.mean():.4f}, greatest {error.max():.3f}; logits' standard deviation {spread:.2f}")
    print(f"KL divergence mean {divergence.mean():.2e}, greatest {divergence.max():.2e}")
    print(f"greatest logit agrees at {agreed:.4%} of steps; {same} of {len(LONG_ANSWERS)} free answers are the same")
    print(f"perplexity of the bfloat16 answers: {perplexity(exact):.5f}, with float8 {perplexity(forced):.5f}")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
