"""What one caller can do to the others: every attack of the catalogue beside an honest crowd.

The crowd asks at 30 % of what a device of 300 rows a second can do; the attacker is a process of
its own with half a core at most and an address of its own. For each attack: the crowd's share of
right answers, its p99 before, during and after, the memory that the sidecar took, and its CPU five
seconds after the attacker left. The goal of `during` is made of what was measured beside an
attacker who sleeps, in the same round: twice that, or that and two of the longest batches that the
server had meanwhile, since what runs cannot be taken back. The median of five rounds counts; once
three of them agree, the others are not run.

Attacks of a theme run at the same time, as in the suite. Where these miss the goal, or had longer
batches than the sleeper and so a larger goal, each of them is run alone too.

    python bench/attacks.py [--quick] [--json FILE] [--kind ours|V2|V1|OpenAI] [--attack NAME ...]
"""

import argparse
import asyncio
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("tests", "images")]

from bench_report import Figure, at_least, at_most, median_of, new_parser, of_rounds, report, tell
from support.attacks.aim import Attack, Kind
from support.attacks.catalogue import ATTACKS, bouts
from support.attacks.harness import BUDGET_BYTES, Report, p99, ring

_SLEEPS: Final = ATTACKS["sleeping"]
_FEW: Final = ("huge head", "reset while waiting", "short time outs")
_ON_A_CHAIN: Final = 4
"""Bouts that take turns beside one sleeper; what one leaves behind is held against the next."""
_NICENESS: Final = 19
_LONGER: Final = 1.5
"""Batches so much longer than beside the sleeper make the goal another one."""
_MEBIBYTE: Final = 2**20
_SPARE_BYTES: Final = 64 * _MEBIBYTE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """How often and how long."""

    rounds: int
    crowd_seconds: float
    seconds: float


_FULL: Final = _Plan(rounds=5, crowd_seconds=1.0, seconds=3.0)
_QUICK: Final = _Plan(rounds=1, crowd_seconds=0.5, seconds=1.5)


@dataclass(slots=True, kw_only=True)
class Bout:
    """Attacks at the same time, and their rounds so far."""

    attacks: Sequence[Attack]
    met: list[Report] = field(default_factory=list)
    calm: list[Report] = field(default_factory=list)
    """Of each round that of the sleeper beside whom it is judged."""

    @property
    def name(self) -> str:
        """The first attack's, and how many are beside it."""
        first, *others = self.attacks
        return f"{first.name} and {len(others)} more" if others else first.name

    def goals(self) -> list[float]:
        """Seconds of each round."""
        calm = [p99(one.during) for one in self.calm]
        longest = [one.batch_seconds for one in self.met]
        return [max(2 * one, one + 2 * batch) for one, batch in zip(calm, longest, strict=True)]

    def over_goal(self) -> list[float]:
        """How long the crowd waited, over what it may, of each round."""
        during = [p99(one.during) for one in self.met]
        return [took / goal for took, goal in zip(during, self.goals(), strict=True)]

    def is_decided(self, rounds: int) -> bool:
        """Whether so many agree that all others cannot change the median."""
        held = sum(one <= 1.0 for one in self.over_goal())
        return max(held, len(self.met) - held) > rounds // 2

    def tells_of_each(self) -> bool:
        """Whether what holds of all together is taken to hold of each.

        It is a screen: together they share the attacker's half core.
        """
        longest = median_of(one.batch_seconds for one in self.met)
        usual = median_of(one.batch_seconds for one in self.calm)
        return longest <= _LONGER * usual and all(one.holds is not False for one in figures(self))


