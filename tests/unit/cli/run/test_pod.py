import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from stat import S_IMODE

import pytest

from batchedmodel_cli.run import pod
from batchedmodel_cli.run.pod import cache_folder, shared_folder
from batchedmodel_cli.run.processes import ProcessSpec
from batchedmodel_contract.manifest.batching import FILE_NAME, BatchSettings, settings_from_json
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_contract.processes.environment import (
    ModelServerSettings,
    SidecarSettings,
    from_environment,
)
from batchedmodel_kube.manifest.generation import Generation, KeyValueCache
from batchedmodel_kube.manifest.manifest import BatchedModel, read_manifest
from batchedmodel_kube.manifest.pod_settings import batch_settings
from batchedmodel_kube.manifest.spec import Model, Spec
from support.repository import ROOT

REPOSITORY = ROOT


def manifest() -> BatchedModel:
    return read_manifest(
        {
            "apiVersion": "batchedmodel.dev/v1alpha1",
            "kind": "BatchedModel",
            "metadata": {"name": "toy"},
            "spec": {
                "model": {"handler": "simulated", "parameters": {"a": "0.005"}},
                "batching": {"maxBatchSize": 16, "requestTimeoutSeconds": 100},
            },
        }
    )


def processes(
    manifest: BatchedModel,
    folder: Path,
    *,
    inherited: Mapping[str, str] | None = None,
    upstream: str = "",
) -> tuple[ProcessSpec, ...]:
    return pod.processes(
        manifest,
        folder,
        inherited or {},
        host="127.0.0.1",
        port=8000,
        admin_port=0,
        upstream=upstream,
    )


def specs(folder: Path, inherited: Mapping[str, str]) -> tuple[ProcessSpec, ProcessSpec]:
    batcher, server = processes(manifest(), folder, inherited=inherited)
    return batcher, server


def test_the_model_server_keeps_memory_as_the_image_does(tmp_path: Path) -> None:
    name = "GLIBC_TUNABLES"
    dockerfile = (REPOSITORY / "model_server" / "Dockerfile").read_text("utf-8")
    [in_image] = re.findall(rf"^\s*{name}=(\S+)$", dockerfile, re.MULTILINE)
    batcher, server = specs(tmp_path / "own", {})
    assert server.environment[name] == in_image
    assert name not in batcher.environment
    _, told = specs(tmp_path / "told", {name: "glibc.malloc.arena_max=2"})
    assert told.environment[name] == "glibc.malloc.arena_max=2"


def test_the_batcher_finds_the_manifests_settings(tmp_path: Path) -> None:
    batcher, _ = specs(tmp_path, {})
    settings = from_environment(SidecarSettings, batcher.environment)
    text = Path(settings.settings_folder, "batching.json").read_text("utf-8")
    assert settings_from_json(text) == batch_settings(manifest().spec)


def test_both_processes_are_told_one_name_and_one_socket(tmp_path: Path) -> None:
    batcher, model = specs(tmp_path, {})
    sidecar = from_environment(SidecarSettings, batcher.environment)
    server = from_environment(ModelServerSettings, model.environment)
    assert sidecar.model_name == server.model_name == "toy"
    assert sidecar.model_socket == server.model_socket
    assert Path(sidecar.model_socket).parent == tmp_path
    assert (sidecar.host, sidecar.port, sidecar.admin_port) == ("127.0.0.1", 8000, 0)


def test_the_model_server_is_told_the_model(tmp_path: Path) -> None:
    _, model = specs(tmp_path, {"XDG_CACHE_HOME": "/caches"})
    server = from_environment(ModelServerSettings, model.environment)
    assert (server.handler, server.parameters) == ("simulated", (("a", "0.005"),))
    assert server.max_batch_size == 16
    assert server.cache_folder == "/caches/batchedmodel/models"


