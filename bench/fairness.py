"""What a flood or clumps of one tenant do to the tail of another, simulated.

The sidecar's own batcher runs in virtual time before a device of 300 rows a second. An interactive
tenant asks for a fifth of that, in Poisson arrivals. Beside it another floods with ten times what
the device can do, or agents come in clumps of fifty requests, six tenths of it in all. The figure
is the interactive tenant's p99 over that of the same arrivals where the same batches run and its
rows are the first in each; the median of the seeds counts.

Beside a flood whose rows share no batch with its own the figure is that p99 in batches. A tenant of
short time-outs beside patient ones asks for two fifths of the device: how many of its answers are
in time is compared with those of the same arrivals alone on a device half as fast.

At last texts, through the port of real processes (`prompt_flood`).

    python bench/fairness.py [--quick] [--json FILE]
"""

import asyncio
import random
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import quantiles
from typing import Final

import looptime

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from batchedmodel_contract.inference.profile import ProfilePoint
from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_sidecar.errors import CallError
from batchedmodel_sidecar.protocols.headers import RequestOptions
from bench_report import Figure, at_least, at_most, new_parser, of_rounds, report, tell
from prompt_flood import measure_prompt_flood
from support.sidecar_world import MODEL, PROFILE, World, world

_ROWS_PER_SECOND: Final = 300.0
_SHARE: Final = 0.2
_FIXED_PART: Final = 0.5
"""Of a full batch's time, what does not depend on its rows."""
_SIZES: Final = (4, 8, 16)
_SEEDS: Final = range(101, 106)
"""None of them was used while the queue was made."""
_SECONDS: Final = 15.0

_SHORT_BATCHES: Final = 6.0
"""Of the time-out of a hurried caller."""
_HURRIED_SHARE: Final = 0.4

