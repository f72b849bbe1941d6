"""`batchedmodel validate FILE...`: says what of manifests the API server would refuse."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import click

from batchedmodel_cli import manifest_file
from batchedmodel_cli.manifest_file import UnusableManifest
from batchedmodel_kube.manifest.model_class import ModelClass

_FILE: Final = click.Path(path_type=Path, readable=False)
_WRONG: Final = 2


@click.command(
    epilog="""\b
Examples:
  batchedmodel validate minilm.yaml
  batchedmodel validate models/*.yaml classes/small-gpu.yaml

\b
Exit codes:
  0  all are valid
  2  a file breaks a rule or cannot be read""",
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=_FILE)
def command(files: tuple[Path, ...]) -> int:
    """Checks manifests without a cluster, by the rules by which apply refuses them.

    One line per mistake: file, field, value and rule. A class (BatchedModelClass) that a manifest
    names is looked for in all the files. Whether folders, packages, Secrets and images are there is
    for the place that runs the model to say.
    """
    documents: dict[Path, list[object]] = {}
    classes: dict[str, ModelClass] = {}
    mistakes: dict[Path, tuple[str, ...]] = {}
    for file in files:
        try:
            documents[file] = manifest_file.documents_in(file)
            classes |= {one.name: one for one in manifest_file.classes_among(documents[file])}
        except UnusableManifest as error:
            mistakes[file] = error.messages
    for file in files:
        try:
            if file not in mistakes:
                print(f"{file}: {_name(documents[file], classes)} is valid")
        except UnusableManifest as error:
            mistakes[file] = error.messages
        for message in mistakes.get(file, ()):
            print(f"{file}: {message}", file=sys.stderr)
    return _WRONG if mistakes else 0


def _name(documents: Iterable[object], classes: Mapping[str, ModelClass]) -> str:
    """What a file describes, a model or else its classes; raises `UnusableManifest`."""
    own = [one.name for one in manifest_file.classes_among(documents)]
    if own and len(own) == len(list(documents)):
        return " and ".join(own)
    return manifest_file.manifest_among(documents, classes).name
