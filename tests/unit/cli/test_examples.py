"""Every example keeps the contract, and the page about running lists it."""

from pathlib import Path

import pytest

from batchedmodel_cli.manifest_file import in_front_of_a_server, read_manifest_file
from batchedmodel_contract.manifest.batching import settings_from_json
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_contract.processes.sidecar_api import ADMIN_PORT
from batchedmodel_kube.manifest.pod_settings import batch_settings
from batchedmodel_kube.names import DATA_PORT
from support.repository import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
LANGUAGE_MODELS = [ROOT / "examples" / name for name in ("vllm.yaml", "llama-cpp.yaml")]


def by_name(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("example", EXAMPLES, ids=by_name)
def test_an_example_is_a_right_manifest_and_is_listed(example: Path) -> None:
    settings = batch_settings(read_manifest_file(example).spec)
    assert settings_from_json(settings.to_json()) == settings
    page = (ROOT / "docs" / "running.md").read_text("utf-8")
    assert f"| `examples/{example.name}` |" in page


@pytest.mark.parametrize("example", LANGUAGE_MODELS, ids=by_name)
def test_an_example_of_a_language_model_can_be_put_before_a_server_that_runs(example: Path) -> None:
    manifest = in_front_of_a_server(read_manifest_file(example))
    assert manifest.spec.model.protocol is ServerProtocol.OPENAI
    assert manifest.spec.generation is not None


@pytest.mark.parametrize("example", LANGUAGE_MODELS, ids=by_name)
def test_its_server_is_told_the_port_of_the_manifest_and_heard_in_its_pod_only(
    example: Path,
) -> None:
    model = read_manifest_file(example).spec.model
    told = " ".join(model.args).replace("=", " ")
    assert f"--port {model.port}" in told
    assert "--host 127.0.0.1" in told
    assert model.port not in (DATA_PORT, ADMIN_PORT)