def test_the_model_server_is_told_how_much_cache_and_context_it_has(tmp_path: Path) -> None:
    spec = Spec(
        model=Model(handler="simulated"),
        generation=Generation(max_context_tokens=512, kv_cache=KeyValueCache(memory="64Mi")),
    )
    _, model = processes(BatchedModel(name="m", spec=spec), tmp_path)
    server = from_environment(ModelServerSettings, model.environment)
    assert (server.kv_cache_bytes, server.max_context_tokens) == (64 << 20, 512)
    shared = Generation(kv_cache=KeyValueCache(fraction=0.5))
    manifest = BatchedModel(name="m", spec=Spec(model=spec.model, generation=shared))
    _, model = processes(manifest, tmp_path / "other")
    server = from_environment(ModelServerSettings, model.environment)
    assert (server.kv_cache_bytes, server.kv_cache_fraction) == (0, 0.5)
    assert server.max_context_tokens == 0


def test_the_drain_outlasts_the_request_timeout_and_the_kill_outlasts_the_drain(
    tmp_path: Path,
) -> None:
    batcher, _ = specs(tmp_path, {})
    settings = from_environment(SidecarSettings, batcher.environment)
    assert settings.drain_timeout_seconds == 105
    assert batcher.stop_within_seconds == 115


def test_a_batcher_that_left_work_undone_is_told_in_words(tmp_path: Path) -> None:
    batcher, model = specs(tmp_path, {})
    assert batcher.exit_meanings == {1: "the batcher ended before every request was answered"}
    assert model.exit_meanings == {}


def test_processes_inherit_all_but_stray_variables_of_ours(tmp_path: Path) -> None:
    inherited = {"HF_TOKEN": "secret", "BATCHEDMODEL_SOURCE": "stray"}
    for spec in specs(tmp_path, inherited):
        assert spec.environment["HF_TOKEN"] == "secret"
        assert spec.environment["PYTHONUNBUFFERED"] == "1"
        assert "BATCHEDMODEL_SOURCE" not in spec.environment


def test_processes_run_on_this_interpreter_callers_side_first(tmp_path: Path) -> None:
    batcher, model = specs(tmp_path, {})
    assert (batcher.name, model.name) == ("batcher", "model")
    assert batcher.command == (sys.executable, "-m", "batchedmodel_sidecar")
    assert model.command == (sys.executable, "-m", "batchedmodel_model_server")


def test_the_shared_folder_is_private_and_goes_away() -> None:
    with shared_folder() as folder:
        assert S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "left").write_text("over", "utf-8")
    assert not folder.exists()


def test_a_deep_temporary_folder_does_not_make_the_socket_path_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with shared_folder() as folder:
        assert len(str(folder / "model.sock")) <= 107


def test_the_cache_is_in_the_home_folder_unless_told_otherwise() -> None:
    assert cache_folder({}) == Path.home() / ".cache" / "batchedmodel"
    assert cache_folder({"XDG_CACHE_HOME": ""}) == cache_folder({})


def test_the_models_variables_reach_the_model_alone(tmp_path: Path) -> None:
    spec = Spec(model=Model(handler="simulated", env=(("GREETING", "hello"),)))
    batcher, model = processes(BatchedModel(name="m", spec=spec), tmp_path)
    assert model.environment["GREETING"] == "hello"
    assert "GREETING" not in batcher.environment


def test_in_front_of_a_server_that_runs_the_batcher_is_alone(tmp_path: Path) -> None:
    document = {
        "apiVersion": "batchedmodel.dev/v1alpha1",
        "kind": "BatchedModel",
        "metadata": {"name": "theirs"},
        "spec": {
            "model": {"protocol": "OpenAI", "image": "own:1", "idempotent": False},
            "generation": {"maxConcurrentRequests": 8, "targetFirstTokenMilliseconds": 500},
        },
    }
    url = "http://127.0.0.1:8080"
    (batcher,) = processes(read_manifest(document), tmp_path, upstream=url)
    settings = from_environment(SidecarSettings, batcher.environment)
    assert (settings.upstream_url, settings.model_socket) == (url, "")
    assert settings.upstream_protocol is ServerProtocol.OPENAI
    assert not settings.idempotent
    told = settings_from_json(Path(settings.settings_folder, FILE_NAME).read_text("utf-8"))
    assert told == BatchSettings(max_concurrent_requests=8, target_first_token_seconds=0.5)
