"""`batchedmodel diff FILE`: reads manifest and live object, shows what applying would do."""

from __future__ import annotations

import json
import sys
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

import click

from batchedmodel_cli import kubectl
from batchedmodel_cli.diff import live, report
from batchedmodel_cli.diff.effects import difference
from batchedmodel_cli.manifest_file import holds_class
from batchedmodel_cli.simulate import inputs
from batchedmodel_kube.names import CLASS_KIND

if TYPE_CHECKING:
    from batchedmodel_cli.diff.dry_run import LiveModel
    from batchedmodel_cli.simulate.batches import BatchPods
    from batchedmodel_kube.manifest.manifest import BatchedModel
    from batchedmodel_kube.manifest.model_class import ModelClass
    from batchedmodel_kube.manifest.spec import Spec

_SAME: Final = 0
_DIFFERENT: Final = 1
_WRONG: Final = 2
_STANDARD_INPUT: Final = "-"


@click.command(
    epilog="""\b
Examples:
  batchedmodel diff minilm.yaml
  batchedmodel diff minilm.yaml -n team --context staging --json
  kubectl get batchedmodel minilm -o yaml | batchedmodel diff minilm.yaml --live -
  batchedmodel diff minilm.yaml --profile profile.json --rate 200

\b
Exit codes:
  0  applying changes nothing
  1  it changes something
  2  the command line, the manifest, the live object, the profile or a library is wrong
     or missing""",
    params=[
        click.Argument(["file"], type=click.Path(path_type=Path, readable=False)),
        click.Option(
            ["--live"],
            metavar="FILE|-",
            type=inputs.FILE,
            help="Output of `kubectl get batchedmodel NAME -o yaml`, - for standard input "
            "(default: ask kubectl).",
        ),
        *kubectl.OPTIONS,
        click.Option(
            ["--profile"],
            metavar="FILE|URL",
            type=inputs.FILE,
            help="Latency curve of the present device, as for simulate.",
        ),
        click.Option(
            ["--new-profile"],
            metavar="FILE|URL",
            type=inputs.FILE,
            help="Latency curve of the new device, where the accelerator changes.",
        ),
        *inputs.options(),
        click.Option(["--json"], is_flag=True, help="Print JSON instead of lines."),
    ],
)
def command(**given: object) -> int:
    """Says what applying a manifest, a YAML file, does to the live BatchedModel.

    For each field that differs: effective at once, pods replaced (how many, in which way, whether a
    spare accelerator is needed), pods added, and so on. It plays the edit through with the
    operator's own planning; nothing is written, and the API server says by a dry run what apply
    makes of the manifest. With --profile and --rate (or --trace) the simulator says how the same
    traffic fares before and after.
    """
    arguments = SimpleNamespace(**given, sidecar=None)
    inputs.one_traffic(arguments, required=False)
    progress = inputs.Progress()
    try:
        objects = _LiveObjects(arguments)
        manifest = inputs.manifest(arguments.file, objects.class_of)
        pods = _pods(arguments, manifest, progress)
        other = arguments.new_profile
        if other is not None:
            other = inputs.profile("--new-profile", other, manifest.name)
        found = difference(objects.model(manifest.name), objects.applied(manifest))
        foretold = None
        if pods is not None:
            # Late, because the simulator needs numpy and a plain comparison does without.
            from batchedmodel_cli.diff.forecast import forecast

            foretold = forecast(pods, other, found)
    except inputs.Refused as error:
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
        if found.edited and pods is not None and foretold is None:
            print("simulated: nothing, as batch settings, pods and accelerator stay the same")
    return _DIFFERENT if found.edited else _SAME


class _LiveObjects:
    """What is live, read once it is asked for; all its methods raise `Refused`."""

    def __init__(self, arguments: SimpleNamespace) -> None:
        self._arguments = arguments
        self._classes: dict[str, ModelClass | None] = {}

    @cached_property
    def _text(self) -> str:
        arguments = self._arguments
        if arguments.live is None:
            # A class that is in the file need not be in the cluster yet.
            missing = ("--ignore-not-found",) if holds_class(arguments.file) else ()
            return self._asked("get", f"--filename={arguments.file}", *missing)
        if arguments.live == _STANDARD_INPUT:
            return live.from_stream(sys.stdin)
        return live.from_file(Path(arguments.live))

    def _asked(self, *words: str) -> str:
        arguments = self._arguments
        try:
            return kubectl.run(*words, context=arguments.context, namespace=arguments.namespace)
        except kubectl.NotInstalled as error:
            hint = (
                "--live FILE takes what it says elsewhere (kubectl get batchedmodel NAME -o yaml)"
            )
            raise inputs.Refused(f"{error}; {hint}") from error

    def model(self, name: str) -> LiveModel:
        """The BatchedModel of that name."""
        return live.read_live(self._text, name, self.class_of)

    def applied(self, manifest: BatchedModel) -> Spec:
        """What applying the file makes of the model's spec: fields of others stay, as they may."""
        if self._arguments.live is not None:
            return manifest.spec
        text = self._asked("apply", f"--filename={self._arguments.file}", "--dry-run=server")
        return live.read_live(text, manifest.name, self.class_of).spec

    def class_of(self, name: str) -> ModelClass | None:
        """The class of that name; None where it is not there."""
        if self._arguments.live is not None:
            return live.read_live_class(self._text, name)
        if name not in self._classes:
            text = self._asked("get", CLASS_KIND.lower(), name, "--ignore-not-found")
            self._classes[name] = live.read_live_class(text, name)
        return self._classes[name]


def _pods(
    arguments: SimpleNamespace, manifest: BatchedModel, progress: inputs.Progress
) -> BatchPods | None:
    """The present pods as they are simulated; None: no simulation is wanted."""
    wanted = arguments.rate is not None or arguments.trace is not None
    if arguments.profile is None:
        if wanted or arguments.new_profile is not None:
            raise inputs.Refused("--profile is missing: it is the latency curve that is simulated")
        return None
    if not wanted:
        raise inputs.Refused("--rate or --trace is missing: it is the traffic that is simulated")
    from batchedmodel_cli.simulate.pods import batch_pods

    return batch_pods(arguments, manifest, progress.advance)
