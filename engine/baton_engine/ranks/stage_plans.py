"""The part of a plan that the stages of a pipeline carry out. Pure."""

from __future__ import annotations

from dataclasses import replace

from baton_engine.scheduling.step_plan import StepPlan


def check_plan(plan: StepPlan) -> None:
    """Raises RuntimeError for a plan that stages cannot carry out: a decode row needs the token that the last stage has
    drawn, and the blocks that a fork copies hold the layers of every stage."""
    if plan.decode or plan.copies:
        raise RuntimeError(f"step {plan.step}: decode rows and forks are not for the stages of a prefill worker")
    if any(chunk.encoding is not None for chunk in plan.prefill):
        raise RuntimeError(f"step {plan.step}: encoded prompts are not for the stages of a prefill worker")


def without_draws(plan: StepPlan) -> StepPlan:
    """The plan for a stage that has no head: the same rows, of which none is drawn from or scored."""
    computed = [
        replace(chunk, sample=(), targets=(), alternatives=0, keeps=False) for chunk in plan.prefill if chunk.tokens
    ]
    return replace(plan, prefill=tuple(computed))
