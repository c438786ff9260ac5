"""How many workers other targets and loads would ask for, and where a file names types, what each would cost."""

from __future__ import annotations

from dataclasses import replace

from baton_control.sizing.decision.capacity import SimulatedSizer
from baton_control.sizing.inputs.mix import Mix
from baton_local.commands.simulated_file import SimulatedFile
from baton_local.commands.simulated_report import SimulatedRun
from baton_simulate.policies import mix_of
from baton_wire.messages.values import POOL_ROLES, Role

MULTIPLES = (0.5, 1.0, 2.0, 4.0)
"""Multiples of the load, or of a target."""
CELL = 16


def what_if(run: SimulatedRun) -> str:
    """A table: by type and cost where a file says what pools compute on, else by both pools together."""
    mix, rate_per_s = mix_of(run.workload), len(run.workload) / run.workload.duration_s
    return "\n".join(_of_pools(run, mix, rate_per_s) if run.file is None else _of_types(run.file, mix, rate_per_s))


def _of_pools(run: SimulatedRun, mix: Mix, rate_per_s: float) -> list[str]:
    lines = [
        f"workers (prefill + decode) and GPUs at {rate_per_s:.3g} req/s and multiples of it, steady",
        f"{'TTFT':>8} {'TPOT':>8} " + " ".join(f"{f'{scale:g}x':>14}" for scale in MULTIPLES),
    ]
    base = run.spec.targets
    for ttft, tpot in ((0.5, 0.5), (1.0, 1.0), (1.0, 2.0), (2.0, 1.0), (2.0, 2.0)):
        targets = replace(base, ttft_s=base.ttft_s * ttft, tpot_s=base.tpot_s * tpot)
        sizer = SimulatedSizer(run.model, targets)
        cells = []
        for scale in MULTIPLES:
            sizes = {role: sizer.required(role, mix, rate_per_s * scale) for role in POOL_ROLES}
            cells.append(_cell(sizes, run, sizer.reachable_share(Role.DECODE, mix) > 0))
        lines.append(
            f"{targets.ttft_s * 1000:6.0f}ms {targets.tpot_s * 1000:6.1f}ms "
            + " ".join(f"{cell:>14}" for cell in cells)
        )
    return lines


def _cell(sizes: dict[Role, int], run: SimulatedRun, is_reachable: bool) -> str:
    gpus = sum(sizes[role] * run.spec.bounds_of[role].accelerators for role in POOL_ROLES)
    if not is_reachable:
        return "unreachable"
    mark = "!" if run.spec.max_accelerators is not None and gpus > run.spec.max_accelerators else ""
    return f"{sizes[Role.PREFILL]}+{sizes[Role.DECODE]}={gpus}{mark}"


def _of_types(file: SimulatedFile, mix: Mix, rate_per_s: float) -> list[str]:
    lines = [
        f"workers and their cost an hour at {rate_per_s:.3g} req/s and multiples of it, steady; * the cheapest type",
        f"{'pool':<8} {'target':>12} {'type':<12} " + " ".join(f"{f'{scale:g}x':>{CELL}}" for scale in MULTIPLES),
    ]
    for role in POOL_ROLES:
        for scale in MULTIPLES[:3]:
            lines += _rows(file, role, scale, mix, rate_per_s)
    return lines


def _rows(file: SimulatedFile, role: Role, scale: float, mix: Mix, rate_per_s: float) -> list[str]:
    """Rows of one pool and target, one for each type."""
    spec, is_prefill = file.spec, role is Role.PREFILL
    targets, bounds = spec.targets, spec.bounds_of[role]
    targets = replace(
        targets,
        ttft_s=targets.ttft_s * (scale if is_prefill else 1.0),
        tpot_s=targets.tpot_s * (1.0 if is_prefill else scale),
    )
    cells_of: dict[str, list[tuple[int, float | None] | None]] = {}
    for kind in file.types(role):
        sizer = SimulatedSizer(kind.model, targets, max_workers=bounds.maximum + 1)
        price = None if kind.price is None else kind.price * max(1, bounds.accelerators)
        counts = [max(1, bounds.minimum, sizer.required(role, mix, rate_per_s * times)) for times in MULTIPLES]
        is_reachable = sizer.reachable_share(role, mix) > 0
        cells_of[kind.name] = [
            (count, None if price is None else count * price) if is_reachable and count <= bounds.maximum else None
            for count in counts
        ]
    least = [
        min((cell[1] for cell in column if cell is not None and cell[1] is not None), default=None)
        for column in zip(*cells_of.values(), strict=True)
    ]
    word = f"{'TTFT' if is_prefill else 'TPOT'} {1e3 * targets.limit_s(role):.4g}ms"
    rows = []
    for name, cells in cells_of.items():
        texts = [
            "too few or slow" if cell is None else _priced(*cell, best) for cell, best in zip(cells, least, strict=True)
        ]
        rows.append(f"{role.value:<8} {word:>12} {name:<12} " + " ".join(f"{text:>{CELL}}" for text in texts))
    return rows


def _priced(count: int, cost: float | None, best: float | None) -> str:
    return f"{count} " if cost is None else f"{count} at {cost:.4g}{'*' if cost == best else ' '}"
