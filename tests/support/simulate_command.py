"""`batchedmodel simulate` as the tests type it."""

import json
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_cli.__main__ import main
from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import Profile, ProfilePoint

PROFILE = Profile(
    cost_rule=CostRule.PADDED,
    device="test",
    points=tuple(
        ProfilePoint(rows=rows, length=length, seconds=0.004 + 6e-6 * rows * length)
        for rows in (1, 8, 32)
        for length in (16, 128, 512)
    ),
)


def written(folder: Path, batching: str = "", model: str = "handler: simulated") -> Path:
    file = folder / "model.yaml"
    file.write_text(
        "apiVersion: batchedmodel.dev/v1alpha1\n"
        "kind: BatchedModel\n"
        "metadata: {name: minilm}\n"
        f"spec: {{model: {{{model}}}, batching: {{{batching}}}}}\n",
        "utf-8",
    )
    return file


def simulated(capsys: pytest.CaptureFixture[str], *argv: object) -> dict[str, Any]:
    """The JSON document of a short simulation."""
    code = main(["simulate", *map(str, argv), "--requests=1000", "--json=-"])
    output = capsys.readouterr()
    assert (code, output.err) == (0, "")
    document: dict[str, Any] = json.loads(output.out)
    return document


def refusal(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    """What a command line is refused with."""
    code = main(["simulate", *map(str, argv)])
    output = capsys.readouterr()
    assert (code, output.out) == (2, "")
    return output.err
