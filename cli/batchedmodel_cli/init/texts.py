"""The texts that `batchedmodel init` writes. Pure."""

import json
from collections.abc import Mapping
from string import Template
from typing import Any, Final

import yaml

from batchedmodel_cli.checkpoint import Checkpoint

_MANIFEST: Final = """\
# Serve it on this machine: batchedmodel run $name.yaml
# Kubernetes takes the same file; a path is one within the image there.
"""
_REQUEST: Final = """\
#!/bin/sh
# Asks the model that `batchedmodel run $name.yaml` serves; ADDRESS is another place than port 8000.
curl -sN "$${ADDRESS:-http://127.0.0.1:8000}$path"$body
"""
_HANDLER: Final = '''\
"""What goes into $name, what comes out, and how a batch is computed."""

import torch

from batchedmodel_model_server.api.handler import Handler, Spec


class Net(torch.nn.Module):
    """Put your own module here."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(x).squeeze(-1)


class Model(Handler):
    # "L" differs from item to item; items of one batch are padded to its longest.
    inputs = {"x": Spec("FP32", ("L", 4), max=512)}
    outputs = {"score": Spec("FP32", ("L",))}

    def load(self, path, device):
        torch.manual_seed(0)
        # With weights, by `from batchedmodel_model_server.api.weights import load_module`:
        #   self.net = load_module(Net, path / "$weights", device)
        self.net = Net().eval().to(device)

    def forward(self, batch):
        return {"score": self.net(batch["x"])}
'''
_TEST: Final = '''\
"""What holds of the handler of $name, whatever it computes. Run it by: pytest"""

from pathlib import Path

import numpy as np
import torch
from handler import Model

from batchedmodel_model_server.api.handler import Batch


def batch_of(*items):
    """A batch as the server hands it over: items padded to the longest."""
    lengths = np.array([len(item) for item in items])
    x = np.zeros((len(items), lengths.max(), 4), np.float32)
    for row, item in zip(x, items, strict=True):
        row[: len(item)] = item
    sizes = {"L": lengths}
    return Batch(arrays={"x": x}, sizes=sizes, rows=len(items), device="cpu", handed_over=0.0)


def test_an_item_is_answered_alike_alone_and_beside_a_longer_one():
    model = Model()
    model.load(Path(__file__).parent, "cpu")
    short, long = np.random.default_rng(0).normal(size=(2, 9, 4))
    with torch.inference_mode():
        alone = model.forward(batch_of(short[:3]))["score"]
        beside = model.forward(batch_of(short[:3], long))["score"]
    assert alone.shape == (1, 3)
    torch.testing.assert_close(beside[:1, :3], alone)
'''
FILE: Final = "handler.py"
TEST: Final = f"test_{FILE}"
CLASS: Final = f"{FILE}:Model"


def manifest(document: Mapping[str, Any]) -> str:
    """A manifest's file."""
    head = Template(_MANIFEST).substitute(name=document["metadata"]["name"])
    return head + yaml.safe_dump(document, sort_keys=False)


def request(name: str, model: Checkpoint | None) -> str:
    """A script that asks the model something; without a checkpoint the handler of `handler`."""
    path, body = f"/v2/models/{name}/infer", json.dumps(_body(name, model))
    if model is not None and model.generates:
        path = "/v1/completions"
    sent = f" -H 'content-type: application/json' -d '{body}'"
    if model is not None and model.is_for_images:
        path, sent = f"/v2/models/{name}", ""  # what it takes; pixels are no line to type
    return Template(_REQUEST).substitute(name=name, path=path, body=sent)


def handler(name: str, weights: str) -> Mapping[str, str]:
    """A handler and its test, by the names of their files; `weights`: what may be loaded."""
    texts = {FILE: _HANDLER, TEST: _TEST}
    return {
        file: Template(text).substitute(name=name, weights=weights) for file, text in texts.items()
    }


def _body(name: str, model: Checkpoint | None) -> dict[str, Any]:
    if model is None:
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2, 4], "data": [1, 2, 3, 4] * 2}
        return {"inputs": [tensor]}
    if model.generates:
        return {"model": name, "prompt": "A batch is", "max_tokens": 16}
    text = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["A sentence."]}
    return {"inputs": [text]}
