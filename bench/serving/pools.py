"""Pools that the serving benches start or predict: workers by role, the GPU of each, and which of them a mode uses."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from baton_wire.messages.values import Role


@dataclass(frozen=True, slots=True)
class Pools:
    """Numbers of workers by role. Mode `never` has as many workers, all of which decode."""

    prefill: int
    decode: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """`2+1`: two prefill workers and one decode worker. Raises argparse.ArgumentTypeError."""
        prefill, plus, decode = text.partition("+")
        if not plus or not prefill.isdigit() or not decode.isdigit() or not int(prefill) or not int(decode):
            raise argparse.ArgumentTypeError(f"{text!r} is not P+D with a worker of each role, such as 2+1")
        return cls(int(prefill), int(decode))

    @property
    def workers(self) -> int:
        return self.prefill + self.decode

    @property
    def letters(self) -> tuple[str, ...]:
        """Names of the workers in columns: P and D, with a number where a role has several."""
        return (*_numbered("P", self.prefill), *_numbered("D", self.decode))

    def roles(self, mode: str) -> tuple[Role, ...]:
        if mode == "never":
            return (Role.DECODE,) * self.workers
        return (Role.PREFILL,) * self.prefill + (Role.DECODE,) * self.decode

    def gpu_of(self, mode: str, gpus: Sequence[str]) -> dict[str, str]:
        """The GPU of each worker that this mode uses, by the names that `Deployment` gives."""
        decode = self.workers if mode == "never" else self.decode
        names = [f"prefill-{number}" for number in range(self.workers - decode)]
        names += [f"decode-{number}" for number in reversed(range(decode))]
        if len(gpus) < len(names):
            raise ValueError(f"{len(names)} workers have {len(gpus)} GPUs: each needs one")
        return dict(zip(names, gpus, strict=False))


ONE_EACH: Final = Pools(1, 1)


def shown_workers(mode: str, gpu_of: Mapping[str, str]) -> frozenset[str]:
    """Workers that a mode uses: without `never` no decode worker that shares a prefill worker's GPU."""
    prefill_gpus = {gpu for name, gpu in gpu_of.items() if name.startswith("prefill")}
    return frozenset(
        name
        for name, gpu in gpu_of.items()
        if (mode != "never" and name.startswith("prefill"))
        or (name.startswith("decode") and (mode == "never" or gpu not in prefill_gpus))
    )


def worker_letters(roles: Sequence[str]) -> tuple[str, ...]:
    """Names of workers in columns, in their order: P is the first of two that decode, too."""
    first = sum(role == "prefill" for role in roles) or len(roles) - 1
    return (*_numbered("P", first), *_numbered("D", len(roles) - first))


def _numbered(letter: str, count: int) -> tuple[str, ...]:
    return (letter,) if count == 1 else tuple(f"{letter}{number}" for number in range(count))
