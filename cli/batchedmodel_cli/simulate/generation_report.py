"""Shows answers about a language model: a table for people, a document for machines. Pure.

docs/simulate.md promises the keys of the document.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from batchedmodel_cli import formatting
from batchedmodel_cli.simulate.generation_engines import Knob
from batchedmodel_cli.simulate.generation_pods import GenerationPods
from batchedmodel_cli.simulate.generation_study import GenerationAnswers, Limit, Limits
from batchedmodel_cli.simulate.inputs import MOST_REPLICAS
from batchedmodel_cli.simulate.report import VERSION, count_of, sustaining
from batchedmodel_cli.simulate.study import IN_TIME, Measure, utilisation
from batchedmodel_cli.simulator.token_verdicts import TokenVerdict
from batchedmodel_cli.simulator.verdicts import Latency
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_kube.manifest.manifest import BatchedModel
from batchedmodel_kube.manifest.pod_settings import batch_settings
from batchedmodel_kube.manifest.spec import Spec

_FEW: Final = 1000
_ABSENT: Final = "absent"


def document(
    manifest: BatchedModel, pods: GenerationPods, answers: GenerationAnswers
) -> dict[str, Any]:
    """Everything, as JSON has it. Rates in requests a second, times in seconds, shares 0 to 1."""
    settings, tried = batch_settings(manifest.spec), answers.limits
    prompt, output = pods.typical
    knob = pods.engine.knob
    present = knob.present(settings)

    def change(limit: Limit) -> dict[str, Any]:
        return {
            "field": f"spec.generation.{knob.value}",
            "present": _ABSENT if present is None else str(present),
            "value": _ABSENT if limit.value is None else str(limit.value),
            "gain": limit.gain,
            "result": asdict(limit.result),
        }

    return {
        "version": VERSION,
        "model": manifest.name,
        "engine": pods.engine.figures(settings),
        "settings": asdict(settings),
        "traffic": {
            "arrivals": pods.traffic.described,
            "rate": pods.traffic.rate,
            "typical_length": prompt,
            "typical_output": output,
            "seed": pods.seed,
        },
        "replicas": answers.replicas,
        "offered": asdict(answers.offered),
        "throughput_per_replica": answers.flooded.answered,
        "output_tokens_per_replica": answers.flooded.output_tokens,
        "highest_rate": answers.highest_rate,
        "replicas_needed": answers.replicas_needed,
        "comparison": {
            "measure": tried.measure.value,
            "rate": tried.rate,
            "present": asdict(tried.present),
            "changes": [change(limit) for limit in tried.tried],
            "worth_changing": None if tried.advised is None else change(tried.advised),
            "highest_rate_with_it": tried.rate_with_advised,
        },
        "advice": advice(knob, answers),
        "notes": list(notes(manifest.spec, pods, answers)),
    }


def table(
    manifest: BatchedModel, pods: GenerationPods, answers: GenerationAnswers
) -> Iterator[str]:
    """The same as lines for a person."""
    settings, knob = batch_settings(manifest.spec), pods.engine.knob
    figures, present = pods.engine.figures(settings), knob.present(settings)
    yield (
        f"{manifest.name}: {count_of(answers.replicas)}, up to {figures['sequences']} sequences at "
        f"{formatting.time(figures['step_seconds'])} a step, {knob.value} {_named(knob, present)}"
    )
    yield ""
    yield from formatting.aligned(list(_facts(manifest.spec, pods, answers)), indent=2)
    yield ""
    yield from _compared(knob, answers.limits, present)
    yield ""
    yield advice(knob, answers)
    for note in notes(manifest.spec, pods, answers):
        yield f"note: {note}"


def notes(spec: Spec, pods: GenerationPods, answers: GenerationAnswers) -> Iterator[str]:
    """What limits the answers; nothing where nothing does."""
    if answers.offered.requests < _FEW:
        yield (
            f"{answers.offered.requests} requests are few: percentiles and rates of such short "
            "traffic say little"
        )
    settings = batch_settings(spec)
    alone = pods.alone_share(settings)
    if alone < IN_TIME:
        share = formatting.percent(alone)
        yield (
            f"no number of replicas meets the targets: on an idle engine {share} of the requests "
            f"would, and {IN_TIME:.0%} should"
        )
    if answers.offered.preempted:
        yield (
            f"the engine's cache was full: {answers.offered.preempted:,} sequences were begun "
            "anew, and their prompts read again"
        )


def advice(knob: Knob, answers: GenerationAnswers) -> str:
    """Whether another value is worth it, as a sentence."""
    tried = answers.limits
    best = tried.advised
    if best is None:
        return f"no other {knob.value} that was tried is worth it"
    said = (
        f"worth changing: {knob.value} to {_named(knob, best.value)} "
        f"({_gain(best, tried.measure)} at {formatting.rate(tried.rate)}/s)"
    )
    if tried.rate_with_advised is not None:
        said += (
            f"; {sustaining(answers.replicas)} {formatting.rate(tried.rate_with_advised)}/s "
            f"with it, {formatting.rate(answers.highest_rate)}/s without"
        )
    return said


def _facts(
    spec: Spec, pods: GenerationPods, answers: GenerationAnswers
) -> Iterator[tuple[str, str]]:
    settings, offered = batch_settings(spec), answers.offered
    prompt, output = pods.typical
    yield (
        "offered",
        f"{formatting.rate(pods.traffic.rate)}/s, {pods.traffic.described}, "
        f"{offered.requests:,} requests, in the middle {prompt:,} tokens in and {output:,} out",
    )
    yield (
        _targets(settings),
        f"{formatting.percent(offered.in_time_share)}, {formatting.rate(offered.goodput)}/s",
    )
    if offered.late_share:
        yield "answered late", formatting.percent(offered.late_share)
    for reason, share in offered.gone_shares.items():
        yield f"not answered: {reason}", formatting.percent(share)
    if offered.first_token is not None:
        yield "first token", _quantiles(offered.first_token)
    if offered.between_tokens is not None:
        yield "between tokens", _quantiles(offered.between_tokens)
    yield (
        "tokens",
        f"{offered.output_tokens:,.0f}/s out, {offered.prompt_tokens:,.0f}/s in",
    )
    yield (
        "engine used",
        f"{formatting.percent(offered.used_share)}, {offered.mean_sequences:.1f} sequences",
    )
    meaning = f"{IN_TIME:.0%} meet the targets"
    if settings.target_first_token_seconds is None and settings.target_token_seconds is None:
        meaning = f"{formatting.percent(utilisation(spec))} of the throughput"
    highest = formatting.rate(answers.highest_rate)
    yield sustaining(answers.replicas), f"{highest}/s ({meaning})"
    needed = answers.replicas_needed
    yield (
        "replicas needed",
        f"more than {MOST_REPLICAS}" if needed is None else f"{needed}, requests spread at random",
    )
    flooded = answers.flooded
    yield (
        "flooded, a replica",
        f"{formatting.rate(flooded.answered)}/s, {flooded.output_tokens:,.0f} tokens/s out",
    )


def _targets(settings: BatchSettings) -> str:
    first, token = settings.target_first_token_seconds, settings.target_token_seconds
    parts = []
    if first is not None:
        parts.append(f"first token in {formatting.time(first)}")
    if token is not None:
        parts.append(f"then one in {formatting.time(token)}")
    return ", ".join(parts) or "answered"


def _compared(knob: Knob, tried: Limits, present: int | None) -> Iterator[str]:
    rate = formatting.rate(tried.rate)
    yield f"{knob.value} changed, the same requests at {rate}/s:"
    rows = [("", "in time", "first token p99", "between tokens p99", "tokens/s", "gain")]
    rows.append((f"{_named(knob, present)} (as it is)", *_columns(tried.present), ""))
    rows += [
        (_named(knob, limit.value), *_columns(limit.result), f"{limit.gain:+.1%}")
        for limit in tried.tried
    ]
    yield from formatting.aligned(rows, indent=2)


def _columns(found: TokenVerdict) -> tuple[str, str, str, str]:
    first, between = (
        "" if times is None else formatting.time(times.p99)
        for times in (found.first_token, found.between_tokens)
    )
    share = formatting.percent(found.in_time_share)
    return share, first, between, f"{found.output_tokens:,.0f}"


def _quantiles(times: Latency) -> str:
    return f"p50 {formatting.time(times.p50)}, p99 {formatting.time(times.p99)}"


def _gain(limit: Limit, measure: Measure) -> str:
    if measure is Measure.P99:
        return f"{limit.gain:.1%} off the first token's p99"
    return f"{limit.gain:+.1%} in time"


def _named(knob: Knob, value: int | None) -> str:
    return knob.absent if value is None else str(value)
