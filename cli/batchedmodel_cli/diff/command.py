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
from batchedmodel_cli.simulate import inputs
from batchedmodel_kube.names import CLASS_KIND

if TYPE_CHECKING:
    from batchedmodel_kube.manifest.manifest import BatchedModel
    from batchedmodel_kube.manifest.model_class import ModelClass
    from batchedmodel_kube.manifest.spec import Spec

_SAME: Final = 0
_DIFFERENT: Final = 1
_WRONG: Final = 2
_LIVE: Final = "What `kubectl get` says of the model, as YAML; - for standard input."


@click.command(
    epilog="""\b
Examples:
  batchedmodel diff minilm.yaml
  batchedmodel diff minilm.yaml -n team --context staging --json
  kubectl get batchedmodel minilm -o yaml | batchedmodel diff minilm.yaml --live -

\b
Exit codes:
  0  applying changes nothing
  1  it changes something
  2  the command line, the manifest or the live object is wrong or missing""",
    params=[
        click.Argument(["file"], type=click.Path(path_type=Path, readable=False)),
        click.Option(["--live"], metavar="FILE|-", type=inputs.FILE, help=_LIVE),
        *kubectl.OPTIONS,
        click.Option(["--json"], is_flag=True, help="Print JSON instead of lines."),
    ],
)
def command(**given: object) -> int:
    """Says what applying a manifest, a YAML file, does to the live BatchedModel.

    For each field that differs: effective at once, pods replaced, pods added, and so on. Nothing is
    written, and the API server says by a dry run what apply makes of the manifest.
    """
    arguments = SimpleNamespace(**given)
    try:
        objects = _LiveObjects(arguments)
        manifest = inputs.manifest(arguments.file, objects.class_of)
        live_model, new = objects.model(manifest.name), objects.applied(manifest)
    except inputs.Refused as error:
        print(error, file=sys.stderr)
        return _WRONG
    document = report.document(manifest.name, live_model, new)
    if arguments.json:
        print(json.dumps(document, indent=2, allow_nan=False))
    else:
        print("\n".join(report.table(document)))
    return _DIFFERENT if document["changes"] else _SAME


class _LiveObjects:
    """What is live, from `--live` or else from kubectl; all its methods raise `Refused`."""

    def __init__(self, arguments: SimpleNamespace) -> None:
        self._arguments = arguments
        self._classes: dict[str, ModelClass | None] = {}

    @cached_property
    def _objects(self) -> live.Objects:
        arguments = self._arguments
        if arguments.live is not None:
            return live.objects_in(live.text_of(arguments.live))
        # A class that is in the file need not be in the cluster yet.
        return self._asked("get", f"--filename={arguments.file}", "--ignore-not-found")

    def _asked(self, *words: str) -> live.Objects:
        context, namespace = self._arguments.context, self._arguments.namespace
        return live.objects_in(kubectl.run(*words, context=context, namespace=namespace))

    def model(self, name: str) -> live.LiveModel:
        """The BatchedModel of that name."""
        return live.read_live(self._objects, name, self.class_of)

    def applied(self, manifest: BatchedModel) -> Spec:
        """What applying the file makes of the model's spec: fields of others stay, as they may."""
        if self._arguments.live is not None:
            return manifest.spec
        objects = self._asked("apply", f"--filename={self._arguments.file}", "--dry-run=server")
        return live.read_live(objects, manifest.name, self.class_of).spec

    def class_of(self, name: str) -> ModelClass | None:
        """The class of that name; None where it is not there."""
        if self._arguments.live is not None:
            return live.read_live_class(self._objects, name)
        if name not in self._classes:
            objects = self._asked("get", CLASS_KIND.lower(), name, "--ignore-not-found")
            self._classes[name] = live.read_live_class(objects, name)
        return self._classes[name]
