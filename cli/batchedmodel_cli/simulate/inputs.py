"""What a command line gives to a simulation: options, manifest and profile.

The simulator needs numpy. So `pods` is imported when it is needed, and other commands do without.
"""

import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import click

from batchedmodel_cli.manifest_file import UnusableManifest, read_manifest_file
from batchedmodel_cli.simulate import sources
from batchedmodel_contract.generation.description import StepBounds
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_kube.manifest.manifest import BatchedModel
from batchedmodel_kube.manifest.model_class import ModelClass
from batchedmodel_kube.manifest.spec import Spec

MOST_REPLICAS: Final = 64
REQUESTS: Final = 20_000
"""In each simulation, unless another number is wished."""
TEXTS: Final = 2000
"""The same of requests for generated text, each of which takes hundreds of steps."""

FILE: Final = click.Path(readable=False)
"""Who reads it says what is wrong with it; a shell completes it."""

_LONGEST: Final = 2**31
UPSTREAM_BOUNDS: Final = StepBounds(sequences=256, tokens=2048)
OUR_BOUNDS: Final = StepBounds(sequences=64, tokens=512)
"""Of an engine of others, and of ours on CPUs."""
_WIDEST_SIGMA: Final = 5.0
_NUMBER: Final = r"\d{1,10}(?:\.\d{1,9})?"
_LENGTHS: Final = re.compile(rf"(\d{{1,10}})|lognormal:({_NUMBER}),({_NUMBER})", re.ASCII)


class Refused(ValueError):
    """The command cannot be carried out; one message per line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthsWish:
    """All requests of one length, or lognormal lengths."""

    median: float
    sigma: float = 0.0
    """Standard deviation of the logarithm; 0: all have the median's length."""


def lengths(text: str) -> LengthsWish:
    """`64` or `lognormal:64,0.8`."""
    parts = _LENGTHS.fullmatch(text)
    if parts:
        wish = LengthsWish(median=float(parts[1] or parts[2]), sigma=float(parts[3] or 0))
        equal = parts[1] is not None
        if 1 <= wish.median <= _LONGEST and (equal or 0 < wish.sigma <= _WIDEST_SIGMA):
            return wish
    raise ValueError(
        f"{text!r} is not a whole number from 1 to {_LONGEST}, nor lognormal:MEDIAN,SIGMA "
        f"with a median in these bounds and a sigma above 0 and up to {_WIDEST_SIGMA:g}"
    )


