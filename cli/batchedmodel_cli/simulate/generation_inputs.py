"""What a command line says of a language model: its engine, and the texts that are asked of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

import click

from batchedmodel_cli.simulate import inputs, sources
from batchedmodel_contract.generation.description import StepBounds
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_contract.processes.sidecar_api import ADMIN_PORT
from batchedmodel_kube.manifest.manifest import BatchedModel
from batchedmodel_kube.manifest.spec import Spec

if TYPE_CHECKING:
    from batchedmodel_cli.simulate.generation_engines import SimulatedEngine
    from batchedmodel_cli.simulate.generation_pods import GenerationPods
    from batchedmodel_cli.simulate.generation_traffic import TextTraffic

_SEQUENCES: Final = 256
_CHUNK: Final = 2048
_OWN: Final = StepBounds(sequences=64, tokens=512)
"""Of our engine on CPUs."""
OPTIONS: Final[Sequence[click.Parameter]] = (
    click.Option(
        ["--step-ms"],
        metavar="MS",
        type=inputs.number(0.01, 10_000),
        help="Time of an engine's step: that between two tokens of a single stream.",
    ),
    click.Option(
        ["--prefill-us-per-token"],
        metavar="US",
        type=inputs.number(0, 1e6),
        help="What each token of a prompt adds to a step.",
    ),
    click.Option(
        ["--sequence-us"],
        metavar="US",
        type=inputs.number(0, 1e6),
        help="What each sequence adds to a step (default: 0).",
    ),
    click.Option(
        ["--context-us-per-token"],
        metavar="US",
        type=inputs.number(0, 1e6),
        help="What each token in the cache adds to a step of a handler's model (default: 0).",
    ),
    click.Option(
        ["--sequences"],
        metavar="N",
        type=inputs.whole(1, 4096),
        help=f"Sequences that the engine runs at once (default: {_SEQUENCES}; {_OWN.sequences} of "
        "a handler's model).",
    ),
    click.Option(
        ["--chunk-tokens"],
        metavar="N",
        type=inputs.whole(1, 10_000_000),
        help=f"Tokens of prompts that one step reads, at most (default: {_CHUNK}; {_OWN.tokens} of "
        "a handler's model).",
    ),
    click.Option(
        ["--cache-tokens"],
        metavar="N",
        type=inputs.whole(1, 1_000_000_000),
        help="Tokens that the engine's cache holds (default: enough for all that run).",
    ),
    click.Option(
        ["--outputs"],
        metavar="L",
        type=inputs.lengths,
        help="Tokens of the answers: N or lognormal:MEDIAN,SIGMA (default: the trace's).",
    ),
    click.Option(
        ["--lengths-from"],
        metavar="FILE",
        type=inputs.FILE,
        help="A trace, of which prompts and answers have their lengths, for --rate.",
    ),
    click.Option(
        ["--speed"],
        metavar="X",
        type=inputs.number(0.001, 1000),
        help="A trace so many times as fast as it was (default: 1).",
    ),
)
"""Those about language models."""


def wanted(arguments: SimpleNamespace, spec: Spec) -> bool:
    """Whether generated text is to be simulated; raises `inputs.Refused` for options that do not
    go together.
    """
    given = next((one for one in OPTIONS if getattr(arguments, one.name) is not None), None)
    asked = given is not None or spec.generation is not None
    protocol = spec.model.protocol
    if protocol is None:
        return asked  # our engine, of which a profile may tell
    speaks = protocol is ServerProtocol.OPENAI
    if given is not None and (not speaks or arguments.profile is not None):
        why = "--profile is for embeddings" if speaks else "it needs model.protocol OpenAI"
        raise inputs.Refused(f"{given.opts[0]} is for language models: {why}")
    return speaks and asked and arguments.profile is None


def pods(
    arguments: SimpleNamespace, of: BatchedModel, on_run: Callable[[], None]
) -> GenerationPods:
    """The manifest's pods with the engine and the texts of the options; raises `Refused`."""
    from batchedmodel_cli.simulate.generation_pods import GenerationPods

    ours = of.spec.model.protocol is None
    return GenerationPods(
        traffic=_traffic(arguments),
        engine=_own_engine(arguments, of.name) if ours else _upstream_engine(arguments),
        seed=arguments.seed,
        on_run=on_run,
    )


