"""Callers' own deadlines and priorities, what they are told, and the flight recorder."""

import asyncio
import csv
import io
import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from multidict import CIMultiDict

from batchedmodel_cli.simulate.sources import profile_from
from batchedmodel_contract.inference.description import RAGGED
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.manifest.batching import BatchSettings, Lateness, PolicyName
from batchedmodel_contract.processes.sidecar_api import ARRIVALS_COLUMNS
from support.chain import Chain, running_chain
from support.echo_server import echoing
from support.private_hop import PretendModel, serving
from support.sidecar_world import PROFILE

pytestmark = pytest.mark.asyncio(loop_scope="module")

SLOW = {"fixedSeconds": "0.5", "rowSeconds": "0"}
ROW = {"name": "x", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}
BODY: dict[str, Any] = {"inputs": [ROW]}
LATE = BatchSettings(policy=PolicyName.DEADLINE, target_seconds=0.2)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def slow(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    """One for all, whose queue takes few."""
    settings = BatchSettings(policy=PolicyName.GREEDY, max_batch_size=1, max_queue_size=2)
    async with running_chain(
        tmp_path_factory.mktemp("slow"),
        handler="simulated",
        parameters=SLOW,
        settings=settings,
        log_level="debug",
    ) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def late(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    """One whose target is shorter than a pass."""
    async with running_chain(
        tmp_path_factory.mktemp("late"), handler="simulated", parameters=SLOW, settings=LATE
    ) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hanging(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    """One whose model server ends no pass."""
    folder = tmp_path_factory.mktemp("hanging")
    endless = PretendModel(echoing(x=(Datatype.INT64, (RAGGED,))), PROFILE)
    async with (
        serving(folder / "model.sock", endless),
        running_chain(folder, handler="none", start_model=False) as running,
    ):
        await running.ready()
        yield running


async def ask(
    chain: Chain, body: dict[str, Any] = BODY, path: str = "", **headers: str
) -> tuple[int, Any, dict[str, str]]:
    """Status, answer and headers; an underscore in a header's name stands for a hyphen."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    url = chain.url(path or chain.infer_path)
    async with chain.session.post(url, json=body, headers=named) as response:
        found = {name.lower(): value for name, value in response.headers.items()}
        return response.status, await response.json(), found


async def arrivals(chain: Chain) -> list[dict[str, str]]:
    status, text = await chain.admin("/arrivals")
    assert status == 200
    reader = csv.DictReader(io.StringIO(text))
    rows = list(reader)
    assert tuple(reader.fieldnames or ()) == ARRIVALS_COLUMNS
    return rows


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (BODY, {"x_request_timeout_ms": "100"}),
        (BODY | {"parameters": {"timeout": 100_000}}, {}),
        (BODY | {"parameters": {"timeout": 100_000}}, {"x_request_timeout_ms": "60000"}),
        (BODY | {"parameters": {"timeout": 60_000_000}}, {"x_request_timeout_ms": "100"}),
    ],
    ids=["header", "parameter", "tighter parameter", "tighter header"],
)
async def test_a_callers_own_time_is_kept(
    hanging: Chain, body: dict[str, Any], headers: dict[str, str]
) -> None:
    async with asyncio.timeout(3.0):
        status, answer, told = await ask(hanging, body, **headers)
    assert (status, answer) == (504, {"error": "not answered within 0.1 s"})
    assert told["x-request-outcome"] == "expired"


@pytest.mark.parametrize(
    ("body", "headers", "message"),
    [
        (
            BODY,
            {"x_request_timeout_ms": "soon"},
            'x-request-timeout-ms: "soon" is not a number of milliseconds above 0 and below 1e12',
        ),
        (
            BODY,
            {"x_request_priority": "9"},
            'x-request-priority: "9" is not 1 (high), 2 (normal), 3 (low) or 0 (the default)',
        ),
        (
            BODY,
            {"x_request_group": "a"},
            'x-request-group: "a" is not id;n=rows with an id of 1 to 128 characters and '
            "1 to 4096 rows",
        ),
        (
            BODY | {"parameters": {"timeout": -1}},
            {},
            "parameters.timeout: -1 is below the minimum 0",
        ),
        (
            BODY | {"parameters": {"priority": 4}},
            {},
            "parameters.priority: 4 is above the maximum 3",
        ),
    ],
    ids=["time", "priority", "group", "time parameter", "priority parameter"],
)
async def test_terms_that_make_no_sense_are_named(
    slow: Chain, body: dict[str, Any], headers: dict[str, str], message: str
) -> None:
    status, answer, told = await ask(slow, body, **headers)
    assert (status, answer) == (400, {"error": message})
    assert told["x-request-outcome"] == "invalid"


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("x-request-timeout-ms", "30000", "1"),
        ("x-request-priority", "2", "3"),
        ("x-request-group", "a;n=1", "b;n=1"),
        ("x-batch", "on", "off"),
        ("x-timing", "off", "on"),
        ("Content-Encoding", "identity", "gzip"),
        ("Inference-Header-Content-Length", str(len(json.dumps(BODY))), "2"),
    ],
)
async def test_what_is_said_twice_and_differently_is_refused_by_name(
    slow: Chain, name: str, one: str, other: str
) -> None:
    headers = CIMultiDict([(name, one), (name, other)])
    url, data = slow.url(slow.infer_path), json.dumps(BODY)
    async with slow.session.post(url, data=data, headers=headers) as response:
        told = (await response.json())["error"]
        assert (response.status, response.headers["x-request-outcome"]) == (400, "invalid")
    assert told == f"{name}: is sent more than once, with different values"


async def test_terms_are_understood_before_every_public_protocol(slow: Chain) -> None:
    body = {"model": "m", "input": "a"}
    status, answer, _ = await ask(slow, body, "/v1/embeddings", x_request_priority="high")
    assert status == 400
    assert answer["error"]["code"] == "invalid"
    assert answer["error"]["param"] == "x-request-priority"


async def test_right_terms_change_nothing_of_the_answer(slow: Chain) -> None:
    headers = {
        "x_request_timeout_ms": "30000",
        "x_request_priority": "1",
        "x_request_group": "a;n=1",
    }
    body = BODY | {"parameters": {"timeout": 30_000_000, "priority": 3}}
    untrusted = await slow.metric("batchedmodel_untrusted_priorities_total")
    status, answer, _ = await ask(slow, body, **headers)
    assert (status, answer["outputs"][0]["data"]) == (200, [1, 2])
    assert (await arrivals(slow))[-1]["priority"] == "3", "the body's own priority wins"
    status, _, _ = await ask(slow, BODY, **headers)
    assert status == 200
    assert (await arrivals(slow))[-1]["priority"] == "2", "nobody here is trusted with 1"
    assert await slow.metric("batchedmodel_untrusted_priorities_total") == untrusted + 1


async def test_a_refusal_says_its_reason_and_when_to_come_back_in_both_units(slow: Chain) -> None:
    seen = len(slow.sidecar.lines)
    answers = await asyncio.gather(*(ask(slow) for _ in range(10)))
    refused = [headers for status, _, headers in answers if status == 429]
    assert len(refused) >= 5
    for headers in refused:
        assert headers["x-request-outcome"] == "queue_full"
        milliseconds, seconds = int(headers["retry-after-ms"]), int(headers["retry-after"])
        assert 1 <= milliseconds <= seconds * 1100
    await slow.sidecar.wait_for(r"DEBUG refused: queue_full, 429", after=seen)
    sent = r"DEBUG batch \d+: 1 rows, (idle|full|just_in_time)"
    await slow.sidecar.wait_for(sent, after=seen)


async def test_the_flight_recorder_tells_what_arrived_and_what_became_of_it(slow: Chain) -> None:
    before = len(await arrivals(slow))
    answers = await asyncio.gather(*(ask(slow) for _ in range(10)))
    await ask(slow, BODY | {"inputs": []})
    statuses = Counter(status for status, _, _ in answers)
    rows = (await arrivals(slow))[before:]
    outcomes = Counter(row["outcome"] for row in rows)
    assert outcomes == {"completed": statuses[200], "queue_full": statuses[429]}
    assert {row["length"] for row in rows} == {"2"}
    times = [float(row["seconds"]) for row in rows]
    assert times == sorted(times)
    assert times[0] > 0


async def test_the_admin_port_tells_the_profile_that_the_policy_works_with(slow: Chain) -> None:
    profile = await asyncio.to_thread(
        profile_from, f"http://127.0.0.1:{slow.admin_port}", slow.name
    )
    assert profile.points
    assert all(point.seconds == pytest.approx(0.5) for point in profile.points)


async def test_the_adaptive_behaviour_is_visible(slow: Chain) -> None:
    assert (await ask(slow))[0] == 200
    for name in ("effective_batch_size", "effective_wait_seconds", "predicted_lateness_seconds"):
        assert await slow.metric(f"batchedmodel_{name}") >= 0


async def test_hopeless_work_is_refused_at_once_where_lateness_is_refused(late: Chain) -> None:
    await late.goes_by(replace(LATE, lateness=Lateness.REFUSE))
    status, answer, headers = await ask(late)
    # Not 504: it did not wait for its time to pass.
    assert (status, headers["x-request-outcome"]) == (429, "predicted_late")
    assert answer == {"error": "it would not be answered within 0.2 s"}
    assert await late.metric("batchedmodel_target_feasible") == 0
    assert await late.metric("batchedmodel_smallest_feasible_target_seconds") > 0.2


async def test_a_target_that_cannot_be_met_is_served_all_the_same_and_said(late: Chain) -> None:
    await late.goes_by(LATE)
    statuses = Counter(s for s, _, _ in await asyncio.gather(*(ask(late) for _ in range(8))))
    assert statuses == {200: 8}
    assert await late.metric("batchedmodel_target_feasible") == 0
    status, answer, headers = await ask(late, x_request_timeout_ms="200")
    assert (status, headers["x-request-outcome"]) == (429, "predicted_late"), answer
