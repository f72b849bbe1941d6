"""`batchedmodel simulate MANIFEST`: reads what it is given, has it studied, shows the answers.

The shell of this folder: files, URLs, terminal and exit code are dealt with here and in `sources`.
"""

import argparse
import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Final, TypeVar

from batchedmodel_cli.manifest_file import UnusableManifest, read_manifest_file
from batchedmodel_cli.simulate import notes, options, report, sources, traffic
from batchedmodel_cli.simulate.laboratory import Pod, SimulatedPods
from batchedmodel_cli.simulate.study import MOST_REPLICAS, Question, answer, utilisation
from batchedmodel_contract.batching import BatchSettings
from batchedmodel_contract.manifest import BatchedModel
from batchedmodel_contract.mistakes import InvalidInput
from batchedmodel_contract.profile import Profile
from batchedmodel_contract.spec import Spec

NAME = "simulate"
HELP = "say what latency, how many replicas and which settings, without a device"

_Found = TypeVar("_Found")
_FAILED: Final = 1
_WRONG: Final = 2
_INTERRUPTED: Final = 130  # as a shell has it after Ctrl-C
_LIBRARY: Final = "numpy"
_STANDARD_OUTPUT: Final = "-"
_OUR_DEPTH: Final = 2
_FOREIGN_DEPTH: Final = 1
"""Batches that our model server takes at once, and others."""


class _Refused(ValueError):
    """The command cannot be carried out; one message per line."""


