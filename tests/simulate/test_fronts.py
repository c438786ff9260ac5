"""The fronts on rows whose answers are worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bench.sizing.front_numbers import (
    Case,
    Point,
    beside_cheapest,
    beside_fixed,
    beside_fixed_days,
    beside_peers,
    cases,
    front,
    kept_where_possible,
    misses_at,
    numbers,
    with_flips,
)
from bench.sizing.front_report import document, tables
from bench.sizing.front_rows import FIXED, Row, append, read
from bench.sizing.front_runs import VALUES, Cell, fixed_pools, play_cell

from baton_simulate.policies import KNOBS, PEERS

ROW = Row("test", "a", 1800.0, 1, 60.0, "slo", "", 0.01, 0.0, 0.01, 4.0, 3)


def points(*pairs: tuple[float, float]) -> list[Point]:
    return [Point(hours, misses, misses <= 0.05) for hours, misses in pairs]


def test_a_front_leaves_out_what_a_cheaper_run_keeps_as_well() -> None:
    line = front(points((5.0, 0.02), (4.0, 0.06), (6.0, 0.02), (7.0, 0.03), (8.0, 0.01)))
    assert [point.gpu_hours for point in line] == [4.0, 5.0, 8.0]


def test_between_two_runs_the_logarithm_of_misses_is_a_line() -> None:
    line = points((4.0, 0.159), (6.0, 0.009))
    assert misses_at(line, 5.0) == pytest.approx((0.16 * 0.01) ** 0.5 - 0.001)
    assert misses_at(line, 4.0) == pytest.approx(0.159)


def test_more_money_than_the_dearest_run_buys_nothing_and_less_than_the_cheapest_has_no_answer() -> None:
    line = points((4.0, 0.1), (6.0, 0.02))
    assert misses_at(line, 60.0) == 0.02
    assert misses_at(line, 3.9) is None


def test_between_two_sizes_of_a_fixed_pool_there_is_nothing() -> None:
    assert misses_at(points((4.0, 0.1), (6.0, 0.02)), 5.9, is_whole=True) == 0.1


def _case(seconds: float = 1800.0, **by_policy: list[Point]) -> Case:
    return Case("a", 60.0, seconds, by_policy)


def test_the_best_peer_is_taken_at_our_cost_and_who_knows_the_load_is_none() -> None:
    case = _case(
        slo=points((5.0, 0.019)),
        plain=points((4.0, 0.2), (5.0, 0.039)),
        apa=points((4.0, 0.3), (9.0, 0.0)),
        oracle=points((3.0, 0.0)),
        fixed=points((5.0, 0.0)),
    )
    assert beside_peers(case) == pytest.approx(0.02 / 0.04)
    assert beside_peers(_case(slo=points((5.0, 0.019)), apa=points((6.0, 0.0)))) is None


def test_the_best_fixed_pool_counts_on_loads_under_an_hour_alone() -> None:
    own, fixed = points((5.0, 0.029)), points((4.0, 0.009), (6.0, 0.0))
    assert beside_fixed(_case(slo=own, fixed=fixed)) == pytest.approx(0.03 / 0.01)
    assert beside_fixed(_case(3600.0, slo=own, fixed=fixed)) is None


def test_flips_are_compared_at_what_starts_and_stops_cost() -> None:
    case = Case("a", 60.0, 1800.0, {"slo": points((6.0, 0.039)), "slo-flips": points((5.0, 0.049), (6.0, 0.019))})
    assert with_flips(case) == pytest.approx(0.02 / 0.04)
    assert with_flips(_case(slo=points((6.0, 0.04)))) is None


def test_the_cheapest_has_to_keep_both_percentiles_and_so_do_we() -> None:
    apa, fixed, oracle = points((3.0, 0.06), (4.5, 0.04)), points((4.0, 0.05)), points((1.0, 0.0))
    case = _case(slo=points((5.0, 0.02)), apa=apa, fixed=fixed, oracle=oracle)
    assert beside_cheapest(case) == pytest.approx(5.0 / 4.0)
    assert beside_cheapest(_case(slo=points((5.0, 0.06)), apa=apa, fixed=fixed)) is None


def test_a_day_is_compared_with_the_smallest_fixed_pool_that_is_as_good() -> None:
    own, fixed = points((6.0, 0.02)), points((8.0, 0.03), (12.0, 0.02), (16.0, 0.0))
    assert beside_fixed_days(_case(86_400.0, slo=own, fixed=fixed)) == pytest.approx(0.5)
    assert beside_fixed_days(_case(7200.0, slo=own, fixed=fixed)) is None


def _rows() -> list[Row]:
    own = [replace(ROW, seed=seed, misses=misses, ttft=misses) for seed, misses in ((1, 0.009), (2, 0.029))]
    peer = [replace(row, policy="apa", misses=0.039, ttft=0.039) for row in own]
    return [*own, *peer, *(replace(row, policy="oracle", ttft=0.0, misses=0.0, gpu_hours=3.0) for row in own)]


def test_points_are_means_over_seeds() -> None:
    (case,) = cases(_rows())
    assert case.ours is not None
    assert case.ours.misses == pytest.approx(0.019)
    (once,) = cases(_rows(), lambda seeds: [2 for _ in seeds])
    assert once.ours is not None
    assert once.ours.misses == pytest.approx(0.029)


def test_a_size_that_one_seed_alone_tried_is_no_point() -> None:
    fixed = [replace(ROW, policy=FIXED, knob="2+1", gpu_hours=2.0, seed=seed) for seed in (1, 2)]
    (case,) = cases([*_rows(), *fixed, replace(fixed[0], knob="1+1", gpu_hours=1.0)])
    assert [point.knob for point in case.points[FIXED]] == ["2+1"]


def test_a_load_that_mode_slo_was_not_played_on_is_left_out() -> None:
    (case,) = cases([*_rows(), replace(ROW, policy="plain", load="b")])
    assert case.load == "a"


def test_numbers_hold_a_mean_its_interval_over_seeds_and_the_worst_load() -> None:
    other = [replace(row, load="b", misses=0.079 if row.policy == "slo" else row.misses) for row in _rows()]
    number = numbers([*_rows(), *other])["misses, over the best tuned peer at the same GPU-hours"]
    assert number.loads == 2
    assert number.worst == pytest.approx(0.08 / 0.04)
    assert number.mean == pytest.approx((0.5 * 2.0) ** 0.5)
    assert number.low == pytest.approx((0.25 * 2.0) ** 0.5)
    assert number.high == pytest.approx((0.75 * 2.0) ** 0.5)


def test_runs_count_where_the_oracle_keeps_both() -> None:
    bad = replace(ROW, load="b", ttft=0.2)
    assert kept_where_possible([*_rows(), bad, replace(bad, policy="oracle")]) == (2, 2)
    assert kept_where_possible([*_rows(), bad, replace(bad, policy="oracle", ttft=0.0)]) == (2, 3)


def test_rows_come_back_from_the_table_and_what_is_there_is_not_played_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    assert read(path) == []
    append(path, _rows()[:1])
    append(path, _rows()[1:])
    assert read(path) == _rows()
    cell = Cell("development", "heavy tails", 1, 60.0)
    done = {(cell.load, 1, 60.0, policy, "" if knob is None else f"{knob:g}") for policy, knob in cell.runs()}
    done.add((cell.load, 1, 0.0, FIXED, ""))
    assert play_cell(cell, tmp_path, frozenset(done)) == []


def test_fixed_pools_are_tried_around_the_fewest_decode_workers_and_until_nobody_is_late() -> None:
    def one(prefill: int, decode: int) -> Row:
        ttft = max(0.0, 0.3 - 0.1 * prefill)
        tpot = 0.0 if decode >= 3 else 0.4
        return replace(ROW, policy=FIXED, knob=f"{prefill}+{decode}", ttft=ttft, tpot=tpot)

    tried = [row.knob for row in fixed_pools(one, 2, 0.05)]
    assert tried == ["2+2", "3+2", "2+3", "3+3", "2+4", "3+4"]


def test_every_peer_is_played_over_its_knob() -> None:
    assert set(VALUES) - {FIXED, "oracle"} <= set(KNOBS)
    assert set(VALUES) >= set(PEERS) - {"hpa-kv"}
    assert all(values[0] is None for values in VALUES.values()), "the default comes first"


def test_the_report_names_the_goal_beside_each_number() -> None:
    text = tables(_rows(), "test")
    assert "| a | 60 s | 2 | 0.0 @ 3.00 | 1.9 @ 4.00 | 3.9 (apa) |" in text
    assert "2 of 2 runs" in text
    assert set(document(_rows())) == {"test"}