async def _measure(
    kind: Kind, chosen: Sequence[Bout], plan: _Plan, *, looks_at_idle: bool = True
) -> None:
    how: dict[str, Any] = {
        "crowd_seconds": plan.crowd_seconds,
        "seconds": plan.seconds,
        "niceness": _NICENESS,
    }
    for at in range(0, len(chosen), _ON_A_CHAIN):
        some = chosen[at : at + _ON_A_CHAIN]
        with tempfile.TemporaryDirectory() as folder:
            async with ring(Path(folder), kind) as standing:
                for number in range(plan.rounds):
                    undecided = [bout for bout in some if not bout.is_decided(plan.rounds)]
                    if not undecided:
                        break
                    names = ", ".join(bout.name for bout in undecided)
                    tell(f"{kind}: {names}, round {number + 1}")
                    calm = await standing.bout([_SLEEPS], looks_at_idle=False, **how)
                    for bout in undecided:
                        looks = looks_at_idle and number == plan.rounds // 2
                        met = await standing.bout(bout.attacks, looks_at_idle=looks, **how)
                        bout.met.append(met)
                        bout.calm.append(calm)


async def _measure_all(kind: Kind, chosen: list[Bout], plan: _Plan) -> list[Bout]:
    """These, and each attack alone of those that do not tell of each."""
    await _measure(kind, chosen, plan)
    alone = [
        Bout(attacks=[attack])
        for bout in chosen
        if len(bout.attacks) > 1 and not bout.tells_of_each()
        for attack in bout.attacks
        if attack is not _SLEEPS
    ]
    await _measure(kind, alone, plan, looks_at_idle=False)
    return chosen + alone


def figures(bout: Bout) -> list[Figure]:
    """What is reported of a bout that has had its rounds."""
    name, met = bout.name, bout.met
    told = sum(sum(one.crowd.values()) for one in met)
    right = 100 * sum(one.crowd["right"] for one in met) / told if told else math.nan
    memory = max(one.memory_bytes for one in met)
    idle = [one.idle_cores for one in met if one.idle_cores is not None]
    fewest = min(one.attackers[attack.name]["visits"] for one in met for attack in bout.attacks)
    found = [
        at_least(f"{name}: answered right", right, "%", 100.0),
        at_least(f"{name}: visits of each attack", fewest, "", 1.0),
        of_rounds(
            lambda value: Figure(name=f"{name}: p99 beside a sleeper", value=value, unit="ms"),
            [1e3 * p99(one.during) for one in bout.calm],
        ),
        Figure(name=f"{name}: p99 before", value=_middle([one.before for one in met]), unit="ms"),
        Figure(name=f"{name}: p99 during", value=_middle([one.during for one in met]), unit="ms"),
        Figure(name=f"{name}: its goal", value=1e3 * median_of(bout.goals()), unit="ms"),
        of_rounds(
            lambda value: at_most(f"{name}: p99 during over its goal", value, "", 1.0),
            bout.over_goal(),
        ),
        Figure(
            name=f"{name}: longest batch",
            value=1e3 * median_of(one.batch_seconds for one in met),
            unit="ms",
        ),
        Figure(name=f"{name}: p99 after", value=_middle([one.after for one in met]), unit="ms"),
        at_most(
            f"{name}: memory",
            memory / _MEBIBYTE,
            "MiB",
            (BUDGET_BYTES + _SPARE_BYTES) / _MEBIBYTE,
        ),
    ]
    if idle:
        found.append(at_most(f"{name}: CPU left", 100 * max(idle), "% of a core", 1.0))
    return found


def _middle(rounds: Sequence[Sequence[float]]) -> float:
    return 1e3 * median_of(map(p99, rounds))


def _read(arguments: Sequence[str]) -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--kind", type=Kind, choices=list(Kind), default=Kind.OURS)
    parser.add_argument("--attack", action="append", choices=sorted(ATTACKS), metavar="NAME")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Measure and report; `--quick` takes few attacks, once."""
    options = _read(arguments)
    names = options.attack or (_FEW if options.quick else [])
    plan = _QUICK if options.quick else _FULL
    alone = [[ATTACKS[name]] for name in names if options.kind in ATTACKS[name].kinds]
    chosen = [Bout(attacks=attacks) for attacks in (alone if names else bouts(options.kind))]
    found = asyncio.run(_measure_all(options.kind, chosen, plan))
    return report([figure for bout in found for figure in figures(bout)], options.json)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
