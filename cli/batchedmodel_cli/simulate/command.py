"""`batchedmodel simulate MANIFEST`: reads what it is given, has it studied, shows the answers.

The shell of this folder: files, URLs, terminal and exit code are dealt with here and in `sources`.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from batchedmodel_cli.manifest_file import UnusableManifest, read_manifest_file
from batchedmodel_cli.simulate import inputs, notes, options, report, sources
from batchedmodel_cli.simulate.simulator import SimulatedPods
from batchedmodel_cli.simulate.study import MOST_REPLICAS, Question, answer, utilisation
from batchedmodel_cli.simulate.traffic import Traffic
from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.manifest import BatchedModel
from batchedmodel_contract.manifest.spec import Spec

NAME = "simulate"
HELP = "say what latency, how many replicas and which settings, without a device"

_FAILED: Final = 1
_WRONG: Final = 2
_STANDARD_OUTPUT: Final = "-"


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
    inputs.describe_traffic(source)
    source.add_argument(
        "--from",
        dest="sidecar",
        metavar="URL",
        help="the latest requests of a running pod: its admin port, such as http://127.0.0.1:9090",
    )
    parser.add_argument(
        "--replicas",
        metavar="N",
        type=options.whole(1, MOST_REPLICAS),
        help="pods (default: the manifest's fewest; 1 with --from)",
    )
    inputs.describe_details(parser)
    parser.add_argument(
        "--json",
        metavar="FILE|-",
        help="write the answers as JSON too; - prints them instead of the table",
    )


def carry_out(arguments: argparse.Namespace) -> int:
    """Answer; the exit code."""
    try:
        missing = inputs.missing_library()
        if missing:
            print(missing, file=sys.stderr)
            return _FAILED
        manifest = _manifest(arguments.file)
        profile = _profile(arguments.profile, manifest, arguments.file)
        arriving = _traffic(arguments, manifest, profile)
    except inputs.Refused as error:
        print(error, file=sys.stderr)
        return _WRONG
    progress = inputs.Progress()
    simulator = SimulatedPods(
        traffic=arriving,
        pod=inputs.pod(manifest.spec, profile, arguments.hand_off_ms),
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
        answers = answer(question, simulator)
    except KeyboardInterrupt:
        return inputs.INTERRUPTED
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
                alone_seconds=simulator.alone_seconds(),
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


def _manifest(file: Path) -> BatchedModel:
    try:
        return read_manifest_file(file)
    except UnusableManifest as error:
        raise inputs.Refused("\n".join(f"{file}: {line}" for line in error.messages)) from error


def _profile(place: str | None, manifest: BatchedModel, file: Path) -> Profile:
    if place is None:
        raise inputs.Refused(
            "--profile is missing: without the device's latency curve there is nothing to "
            f"simulate.\n{notes.how_to_get_a_profile(manifest, str(file))}"
        )
    return inputs.profile("--profile", place, manifest.name)


def _traffic(arguments: argparse.Namespace, manifest: BatchedModel, profile: Profile) -> Traffic:
    if not _of_one_pod(arguments):
        return inputs.arriving(arguments, manifest.spec, profile)
    url: str = arguments.sidecar
    return inputs.replayed(
        arguments, manifest.spec, profile, "--from", url, lambda: sources.trace_from_sidecar(url)
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
