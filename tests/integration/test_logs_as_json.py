"""What each process writes to standard error where it is told to log JSON."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from support.chain import running_chain

MARK: Final = "secret-of-a-caller"
ALWAYS: Final = {"time", "level", "process", "logger", "message"}
OPERATOR: Final = {
    "BATCHEDMODEL_NAMESPACE": "here",
    "BATCHEDMODEL_SIDECAR_IMAGE": "a",
    "BATCHEDMODEL_MODEL_SERVER_IMAGE": "b",
}
HELM_TEST: Final = {"BATCHEDMODEL_NAMESPACE": "here", "BATCHEDMODEL_LEASE_NAME": "a"}
AUTOSCALER: Final = {
    "BATCHEDMODEL_NAMESPACE": "here",
    "BATCHEDMODEL_SERVICE_NAME": "a",
    "BATCHEDMODEL_DEPLOYMENT_NAME": "a",
    "BATCHEDMODEL_LEASE_NAME": "a",
}
FETCH: Final = {
    "BATCHEDMODEL_SOURCE": '{"path": "/nowhere"}',
    "BATCHEDMODEL_CACHE_FOLDER": "/nowhere",
}
NO_SUCH_DESCRIPTOR: Final = "9999"


def fields_of(lines: list[str]) -> list[dict[str, Any]]:
    """Of a log in which every line is an object with the fields that all share."""
    found = [json.loads(line) for line in lines]
    assert found, "nothing was logged"
    assert [one for one in found if not one.keys() >= ALWAYS] == []
    return found


@pytest.mark.parametrize(
    ("module", "process", "told", "exception"),
    [
        ("batchedmodel_operator", "operator", OPERATOR, ""),
        ("batchedmodel_operator.helm_test", "helm-test", HELM_TEST, ""),
        ("batchedmodel_autoscaler", "autoscaler", AUTOSCALER, ""),
        ("batchedmodel_model_server.sources.fetch", "fetch", FETCH, ""),
        ("batchedmodel_sidecar.helper.process", "sidecar-helper", {}, "Bad file descriptor"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_process_that_cannot_begin_says_so_in_json(
    module: str, process: str, told: dict[str, str], exception: str, tmp_path: Path
) -> None:
    kept = {name: value for name, value in os.environ.items() if "KUBE" not in name}
    own = {"HOME": str(tmp_path), "BATCHEDMODEL_LOG_FORMAT": "json"}
    ran = subprocess.run(
        [sys.executable, "-m", module, NO_SUCH_DESCRIPTOR],
        env={**kept, **own, **told},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1, ran.stderr
    found = fields_of(ran.stderr.splitlines())
    assert {one["process"] for one in found} == {process}
    assert exception in found[-1].get("exception", "")


async def test_a_pod_logs_json_and_no_bodies(tmp_path: Path) -> None:
    handler = "support.text_handlers:Embedder"
    async with running_chain(
        tmp_path, handler=handler, log_level="debug", log_format="json"
    ) as chain:
        for text in (MARK, MARK * 20_000, {"a": MARK}):
            document = {"model": "m", "input": text}
            async with chain.session.post(chain.url("/v1/embeddings"), json=document) as answer:
                await answer.read()
                assert answer.status == (400 if isinstance(text, dict) else 200)
        await asyncio.gather(chain.sidecar.stop(), chain.model.stop())
    for process, name in ((chain.sidecar, "sidecar"), (chain.model, "model-server")):
        assert [line for line in process.lines if MARK in line] == []
        found = fields_of(process.lines)
        assert {(one["process"], one["model"]) for one in found} == {(name, "m")}
    said = fields_of(chain.sidecar.lines)
    assert "started a helper" in " ".join(one["message"] for one in said)
    (batch, *_) = [one for one in said if one["message"].startswith("batch ")]
    assert batch["reason"]
    assert batch["trace"] == "-"
    assert "invalid" in {one.get("reason", "").lower() for one in said}
