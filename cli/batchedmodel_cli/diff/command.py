"""`batchedmodel diff FILE`: reads manifest and live object, shows what applying would do.

The shell of this folder: files, kubectl, terminal and exit code are dealt with here and in `live`.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from batchedmodel_cli.diff import live, report
from batchedmodel_cli.diff.dry_run import LiveModel
from batchedmodel_cli.diff.effects import Difference, difference
from batchedmodel_cli.diff.forecast import (
    Forecast,
    Simulation,
    concerns_the_simulator,
    forecast,
)
from batchedmodel_cli.manifest_file import UnusableManifest, read_manifest_file
from batchedmodel_cli.simulate import inputs
from batchedmodel_contract.manifest.manifest import BatchedModel

NAME = "diff"
HELP = "say what applying a manifest does to the live model: restarts, pods, accelerators, latency"

_SAME: Final = 0
_DIFFERENT: Final = 1
_WRONG: Final = 2
_STANDARD_INPUT: Final = "-"


def describe(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `diff`."""
    parser.description = (
        "Compares a manifest with the live BatchedModel and says for each changed field what\n"
        "applying it does: effective at once, pods replaced (how many, in which way, whether a\n"
        "spare accelerator is needed), pods added, and so on. It plays the edit through with\n"
        "the operator's own planning; nothing is written. With --profile and --rate (or\n"
        "--trace) the simulator says how the same traffic fares before and after."
    )
    parser.epilog = (
        "exit codes:\n"
        "  0  applying changes nothing\n"
        "  1  it changes something\n"
        "  2  the command line, the manifest, the live object or the profile is wrong or missing"
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the manifest, a YAML file")
    parser.add_argument(
        "--live",
        metavar="FILE|-",
        help="what `kubectl get batchedmodel NAME -o yaml` printed, - for standard input "
        "(default: ask kubectl)",
    )
    parser.add_argument("--context", metavar="NAME", help="context that kubectl is to use")
    parser.add_argument(
        "--namespace", "-n", metavar="NAME", help="namespace in which kubectl is to look"
    )
    parser.add_argument(
        "--profile",
        metavar="FILE|URL",
        help="latency curve of the device that there is, as for simulate",
    )
    parser.add_argument(
        "--new-profile",
        metavar="FILE|URL",
        help="that of the device that there will be, where the accelerator changes",
    )
    inputs.describe_traffic(parser.add_mutually_exclusive_group())
    inputs.describe_details(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")


def carry_out(arguments: argparse.Namespace) -> int:
    """Compare; the exit code."""
    progress = inputs.Progress()
    try:
        manifest = read_manifest_file(arguments.file)
        simulation = _simulation(arguments, manifest)
        found = difference(_live(arguments, manifest), manifest.spec)
        foretold = _forecast(manifest, simulation, found, progress)
    except UnusableManifest as error:
        for message in error.messages:
            print(f"{arguments.file}: {message}", file=sys.stderr)
        return _WRONG
    except (inputs.Refused, live.Unavailable) as error:
        print(error, file=sys.stderr)
        return _WRONG
    except KeyboardInterrupt:
        return inputs.INTERRUPTED
    finally:
        progress.done()
    if arguments.json:
        document = report.document(manifest.name, found, foretold)
        print(json.dumps(document, indent=2, allow_nan=False))
    else:
        print("\n".join(report.table(manifest.name, found, foretold)))
        if found.edited and simulation is not None and foretold is None:
            print("simulated: nothing, for batch settings, pods and accelerator stay as they are")
    return _DIFFERENT if found.edited else _SAME


def _live(arguments: argparse.Namespace, manifest: BatchedModel) -> LiveModel:
    if arguments.live is None:
        text = live.from_cluster(
            arguments.file, context=arguments.context, namespace=arguments.namespace
        )
    elif arguments.live == _STANDARD_INPUT:
        text = live.from_stream(sys.stdin)
    else:
        text = live.from_file(Path(arguments.live))
    return live.read_live(text, manifest.name)


def _simulation(arguments: argparse.Namespace, manifest: BatchedModel) -> Simulation | None:
    wanted = arguments.rate is not None or arguments.trace is not None
    if arguments.profile is None:
        if wanted or arguments.new_profile is not None:
            raise inputs.Refused("--profile is missing: it is the latency curve that is simulated")
        return None
    if not wanted:
        raise inputs.Refused("--rate or --trace is missing: it is the traffic that is simulated")
    missing = inputs.missing_library()
    if missing:
        raise inputs.Refused(missing)
    profile = inputs.profile("--profile", arguments.profile, manifest.name)
    other = arguments.new_profile
    return Simulation(
        traffic=inputs.arriving(arguments, manifest.spec, profile),
        profile=profile,
        new_profile=None
        if other is None
        else inputs.profile("--new-profile", other, manifest.name),
        hand_off_milliseconds=arguments.hand_off_ms,
        seed=arguments.seed,
        assumed_length=arguments.trace is None and arguments.lengths is None,
    )


def _forecast(
    manifest: BatchedModel,
    simulation: Simulation | None,
    found: Difference,
    progress: inputs.Progress,
) -> Forecast | None:
    if simulation is None or not concerns_the_simulator(found):
        return None
    return forecast(manifest.name, simulation, found, progress)