Others = Callable[[World, float], Coroutine[None, None, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """Of one run."""

    latencies: list[float]
    """Of the interactive tenant, in seconds."""
    refused: int
    """Of its requests."""


async def _flood(w: World, seconds: float) -> None:
    """Ten times what the device can do, ten rows a time."""
    await _sent(w, seconds, at_once=10, rate=10 * _ROWS_PER_SECOND)


async def _other_kind(w: World, seconds: float) -> None:
    """As many rows whose key is another."""
    await _sent(w, seconds, at_once=10, rate=10 * _ROWS_PER_SECOND, key="theirs")


async def _nothing(w: World, seconds: float) -> None:
    """No other tenant."""


async def _clumps(w: World, seconds: float) -> None:
    """Fifty requests a time, six tenths of the device."""
    await _sent(w, seconds, at_once=50, rate=0.6 * _ROWS_PER_SECOND)


_OTHERS: Final[tuple[tuple[str, Others], ...]] = (("a flood", _flood), ("clumps of fifty", _clumps))


async def _sent(
    w: World, seconds: float, *, at_once: int, rate: float, key: str | None = None
) -> None:
    tasks, ends = [], _now() + seconds
    while _now() < ends:
        tasks += [w.send(b"theirs", tenant="other", key=key) for _ in range(at_once)]
        await asyncio.sleep(at_once / rate)
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, CallError):
            raise outcome


async def _seen(
    policy: PolicyName,
    size: int,
    times: Sequence[float],
    others: Others,
    *,
    slower: float = 1.0,
    time_out: float | None = None,
) -> _Seen:
    batch = slower * size / _ROWS_PER_SECOND
    fixed, per_row = _FIXED_PART * batch, (1 - _FIXED_PART) * batch / size
    options = RequestOptions(timeout=time_out)
    settings = BatchSettings(policy=policy, max_batch_size=size, request_timeout_seconds=60.0)
    w = world(settings, attached=False)
    w.server.fixed, w.server.per_row = fixed, per_row
    points = tuple(
        ProfilePoint(rows=rows, length=1, seconds=fixed + per_row * rows) for rows in (1, size)
    )
    w.batcher.attach(replace(MODEL, profile=replace(PROFILE, points=points)))
    theirs = asyncio.create_task(others(w, times[-1] + 2.0))
    await asyncio.sleep(1.0)
    began, latencies, refused = _now(), list[float](), 0

    async def one(at: float) -> None:
        nonlocal refused
        await asyncio.sleep(began + at - _now())
        sent = _now()
        try:
            await w.send(b"mine", tenant="interactive", options=options)
        except CallError:
            refused += 1
        else:
            latencies.append(_now() - sent)

    await asyncio.gather(*map(one, times))
    await theirs
    return _Seen(latencies=latencies, refused=refused)


def _first_of_all(times: Sequence[float], size: int) -> Iterator[float]:
    """Latencies where full batches follow each other and these rows go first in each.

    A batch is sent when the one before it begins: the server holds one behind the one that runs.
    """
    batch, start, waiting = size / _ROWS_PER_SECOND, 0.0, list(times)
    while waiting:
        members = [at for at in waiting[:size] if at <= start - batch]
        waiting = waiting[len(members) :]
        start += batch
        yield from (start - at for at in members)


def _arrivals(seed: int, share: float = _SHARE) -> list[float]:
    rng, at, times = random.Random(seed), 0.0, list[float]()
    while (at := at + rng.expovariate(share * _ROWS_PER_SECOND)) < _SECONDS:
        times.append(at)
    return times


def _p99(seconds: Sequence[float]) -> float:
    return quantiles(seconds, n=100)[98]


def _now() -> float:
    return asyncio.get_running_loop().time()


def _figures(
    policy: PolicyName, size: int, name: str, others: Others, seeds: Sequence[int]
) -> list[Figure]:
    ratios, refused = [], 0
    for seed in seeds:
        times = _arrivals(seed)
        seen = _run(_seen(policy, size, times, others))
        ratios.append(_p99(seen.latencies) / _p99(list(_first_of_all(times, size))))
        refused += seen.refused
    label = f"{policy}, batches of {size}, beside {name}"
    return [
        of_rounds(lambda value: at_most(f"{label}: p99 over first of all", value, "", 1.5), ratios),
        at_most(f"{label}: refused", float(refused), "requests", 0.0),
    ]


def _kind_figure(policy: PolicyName, size: int, seeds: Sequence[int]) -> Figure:
    batch = size / _ROWS_PER_SECOND
    tails = [
        _p99(_run(_seen(policy, size, _arrivals(seed), _other_kind)).latencies) / batch
        for seed in seeds
    ]
    name = f"{policy}, batches of {size}, beside a flood of another key: p99"
    return of_rounds(lambda value: Figure(name=name, value=value, unit="batches"), tails)


def _hurried_figure(policy: PolicyName, size: int, seeds: Sequence[int]) -> Figure:
    time_out = _SHORT_BATCHES * size / _ROWS_PER_SECOND
    ratios = []
    for seed in seeds:
        times = _arrivals(seed, _HURRIED_SHARE)
        beside = _run(_seen(policy, size, times, _flood, time_out=time_out))
        alone = _run(_seen(policy, size, times, _nothing, slower=2.0, time_out=time_out))
        ratios.append(len(beside.latencies) / len(alone.latencies))
    name = f"{policy}, batches of {size}, short time-outs beside a flood: in time over half alone"
    return of_rounds(lambda value: at_least(name, value, "", 0.8), ratios)


def _run(seen: Coroutine[None, None, _Seen]) -> _Seen:
    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        return runner.run(seen)


def main(arguments: Sequence[str]) -> int:
    """Simulate and report; `--quick` takes one batch size and the policy that is the default."""
    options = new_parser(__doc__).parse_args(arguments)
    figures, seeds = [], _SEEDS[:1] if options.quick else _SEEDS
    for policy in [PolicyName.DEADLINE] if options.quick else list(PolicyName):
        for size in (8,) if options.quick else _SIZES:
            for name, others in _OTHERS:
                tell(f"{policy}, batches of {size}, {name}")
                figures += _figures(policy, size, name, others, seeds)
            tell(f"{policy}, batches of {size}, another key, short time-outs")
            figures.append(_kind_figure(policy, size, seeds))
            figures.append(_hurried_figure(policy, size, seeds))
    figures += measure_prompt_flood(quick=options.quick)
    return report(figures, options.json)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
