"""The pods that a command line wants simulated: their traffic, and their devices or engines."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Final

from batchedmodel_cli.simulate import inputs, sources, traffic
from batchedmodel_cli.simulate.batches import BatchPods, longest_measured
from batchedmodel_cli.simulate.text_engine import TextEngine
from batchedmodel_cli.simulate.texts import TextPods
from batchedmodel_cli.simulate.traffic import Traffic
from batchedmodel_cli.simulator.token_engine import EngineFigures
from batchedmodel_cli.simulator.traces import read_trace
from batchedmodel_contract.generation.description import StepBounds, StepSeconds
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.processes.sidecar_api import ADMIN_PORT
from batchedmodel_kube.manifest.manifest import BatchedModel

_LONGEST_TEXT: Final = 1_000_000
"""Tokens of what is drawn, at most."""
_BLOCK_TOKENS: Final = 32
"""Of our engine's cache, unless it tells another number."""


def batch_pods(
    arguments: SimpleNamespace, of: BatchedModel, on_run: Callable[[], None]
) -> BatchPods:
    """The manifest's pods with the traffic and the profile of the options; raises `Refused`."""
    measured = inputs.profile("--profile", arguments.profile, of.name)
    by_length = sorted({point.length for point in measured.points})
    return BatchPods(
        traffic=_traffic(
            arguments,
            requests=arguments.requests or inputs.REQUESTS,
            usual=max(1, by_length[len(by_length) // 2]),
            longest=longest_measured(measured),
            trust_priority=of.spec.batching.trust_priority,
        ),
        profile=measured,
        upstream=of.spec.model.protocol is not None,
        hand_off_seconds=arguments.hand_off_ms / 1000,
        seed=arguments.seed,
        on_run=on_run,
    )


def text_pods(arguments: SimpleNamespace, of: BatchedModel, on_run: Callable[[], None]) -> TextPods:
    """The manifest's pods with the engine and the texts of the options; raises `Refused`."""
    outputs, lengths_from = arguments.outputs, arguments.lengths_from
    if arguments.sidecar is not None:
        raise inputs.Refused("--from: no lengths of answers are recorded there; --trace has them")
    if arguments.rate is None and lengths_from is not None:
        raise inputs.Refused("--lengths-from is for --rate")
    if arguments.rate is not None and arguments.speed is not None:
        raise inputs.Refused("--speed is for --trace")
    if arguments.trace is None and lengths_from is None and None in (arguments.lengths, outputs):
        raise inputs.Refused(
            "--lengths and --outputs say how long prompts and answers are, or --lengths-from"
        )
    return TextPods(
        engine=_engine(arguments, of),
        traffic=_traffic(
            arguments,
            requests=arguments.requests or inputs.TEXTS,
            longest=_LONGEST_TEXT,
            outputs=outputs,
            lengths_from=lengths_from,
            speed=arguments.speed or 1.0,
            texts=True,
        ),
        seed=arguments.seed,
        on_run=on_run,
    )


def _traffic(
    arguments: SimpleNamespace,
    *,
    requests: int,
    longest: int,
    usual: int = 1,
    outputs: inputs.LengthsWish | None = None,
    lengths_from: str | None = None,
    speed: float = 1.0,
    trust_priority: bool = True,
    texts: bool = False,
) -> Traffic:
    """What the options say; of lengths that are drawn none is above `longest`.

    `usual`: how long rows are where neither an option nor a trace says it.
    """
    places = {
        "--from": arguments.sidecar,
        "--trace": arguments.trace,
        "--lengths-from": lengths_from,
    }
    sizes = None if arguments.lengths is None else traffic.wished(arguments.lengths, longest)
    answers = None if outputs is None else traffic.wished(outputs, longest)
    option, place = next(((o, p) for o, p in places.items() if p is not None), ("", None))
    if place is None:
        return traffic.drawn(
            rate=arguments.rate,
            burstiness=arguments.burstiness,
            requests=requests,
            sizes=sizes or traffic.wished(inputs.LengthsWish(median=usual), longest),
            outputs=answers,
            length_assumed=sizes is None,
        )
    with inputs.named(option, place):
        read = sources.trace_from_sidecar if option == "--from" else sources.trace_from_file
        trace = read_trace(read(place))
        if texts and answers is None and trace.outputs is None:
            raise InvalidInput(
                "trace: line 1",
                "names no column GeneratedTokens (or output, beside seconds and length): say "
                "--outputs",
            )
        if arguments.rate is not None:
            return traffic.drawn(
                rate=arguments.rate,
                burstiness=arguments.burstiness,
                requests=requests,
                sizes=sizes or traffic.recorded(trace.lengths),
                outputs=answers or traffic.recorded(trace.outputs or ()),
            )
        return traffic.replayed(
            trace,
            requests=requests,
            sizes=sizes,
            outputs=answers,
            speed=speed,
            trust_priority=trust_priority,
            of_one_pod=option == "--from",
        )


def _engine(arguments: SimpleNamespace, of: BatchedModel) -> TextEngine:
    ours, place = of.spec.model.protocol is None, arguments.profile
    if not ours and arguments.context_us_per_token is not None:
        raise inputs.Refused("--context-us-per-token is for models of a handler")
    bounds, block_tokens = inputs.OUR_BOUNDS if ours else inputs.UPSTREAM_BOUNDS, _BLOCK_TOKENS
    seconds = StepSeconds(base=0.0, prefill_token=0.0, sequence=0.0, context_token=0.0)
    cache_tokens = None
    if place is not None:
        with inputs.named("--profile", place):
            engine = sources.engine_from(place, of.name)
        seconds, block_tokens = engine.step_seconds, engine.block_tokens
        bounds = StepBounds(engine.max_sequences, engine.max_tokens_per_step)
        cache_tokens = engine.blocks * block_tokens
    elif arguments.step_ms is None or arguments.prefill_us_per_token is None:
        missing = "--step-ms" if arguments.step_ms is None else "--prefill-us-per-token"
        raise inputs.Refused(_without_times(missing, ours=ours))
    sequences, chunk_tokens = arguments.sequences, arguments.chunk_tokens
    if ours:
        sequences, chunk_tokens = bounds.within(sequences, chunk_tokens)
    wishes = (
        ("base", arguments.step_ms, 1e3),
        ("prefill_token", arguments.prefill_us_per_token, 1e6),
        ("sequence", arguments.sequence_us, 1e6),
        ("context_token", arguments.context_us_per_token, 1e6),
    )
    changes = {name: value / parts for name, value, parts in wishes if value is not None}
    seconds = replace(seconds, **changes)
    try:
        figures = EngineFigures(
            sequences=sequences or bounds.sequences,
            step_seconds=seconds.base,
            sequence_seconds=seconds.sequence,
            prefill_seconds_per_token=seconds.prefill_token,
            context_seconds_per_token=seconds.context_token,
            chunk_tokens=chunk_tokens or bounds.tokens,
            cache_tokens=arguments.cache_tokens or cache_tokens,
        )
    except ValueError as error:
        raise inputs.Refused(
            "--profile: a step of this engine takes no time; say --step-ms"
        ) from error
    return TextEngine(figures=figures, ours=ours, block_tokens=block_tokens)


def _without_times(missing: str, *, ours: bool) -> str:
    if ours:
        return (
            f"--profile and {missing} are missing: without an engine's times there is nothing to "
            "simulate.\nThe model server measures them while it warms up. From one that runs here "
            f"(batchedmodel run --admin-port {ADMIN_PORT}):\n"
            f"  --profile http://127.0.0.1:{ADMIN_PORT}"
        )
    return (
        f"{missing} is missing: without an engine's times there is nothing to simulate.\n"
        "--step-ms is the time between two tokens of one stream on an idle server, "
        "--prefill-us-per-token\nthe time to the first token of a long prompt by its tokens. "
        "Both are what `vllm bench serve\n--max-concurrency 1` prints: the mean TPOT, and the "
        "mean TTFT over --random-input-len."
    )
