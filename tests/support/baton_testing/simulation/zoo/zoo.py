"""The bug zoo: every faulty variant, the part that it replaces, the worlds in which it shows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from baton_testing.simulation.process import Violation
from baton_testing.simulation.scenario import Fault, Scenario, scenario
from baton_testing.simulation.world import GENTLE, Parts, SimWorld
from baton_testing.simulation.zoo import engine, flips, keeper, links, transfer

MOST_SEEDS = 60


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect put back. `parts` names what replaces what; `shape` and `only` make worlds in which it matters."""

    rows: str
    """Rows of the failures in docs/simulation.md."""
    defect: Any
    parts: tuple[str, ...]
    first: int = 0
    """Seed from which on it is looked for: where it was last caught, so that no world is run in vain."""
    shape: dict[str, Any] = field(default_factory=dict)
    only: frozenset[Fault] | None = None
    structured: float = 0.0
    """Share of the requests that follow a grammar."""
    flexible: float = 0.0
    """Share of the worlds whose workers flip."""

    @property
    def name(self) -> str:
        return str(self.defect.__name__)

    def world(self, seed: int) -> SimWorld:
        return SimWorld(self.scenario(seed), self.built())

    def built(self) -> Parts:
        changes: dict[str, Any] = dict.fromkeys(self.parts, self.defect)
        return replace(Parts(), **changes)

    def scenario(self, seed: int) -> Scenario:
        plan = scenario(seed, self.structured, self.flexible)
        plan = replace(plan, shape=replace(plan.shape, **self.shape))
        if self.only is None:
            return plan
        dropped = (place for place, fault in enumerate(plan.faults) if fault.kind not in self.only)
        return plan.without(faults=frozenset(dropped))


@dataclass(frozen=True, slots=True)
class Catch:
    seed: int
    violation: Violation


def hunt(mutant: Mutant, seeds: int = MOST_SEEDS) -> tuple[Catch | None, list[str]]:
    """The first violation of an invariant, and what broke in another way before (a crash is no catch)."""
    crashes: list[str] = []
    for seed in range(mutant.first, mutant.first + seeds):
        try:
            mutant.world(seed).run()
        except Violation as violation:
            return Catch(seed, violation), crashes
        except Exception as error:  # noqa: BLE001 - whatever a defect breaks besides
            crashes.append(f"{type(error).__name__}: {error}")
    return None, crashes


def _prefill(rows: str, defect: Any, **more: Any) -> Mutant:
    return Mutant(rows, defect, ("prefill_handovers",), **more)


def _decode(rows: str, defect: Any, **more: Any) -> Mutant:
    return Mutant(rows, defect, ("decode_handovers",), **more)


def _keeper(rows: str, defect: Any, **more: Any) -> Mutant:
    return Mutant(rows, defect, ("keeper",), **more)


def _scheduler(rows: str, defect: Any, **more: Any) -> Mutant:
    return Mutant(rows, defect, ("prefill_scheduler", "decode_scheduler"), **more)


def _life(rows: str, defect: Any, **more: Any) -> Mutant:
    return Mutant(rows, defect, ("life",), **more)


def _flexible(defect: Any, **more: Any) -> Mutant:
    return Mutant("flips", defect, ("flexible_service",), flexible=1.0, **more)


ONE_SIDED: dict[str, Any] = {"one_sided": True}