def number(least: float, most: float) -> Callable[[str], float]:
    """A reader of numbers within these bounds."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise ValueError(f"{text!r} is not a number from {least:g} to {most:g}")
        return value

    return read


def whole(least: int, most: int) -> Callable[[str], int]:
    """A reader of whole numbers within these bounds."""

    def read(text: str) -> int:
        if text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most:
            return int(text)
        raise ValueError(f"{text!r} is not a whole number from {least} to {most}")

    return read


def _option(usage: str, kind: Any, text: str, **more: Any) -> click.Option:
    """`usage`: its name and what stands for its value, such as `--rate R`."""
    name, metavar = usage.split()
    return click.Option([name], metavar=metavar, type=kind, help=text, **more)


def options() -> list[click.Parameter]:
    """The options about traffic and device."""
    return [
        _option("--rate R", number(0.1, 1e6), "Requests a second, drawn at random."),
        _option(
            "--trace FILE",
            FILE,
            "Requests as recorded: CSV with the columns seconds and length (and priority), or an "
            "Azure LLM inference trace.",
        ),
        _option(
            "--lengths L",
            lengths,
            "N or lognormal:MEDIAN,SIGMA (default: the trace's, or the profile's middle one).",
        ),
        _option(
            "--burstiness CV",
            number(0.1, 10),
            "Spread of the gaps between requests over their mean, for --rate (default: 1.0, "
            "Poisson; 4 is very bursty).",
            default=1.0,
        ),
        _option(
            "--requests N",
            whole(100, 100_000),
            "Requests in each simulation; of a longer trace the latest "
            f"(default: {REQUESTS}; of generated text {TEXTS}).",
        ),
        _option(
            "--hand-off-ms MS",
            number(0, 1000),
            "Time of a batch on its way to the device.",
            default=0.5,
            show_default=True,
        ),
        _option(
            "--seed S",
            whole(0, 2**31),
            "Seed of the random numbers; equal seeds give equal answers.",
            default="0",
            show_default=True,
        ),
    ]


TEXT_OPTIONS: Final[Sequence[click.Parameter]] = (
    _option(
        "--step-ms MS",
        number(0.01, 10_000),
        "Time of an engine's step: that between two tokens of a single stream.",
    ),
    _option(
        "--prefill-us-per-token US",
        number(0, 1e6),
        "What each token of a prompt adds to a step.",
    ),
    _option("--sequence-us US", number(0, 1e6), "What each sequence adds to a step (default: 0)."),
    _option(
        "--context-us-per-token US",
        number(0, 1e6),
        "What each token in the cache adds to a step of a handler's model (default: 0).",
    ),
    _option(
        "--sequences N",
        whole(1, 4096),
        f"Sequences that the engine runs at once (default: {UPSTREAM_BOUNDS.sequences}; "
        f"{OUR_BOUNDS.sequences} of a handler's model).",
    ),
    _option(
        "--chunk-tokens N",
        whole(1, 10_000_000),
        f"Tokens of prompts that one step reads, at most (default: {UPSTREAM_BOUNDS.tokens}; "
        f"{OUR_BOUNDS.tokens} of a handler's model).",
    ),
    _option(
        "--cache-tokens N",
        whole(1, 1_000_000_000),
        "Tokens that the engine's cache holds (default: enough for all that run).",
    ),
    _option(
        "--outputs L",
        lengths,
        "Tokens of the answers: N or lognormal:MEDIAN,SIGMA (default: the trace's).",
    ),
    _option(
        "--lengths-from FILE",
        FILE,
        "A trace, of which prompts and answers have their lengths, for --rate.",
    ),
    _option(
        "--speed X",
        number(0.001, 1000),
        "A trace so many times as fast as it was (default: 1).",
    ),
)
"""Options about language models."""


def one_traffic(arguments: SimpleNamespace) -> None:
    """Refuse a line with two sources of traffic, or with none."""
    places = {"--rate": arguments.rate, "--trace": arguments.trace, "--from": arguments.sidecar}
    given = [option for option, value in places.items() if value is not None]
    if len(given) > 1:
        raise click.UsageError(f"{given[1]} is not allowed with {given[0]}")
    if not given:
        raise click.UsageError(f"one of {', '.join(places)} is required: the traffic")


def manifest(
    file: Path, class_of: Callable[[str], ModelClass | None] = lambda _: None
) -> BatchedModel:
    """The manifest in a file, as `read_manifest_file` reads it; raises `Refused`."""
    try:
        return read_manifest_file(file, class_of)
    except UnusableManifest as error:
        raise Refused("\n".join(f"{file}: {line}" for line in error.messages)) from error


def profile(option: str, place: str, model: str) -> Profile:
    """The profile that an option names; raises `Refused`."""
    with named(option, place):
        return sources.profile_from(place, model)


def generates(arguments: SimpleNamespace, spec: Spec) -> bool:
    """Whether generated text is to be simulated; raises `Refused` for options that do not go
    together.
    """
    option = next(
        (o.opts[0] for o in TEXT_OPTIONS if getattr(arguments, str(o.name)) is not None), None
    )
    wanted = option is not None or spec.generation is not None
    protocol = spec.model.protocol
    if protocol is None:
        return wanted  # our engine, of which a profile may tell
    speaks = protocol is ServerProtocol.OPENAI
    if option is not None and (not speaks or arguments.profile is not None):
        why = "--profile is for embeddings" if speaks else "it needs model.protocol OpenAI"
        raise Refused(f"{option} is for language models: {why}")
    return speaks and wanted and arguments.profile is None


@contextmanager
def named(option: str, place: str) -> Iterator[None]:
    """Put the option's name in front of what is wrong with its value."""
    try:
        yield
    except (sources.Unusable, InvalidInput) as error:
        raise Refused(f"{option} {place}: {error}") from error


class Progress:
    """Counts simulations in one line of a terminal; elsewhere it prints nothing."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._runs = 0

    def advance(self) -> None:
        """Another simulation begins."""
        self._runs += 1
        if self._shown:
            print(f"\rsimulation {self._runs} ...", end="", file=sys.stderr, flush=True)

    def done(self) -> None:
        """Clear the line."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
