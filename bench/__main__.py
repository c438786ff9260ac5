"""All benchmarks, one after another: `python -m bench`. Each also runs alone: `python -m bench.engine_speed`."""

from __future__ import annotations

from bench import disaggregation, engine_speed, gateway_cost, transfer


def main() -> None:
    gateway_cost.run()
    transfer.run()
    disaggregation.run(("tiny", "100m"), disaggregation.ROUNDS)
    engine_speed.run(("tiny", "100m"), engine_speed.ROUNDS, threads=1)  # last: it pins this process to one core


if __name__ == "__main__":
    main()
