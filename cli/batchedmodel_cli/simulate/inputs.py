"""What a command line gives to a simulation: options, profile, traffic and pods.

Shared by `simulate` and by `diff`, which asks the simulator about two specs. The simulator needs
numpy. So it is imported when the pods are made, and other commands do without.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from batchedmodel_cli.manifest_file import UnusableManifest, read_manifest_file
from batchedmodel_cli.simulate import sources
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.manifest import BatchedModel
from batchedmodel_contract.manifest.model_class import ModelClass
from batchedmodel_contract.manifest.spec import Spec

if TYPE_CHECKING:
    from batchedmodel_cli.simulate.simulator import SimulatedPods
    from batchedmodel_cli.simulate.traffic import Traffic

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as a shell reports it."""
MOST_REPLICAS: Final = 64
REQUESTS: Final = 20_000
"""In each simulation, unless another number is wished."""
TEXTS: Final = 2000
"""The same of requests for generated text, each of which takes hundreds of steps."""

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
    raise argparse.ArgumentTypeError(
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
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least:g} to {most:g}")
        return value

    return read


def whole(least: int, most: int) -> Callable[[str], int]:
    """A reader of whole numbers within these bounds."""

    def read(text: str) -> int:
        if _is_whole(text, least, most):
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")

    return read


def _is_whole(text: str, least: int, most: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most


def describe(parser: argparse.ArgumentParser, *, from_sidecar: bool) -> None:
    """Add the options about traffic and device.

    With `from_sidecar`, --from is one of them, and the traffic must be given.
    """
    source = parser.add_mutually_exclusive_group(required=from_sidecar)
    source.add_argument(
        "--rate", metavar="R", type=number(0.1, 1e6), help="requests a second, drawn at random"
    )
    source.add_argument(
        "--trace",
        metavar="FILE",
        help="requests as recorded: CSV with the columns seconds and length (and priority), or "
        "an Azure LLM inference trace",
    )
    parser.set_defaults(sidecar=None)
    if from_sidecar:
        source.add_argument(
            "--from",
            dest="sidecar",
            metavar="URL",
            help="the latest requests of a running pod: its admin port, such as "
            "http://127.0.0.1:9090",
        )
    parser.add_argument(
        "--lengths",
        metavar="L",
        type=lengths,
        help="N or lognormal:MEDIAN,SIGMA (default: the trace's, or the profile's middle one)",
    )
    parser.add_argument(
        "--burstiness",
        metavar="CV",
        type=number(0.1, 10),
        default=1.0,
        help="spread of the gaps between requests over their mean, for --rate (default: "
        "%(default)s, Poisson; 4 is very bursty)",
    )
    parser.add_argument(
        "--requests",
        metavar="N",
        type=whole(100, 100_000),
        help="requests in each simulation; of a longer trace the latest "
        f"(default: {REQUESTS}; of generated text {TEXTS})",
    )
    parser.add_argument(
        "--hand-off-ms",
        metavar="MS",
        type=number(0, 1000),
        default=0.5,
        help="time of a batch on its way to the device (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        metavar="S",
        type=whole(0, 2**31),
        default=0,
        help="seed of the random numbers; equal seeds give equal answers (default: %(default)s)",
    )


def missing_library() -> str:
    """What to say if a library of the simulator is missing; empty: none is."""
    if find_spec(_LIBRARY) is not None:
        return ""
    return (
        f"The simulator needs {_LIBRARY}, which is not installed; "
        "try: pip install 'batchedmodel[all]'"
    )


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


def pods(
    arguments: argparse.Namespace, of: BatchedModel, on_run: Callable[[], None]
) -> SimulatedPods:
    """The manifest's pods with the traffic and the profile of the options; raises `Refused`."""
    from batchedmodel_cli.simulate.simulator import SimulatedPods

    measured = profile("--profile", arguments.profile, of.name)
    return SimulatedPods(
        traffic=_traffic(arguments, of.spec, measured),
        profile=measured,
        foreign=of.spec.model.protocol is not None,
        hand_off_seconds=arguments.hand_off_ms / 1000,
        seed=arguments.seed,
        on_run=on_run,
    )


def _traffic(arguments: argparse.Namespace, spec: Spec, measured: Profile) -> Traffic:
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
