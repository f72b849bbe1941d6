"""Edits of a manifest whose processes run."""

import json
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_cli.manifest_file import UnusableManifest
from batchedmodel_cli.run.edits import take
from batchedmodel_cli.run.pod import write_settings
from batchedmodel_contract.lora import ADAPTERS_FILE
from batchedmodel_contract.manifest.batching import FILE_NAME, settings_from_json
from batchedmodel_kube.manifest.manifest import BatchedModel, read_manifest

ADAPTERS: dict[str, Any] = {"slots": 4, "items": [{"name": "sql", "source": {"path": "/sql"}}]}


def manifest(name: str = "toy", **spec: Any) -> BatchedModel:
    return read_manifest(
        {
            "apiVersion": "batchedmodel.dev/v1alpha1",
            "kind": "BatchedModel",
            "metadata": {"name": name},
            "spec": {"model": {"handler": "simulated"}, **spec},
        }
    )


def edited(running: BatchedModel, to: BatchedModel | UnusableManifest, folder: Path) -> list[str]:
    """What is told of an edit."""
    write_settings(running, folder)
    told: list[str] = []

    def read() -> BatchedModel:
        if isinstance(to, UnusableManifest):
            raise to
        return to

    take(running, folder, read=read, tell=told.append)
    return told


def adapters(folder: Path) -> Any:
    return json.loads((folder / ADAPTERS_FILE).read_text())


def test_an_adapter_comes_without_a_restart_and_the_batch_settings_name_its_file(
    tmp_path: Path,
) -> None:
    running = manifest(adapters=ADAPTERS)
    write_settings(running, tmp_path)
    before = settings_from_json((tmp_path / FILE_NAME).read_bytes())
    chat = {"name": "chat", "source": {"path": "/chat"}}
    after = manifest(adapters={**ADAPTERS, "items": [*ADAPTERS["items"], chat]})
    assert edited(running, after, tmp_path) == ["the edit is in force"]
    assert [one["name"] for one in adapters(tmp_path)["items"]] == ["sql", "chat"]
    assert settings_from_json((tmp_path / FILE_NAME).read_bytes()) != before


def test_batch_settings_and_targets_of_text_are_in_force_at_once(tmp_path: Path) -> None:
    after = manifest(batching={"maxBatchSize": 8}, generation={"targetTokenMilliseconds": 50})
    assert edited(manifest(), after, tmp_path) == ["the edit is in force"]
    found = settings_from_json((tmp_path / FILE_NAME).read_bytes())
    assert (found.max_batch_size, found.target_token_seconds) == (8, 0.05)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"adapters": {**ADAPTERS, "slots": 8}}, "used from the next run on: spec.adapters"),
        (
            {"adapters": ADAPTERS, "model": {"handler": "hf", "source": {"path": "/m"}}},
            "used from the next run on: spec.model",
        ),
        (
            {"adapters": ADAPTERS, "generation": {"maxContextTokens": 9}},
            "used from the next run on: spec.generation",
        ),
    ],
)
def test_what_needs_another_start_is_told_and_changes_nothing(
    tmp_path: Path, spec: dict[str, Any], told: str
) -> None:
    assert edited(manifest(adapters=ADAPTERS), manifest(**spec), tmp_path) == [told]
    assert adapters(tmp_path)["slots"] == 4


def test_processes_that_were_started_without_adapters_get_none(tmp_path: Path) -> None:
    told = edited(manifest(), manifest(adapters=ADAPTERS), tmp_path)
    assert told == ["used from the next run on: spec.adapters"]
    assert not (tmp_path / ADAPTERS_FILE).exists()


@pytest.mark.parametrize(
    ("to", "told"),
    [
        (manifest("other"), "metadata.name: the service is called toy"),
        (UnusableManifest("spec.batching: is wrong"), "spec.batching: is wrong"),
    ],
)
def test_an_edit_that_cannot_be_used_leaves_all_as_it_is(
    tmp_path: Path, to: BatchedModel | UnusableManifest, told: str
) -> None:
    assert edited(manifest(adapters=ADAPTERS), to, tmp_path) == [f"the edit is not used: {told}"]
    assert adapters(tmp_path)["items"][0]["name"] == "sql"
