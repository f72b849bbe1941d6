"""The texts that `batchedmodel init` writes, of the templates beside this module."""

import json
from importlib.resources import files
from string import Template
from typing import Any, Final

import yaml

from batchedmodel_cli.checkpoint import Checkpoint, manifest

_TENSOR: Final = {"name": "x", "datatype": "FP32", "shape": [1, 2, 4], "data": [1, 2, 3, 4] * 2}
_TEXT: Final = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["A sentence."]}


def manifest_file(name: str, model: Checkpoint) -> str:
    """The manifest of a model."""
    return from_template("manifest.yaml", name=name) + yaml.safe_dump(
        manifest(name, model), sort_keys=False
    )


def request(name: str, model: Checkpoint) -> str:
    """A script that asks a model for what it can answer; of images, for what it takes."""
    path = f"v2/models/{name}"
    body: dict[str, Any] | None = None
    if model.generates:
        path = "v1/completions"
        body = {"model": name, "prompt": "A batch is", "max_tokens": 16}
    elif not model.is_for_images:
        path = f"{path}/infer"
        body = {"inputs": [_TEXT if model.handler == "hf" else _TENSOR]}
    sent = f" -H 'content-type: application/json' -d '{json.dumps(body)}'" if body else ""
    return from_template("request.sh", name=name, path=path, body=sent)


def from_template(file: str, **values: str) -> str:
    """The template of a file with these values."""
    template = files("batchedmodel_cli.init") / "templates" / f"{file}.txt"
    return Template(template.read_text("utf-8")).substitute(values)
