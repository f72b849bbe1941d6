"""What one caller can do to the others: every attack of the catalogue beside an honest crowd.

The crowd asks at 30 % of what a device of 300 rows a second can do; the attacker is a process of
its own with half a core at most and an address of its own. For each attack: the crowd's share of
right answers, its p99 before, during and after, the memory that the sidecar took, and its CPU five
seconds after the attacker left. `during` is compared with what was measured beside an attacker who
sleeps, in the same round; the median of the rounds counts. It may be twice as long, or longer by
two of the longest batches that the server had meanwhile: what runs cannot be taken back.

    python bench/attacks.py [--quick] [--json FILE] [--kind ours|V2|V1|OpenAI]
                            [--attack NAME ... | --together]

`--together`: attacks of a theme run at the same time, as in the suite; a fifth of the time.
"""

import argparse
import asyncio
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("tests", "images")]

from bench_report import Figure, at_least, at_most, median_of, new_parser, of_rounds, report, tell
from support.attacks.aim import Attack, Kind
from support.attacks.catalogue import ATTACKS, bouts
from support.attacks.harness import BUDGET_BYTES, Report, p99, ring

_Bout: TypeAlias = Sequence[Attack]
"""Attacks at the same time."""
_SLEEPS: Final = ATTACKS["sleeping"]
_FEW: Final = ("huge head", "reset while waiting", "short time outs")
_ON_A_CHAIN: Final = 4
"""Bouts that take turns beside one sleeper; what one leaves behind is held against the next."""
_NICENESS: Final = 19
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


async def _measured(
    kind: Kind, chosen: Sequence[_Bout], plan: _Plan
) -> dict[str, list[tuple[Report, Report]]]:
    """By bout: each round's report, and that of the sleeper beside whom it is judged."""
    found: dict[str, list[tuple[Report, Report]]] = {_name(bout): [] for bout in chosen}
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
                    tell(f"{kind}: {', '.join(map(_name, some))}, round {number + 1}")
                    last = number == plan.rounds - 1
                    calm = await standing.bout([_SLEEPS], looks_at_idle=False, **how)
                    for bout in some:
                        met = await standing.bout(bout, looks_at_idle=last, **how)
                        found[_name(bout)].append((met, calm))
    return found


def _name(bout: _Bout) -> str:
    first, *others = bout
    return f"{first.name} and {len(others)} more" if others else first.name


def _figures(name: str, rounds: Sequence[tuple[Report, Report]]) -> list[Figure]:
    met = [one for one, _ in rounds]
    told = sum(sum(one.crowd.values()) for one in met)
    right = 100 * sum(one.crowd["right"] for one in met) / told if told else math.nan
    during, calm = [p99(one.during) for one in met], [p99(one.during) for _, one in rounds]
    longest = median_of(one.batch_seconds for one in met)
    bound = 1e3 * max(2 * median_of(calm), median_of(calm) + 2 * longest)
    memory = max(one.memory_bytes for one in met)
    idle = [one.idle_cores for one in met if one.idle_cores is not None]
    return [
        at_least(f"{name}: answered right", right, "%", 100.0),
        Figure(name=f"{name}: p99 before", value=_middle([one.before for one in met]), unit="ms"),
        of_rounds(
            lambda value: at_most(f"{name}: p99 during", value, "ms", bound),
            [1e3 * one for one in during],
        ),
        Figure(name=f"{name}: longest batch", value=1e3 * longest, unit="ms"),
        Figure(name=f"{name}: p99 after", value=_middle([one.after for one in met]), unit="ms"),
        at_most(
            f"{name}: memory",
            memory / _MEBIBYTE,
            "MiB",
            (BUDGET_BYTES + _SPARE_BYTES) / _MEBIBYTE,
        ),
        at_most(f"{name}: CPU left", 100 * max(idle, default=math.nan), "% of a core", 1.0),
    ]


def _middle(rounds: Sequence[Sequence[float]]) -> float:
    return 1e3 * median_of(map(p99, rounds))


def _read(arguments: Sequence[str]) -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--kind", type=Kind, choices=list(Kind), default=Kind.OURS)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--attack", action="append", choices=sorted(ATTACKS), metavar="NAME")
    what.add_argument("--together", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Measure and report; `--quick` takes few attacks, once."""
    options = _read(arguments)
    names = options.attack or [
        name for name in (_FEW if options.quick else ATTACKS) if name != _SLEEPS.name
    ]
    chosen: Sequence[_Bout] = [
        [ATTACKS[name]] for name in names if options.kind in ATTACKS[name].kinds
    ]
    if options.together:
        chosen = bouts(options.kind)
    plan = _QUICK if options.quick else _FULL
    found = asyncio.run(_measured(options.kind, chosen, plan))
    figures = [one for name, rounds in found.items() for one in _figures(name, rounds)]
    return report(figures, options.json)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
