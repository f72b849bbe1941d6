"""What `batchedmodel init` writes and `run --model` finds is served as it stands."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from batchedmodel_cli.__main__ import main
from support.checkpoints import text_checkpoint
from support.tiny_llama import llama_checkpoint

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TWO_INPUTS = """
import torch

from batchedmodel_model_server.api.handler import Handler, Spec


class Model(Handler):
    inputs = {
        "ids": Spec("INT64", ("T",), max=64, vocab=50),
        "context": Spec("FP32", (3,)),
        "scale": Spec("FP32", ()),
    }
    outputs = {"score": Spec("FP32", ("T",)), "whole": Spec("FP32", ())}

    def load(self, path, device):
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(50, 3).eval()

    def forward(self, batch):
        each = (self.embed(batch["ids"]) * batch["context"][:, None]).sum(-1)
        return {"score": each * batch["scale"][:, None], "whole": (each * MASK).sum(-1)}
"""


@contextmanager
def served(folder: Path, *words: str) -> Iterator[str]:
    """The address of a run with these words, in a folder; Ctrl-C stops it in the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "batchedmodel_cli", "run", *words, "--port", "0"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        assert run.stdout is not None
        lines = iter(run.stdout.readline, "")
        said: list[str] = []
        try:
            for line in lines:
                said.append(line)
                if address := re.match(r"  service  (\S+)", line):
                    yield address[1]
                    break
        finally:
            run.send_signal(signal.SIGINT)
            said += lines
    assert run.returncode == 0, "".join(said)


def answer(folder: Path, script: str, address: str) -> dict[str, object]:
    """What the request's script prints."""
    ran = subprocess.run(
        [f"./{script}"],
        cwd=folder,
        env={**os.environ, "ADDRESS": address},
        capture_output=True,
        text=True,
        check=True,
    )
    document: dict[str, object] = json.loads(ran.stdout)
    return document


def own_test(folder: Path) -> "subprocess.CompletedProcess[str]":
    """The test that `init` wrote beside the handler, run."""
    words = [sys.executable, "-W", "ignore", "-m", "pytest", "-q", "mine"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


def test_a_handler_of_init_passes_its_test_is_valid_and_answers_its_request(tmp_path: Path) -> None:
    assert main(["init", str(tmp_path), "--handler", "--name", "mine"]) == 0
    assert main(["validate", str(tmp_path / "mine.yaml")]) == 0
    ran = own_test(tmp_path)
    assert (ran.returncode, "1 passed" in ran.stdout) == (0, True), ran.stdout
    with served(tmp_path, "mine.yaml") as address:
        outputs = answer(tmp_path, "mine-request.sh", address)["outputs"]
    assert isinstance(outputs, list)
    assert (outputs[0]["name"], outputs[0]["shape"]) == ("score", [1, 2])


def test_the_test_of_init_holds_for_other_tensors_and_finds_a_forgotten_mask(
    tmp_path: Path,
) -> None:
    """It knew the one input that `init` writes, and failed for every other handler."""
    assert main(["init", str(tmp_path), "--handler", "--name", "mine"]) == 0
    handler = tmp_path / "mine" / "handler.py"
    handler.write_text(TWO_INPUTS.replace("MASK", 'batch.mask("T")'), "utf-8")
    ran = own_test(tmp_path)
    assert (ran.returncode, "1 passed" in ran.stdout) == (0, True), ran.stdout
    handler.write_text(TWO_INPUTS.replace("MASK", "1"), "utf-8")
    ran = own_test(tmp_path)
    assert (ran.returncode, "not close" in ran.stdout) == (1, True), ran.stdout


@pytest.mark.parametrize("task", ["embeds", "generates"])
def test_a_checkpoint_is_served_without_a_manifest_and_answers_the_request_of_init(
    tmp_path: Path, task: str
) -> None:
    checkpoint = tmp_path / "Tiny Model"
    checkpoint.mkdir()
    if task == "embeds":
        text_checkpoint(checkpoint, "Bert")
    else:
        llama_checkpoint(checkpoint)
    assert main(["init", str(tmp_path / "files"), "--model", str(checkpoint)]) == 0
    with served(tmp_path, "--model", "Tiny Model") as address:
        said = answer(tmp_path / "files", "tiny-model-request.sh", address)
    assert "error" not in said
    assert said.keys() & {"outputs", "choices"}
