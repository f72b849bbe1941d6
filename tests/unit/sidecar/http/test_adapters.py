"""Requests for adapters, from their heads to their answers."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from batchedmodel_contract.lora import AdapterPhase, AdapterState
from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_contract.manifest.tenants import Share, TenantsBy, TenantSettings
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_http.response import Response
from batchedmodel_sidecar.http.admission import share_of_call
from batchedmodel_sidecar.lora.served import ChosenAdapter, ServedAdapters
from batchedmodel_sidecar.protocols.v2 import metadata
from batchedmodel_sidecar.telemetry.metrics import AdaptersCollector
from support.handler_world import Here, body, here, text
from support.right_bodies import TEXTS
from support.sidecar_world import MODEL

pytestmark = pytest.mark.looptime

STATES = (
    AdapterState(name="sql", number=4, phase=AdapterPhase.READY),
    AdapterState(name="chat", number=7, phase=AdapterPhase.READY),
    AdapterState(name="late", number=8, phase=AdapterPhase.FETCHING),
    AdapterState(name="broken", number=9, phase=AdapterPhase.FAILED, reason="DoRA is not taken"),
)
BY_ADAPTER = BatchSettings(policy=PolicyName.GREEDY, max_batch_size=4, tenant_by=TenantsBy.ADAPTER)


async def place(*, settings: BatchSettings | None = None) -> Here:
    names = ServedAdapters("m", "task-id")
    names.told(STATES)
    made = await (here(names=names) if settings is None else here(settings, names=names))
    made.world.server.adapters.clear()
    return made


def document(response: Response) -> Any:
    return json.loads(text(response))


@pytest.mark.parametrize(
    ("name", "headers", "number"),
    [
        ("sql", {}, 4),
        ("m", {"task-id": "chat"}, 7),
        ("chat", {"task-id": "chat"}, 7),
        ("sql", {"task-id": "m"}, 4),
    ],
)
@pytest.mark.parametrize("known", [True, False], ids=["a known form", "another form"])
async def test_the_row_carries_its_adapters_number_and_the_answer_its_name(
    name: str, headers: Mapping[str, str], number: int, known: bool
) -> None:
    made = await place()
    sent = body(3, 4) if known else body(3, 4, id="mine")
    response = await made.answer(sent, headers, name)
    assert response.status == 200
    assert document(response)["model_name"] == ("sql" if number == 4 else "chat")
    assert made.world.server.adapters == [(number,)]


async def test_rows_of_several_adapters_and_of_none_share_a_batch() -> None:
    made = await place()
    for name in ("m", "sql", "m", "chat", "sql", "chat"):
        made.begin(body(1), None, name)
    await asyncio.sleep(1.0)
    assert made.world.server.adapters == [(0, 4, 0, 7), (4, 7)]


async def test_a_batch_without_adapters_says_nothing_of_them() -> None:
    made = await place()
    assert document(await made.answer(body(1)))["model_name"] == "m"
    assert made.world.server.adapters == [()]


@pytest.mark.parametrize(
    ("name", "headers", "status", "message", "again"),
    [
        ("other", {}, 404, 'model: "other" is not served here; m is', False),
        ("m", {"task-id": "other"}, 404, 'model: "other" is not served here', False),
        ("broken", {}, 503, "adapter broken cannot be served: DoRA is not taken", False),
        ("late", {}, 503, "adapter late is FETCHING", True),
        ("sql", {"task-id": "chat"}, 400, "task-id: ", False),
    ],
)
@pytest.mark.parametrize("known", [True, False], ids=["a known form", "another form"])
async def test_what_cannot_be_had_is_refused_to_its_caller_alone(
    name: str, headers: Mapping[str, str], status: int, message: str, again: bool, known: bool
) -> None:
    made = await place()
    sent = body(3, 4) if known else body(3, 4, id="mine")
    made.begin(body(1), None, "sql")
    made.begin(sent, headers, name)
    await asyncio.sleep(1.0)
    refused, other = made.told[1:]
    assert (refused.status, other.status) == (status, 200)
    assert message in document(refused)["error"]
    assert any(header == "Retry-After" for header, _ in refused.headers) == again
    reason = Rejection.NOT_READY if status == 503 else Rejection.INVALID
    assert made.world.ledger.rejected == {reason: 1}


async def test_the_lists_name_those_that_can_be_asked_and_whose_they_are() -> None:
    made = await place()
    found = document(await made.asked("/v1/models"))
    assert found["models"] == ["m", "chat", "sql"]
    assert [(one["id"], one["root"], one["parent"]) for one in found["data"]] == [
        ("m", "m", None),
        ("chat", "m", "m"),
        ("sql", "m", "m"),
    ]
    assert document(await made.asked("/v1/models/sql"))["parent"] == "m"


async def test_an_adapter_has_the_models_metadata_under_its_own_name() -> None:
    made = await place()
    metadata = document(await made.asked("/v2/models/sql"))
    assert metadata == document(await made.asked("/v2/models/m")) | {"name": "sql"}
    assert document(await made.asked("/v2/models/sql/ready")) == {"name": "sql", "ready": True}
    for name, status in (("late", 503), ("broken", 503), ("other", 404)):
        for path in (f"/v2/models/{name}", f"/v2/models/{name}/ready", f"/v1/models/{name}"):
            assert (await made.asked(path)).status == status, path


def test_an_adapter_with_labels_of_its_own_has_them_in_its_metadata() -> None:
    chosen = ChosenAdapter("spam", 1, 0, ServedAdapters("m"), ("ham", "spam", "eggs"))
    ours = metadata(TEXTS, chosen)["batchedmodel"]["classification"]
    assert ours["labels"] == ("ham", "spam", "eggs")
    whole = metadata(TEXTS) | {"name": "spam"}
    assert whole["batchedmodel"]["classification"]["labels"] == ("good", "bad", "odd")
    whole["batchedmodel"]["classification"] = ours
    assert whole == metadata(TEXTS, chosen)


async def test_where_adapters_are_tenants_their_rows_are_counted_and_shared_by_their_names() -> (
    None
):
    made = await place(settings=BY_ADAPTER)
    for name in ("sql", "sql", "chat", "m"):
        assert (await made.answer(body(1), None, name)).status == 200
    rows = {one.tenant: one.served for one in made.world.ledger.tenants.rows()}
    assert rows == {"m": 2, "sql": 2, "chat": 1, "other": 0}  # one before the first


async def test_metrics_tell_of_adapters_in_series_whose_number_is_bounded() -> None:
    made = await place()
    served = ServedAdapters("m")
    served.told(STATES)
    for _ in range(2):
        assert (await made.answer(body(1), None, "sql")).status == 200
    for name in ("m", "sql", "chat", "chat", "sql", "chat"):
        made.begin(body(1), None, name)
    ledger, batcher = made.world.ledger, made.world.batcher
    collector = AdaptersCollector(
        served=served,
        counts=ledger.adapters,
        works=[batcher.adapters],
        slots=8,
        wall_clock=lambda: 17.5,
    )
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in collector.collect()
        for sample in metric.samples
    }
    assert found["batchedmodel_adapter_served_items_total", "sql"] == 2
    assert found["batchedmodel_adapter_served_items_total", "other"] == 0
    assert found["batchedmodel_adapters", "READY"] == 2
    assert found["batchedmodel_adapters", "FAILED"] == 1
    (labels,) = [key[1:] for key in found if key[0] == "batchedmodel_lora_requests_info"]
    assert labels[0] == "8"
    assert {*labels[1].split(","), *labels[2].split(",")} - {""} == {"sql", "chat"}
    assert found["batchedmodel_lora_requests_info", *labels] == 17.5


def test_where_adapters_are_tenants_a_call_uses_its_adapters_share() -> None:
    call, caller = MODEL.call_of(()), Share("10.0.0.1")
    served = ServedAdapters("m")
    served.told([AdapterState(name="a", number=3, phase=AdapterPhase.READY)])
    chosen = served.choose("a")
    assert chosen is not None
    by_adapter = TenantSettings(by=TenantsBy.ADAPTER, weights={"a": 3.0}, max_share=0.5)
    for_adapter = call.for_adapter(chosen)
    assert share_of_call(for_adapter, caller, by_adapter) == Share("a", 3.0, 0.5)
    assert share_of_call(call, caller, by_adapter) == Share("m", 1.0, 0.5)
    assert share_of_call(for_adapter, caller, TenantSettings()) == caller
