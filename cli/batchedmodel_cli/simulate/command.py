"""`batchedmodel simulate MANIFEST`: reads what it is given, has it studied, shows the answers."""

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import click

from batchedmodel_cli.simulate import inputs
from batchedmodel_contract.processes.sidecar_api import ADMIN_PORT
from batchedmodel_kube.manifest.manifest import BatchedModel
from batchedmodel_kube.manifest.spec import Spec

_FAILED: Final = 1
_WRONG: Final = 2
_STANDARD_OUTPUT: Final = "-"
_Answer = tuple[dict[str, Any], Iterable[str]]
"""The document, and the table's lines."""


@click.command(
    epilog="""\b
Examples:
  batchedmodel simulate minilm.yaml --profile profile.json --rate 200
  batchedmodel simulate minilm.yaml --profile profile.json --trace requests.csv --replicas 4
  batchedmodel simulate minilm.yaml --profile http://127.0.0.1:9090 --from http://127.0.0.1:9090

\b
Exit codes:
  0  answered
  1  the answer could not be written
  2  the command line, the manifest, the profile, the trace or a library is wrong or
     missing""",
    params=[
        click.Argument(
            ["file"], metavar="MANIFEST", type=click.Path(path_type=Path, readable=False)
        ),
        click.Option(
            ["--profile"],
            metavar="FILE|URL",
            type=inputs.FILE,
            help="The device's latency curve, or what the engine of a handler's language model "
            "says of itself: a JSON file or the URL of an admin port.",
        ),
        *inputs.options(),
        click.Option(
            ["--from", "sidecar"],
            metavar="URL",
            help="The latest requests of a running pod: its admin port, such as "
            "http://127.0.0.1:9090.",
        ),
        click.Option(
            ["--replicas"],
            metavar="N",
            type=inputs.whole(1, inputs.MOST_REPLICAS),
            help="Pods (default: the manifest's fewest; 1 with --from).",
        ),
        click.Option(
            ["--json"],
            metavar="FILE|-",
            type=inputs.FILE,
            help="Write the answers as JSON too; - prints them instead of the table.",
        ),
        *inputs.TEXT_OPTIONS,
    ],
)
def command(**given: object) -> int:
    """Simulates the service that a manifest, a YAML file, describes, without a device.

    It runs the sidecar's own batching code in front of a device that takes as long as a profile
    says. Answers what latency to expect, what the replicas sustain, how many are needed, and which
    one setting is worth changing. One request is one row. Takes some seconds where all lengths are
    equal, and one to some minutes for a long trace of mixed lengths; fewer --requests take less.

    For a language model (spec.generation) the times of its engine's steps stand instead of a curve,
    --step-ms to --speed. Lengths are tokens: --lengths those of prompts. For a handler's model
    --profile names what its engine says of itself, and these options may say otherwise.
    """
    arguments = SimpleNamespace(**given)
    inputs.one_traffic(arguments)
    progress = inputs.Progress()
    try:
        manifest = inputs.manifest(arguments.file)
        document, table = _answered(arguments, manifest, progress.advance)
    except inputs.Refused as error:
        print(error, file=sys.stderr)
        return _WRONG
    finally:
        progress.done()
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    if arguments.json == _STANDARD_OUTPUT:
        print(text, end="")
        return 0
    print("\n".join(table))
    return 0 if arguments.json is None else _written(Path(arguments.json), text)


def _answered(
    arguments: SimpleNamespace, manifest: BatchedModel, on_run: Callable[[], None]
) -> _Answer:
    # Late, because the simulator needs its library and other commands do without.
    from batchedmodel_cli.simulate import report
    from batchedmodel_cli.simulate.pods import batch_pods, text_pods
    from batchedmodel_cli.simulate.study import Study

    pods: report.SimulatedPods
    if inputs.generates(arguments, manifest.spec):
        pods = text_pods(arguments, manifest, on_run)
    elif arguments.profile is None:
        raise inputs.Refused(
            "--profile is missing: without the device's latency curve there is nothing to "
            f"simulate.\n{_how_to_get_a_profile(manifest, arguments.file)}"
        )
    else:
        pods = batch_pods(arguments, manifest, on_run)
    replicas = arguments.replicas or _replicas(manifest.spec, pods.traffic.of_one_pod)
    answers = Study(spec=manifest.spec, replicas=replicas, pods=pods).answers()
    return report.document(manifest, pods, answers), report.table(manifest, pods, answers)


def _replicas(spec: Spec, of_one_pod: bool) -> int:
    fewest = spec.replicas if spec.autoscaling is None else spec.autoscaling.min_replicas
    return 1 if of_one_pod else min(max(fewest or 1, 1), inputs.MOST_REPLICAS)


def _how_to_get_a_profile(manifest: BatchedModel, file: Path) -> str:
    """The commands that give a profile, ready to be typed."""
    if manifest.spec.model.protocol is not None:
        return (
            "A server of one's own measures no latency curve, so write it by hand, the times of a "
            'few batches in seconds:\n  {"cost_rule": "Padded", "device": "mine", "points": ['
            '{"rows": 1, "length": 128, "seconds": 0.006}, ...]}\n'
            f"then: batchedmodel simulate {file} --profile profile.json ..."
        )
    command = f"  batchedmodel simulate {file} --profile http://127.0.0.1:{ADMIN_PORT} ..."
    return (
        "The model server measures it while it warms up. From one that runs here "
        f"(batchedmodel run {file} --admin-port {ADMIN_PORT}):\n"
        f"{command}\n"
        f"From a pod:\n  kubectl port-forward deploy/{manifest.name} {ADMIN_PORT} &\n"
        f"{command}"
    )


def _written(file: Path, text: str) -> int:
    try:
        file.write_text(text, "utf-8")
    except OSError as error:
        print(f"--json {file}: cannot be written: {error.strerror}", file=sys.stderr)
        return _FAILED
    return 0
