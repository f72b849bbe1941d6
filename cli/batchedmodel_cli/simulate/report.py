"""Shows answers: a table for people, a document for machines, and notes on what limits them. Pure.

docs/simulate.md promises the keys of the document.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final, TypeAlias

from batchedmodel_cli import formatting
from batchedmodel_cli.simulate.batches import BatchPods, longest_measured
from batchedmodel_cli.simulate.changes import concurrency_field, shown
from batchedmodel_cli.simulate.inputs import MOST_REPLICAS
from batchedmodel_cli.simulate.study import (
    IN_TIME,
    Answers,
    Comparison,
    Measure,
    Result,
    Tried,
    utilisation,
)
from batchedmodel_cli.simulate.texts import TextPods
from batchedmodel_cli.simulator.token_verdicts import TokenVerdict
from batchedmodel_cli.simulator.verdicts import Latency, Verdict
from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.manifest.batching import BatchSettings, Lateness, Objective
from batchedmodel_contract.schema.reading import camel_case
from batchedmodel_kube.manifest.manifest import BatchedModel
from batchedmodel_kube.manifest.pod_settings import batch_settings
from batchedmodel_kube.manifest.spec import Spec

SimulatedPods: TypeAlias = BatchPods | TextPods

VERSION: Final = 1
"""The document's; grows when a key changes its meaning or goes."""

_FEW: Final = 1000
_WIDEST: Final = 40
_NONE: Final = "0.0%"


def document(manifest: BatchedModel, pods: SimulatedPods, answers: Answers) -> dict[str, Any]:
    """Everything, as JSON has it. Rates in requests a second, times in seconds, shares 0 to 1."""
    settings, traffic = batch_settings(manifest.spec), pods.traffic
    outlook, comparison = answers.outlook, answers.comparison
    served, outputs, tokens = dict[str, Any](), dict[str, int](), dict[str, float | None]()
    if isinstance(pods, TextPods):
        served["engine"] = asdict(pods.engine.figures_with(settings))
        outputs["typical_output"] = pods.outputs.typical
        tokens["output_tokens_per_replica"] = outlook.throughput.output_tokens
    else:
        served["device"] = pods.profile.device
    return {
        "version": VERSION,
        "model": manifest.name,
        **served,
        "settings": asdict(settings),
        "traffic": {
            "arrivals": traffic.described,
            "rate": traffic.rate,
            "typical_length": traffic.sizes.typical,
            **outputs,
            "seed": pods.seed,
        },
        "replicas": answers.replicas,
        "offered": asdict(outlook.offered),
        "throughput_per_replica": outlook.throughput.requests,
        **tokens,
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
        "notes": list(_notes(manifest.spec, pods, outlook.offered)),
    }


def table(manifest: BatchedModel, pods: SimulatedPods, answers: Answers) -> Iterator[str]:
    """The same as lines for a person."""
    settings = batch_settings(manifest.spec)
    name, replicas = manifest.name, _count_of(answers.replicas)
    if isinstance(pods, TextPods):
        figures = pods.engine.figures_with(settings)
        field = concurrency_field(ours=pods.engine.ours)
        yield (
            f"{name}: {replicas}, up to {figures.sequences} sequences at "
            f"{formatting.time(figures.step_seconds)} a step, {camel_case(field)} "
            f"{shown(getattr(settings, field))}"
        )
    else:
        at_once = settings.max_concurrent_batches
        side_by_side = "" if at_once == 1 else f", {at_once} batches at a time"
        yield (
            f"{name} on {pods.profile.device}: {replicas}, policy {settings.policy}, up to "
            f"{settings.max_batch_size} rows a batch{side_by_side}"
        )
    yield ""
    yield from formatting.aligned(list(_facts(manifest.spec, pods, answers)), indent=2)
    yield ""
    yield from _compared(answers.comparison)
    yield ""
    yield advice(answers)
    for note in _notes(manifest.spec, pods, answers.outlook.offered):
        yield f"note: {note}"


def _notes(spec: Spec, pods: SimulatedPods, offered: Result) -> Iterator[str]:
    """What limits the answers; nothing where nothing does."""
    if isinstance(pods, BatchPods):
        yield from _notes_on_batches(spec, pods)
        return
    yield from _notes_on_few(offered.requests)
    alone = pods.alone_share(batch_settings(spec))
    if alone is not None and alone < IN_TIME:
        share = formatting.percent(alone)
        yield (
            f"no number of replicas meets the targets: on an idle engine {share} of the requests "
            f"would, and {IN_TIME:.0%} should"
        )
    if isinstance(offered, TokenVerdict) and offered.preempted:
        yield (
            f"the engine's cache was full: {offered.preempted:,} sequences were begun anew, and "
            "their prompts read again"
        )


