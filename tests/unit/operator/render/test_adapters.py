"""What adapters change in a pod, and what they do not."""

import json
from typing import Any, Final

import pytest

from batchedmodel_contract.lora import ADAPTERS_FILE, adapters_from_json
from batchedmodel_contract.manifest.batching import FILE_NAME
from batchedmodel_kube.manifest.spec import Spec
from batchedmodel_kube.names import ADAPTERS_VOLUME_PREFIX, SETTINGS_PATH
from batchedmodel_operator import render
from batchedmodel_operator.observed.state import Model, model_from
from support.operator_world import IMAGES, SIMULATED, manifest

SQL: Final = {"name": "sql", "source": {"huggingFace": {"repo": "team/sql"}}}
CHAT: Final = {
    "name": "chat",
    "source": {"volume": {"claimName": "tunings.team", "subPath": "chat/v2"}},
}
OTHER: Final = {"name": "other", "source": {"volume": {"claimName": "tunings.team"}}}


def read(adapters: Any, model: Any = None) -> tuple[Model, Spec]:
    spec = SIMULATED if model is None else {"model": model}
    given = manifest(spec if adapters is None else {**spec, "adapters": adapters})
    given["metadata"]["uid"] = "6a"
    found = model_from(given)
    assert found.spec is not None, found.mistakes
    return found, found.spec


def pod(adapters: Any, model: Any = None) -> dict[str, Any]:
    found, spec = read(adapters, model)
    pinned = render.pinned_batching(spec)
    return dict(render.pod_template(found, spec, IMAGES, pinned))


def variables(container: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


def names(adapters: Any) -> tuple[str, str]:
    model, spec = read(adapters)
    return render.revision_name(model, spec), render.revision(model, spec, IMAGES)


def test_the_model_server_gets_the_file_of_adapters_beside_the_batch_settings() -> None:
    data = render.config_map(*read({"items": [SQL, CHAT]}))["data"]
    settings = adapters_from_json(data[ADAPTERS_FILE])
    assert [item.name for item in settings.items] == ["sql", "chat"]
    assert settings.items[1].source.path == "/var/lib/batchedmodel/adapters/tunings.team/chat/v2"
    (model,) = pod({})["spec"]["containers"]
    assert variables(model)["BATCHEDMODEL_ADAPTERS_FOLDER"] == SETTINGS_PATH
    assert SETTINGS_PATH in [mount["mountPath"] for mount in model["volumeMounts"]]


def test_the_hash_of_the_batch_settings_names_the_file_so_that_pods_are_told_of_edits() -> None:
    told = [
        json.loads(render.config_map(*read(adapters))["data"][FILE_NAME]).get("adapters")
        for adapters in (None, {}, {"items": [SQL]}, {"items": [SQL]})
    ]
    assert told[0] is None
    assert told[1] != told[2] == told[3]


def test_a_model_without_adapters_has_nothing_of_it() -> None:
    template = pod(None)
    assert list(render.config_map(*read(None))["data"]) == [FILE_NAME]
    assert "adapters" not in str(template["metadata"])
    (model,) = template["spec"]["containers"]
    assert "BATCHEDMODEL_ADAPTERS_FOLDER" not in variables(model)
    assert SETTINGS_PATH not in [mount["mountPath"] for mount in model["volumeMounts"]]


def test_a_volume_is_mounted_once_and_whole_for_all_items_that_name_it() -> None:
    body = pod({"items": [CHAT, OTHER]})["spec"]
    (volume,) = [one for one in body["volumes"] if one["name"].startswith(ADAPTERS_VOLUME_PREFIX)]
    assert volume["persistentVolumeClaim"] == {"claimName": "tunings.team", "readOnly": True}
    (model,) = body["containers"]
    (mount,) = [one for one in model["volumeMounts"] if one["name"] == volume["name"]]
    assert mount["mountPath"] == "/var/lib/batchedmodel/adapters/tunings.team"
    assert "subPath" not in mount


def test_the_token_comes_from_its_secret_whatever_the_manifest_says_of_the_variable() -> None:
    (model,) = pod({"tokenSecretRef": {"name": "hub"}})["spec"]["containers"]
    assert [one["valueFrom"] for one in model["env"] if one["name"] == "HF_TOKEN"] == [
        {"secretKeyRef": {"name": "hub", "key": "token"}}
    ]


HUB: Final = {"source": {"huggingFace": {"repo": "a/b"}}}


@pytest.mark.parametrize(
    ("model", "online"),
    [
        (HUB, "true"),
        ({**HUB, "env": {"HF_HUB_OFFLINE": "1"}}, "false"),
        ({**HUB, "env": {"TRANSFORMERS_OFFLINE": "1"}}, "false"),
        ({"source": {"path": "/m"}, "env": {"HF_HUB_OFFLINE": "1"}}, "false"),
    ],
    ids=str,
)
def test_hubs_are_asked_for_adapters_though_the_model_is_fetched_unless_its_author_is_offline(
    model: dict[str, Any], online: str
) -> None:
    (container,) = pod({"items": [SQL]}, {"handler": "hf", **model})["spec"]["containers"]
    assert variables(container)["BATCHEDMODEL_ADAPTERS_ONLINE"] == online


def test_the_sidecar_is_told_the_header_and_the_slots() -> None:
    *_, sidecar = pod({"slots": 4, "header": "x-adapter"})["spec"]["initContainers"]
    told = variables(sidecar)
    assert told["BATCHEDMODEL_ADAPTER_HEADER"] == "x-adapter"
    assert told["BATCHEDMODEL_ADAPTER_SLOTS"] == "4"


def test_items_come_and_go_without_another_revision_of_the_pods() -> None:
    assert len({names({"items": items}) for items in ([], [SQL], [SQL, {**SQL, "name": "b"}])}) == 1
    assert names({"items": [CHAT]}) == names({"items": [OTHER, SQL]})


@pytest.mark.parametrize(
    "edit",
    [
        {"slots": 4},
        {"maxRank": 32},
        {"cpuMemory": "1Gi"},
        {"folder": "/adapters"},
        {"header": "x-adapter"},
        {"tokenSecretRef": {"name": "hub"}},
        {"items": [CHAT]},
    ],
    ids=str,
)
def test_what_a_pod_has_from_its_start_makes_another_revision(edit: dict[str, Any]) -> None:
    before, after = names({"items": [SQL]}), names({"items": [SQL], **edit})
    assert before[0] != after[0]
    assert before[1] != after[1]
    assert names(None)[1] != before[1]
