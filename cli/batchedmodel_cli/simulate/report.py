"""Shows answers: a table for people, a document for machines, and notes on what limits them. Pure.

docs/simulate.md promises the keys of the document.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from batchedmodel_cli import formatting
from batchedmodel_cli.simulate.inputs import MOST_REPLICAS
from batchedmodel_cli.simulate.pods import SimulatedPods, Trial
from batchedmodel_cli.simulate.study import (
    IN_TIME,
    Answers,
    Comparison,
    Measure,
    Tried,
    utilisation,
)
from batchedmodel_cli.simulate.traffic import longest_measured
from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.manifest.batching import Lateness, Objective
from batchedmodel_kube.manifest.manifest import BatchedModel
from batchedmodel_kube.manifest.pod_settings import batch_settings
from batchedmodel_kube.manifest.spec import Spec

VERSION: Final = 1
"""The document's; grows when a key changes its meaning or goes."""

_FEW: Final = 1000
_WIDEST: Final = 40
_NONE: Final = "0.0%"


def document(manifest: BatchedModel, pods: SimulatedPods, answers: Answers) -> dict[str, Any]:
    """Everything, as JSON has it. Rates in requests a second, times in seconds, shares 0 to 1."""
    outlook, comparison = answers.outlook, answers.comparison
    return {
        "version": VERSION,
        "model": manifest.name,
        "device": pods.profile.device,
        "settings": asdict(batch_settings(manifest.spec)),
        "traffic": {
            "arrivals": pods.traffic.described,
            "rate": pods.traffic.rate,
            "typical_length": pods.traffic.typical_length,
            "seed": pods.seed,
        },
        "replicas": answers.replicas,
        "offered": asdict(outlook.offered),
        "throughput_per_replica": outlook.throughput,
        "highest_rate": outlook.highest_rate,
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
        "notes": list(notes(manifest.spec, pods)),
    }


def table(manifest: BatchedModel, pods: SimulatedPods, answers: Answers) -> Iterator[str]:
    """The same as lines for a person."""
    settings = batch_settings(manifest.spec)
    at_once = settings.max_concurrent_batches
    side_by_side = "" if at_once == 1 else f", {at_once} batches at a time"
    yield (
        f"{manifest.name} on {pods.profile.device}: {count_of(answers.replicas)}, policy "
        f"{settings.policy}, up to {settings.max_batch_size} rows a batch{side_by_side}"
    )
    yield ""
    yield from formatting.aligned(list(_facts(manifest.spec, pods, answers)), indent=2)
    yield ""
    yield from _compared(answers.comparison)
    yield ""
    yield advice(answers)
    for note in notes(manifest.spec, pods):
        yield f"note: {note}"


def notes(spec: Spec, pods: SimulatedPods) -> Iterator[str]:
    """What limits the answers; nothing where nothing does."""
    batching, traffic, profile = spec.batching, pods.traffic, pods.profile
    if pods.upstream:
        yield (
            "a server of one's own tells its sidecar no profile: the policy learns the device from "
            "the traffic. Here it has learnt it already; a new pod's first batches do worse"
        )
    if profile.partial:
        yield (
            f"the profile is partial, with {len(profile.points)} points: the model server measures "
            "the rest while nobody asks for anything. Take it again when its /profile says "
            '"partial": false'
        )
    if traffic.of_one_pod:
        yield (
            "a sidecar records what its own pod received: the rate is one pod's, and the replicas "
            "are those that this part of the traffic needs"
        )
    if traffic.requests < _FEW:
        yield (
            f"{traffic.requests} requests are few: percentiles and rates of such short traffic "
            "say little"
        )
    by_length = profile.cost_rule is not CostRule.ROWS
    if traffic.length_assumed and by_length:
        yield (
            f"all requests have length {traffic.typical_length}, the middle one of the profile; "
            "--lengths says otherwise"
        )
    longest = longest_measured(profile)
    if by_length and traffic.longest > longest:
        yield (
            f"lengths go up to {traffic.longest}, the profile only to {longest}: the times of "
            "longer requests are extrapolated in a straight line"
        )
    if batching.max_batch_size > pods.largest_measured:
        yield (
            f"maxBatchSize is {batching.max_batch_size}, the largest batch in the profile has "
            f"{pods.largest_measured} rows: the times of larger ones are extrapolated in a "
            "straight line"
        )
    target, alone = batching.target_latency_milliseconds, pods.alone_seconds() * 1000
    if target is not None and alone > target:
        yield (
            f"no number of replicas meets the target: a request of length "
            f"{traffic.typical_length} takes {alone:.3g} ms on an idle device, and "
            f"targetLatencyMilliseconds is {target}"
        )


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
            f"; {sustaining(answers.replicas)} {formatting.rate(comparison.rate_with_advised)}/s "
            f"with it, {formatting.rate(answers.outlook.highest_rate)}/s without"
        )
    if change.settings.lateness is Lateness.REFUSE and change.field == "lateness":
        said += "; what would be late is then refused instead of served"
    if change.settings.objective is Objective.ROWS and change.field == "objective":
        longest = formatting.percent(best.trial.longest_in_time_share)
        said += f"; of the longest tenth {longest} are then in time"
    if best.beyond_profile:
        said += "; batches of that size were not measured, so try it on the device first"
    return said