def _notes_on_batches(spec: Spec, pods: BatchPods) -> Iterator[str]:
    """What limits answers about batches; nothing where nothing does."""
    batching, traffic, profile = spec.batching, pods.traffic, pods.profile
    typical = traffic.sizes.typical
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
    yield from _notes_on_few(traffic.requests)
    by_length = profile.cost_rule is not CostRule.ROWS
    if traffic.length_assumed and by_length:
        yield (
            f"all requests have length {typical}, the middle one of the profile; --lengths says "
            "otherwise"
        )
    longest, measured = traffic.sizes.longest, longest_measured(profile)
    if by_length and longest > measured:
        yield (
            f"lengths go up to {longest}, the profile only to {measured}: the times of longer "
            "requests are extrapolated in a straight line"
        )
    if batching.max_batch_size > pods.largest_measured:
        yield (
            f"maxBatchSize is {batching.max_batch_size}, the largest batch in the profile has "
            f"{pods.largest_measured} rows: the times of larger ones are extrapolated in a "
            "straight line"
        )
    target, alone = batching.target_latency_milliseconds, pods.alone_seconds * 1000
    if target is not None and alone > target:
        yield (
            f"no number of replicas meets the target: a request of length {typical} takes "
            f"{alone:.3g} ms on an idle device, and targetLatencyMilliseconds is {target}"
        )


def _notes_on_few(requests: int) -> Iterator[str]:
    if requests < _FEW:
        yield (
            f"{requests} requests are few: percentiles and rates of such short traffic say little"
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
            f"; {_sustaining(answers.replicas)} {formatting.rate(comparison.rate_with_advised)}/s "
            f"with it, {formatting.rate(answers.outlook.highest_rate)}/s without"
        )
    if change.settings.lateness is Lateness.REFUSE and change.field == "lateness":
        said += "; what would be late is then refused instead of served"
    by_rows = change.settings.objective is Objective.ROWS and change.field == "objective"
    if by_rows and isinstance(best.result, Verdict):
        longest = formatting.percent(best.result.longest_in_time_share)
        said += f"; of the longest tenth {longest} are then in time"
    if change.beyond_profile:
        said += "; batches of that size were not measured, so try it on the device first"
    return said


def _facts(spec: Spec, pods: SimulatedPods, answers: Answers) -> Iterator[tuple[str, str]]:
    settings, traffic, outlook = batch_settings(spec), pods.traffic, answers.outlook
    offered, texts = outlook.offered, isinstance(pods, TextPods)
    arrivals = f"{formatting.rate(traffic.rate)}/s, {traffic.described}, {offered.requests:,}"
    lengths = ""
    if isinstance(pods, TextPods):
        typical = f"{traffic.sizes.typical:,} tokens in and {pods.outputs.typical:,} out"
        lengths = f", in the middle {typical}"
    yield "offered", f"{arrivals} requests{lengths}"
    if isinstance(offered, TokenVerdict):
        yield from _ends_of_texts(settings, offered)
    else:
        yield from _ends_of_batches(settings, offered)
    has_target = pods.alone_share(settings) is not None
    meaning = f"{formatting.percent(utilisation(spec))} of the throughput"
    if has_target:
        meaning = f"{IN_TIME:.0%} meet the targets" if texts else f"{IN_TIME:.0%} in time"
    highest = formatting.rate(outlook.highest_rate)
    yield _sustaining(answers.replicas), f"{highest}/s ({meaning})"
    needed = answers.replicas_needed
    yield (
        "replicas needed",
        f"more than {MOST_REPLICAS}" if needed is None else f"{needed}, requests spread at random",
    )
    answered, tokens = outlook.throughput
    if tokens is not None:
        yield (
            "flooded, a replica",
            f"{formatting.rate(answered)}/s, {tokens:,.0f} tokens/s out",
        )


def _ends_of_batches(settings: BatchSettings, offered: Verdict) -> Iterator[tuple[str, str]]:
    target = settings.target_seconds
    within = settings.request_timeout_seconds if target is None else target
    in_time, *gone = _shares(offered)
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