def _upstream_engine(arguments: SimpleNamespace) -> SimulatedEngine:
    from batchedmodel_cli.simulate.generation_engines import UpstreamEngine
    from batchedmodel_cli.simulator.token_engine import EngineFigures

    if arguments.context_us_per_token is not None:
        raise inputs.Refused("--context-us-per-token is for models of a handler")
    if (missing := _missing(arguments)) is not None:
        raise inputs.Refused(
            f"{missing} is missing: without an engine's times there is nothing to simulate.\n"
            "--step-ms is the time between two tokens of one stream on an idle server, "
            "--prefill-us-per-token\nthe time to the first token of a long prompt by its tokens. "
            "Both are what `vllm bench serve\n--max-concurrency 1` prints: the mean TPOT, and the "
            "mean TTFT over --random-input-len."
        )
    figures = EngineFigures(
        sequences=arguments.sequences or _SEQUENCES,
        step_seconds=arguments.step_ms / 1e3,
        sequence_seconds=(arguments.sequence_us or 0.0) / 1e6,
        prefill_seconds_per_token=arguments.prefill_us_per_token / 1e6,
        chunk_tokens=arguments.chunk_tokens or _CHUNK,
        cache_tokens=arguments.cache_tokens,
    )
    return UpstreamEngine(of=figures)


def _own_engine(arguments: SimpleNamespace, model: str) -> SimulatedEngine:
    from batchedmodel_cli.simulate.generation_engines import BLOCK_TOKENS, OwnEngine
    from batchedmodel_scheduling.latency.step_times import StepCost

    cost, bounds = StepCost(base=0.0, prefill_token=0.0, sequence=0.0), _OWN
    blocks, block_tokens = None, BLOCK_TOKENS
    if arguments.profile is not None:
        with inputs.named("--profile", arguments.profile):
            told = sources.engine_from(arguments.profile, model)
        measured = told.step_seconds
        cost = StepCost(
            base=measured.base,
            prefill_token=measured.prefill_token,
            sequence=measured.sequence,
            context_token=measured.context_token,
        )
        bounds = StepBounds(told.max_sequences, told.max_tokens_per_step)
        blocks, block_tokens = told.blocks, told.block_tokens
    elif (missing := _missing(arguments)) is not None:
        raise inputs.Refused(
            f"--profile and {missing} are missing: without an engine's times there is nothing to "
            "simulate.\nThe model server measures them while it warms up. From one that runs here "
            f"(batchedmodel run --admin-port {ADMIN_PORT}):\n"
            f"  --profile http://127.0.0.1:{ADMIN_PORT}"
        )
    if arguments.cache_tokens is not None:
        blocks = max(1, arguments.cache_tokens // block_tokens)
    cost = StepCost(
        base=_wished(arguments.step_ms, 1e3, cost.base),
        prefill_token=_wished(arguments.prefill_us_per_token, 1e6, cost.prefill_token),
        sequence=_wished(arguments.sequence_us, 1e6, cost.sequence),
        context_token=_wished(arguments.context_us_per_token, 1e6, cost.context_token),
    )
    if cost.base + cost.sequence <= 0:
        raise inputs.Refused("--profile: a step of this engine takes no time; say --step-ms")
    return OwnEngine(
        cost=cost,
        bounds=bounds.within(arguments.sequences, arguments.chunk_tokens),
        blocks=blocks,
        block_tokens=block_tokens,
    )


def _missing(arguments: SimpleNamespace) -> str | None:
    """The option without which there are no times of an engine."""
    if arguments.step_ms is None:
        return "--step-ms"
    return "--prefill-us-per-token" if arguments.prefill_us_per_token is None else None


def _wished(value: float | None, parts: float, otherwise: float) -> float:
    return otherwise if value is None else value / parts


def _traffic(arguments: SimpleNamespace) -> TextTraffic:
    from batchedmodel_cli.simulate import generation_traffic

    requests = arguments.requests or inputs.TEXTS
    wishes = generation_traffic.Wishes(prompts=arguments.lengths, outputs=arguments.outputs)
    if arguments.sidecar is not None:
        raise inputs.Refused("--from: no lengths of answers are recorded there; --trace has them")
    if arguments.rate is not None and arguments.speed is not None:
        raise inputs.Refused("--speed is for --trace")
    if arguments.rate is not None and arguments.lengths_from is None:
        if wishes.prompts is None or wishes.outputs is None:
            raise inputs.Refused(
                "--lengths and --outputs say how long prompts and answers are, or --lengths-from"
            )
        return generation_traffic.drawn(
            rate=arguments.rate,
            burstiness=arguments.burstiness,
            wishes=wishes,
            requests=requests,
        )
    option, place = "--trace", arguments.trace
    if arguments.rate is not None:
        option, place = "--lengths-from", arguments.lengths_from
    elif arguments.lengths_from is not None:
        raise inputs.Refused("--lengths-from is for --rate")
    with inputs.named(option, place):
        text = sources.trace_from_file(place)
        if arguments.rate is not None:
            return generation_traffic.drawn_as_in(
                text,
                rate=arguments.rate,
                burstiness=arguments.burstiness,
                wishes=wishes,
                requests=requests,
            )
        return generation_traffic.replayed(
            text, speed=arguments.speed or 1.0, wishes=wishes, requests=requests
        )
