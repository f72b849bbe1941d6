"""Devices and traffic that nobody tuned for: some written down, two thirds drawn by a seed.

A row is a device, lengths, traffic, a target and a load. The ranges that rows are drawn from stand
here; which seeds the drawn ones of the report have, in `unseen_trials`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from numpy.random import Generator

from batchedmodel_cli.simulator.arrivals import Arrivals, Gamma, Poisson
from batchedmodel_cli.simulator.engine import Curve
from batchedmodel_cli.simulator.traces import Trace
from batchedmodel_cli.simulator.workload import Constant, Lengths, Lognormal, stream
from batchedmodel_contract.inference.description import CostRule
from scheduling_bench.bursts import Mmpp, scaled_lengths
from scheduling_bench.devices import Bimodal, Kneed, Stepped, Tiled
from scheduling_bench.plants import Disturbances

_Choice = TypeVar("_Choice")

LONGEST: Final = 512
_SAMPLE: Final = 2048  # lengths by which a rate is judged
_SLOWER: Final = 1.4
_STRAGGLES: Final = 5.0

EVEN: Final = Constant(length=1)
RARE_LONG: Final = Bimodal(long_share=0.05, short=(16, 32), long=(400, LONGEST))
BIMODAL: Final = Bimodal(long_share=0.4, short=(16, 64), long=(256, LONGEST))
UNIFORM: Final = Bimodal(long_share=0.0, short=(8, LONGEST), long=(LONGEST, LONGEST))
HEAVY: Final = Lognormal(mu=4.0, sigma=1.2, lowest=8, highest=LONGEST)
SMOOTH: Final = Poisson()
BURSTY: Final = Gamma(cv=3)
ON_OFF: Final = Mmpp(ratio=30.0, sojourn_seconds=0.3)

_LENGTHS: Final[dict[str, Lengths]] = {
    "rare and long": RARE_LONG,
    "bimodal": BIMODAL,
    "uniform": UNIFORM,
    "heavy-tailed": HEAVY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """One row."""

    name: str
    curve: Curve
    rule: CostRule
    lengths: Lengths
    arrivals: Arrivals
    target_seconds: float
    load: float
    """What is offered, as a part of `fair_rate`."""
    max_rows: int
    noise: float = 0.0
    slows_down: bool = False
    """Whether the device becomes 1.4 times as slow half-way."""
    stepped: bool = False
    stragglers: float = 0.0
    """Part of the batches that take five times as long."""

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.load * fair_rate(self)

    def disturbances(self, requests: int) -> Disturbances:
        """What the device does beside its curve while so many requests come."""
        half_way = requests / self.rate / 2
        drift = ((half_way, _SLOWER),) if self.slows_down else ()
        return Disturbances(
            noise=self.noise,
            straggler_probability=self.stragglers,
            straggler_factor=_STRAGGLES,
            drift=drift,
        )


def fair_rate(row: Unseen) -> float:
    """Rows per second in batches that fit twice into the target, each of similar lengths."""
    lengths = row.lengths.draw(_SAMPLE, stream(0, "lengths"))
    if row.rule is CostRule.PADDED:
        lengths.sort()
    best = 0.0
    sizes = {1 << power for power in range(row.max_rows.bit_length())} | {row.max_rows}
    for size in sorted(size for size in sizes if size <= _SAMPLE):
        batches = [lengths[first : first + size] for first in range(0, _SAMPLE, size)]
        seconds = [row.curve.seconds(batch) for batch in batches]
        if size == 1 or 2 * sum(seconds) / len(seconds) <= row.target_seconds:
            best = max(best, _SAMPLE / sum(seconds))
    return best


def written_down(trace: Trace) -> list[Unseen]:
    """The rows that are the same in every run."""
    plateaus = Stepped(edges=(12, 40, 64), levels=(0.004, 0.007, 0.010), rule=CostRule.ROWS)
    kneed = Kneed(flat=0.0037, knee=2048, rule=CostRule.PADDED)
    tiled = Tiled(fixed=0.002, per_tile=0.0012, tile=512, rule=CostRule.PACKED)
    row = partial(Unseen, max_rows=64, load=1.2)
    steps = row(
        name="three plateaus, tight, smooth",
        curve=plateaus,
        rule=CostRule.ROWS,
        lengths=EVEN,
        arrivals=SMOOTH,
        target_seconds=0.016,
        stepped=True,
    )
    loose_steps = replace(
        steps, name="three plateaus, loose, bursty", arrivals=BURSTY, target_seconds=0.05
    )
    slowing = replace(
        loose_steps, name="three plateaus, slower half-way, 5 % noise", noise=0.05, slows_down=True
    )
    fast = row(
        name="fast, hundreds of rows, loose, smooth",
        curve=Kneed(flat=0.008, knee=96, rule=CostRule.ROWS),
        rule=CostRule.ROWS,
        lengths=EVEN,
        arrivals=SMOOTH,
        target_seconds=0.1,
        max_rows=512,
    )
    rare = row(
        name="kneed, padded, rare and long, loose, on and off",
        curve=kneed,
        rule=CostRule.PADDED,
        lengths=RARE_LONG,
        arrivals=ON_OFF,
        target_seconds=0.06,
        max_rows=128,
    )
    rare_packed = replace(
        rare,
        name="tiled, packed, rare and long, tight, smooth, three times the load",
        curve=tiled,
        rule=CostRule.PACKED,
        arrivals=SMOOTH,
        target_seconds=0.03,
        load=3.0,
    )
    uniform = replace(
        rare,
        name="kneed, padded, uniform, tight, bursty",
        lengths=UNIFORM,
        arrivals=BURSTY,
        target_seconds=0.025,
    )
    recorded = replace(
        rare_packed,
        name="tiled, packed, recorded, loose",
        arrivals=trace.arrivals(),
        lengths=scaled_lengths(trace, divisor=8, highest=LONGEST),
        target_seconds=0.1,
        load=1.2,
    )
    return [steps, loose_steps, slowing, fast, rare, rare_packed, uniform, recorded]


def steady() -> Unseen:
    """A device that becomes slower, and then has a little more to do than it can."""
    return Unseen(
        name="three plateaus, slower half-way",
        curve=Stepped(edges=(12, 40, 64), levels=(0.016, 0.028, 0.04), rule=CostRule.ROWS),
        rule=CostRule.ROWS,
        lengths=EVEN,
        arrivals=SMOOTH,
        target_seconds=0.12,
        load=0.75,
        max_rows=64,
        noise=0.02,
        slows_down=True,
    )


def troubled(seed: int) -> Unseen:
    """A device of plateaus by rows with every trouble at once, and a tight target."""
    random = stream(seed, "troubled")
    max_rows = _one_of(random, (16, 32, 64, 128))
    least, growth = float(random.uniform(0.004, 0.02)), float(random.uniform(2, 10))
    edges = tuple(1 << power for power in range(max_rows.bit_length()))  # as captured sizes are
    if random.integers(2):
        between = sorted({int(edge) for edge in random.integers(1, max_rows, 5)})
        edges = (*between, max_rows)
    levels = tuple(least * (1 + (growth - 1) * edge / max_rows) for edge in edges)
    traffic: tuple[Arrivals, ...] = (SMOOTH, BURSTY, ON_OFF)
    return Unseen(
        name=f"all troubles {seed}",
        curve=Stepped(edges=edges, levels=levels, rule=CostRule.ROWS),
        rule=CostRule.ROWS,
        lengths=EVEN,
        arrivals=_one_of(random, traffic),
        target_seconds=float(random.uniform(2.5, 6)) * levels[0],
        load=_one_of(random, (0.9, 1.2, 1.5, 3.0)),
        max_rows=max_rows,
        noise=0.05,
        slows_down=True,
        stepped=True,
        stragglers=0.01,
    )


def drawn(seed: int, trace: Trace) -> Unseen:
    """A row from the ranges below."""
    random = stream(seed, "row")
    rule = _one_of(random, (CostRule.ROWS, CostRule.PADDED, CostRule.PACKED))
    max_rows = _one_of(random, (16, 32, 64, 128))
    kind, curve = _device(random, rule, max_rows)
    lengths_name, lengths = _one_of(random, tuple(_LENGTHS.items()))
    if rule is CostRule.ROWS:
        lengths_name, lengths = "even", EVEN
    traffic: tuple[tuple[str, Arrivals], ...] = (
        ("smooth", SMOOTH),
        ("bursty", Gamma(cv=float(random.uniform(2, 4)))),
        ("on and off", ON_OFF),
        ("recorded", trace.arrivals()),
    )
    traffic_name, arrivals = _one_of(random, traffic)
    tight = bool(random.integers(2))
    # In times of the longest row by itself: a target must be possible.
    times = random.uniform(2.5, 6) if tight else random.uniform(8, 20)
    alone = curve.seconds([1 if rule is CostRule.ROWS else LONGEST])
    noise = _one_of(random, (0.0, 0.02, 0.05))
    slows_down = bool(random.random() < 0.2)
    load = float(random.choice([0.9, 1.2, 1.5, 3.0]))
    described = [
        f"drawn {seed}: {kind}", rule.lower(), lengths_name, "tight" if tight else "loose",
        traffic_name, f"{load:g}x", f"{noise:.0%} noise",
    ]  # fmt: skip
    return Unseen(
        name=", ".join(described + ["slower half-way"] * slows_down),
        curve=curve,
        rule=rule,
        lengths=lengths,
        arrivals=arrivals,
        target_seconds=float(times) * alone,
        load=load,
        max_rows=max_rows,
        noise=noise,
        slows_down=slows_down,
        stepped=kind == "stepped",
    )


def _device(random: Generator, rule: CostRule, max_rows: int) -> tuple[str, Curve]:
    """Of 1 to 10 ms at the least, and 2 to 20 times that for a full batch of usual rows."""
    least = float(random.uniform(0.001, 0.01))
    growth = float(random.uniform(2, 20))
    usual = 1 if rule is CostRule.ROWS else 96  # tokens
    full = max_rows * usual
    kind = _one_of(random, ("stepped", "tiled", "kneed"))
    if kind == "stepped":
        count = int(random.integers(3, 7))
        shares = sorted({float(each) for each in random.uniform(0.05, 0.95, count - 1)})
        edges = tuple(sorted({max(1, round(share * full)) for share in [*shares, 1.0]}))
        # A plateau takes about as much more as it holds more, so that full ones are worth having.
        levels = [least * (1 + (growth - 1) * edge / full) for edge in edges]
        return kind, Stepped(edges=edges, levels=tuple(levels), rule=rule)
    if kind == "tiled":
        tiles = int(random.integers(4, 17))
        per_tile = least * (growth - 1) / tiles
        return kind, Tiled(fixed=least, per_tile=per_tile, tile=max(1, full // tiles), rule=rule)
    knee = max(1, round(full / growth))
    return kind, Kneed(flat=least, knee=knee, rule=rule)


def _one_of(random: Generator, choices: Sequence[_Choice]) -> _Choice:
    return choices[int(random.integers(len(choices)))]
