"""Shows answers: a table for people, a document for machines. Pure.

The keys of the document are promised in docs/simulate.md.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from batchedmodel_cli import formatting
from batchedmodel_cli.simulate.answers import Answers, Comparison, Measure, Trial, Tried
from batchedmodel_cli.simulate.study import IN_TIME, MOST_REPLICAS
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.spec import Lateness

VERSION: Final = 1
"""Of the document; grows when a key changes its meaning or goes."""

_WIDEST: Final = 40
_NONE: Final = "0.0%"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What was simulated."""

    model: str
    settings: BatchSettings
    device: str
    traffic: str
    typical_length: int
    seed: int
    utilisation: float
    notes: tuple[str, ...]


def document(setup: Setup, answers: Answers) -> dict[str, Any]:
    """Everything, as JSON has it. Rates in requests a second, times in seconds, shares 0 to 1."""
    offered, comparison = answers.offered, answers.comparison
    return {
        "version": VERSION,
        "model": setup.model,
        "device": setup.device,
        "settings": asdict(setup.settings),
        "traffic": {
            "arrivals": setup.traffic,
            "rate": answers.rate,
            "typical_length": setup.typical_length,
            "seed": setup.seed,
        },
        "replicas": answers.replicas,
        "offered": asdict(offered),
        "throughput_per_replica": answers.throughput,
        "highest_rate": answers.highest_rate,
        "replicas_needed": answers.replicas_needed,
        "comparison": {
            "measure": comparison.measure.value,
            "rate": comparison.rate,
            "present": asdict(comparison.present),
            "changes": [_tried(tried) for tried in comparison.tried],
            "worth_changing": None if comparison.advised is None else _tried(comparison.advised),
            "highest_rate_with_it": comparison.rate_with_advised,
        },
        "advice": advice(answers),
        "notes": list(setup.notes),
    }


def table(setup: Setup, answers: Answers) -> Iterator[str]:
    """The same as lines for a person."""
    offered = answers.offered
    yield (
        f"{setup.model} on {setup.device}: {_pods(answers.replicas)}, policy "
        f"{setup.settings.policy}, up to {_batches(setup.settings)}"
    )
    yield ""
    yield from formatting.aligned(list(_facts(setup, answers, offered)), indent=2)
    yield ""
    yield from _compared(answers.comparison)
    yield ""
    yield advice(answers)
    for note in setup.notes:
        yield f"note: {note}"


def advice(answers: Answers) -> str:
    """The one setting that is worth changing, as a sentence."""
    comparison = answers.comparison
    best = comparison.advised
    if best is None:
        first = comparison.tried[0] if comparison.tried else None
        if first is None or first.gain <= 0:
            return "nothing that was tried is worth changing (none of it is better)"
        return (
            "nothing that was tried is worth changing "
            f"(best: {_named(first)}, {_gain(first, comparison.measure)})"
        )
    change = best.change
    said = (
        f"worth changing: {change.field} from {change.present} to {change.value} "
        f"({_gain(best, comparison.measure)} at {formatting.rate(comparison.rate)}/s)"
    )
    if comparison.rate_with_advised is not None:
        said += (
            f"; {_sustain(answers.replicas)} {formatting.rate(comparison.rate_with_advised)}/s "
            f"with it, {formatting.rate(answers.highest_rate)}/s without"
        )
    if change.settings.lateness is Lateness.REFUSE and change.field == "lateness":
        said += "; what would be late is then refused instead of served"
    if best.beyond_profile:
        said += "; batches of that size were not measured, so try it on the device first"
    return said