def describe(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `simulate`."""
    parser.description = (
        "Simulates the service that a manifest describes: the sidecar's own batching code in\n"
        "front of a device that takes as long as a profile says. Answers what latency to\n"
        "expect, what the replicas sustain, how many are needed, and which one setting is worth\n"
        "changing. One request is one row. Takes some seconds where all lengths are equal, and\n"
        "one to some minutes for a long trace of mixed lengths; fewer --requests take less."
    )
    parser.epilog = (
        "exit codes:\n"
        "  0  answered\n"
        "  1  a library is missing, or the answer could not be written\n"
        "  2  the command line, the manifest, the profile or the trace is wrong or missing"
    )
    parser.add_argument("file", metavar="MANIFEST", type=Path, help="the manifest, a YAML file")
    parser.add_argument(
        "--profile",
        metavar="FILE|URL",
        help="the device's latency curve: a JSON file, a model server's socket or a URL",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--rate",
        metavar="R",
        type=options.number(0.1, 1e6),
        help="requests a second, drawn at random",
    )
    source.add_argument(
        "--trace",
        metavar="FILE",
        help="requests as recorded: CSV with the columns seconds and length (and priority), or "
        "an Azure LLM inference trace",
    )
    source.add_argument(
        "--from",
        dest="sidecar",
        metavar="URL",
        help="the latest requests of a running pod: its admin port, such as http://127.0.0.1:9090",
    )
    _describe_details(parser)


def carry_out(arguments: argparse.Namespace) -> int:
    """Answer; the exit code."""
    try:
        if find_spec(_LIBRARY) is None:
            print(
                f"The simulator needs {_LIBRARY}, which is not installed; "
                "try: pip install 'batchedmodel[all]'",
                file=sys.stderr,
            )
            return _FAILED
        manifest = _manifest(arguments.file)
        profile = _profile(arguments.profile, manifest, arguments.file)
        arriving = _traffic(arguments, manifest, profile)
    except _Refused as error:
        print(error, file=sys.stderr)
        return _WRONG
    progress = _Progress()
    laboratory = SimulatedPods(
        traffic=arriving,
        pod=_pod(manifest.spec, profile, arguments.hand_off_ms / 1000),
        seed=arguments.seed,
        on_run=progress.advance,
    )
    question = Question(
        spec=manifest.spec,
        replicas=arguments.replicas or _replicas(manifest.spec, of_one_pod=_of_one_pod(arguments)),
        longest=arriving.longest,
        largest_measured=notes.largest_measured(profile),
    )
    try:
        answers = answer(question, laboratory)
    except KeyboardInterrupt:
        return _INTERRUPTED
    finally:
        progress.done()
    setup = report.Setup(
        model=manifest.name,
        settings=BatchSettings.of(manifest.spec.batching),
        device=profile.device,
        traffic=arriving.described,
        typical_length=arriving.typical_length,
        seed=arguments.seed,
        utilisation=utilisation(manifest.spec),
        notes=tuple(
            notes.notes(
                manifest,
                arriving,
                profile,
                alone_seconds=laboratory.alone_seconds(),
                assumed_length=arguments.rate is not None and arguments.lengths is None,
                of_one_pod=_of_one_pod(arguments),
            )
        ),
    )
    text = json.dumps(report.document(setup, answers), indent=2, allow_nan=False) + "\n"
    if arguments.json == _STANDARD_OUTPUT:
        print(text, end="")
        return 0
    print("\n".join(report.table(setup, answers)))
    return 0 if arguments.json is None else _written(Path(arguments.json), text)


def _describe_details(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--replicas",
        metavar="N",
        type=options.whole(1, MOST_REPLICAS),
        help="pods (default: the manifest's fewest; 1 with --from)",
    )
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
    parser.add_argument(
        "--json",
        metavar="FILE|-",
        help="write the answers as JSON too; - prints them instead of the table",
    )


def _manifest(file: Path) -> BatchedModel:
    try:
        return read_manifest_file(file)
    except UnusableManifest as error:
        raise _Refused("\n".join(f"{file}: {message}" for message in error.messages)) from error


def _profile(place: str | None, manifest: BatchedModel, file: Path) -> Profile:
    if place is None:
        raise _Refused(
            "--profile is missing: without the device's latency curve there is nothing to "
            f"simulate.\n{notes.how_to_get_a_profile(manifest, str(file))}"
        )
    return _read("--profile", place, lambda: sources.profile_from(place, manifest.name))


def _traffic(
    arguments: argparse.Namespace, manifest: BatchedModel, profile: Profile
) -> traffic.Traffic:
    if arguments.rate is not None:
        return traffic.drawn(
            rate=arguments.rate,
            burstiness=arguments.burstiness,
            wish=arguments.lengths,
            profile=profile,
            requests=arguments.requests,
        )

    def replayed(text: str) -> traffic.Traffic:
        return traffic.replayed(
            text,
            wish=arguments.lengths,
            profile=profile,
            requests=arguments.requests,
            trust_priority=manifest.spec.batching.trust_priority,
        )

    if _of_one_pod(arguments):
        url: str = arguments.sidecar
        return _read("--from", url, lambda: replayed(sources.trace_from_sidecar(url)))
    file: str = arguments.trace
    return _read("--trace", file, lambda: replayed(sources.trace_from_file(file)))


def _read(option: str, place: str, read: Callable[[], _Found]) -> _Found:
    try:
        return read()
    except (sources.Unusable, InvalidInput) as error:
        raise _Refused(f"{option} {place}: {error}") from error


def _pod(spec: Spec, profile: Profile, hand_off_seconds: float) -> Pod:
    ours = spec.model.protocol is None
    return Pod(
        profile=profile,
        told=ours,
        hand_off_seconds=hand_off_seconds,
        depth=_OUR_DEPTH if ours else _FOREIGN_DEPTH,
    )


def _replicas(spec: Spec, *, of_one_pod: bool) -> int:
    fewest = spec.replicas if spec.autoscaling is None else spec.autoscaling.min_replicas
    return 1 if of_one_pod else min(max(fewest or 1, 1), MOST_REPLICAS)


def _of_one_pod(arguments: argparse.Namespace) -> bool:
    return arguments.sidecar is not None


def _written(file: Path, text: str) -> int:
    try:
        file.write_text(text, "utf-8")
    except OSError as error:
        print(f"--json {file}: cannot be written: {error.strerror}", file=sys.stderr)
        return _FAILED
    return 0


class _Progress:
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
