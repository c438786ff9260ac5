"""Both machines against peers that say anything at any time: no crash, no leak, one end for each beginning."""

from __future__ import annotations

from collections import Counter

import pytest

from baton_testing.kv_transfer.machine_fuzz import DecodeFuzz, PrefillFuzz

RUNS, STEPS = 150, 120


@pytest.mark.parametrize("fuzz", [PrefillFuzz, DecodeFuzz])
def test_anything_at_any_time_leaves_nothing_behind(fuzz: type[PrefillFuzz] | type[DecodeFuzz]) -> None:
    for seed in range(RUNS):
        world = fuzz(seed)
        try:
            for _ in range(STEPS):
                world.step()
            world.finish()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


def test_the_fuzz_reaches_every_state_and_both_kinds_of_end() -> None:
    prefill: Counter[str] = Counter()
    decode: Counter[str] = Counter()
    for seed in range(60):
        p, d = PrefillFuzz(seed), DecodeFuzz(seed)
        for _ in range(STEPS):
            p.step()
            d.step()
            prefill.update({state: count for state, count in p.machine.stats().by_state.items() if count})
            decode.update({state: count for state, count in d.machine.stats().by_state.items() if count})
        prefill.update(p.machine.stats().ended)
        decode.update(d.machine.stats().ended)
    assert {"linking", "ungranted", "sending", "sealed", "closing", "done", "cancelled"} <= set(prefill)
    assert {"queued", "linking", "waiting", "granted", "sealed", "closing", "landed", "kv_corrupt"} <= set(decode)