def _facts(setup: Setup, answers: Answers, offered: Trial) -> Iterator[tuple[str, str]]:
    target = setup.settings.target_seconds
    within = setup.settings.request_timeout_seconds if target is None else target
    yield (
        "offered",
        f"{formatting.rate(answers.rate)}/s, {setup.traffic}, {offered.requests:,} requests",
    )
    in_time, *gone = _ends(offered)
    yield (
        f"answered in {formatting.time(within)}",
        f"{in_time}, {formatting.rate(offered.goodput)}/s",
    )
    for name, part in zip(("late", "refused", "given up", "timed out"), gone, strict=True):
        if part != _NONE:
            yield name, part
    latency = offered.latency
    if latency is not None:
        named = (
            ("mean", latency.mean),
            ("p50", latency.p50),
            ("p95", latency.p95),
            ("p99", latency.p99),
        )
        yield "latency", ", ".join(f"{name} {formatting.time(at)}" for name, at in named)
    yield "device busy", formatting.percent(offered.busy_share)
    yield "mean batch", f"{offered.mean_batch:.1f} rows"
    meaning = (
        f"{formatting.percent(setup.utilisation)} of the throughput"
        if target is None
        else f"{IN_TIME:.0%} in time"
    )
    yield _sustain(answers.replicas), f"{formatting.rate(answers.highest_rate)}/s ({meaning})"
    needed = answers.replicas_needed
    yield (
        "replicas needed",
        f"more than {MOST_REPLICAS}" if needed is None else f"{needed}, requests spread at random",
    )


def _compared(comparison: Comparison) -> Iterator[str]:
    yield f"one setting changed, the same requests at {formatting.rate(comparison.rate)}/s:"
    rows = [("", "in time", "p99", "gain"), ("as it is", *_columns(comparison.present), "")]
    for tried in comparison.tried:
        mark = " (not measured)" if tried.beyond_profile else ""
        rows.append((_named(tried), *_columns(tried.trial), f"{_signed(tried.gain)}{mark}"))
    yield from formatting.aligned(rows, indent=2)


def _columns(trial: Trial) -> tuple[str, str]:
    latency = trial.latency
    return _ends(trial)[0], "" if latency is None else formatting.time(latency.p99)


def _named(tried: Tried) -> str:
    name = f"{tried.change.field}: {tried.change.value}"
    return name if len(name) <= _WIDEST else f"{name[: _WIDEST - 3]}..."


def _gain(tried: Tried, measure: Measure) -> str:
    if measure is Measure.P99:
        return f"{tried.gain:.1%} off the p99 latency"
    return f"{_signed(tried.gain)} {'in time' if measure is Measure.IN_TIME else 'throughput'}"


def _signed(gain: float) -> str:
    return f"x{1 + gain:,.1f}" if gain >= 1 else f"{gain:+.1%}"


def _tried(tried: Tried) -> dict[str, Any]:
    change = tried.change
    return {
        "field": f"spec.batching.{change.field}",
        "present": change.present,
        "value": change.value,
        "gain": tried.gain,
        "beyond_profile": tried.beyond_profile,
        "result": asdict(tried.trial),
    }


def _pods(replicas: int) -> str:
    return f"{replicas} replica" if replicas == 1 else f"{replicas} replicas"


def _batches(settings: BatchSettings) -> str:
    side_by_side = settings.max_concurrent_batches
    rows = f"{settings.max_batch_size} rows a batch"
    return rows if side_by_side == 1 else f"{rows}, {side_by_side} batches at a time"


def _sustain(replicas: int) -> str:
    return f"{_pods(replicas)} {'sustains' if replicas == 1 else 'sustain'}"


def _ends(trial: Trial) -> list[str]:
    """How the traffic ended: in time, late, refused, given up, timed out.

    As tenths of a percent that add up to the whole: rounded each by itself, all could be in time
    and some late. What is left of the whole goes to those that lost most when rounded down.
    """
    shares = (
        trial.in_time_share,
        trial.late_share,
        trial.refused_share,
        trial.shed_share,
        trial.expired_share,
    )
    tenths = [math.floor(share * formatting.WHOLE) for share in shares]
    by_loss = sorted(range(len(shares)), key=lambda n: tenths[n] - shares[n] * formatting.WHOLE)
    for n in by_loss[: max(0, formatting.WHOLE - sum(tenths))]:
        tenths[n] += 1
    return [formatting.tenths(part, share) for part, share in zip(tenths, shares, strict=True)]
