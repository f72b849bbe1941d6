"""What a command line gives to a simulation: options, profile, traffic and pods.

Shared by `simulate` and by `diff`, which asks the simulator about two specs. The simulator needs
numpy. So it is imported when the pods are made, and other commands do without.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

import click

from batchedmodel_cli.manifest_file import UnusableManifest, read_manifest_file
from batchedmodel_cli.simulate import sources
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_kube.manifest.manifest import BatchedModel
from batchedmodel_kube.manifest.model_class import ModelClass
from batchedmodel_kube.manifest.spec import Spec

if TYPE_CHECKING:
    from batchedmodel_cli.simulate.pods import SimulatedPods
    from batchedmodel_cli.simulate.traffic import Traffic

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as a shell reports it."""
MOST_REPLICAS: Final = 64
REQUESTS: Final = 20_000
"""In each simulation, unless another number is wished."""
TEXTS: Final = 2000
"""The same of requests for generated text, each of which takes hundreds of steps."""

FILE: Final = click.Path(readable=False)
"""Who reads it says what is wrong with it; a shell completes it."""

_LIBRARY: Final = "numpy"
_LONGEST: Final = 2**31
_WIDEST_SIGMA: Final = 5.0
_NUMBER: Final = r"\d{1,10}(?:\.\d{1,9})?"
_LOGNORMAL: Final = re.compile(rf"lognormal:({_NUMBER}),({_NUMBER})", re.ASCII)


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
    if _is_whole(text, 1, _LONGEST):
        return LengthsWish(median=int(text))
    found = _LOGNORMAL.fullmatch(text)
    if found:
        wish = LengthsWish(median=float(found[1]), sigma=float(found[2]))
        if 1 <= wish.median <= _LONGEST and 0 < wish.sigma <= _WIDEST_SIGMA:
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
        if _is_whole(text, least, most):
            return int(text)
        raise ValueError(f"{text!r} is not a whole number from {least} to {most}")

    return read


def _is_whole(text: str, least: int, most: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most


def options(*, from_sidecar: bool) -> list[click.Parameter]:
    """The options about traffic and device; with `from_sidecar`, --from is one of them."""
    found: list[click.Parameter] = [
        click.Option(
            ["--rate"],
            metavar="R",
            type=number(0.1, 1e6),
            help="Requests a second, drawn at random.",
        ),
        click.Option(
            ["--trace"],
            metavar="FILE",
            type=FILE,
            help="Requests as recorded: CSV with the columns seconds and length (and priority), or "
            "an Azure LLM inference trace.",
        ),
    ]
    if from_sidecar:
        sidecar = click.Option(
            ["--from", "sidecar"],
            metavar="URL",
            help="The latest requests of a running pod: its admin port, such as "
            "http://127.0.0.1:9090.",
        )
        found.append(sidecar)
    return [
        *found,
        click.Option(
            ["--lengths"],
            metavar="L",
            type=lengths,
            help="N or lognormal:MEDIAN,SIGMA (default: the trace's, or the profile's middle one).",
        ),
        click.Option(
            ["--burstiness"],
            metavar="CV",
            type=number(0.1, 10),
            default=1.0,
            help="Spread of the gaps between requests over their mean, for --rate (default: "
            "1.0, Poisson; 4 is very bursty).",
        ),
        click.Option(
            ["--requests"],
            metavar="N",
            type=whole(100, 100_000),
            help="Requests in each simulation; of a longer trace the latest "
            f"(default: {REQUESTS}; of generated text {TEXTS}).",
        ),
        click.Option(
            ["--hand-off-ms"],
            metavar="MS",
            type=number(0, 1000),
            default=0.5,
            show_default=True,
            help="Time of a batch on its way to the device.",
        ),
        click.Option(
            ["--seed"],
            metavar="S",
            type=whole(0, 2**31),
            default="0",
            show_default=True,
            help="Seed of the random numbers; equal seeds give equal answers.",
        ),
    ]


def one_traffic(arguments: SimpleNamespace, *, required: bool) -> None:
    """Refuse a line with two sources of traffic, or with none of them where one is required."""
    places = {"--rate": arguments.rate, "--trace": arguments.trace, "--from": arguments.sidecar}
    given = [option for option, value in places.items() if value is not None]
    if len(given) > 1:
        raise click.UsageError(f"{given[1]} is not allowed with {given[0]}")
    if required and not given:
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


def pods(arguments: SimpleNamespace, of: BatchedModel, on_run: Callable[[], None]) -> SimulatedPods:
    """The manifest's pods with the traffic and the profile of the options; raises `Refused`."""
    from batchedmodel_cli.simulate.pods import SimulatedPods

    measured = profile("--profile", arguments.profile, of.name)
    return SimulatedPods(
        traffic=_traffic(arguments, of.spec, measured),
        profile=measured,
        upstream=of.spec.model.protocol is not None,
        hand_off_seconds=arguments.hand_off_ms / 1000,
        seed=arguments.seed,
        on_run=on_run,
    )


def _traffic(arguments: SimpleNamespace, spec: Spec, measured: Profile) -> Traffic:
    from batchedmodel_cli.simulate import traffic

    if arguments.rate is not None:
        return traffic.drawn(
            rate=arguments.rate,
            burstiness=arguments.burstiness,
            wish=arguments.lengths,
            profile=measured,
            requests=arguments.requests or REQUESTS,
        )
    recorded = arguments.sidecar is not None
    option, place = ("--from", arguments.sidecar) if recorded else ("--trace", arguments.trace)
    with named(option, place):
        text = sources.trace_from_sidecar(place) if recorded else sources.trace_from_file(place)
        return traffic.replayed(
            text,
            wish=arguments.lengths,
            profile=measured,
            requests=arguments.requests or REQUESTS,
            trust_priority=spec.batching.trust_priority,
            of_one_pod=recorded,
        )


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