def _ends_of_texts(settings: BatchSettings, offered: TokenVerdict) -> Iterator[tuple[str, str]]:
    first, token = settings.target_first_token_seconds, settings.target_token_seconds
    targets = [] if first is None else [f"first token in {formatting.time(first)}"]
    if token is not None:
        targets.append(f"then one in {formatting.time(token)}")
    in_time = formatting.percent(offered.in_time_share)
    yield (
        ", ".join(targets) or "answered",
        f"{in_time}, {formatting.rate(offered.goodput)}/s",
    )
    if offered.late_share:
        yield "answered late", formatting.percent(offered.late_share)
    for reason, share in offered.gone_shares.items():
        yield f"not answered: {reason}", formatting.percent(share)
    for name, times in (
        ("first token", offered.first_token),
        ("between tokens", offered.between_tokens),
    ):
        if times is not None:
            yield name, f"p50 {formatting.time(times.p50)}, p99 {formatting.time(times.p99)}"
    yield "tokens", f"{offered.output_tokens:,.0f}/s out, {offered.prompt_tokens:,.0f}/s in"
    yield (
        "engine used",
        f"{formatting.percent(offered.used_share)}, {offered.mean_sequences:.1f} sequences",
    )


def _compared(comparison: Comparison) -> Iterator[str]:
    yield f"one setting changed, the same requests at {formatting.rate(comparison.rate)}/s:"
    heading: tuple[str, ...] = ("", "in time", "of the longest tenth", "p99", "gain")
    if isinstance(comparison.present, TokenVerdict):
        heading = ("", "in time", "first token p99", "between tokens p99", "tokens/s", "gain")
    rows = [heading, ("as it is", *_columns(comparison.present), "")]
    for tried in comparison.tried:
        mark = " (not measured)" if tried.change.beyond_profile else ""
        rows.append((_named(tried), *_columns(tried.result), f"{_signed(tried.gain)}{mark}"))
    yield from formatting.aligned(rows, indent=2)


def _columns(result: Result) -> tuple[str, ...]:
    if isinstance(result, TokenVerdict):
        return (
            formatting.percent(result.in_time_share),
            _p99(result.first_token),
            _p99(result.between_tokens),
            f"{result.output_tokens:,.0f}",
        )
    longest = formatting.percent(result.longest_in_time_share)
    return _shares(result)[0], longest, _p99(result.latency)


def _p99(latency: Latency | None) -> str:
    return "" if latency is None else formatting.time(latency.p99)


def _named(tried: Tried) -> str:
    name = f"{tried.change.field}: {tried.change.value}"
    return name if len(name) <= _WIDEST else f"{name[: _WIDEST - 3]}..."


def _gain(tried: Tried, measure: Measure) -> str:
    if measure is Measure.P99:
        texts = isinstance(tried.result, TokenVerdict)
        return f"{tried.gain:.1%} off the " + ("first token's p99" if texts else "p99 latency")
    return f"{_signed(tried.gain)} {'in time' if measure is Measure.IN_TIME else 'throughput'}"


def _signed(gain: float) -> str:
    return f"x{1 + gain:,.1f}" if gain >= 1 else f"{gain:+.1%}"


def _tried(tried: Tried) -> dict[str, Any]:
    change = tried.change
    return {
        "field": f"{change.section}.{change.field}",
        "present": change.present,
        "value": change.value,
        "gain": tried.gain,
        "beyond_profile": change.beyond_profile,
        "result": asdict(tried.result),
    }


def _count_of(count: int) -> str:
    return f"{count} replica" if count == 1 else f"{count} replicas"


def _sustaining(replicas: int) -> str:
    """That so many sustain something, without what."""
    return f"{_count_of(replicas)} {'sustains' if replicas == 1 else 'sustain'}"


def _shares(result: Verdict) -> list[str]:
    """How the traffic ended: in time, late, refused, given up, timed out.

    They add up to 100.0 %: each is rounded down to a tenth of a percent, and the tenths that are
    left go to those that lost most by it.
    """
    shares = (
        result.in_time_share,
        result.late_share,
        result.refused_share,
        result.shed_share,
        result.expired_share,
    )
    tenths = [math.floor(share * formatting.WHOLE) for share in shares]
    by_loss = sorted(range(len(shares)), key=lambda n: tenths[n] - shares[n] * formatting.WHOLE)
    for n in by_loss[: max(0, formatting.WHOLE - sum(tenths))]:
        tenths[n] += 1
    return [formatting.tenths(part, share) for part, share in zip(tenths, shares, strict=True)]