ZOO = (
    _prefill("F14 F15", transfer.ReleasesUnderOpenPuts),
    _prefill("F20", transfer.SealsBeforePutsEnd),
    _prefill("F20", transfer.ReportsOpenPuts, shape=ONE_SIDED),
    _prefill("F12", transfer.KeepsBlocksWhenRejected, first=102),
    _prefill("F6", transfer.KeepsBlocksWhenPeerDies),
    _prefill("F2 F4", transfer.IgnoresDeadPeers),
    _prefill("F1 F21", transfer.NeverLooksAtTheClock, first=25),
    _prefill("F13", transfer.IgnoresCancel, only=GENTLE),
    _prefill("F14", transfer.AbandonsWithPutsInFlight, shape=ONE_SIDED),
    _prefill("F14", transfer.ProvesNothingToRepeatedGrants, shape=ONE_SIDED, first=81),
    _prefill("F5 F15", transfer.PutsWhatIsNotComputed, shape={"step_tokens": 8}),
    _prefill("F5 F15", transfer.PutsLayersThatAreNotComputed, shape={"step_tokens": 8}),
    _prefill("F16", transfer.ShiftsBlocksOnPartialHit, shape={"decode_block_tokens": 4}),
    _prefill("F14", transfer.PutsTwice),
    _prefill("F7", transfer.SealsWithLostChoice, only=GENTLE),
    _decode("F5 F18", transfer.trusts_every_seal),
    _decode("F14", transfer.FreesUnderOpenWrites, shape=ONE_SIDED, first=97),
    _decode("F13", transfer.FailsWhileScattering, first=5),
    _decode("F17", transfer.NeverEndsEmptyTransfers, only=GENTLE),
    _decode("F13", transfer.LeaksSpans),
    _decode("F14", transfer.WritesThroughClosedWindows, shape={"one_sided": False, "landing_bytes": 512}, first=62),
    _decode("F13", transfer.ForgetsBytesOfSpans),
    _decode("F20", transfer.IgnoresAbandon, only=GENTLE),
    _decode("F2", transfer.IgnoresLostLinks, first=4),
    _decode("F1", transfer.LosesFailures, first=4),
    _decode("F16", transfer.ScattersFirstBlocks, first=4),
    _decode("F21", transfer.ForgetsTheLine, shape={"landing_bytes": 512}, only=GENTLE),
    _decode("F18", transfer.LandsTwice),
    _decode("F11", transfer.GrantsWithoutVerdict, only=GENTLE),
    _decode("F18", transfer.MarksCorruptAsLanded),
    _keeper("F14 F15", keeper.FreesWhatItKeeps),
    _keeper("F6 F13", keeper.KeepsForEver, first=503),
    _keeper("F14", keeper.SendsOnUnderOpenPuts, first=460),
    _keeper("F7", keeper.LosesFirstTokens, first=5),
    _keeper("F5 F15", keeper.LosesProgress),
    _scheduler("one step ahead", engine.UsesAfterFinish, shape={"ahead": 0.9}),
    _scheduler("I14", engine.SharesPrefixesOfTenants),
    _scheduler("F13 F14", engine.CancelsFreeReservations),
    _scheduler("F7", engine.LosesSamplerState),
    _scheduler("F7", engine.GivesChoicesTheSameNoise),
    _scheduler("F19", engine.ForgetsCopies),
    _scheduler("F19", engine.SleepsThroughLanding, only=GENTLE),
    _scheduler("F13", engine.NeverReleases),
    _scheduler("F15", engine.EvictsUnderReaders),
    _scheduler("F5", engine.AnnouncesTooMuch, shape={"step_tokens": 8}),
    Mutant("F13 F14", engine.FreesBeforeTheTransfer, ("prefill_service",)),
    Mutant("F10", engine.ForgetsTheDeadGatewayAtPrefill, ("prefill_service",)),
    Mutant("F10 F28", engine.ForgetsTheDeadGatewayAtDecode, ("decode_service",)),
    Mutant("F13", engine.LeaksFailedReservations, ("decode_service",)),
    Mutant("F12", engine.LeaksReleases, ("prefill_service",)),
    Mutant("F28", engine.CancelsEveryChoice, ("decode_service",), only=GENTLE, first=41),
    _life("F3 F7", engine.DeliversTwice),
    _life("F29", engine.EndsTwice),
    _life("F1", engine.IgnoresTheDeadline, first=9),
    _life("F1", engine.IgnoresLostWorkers),
    _life("F11", engine.LeavesTheSiblingLeg),
    _life("F7", engine.CountsForcedTokensAsPrompt, first=13),
    _life("F28", engine.LeavesWorkersAlone),
    _life("F29", engine.LosesFinishReasons),
    _life("F29", engine.CallsFailuresFinished),
    _life("F7", engine.DropsTheSplitChoices),
    _life("F8", engine.FreesTheNextAttempt),
    Mutant("F23 F24", engine.PairsAnyRevision, ("routing",), shape={"skewed": True}),
    Mutant("F31", engine.PrefillsOnDecode, ("routing",), shape={"local": False}, first=21),
    Mutant("F9", engine.RemembersPairs, ("routing",)),
    Mutant("F8", engine.KeepsTickets, ("admission",)),
    Mutant("F22", engine.SwallowsSilence, ("liveness",)),
    _prefill("F25", links.SpreadsErrorsOfOneWrite, shape={"prefills": 1, "message_s": 0.06}, first=76),
    Mutant("F26", links.answers_while_the_engine_stands, ("is_live",)),
    Mutant("F30", links.CutsWorkOnDrain, ("decode_service",), only=frozenset({Fault.DRAIN}), first=30),
    Mutant("one way", links.TakesLookingForHearing, ("liveness",), only=frozenset({Fault.CUT_ONE_WAY})),
    Mutant("R7", links.TakesBytesForLife, ("link",), only=frozenset({Fault.FLIP}), first=12),
    Mutant("R9", links.TakesAlteredFrames, ("session",), only=frozenset({Fault.FLIP}), first=132),
    Mutant("R7", links.WaitsForBegunFrames, ("link",), only=frozenset({Fault.TRICKLE}), first=6),
    _prefill("R7", links.TrustsHeartbeats, only=frozenset({Fault.LOST_SEALS}), first=36),
    _life("R9", links.IgnoresConflicts, first=13),
    Mutant("F7", engine.BeginsGrammarsAnew, ("runner",), structured=1.0),
    Mutant("F7", engine.LeavesGrammarsOut, ("runner",), structured=1.0),
    _flexible(flips.TakesLateFlips, first=16),
    _flexible(flips.RefusesOtherWork, first=20),
    _flexible(flips.DropsWorkWithTheRole, only=GENTLE),
    _flexible(flips.HearsOfItsRoleAlone, first=7),
    _flexible(flips.ForgetsTheOtherSidesGateways, first=6),
    Mutant("half open", links.SuspectsForEver, ("liveness",), only=frozenset({Fault.CUT_ONE_WAY, Fault.CUT})),
)
