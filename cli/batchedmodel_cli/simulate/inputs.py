"""What a simulation is given on a command line: the traffic's options, profile, traffic and pod.

Shared by `simulate` and by `diff`, which asks the simulator about two manifests.
"""

import argparse
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Final, TypeVar

from batchedmodel_cli.simulate import options, sources, traffic
from batchedmodel_cli.simulate.simulator import Pod
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.spec import Spec

INTERRUPTED: Final = 130
"""Exit code, as a shell has it after Ctrl-C."""

_Found = TypeVar("_Found")
_LIBRARY: Final = "numpy"
_OUR_DEPTH: Final = 2
_FOREIGN_DEPTH: Final = 1
"""Batches that our model server takes at once, and others."""


class Refused(ValueError):
    """The command cannot be carried out; one message per line."""


def missing_library() -> str:
    """What to say to a person who lacks what the simulator needs; empty: nothing is missing."""
    if find_spec(_LIBRARY) is not None:
        return ""
    return (
        f"The simulator needs {_LIBRARY}, which is not installed; "
        "try: pip install 'batchedmodel[all]'"
    )


def describe_traffic(group: argparse._ActionsContainer) -> None:
    """Add the options of which one says what arrives."""
    group.add_argument(
        "--rate",
        metavar="R",
        type=options.number(0.1, 1e6),
        help="requests a second, drawn at random",
    )
    group.add_argument(
        "--trace",
        metavar="FILE",
        help="requests as recorded: CSV with the columns seconds and length (and priority), or "
        "an Azure LLM inference trace",
    )


def describe_details(parser: argparse._ActionsContainer) -> None:
    """Add the options that say more of it."""
    parser.add_argument(
        "--lengths",
        metavar="L",
        type=options.lengths,
        help=f"{options.LENGTHS_FORM} (default: the trace's, or the profile's middle one)",
    )
    parser.add_argument(
        "--burstiness",
        metavar="CV",
        type=options.number(0.1, 10),
        default=1.0,
        help="spread of the gaps between requests over their mean, for --rate (default: "
        "%(default)s, Poisson; 4 is very bursty)",
    )
    parser.add_argument(
        "--requests",
        metavar="N",
        type=options.whole(100, 100_000),
        default=20_000,
        help="requests in each simulation; of a longer trace the latest (default: %(default)s)",
    )
    parser.add_argument(
        "--hand-off-ms",
        metavar="MS",
        type=options.number(0, 1000),
        default=0.5,
        help="time of a batch on its way to the device (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        metavar="S",
        type=options.whole(0, 2**31),
        default=0,
        help="of the random numbers; equal seeds give equal answers (default: %(default)s)",
    )


def profile(option: str, place: str, model: str) -> Profile:
    """The profile that an option names; raises `Refused`."""
    return _read(option, place, lambda: sources.profile_from(place, model))


def arriving(arguments: argparse.Namespace, spec: Spec, measured: Profile) -> traffic.Traffic:
    """The traffic of `--rate` or `--trace`; raises `Refused`."""
    if arguments.rate is None:
        file: str = arguments.trace
        return replayed(
            arguments, spec, measured, "--trace", file, lambda: sources.trace_from_file(file)
        )
    return traffic.drawn(
        rate=arguments.rate,
        burstiness=arguments.burstiness,
        wish=arguments.lengths,
        profile=measured,
        requests=arguments.requests,
    )


def replayed(
    arguments: argparse.Namespace,
    spec: Spec,
    measured: Profile,
    option: str,
    place: str,
    fetch: Callable[[], str],
) -> traffic.Traffic:
    """The traffic of the trace that `fetch` gets from where the option says; raises `Refused`."""

    def trace() -> traffic.Traffic:
        return traffic.replayed(
            fetch(),
            wish=arguments.lengths,
            profile=measured,
            requests=arguments.requests,
            trust_priority=spec.batching.trust_priority,
        )

    return _read(option, place, trace)


def _read(option: str, place: str, how: Callable[[], _Found]) -> _Found:
    """What `how` reads, its complaints with the option's name."""
    try:
        return how()
    except (sources.Unusable, InvalidInput) as error:
        raise Refused(f"{option} {place}: {error}") from error


def pod(spec: Spec, measured: Profile, hand_off_milliseconds: float) -> Pod:
    """One replica of this manifest on the device that was measured."""
    ours = spec.model.protocol is None
    return Pod(
        profile=measured,
        told=ours,
        hand_off_seconds=hand_off_milliseconds / 1000,
        depth=_OUR_DEPTH if ours else _FOREIGN_DEPTH,
    )


class Progress:
    """One line on a terminal that counts simulations; nothing anywhere else."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._runs = 0

    def advance(self) -> None:
        """One more simulation begins."""
        self._runs += 1
        if self._shown:
            print(f"\rsimulation {self._runs} ...", end="", file=sys.stderr, flush=True)

    def done(self) -> None:
        """Leave the line empty."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