def _facts(spec: Spec, pods: SimulatedPods, answers: Answers) -> Iterator[tuple[str, str]]:
    settings, offered = batch_settings(spec), answers.outlook.offered
    target = settings.target_seconds
    within = settings.request_timeout_seconds if target is None else target
    yield (
        "offered",
        f"{formatting.rate(pods.traffic.rate)}/s, {pods.traffic.described}, "
        f"{offered.requests:,} requests",
    )
    in_time, *gone = _ends(offered)
    yield (
        f"answered in {formatting.time(within)}",
        f"{in_time}, {formatting.rate(offered.goodput)}/s",
    )
    for name, part in zip(("late", "refused", "given up", "timed out"), gone, strict=True):
        if part != _NONE:
            yield name, part
    if offered.latency is not None:
        named = asdict(offered.latency).items()
        yield "latency", ", ".join(f"{name} {formatting.time(at)}" for name, at in named)
    yield "device busy", formatting.percent(offered.busy_share)
    yield "mean batch", f"{offered.mean_batch:.1f} rows"
    meaning = f"{IN_TIME:.0%} in time"
    if target is None:
        meaning = f"{formatting.percent(utilisation(spec))} of the throughput"
    highest = formatting.rate(answers.outlook.highest_rate)
    yield sustaining(answers.replicas), f"{highest}/s ({meaning})"
    needed = answers.replicas_needed
    yield (
        "replicas needed",
        f"more than {MOST_REPLICAS}" if needed is None else f"{needed}, requests spread at random",
    )


def _compared(comparison: Comparison) -> Iterator[str]:
    yield f"one setting changed, the same requests at {formatting.rate(comparison.rate)}/s:"
    heading = ("", "in time", "of the longest tenth", "p99", "gain")
    rows = [heading, ("as it is", *_columns(comparison.present), "")]
    for tried in comparison.tried:
        mark = " (not measured)" if tried.beyond_profile else ""
        rows.append((_named(tried), *_columns(tried.trial), f"{_signed(tried.gain)}{mark}"))
    yield from formatting.aligned(rows, indent=2)


def _columns(trial: Trial) -> tuple[str, str, str]:
    latency = trial.latency
    longest = formatting.percent(trial.longest_in_time_share)
    return _ends(trial)[0], longest, "" if latency is None else formatting.time(latency.p99)


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


def count_of(count: int) -> str:
    """So many replicas, in words."""
    return f"{count} replica" if count == 1 else f"{count} replicas"


def sustaining(replicas: int) -> str:
    """That so many sustain something, without what."""
    return f"{count_of(replicas)} {'sustains' if replicas == 1 else 'sustain'}"


def _ends(trial: Trial) -> list[str]:
    """How the traffic ended: in time, late, refused, given up, timed out.

    They add up to 100.0 %: each is rounded down to a tenth of a percent, and the tenths that are
    left go to those that lost most by it.
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
