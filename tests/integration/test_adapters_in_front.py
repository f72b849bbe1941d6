"""Adapters through both processes: from an edit of their file to the answers of their callers."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from batchedmodel_contract.lora import ADAPTERS_FILE
from support.chain import START_SECONDS, Chain, running_chain

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    folder = tmp_path_factory.mktemp("adapting")
    (folder / "settings").mkdir()
    adapter(folder, "ten", "10")
    adapter(folder, "hundred", "100")
    adapter(folder, "broken", "much")
    wish(folder, "ten", "hundred", "broken")
    async with running_chain(
        folder,
        handler="support.adapting_handler:Adding",
        adapters_folder=str(folder / "settings"),
        adapter_header="task-id",
        adapter_slots=2,
    ) as running:
        yield running


def adapter(folder: Path, name: str, adds: str) -> None:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "adds").write_text(adds)


def wish(folder: Path, *names: str) -> None:
    items = [{"name": name, "source": {"path": str(folder / name)}} for name in names]
    new = folder / "settings" / ".new"
    new.write_text(json.dumps({"slots": 2, "items": items}))
    new.replace(folder / "settings" / ADAPTERS_FILE)


async def ask(chain: Chain, name: str, *numbers: float, header: str = "") -> tuple[int, Any]:
    """Status, and the numbers of the answer or what is said."""
    data = {"name": "x", "datatype": "FP32", "shape": [1, len(numbers)], "data": numbers}
    headers = {"task-id": header} if header else {}
    url = chain.url(f"/v2/models/{name}/infer")
    async with chain.session.post(url, json={"inputs": [data]}, headers=headers) as response:
        answer = await response.json()
        if response.status != 200:
            return response.status, answer["error"]
        assert answer["model_name"] == (header or name)
        return 200, answer["outputs"][0]["data"]


async def until_known(chain: Chain, name: str, *, known: bool) -> None:
    async with asyncio.timeout(START_SECONDS):
        while (name in await listed(chain)) != known:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def listed(chain: Chain) -> list[str]:
    async with chain.session.get(chain.url("/v1/models")) as response:
        models: list[str] = (await response.json()).get("models", [])
        return models


async def test_each_row_is_answered_by_its_adapter_whatever_it_shares_a_batch_with(
    chain: Chain,
) -> None:
    await until_known(chain, "hundred", known=True)
    answers = await asyncio.gather(
        *(
            ask(chain, name, 1.5, 2.5, header=header)
            for name, header in (("ten", ""), ("m", ""), ("m", "hundred"), ("hundred", "")) * 5
        )
    )
    assert (
        answers
        == [
            (200, [11.5, 12.5]),
            (200, [1.5, 2.5]),
            (200, [101.5, 102.5]),
            (200, [101.5, 102.5]),
        ]
        * 5
    )


async def test_a_broken_one_fails_for_its_callers_alone_with_the_reason(chain: Chain) -> None:
    await until_known(chain, "ten", known=True)
    broken, unknown, fine = await asyncio.gather(
        ask(chain, "broken", 1), ask(chain, "nobody", 1), ask(chain, "ten", 1)
    )
    assert (broken[0], unknown[0], fine) == (503, 404, (200, [11]))
    assert "adds nothing" in broken[1]
    _, told = await chain.admin("/adapters")
    phases = {one["name"]: one["phase"] for one in json.loads(told)["adapters"]}
    assert phases == {"ten": "READY", "hundred": "READY", "broken": "FAILED"}


async def test_adapters_come_and_go_while_others_are_served(chain: Chain) -> None:
    await until_known(chain, "ten", known=True)
    adapter(chain.folder, "thousand", "1000")
    wish(chain.folder, "ten", "hundred", "thousand", "broken")
    await until_known(chain, "thousand", known=True)
    # More than there are slots.
    answers = await asyncio.gather(
        *(ask(chain, name, 1) for name in ("ten", "hundred", "thousand", "m") * 3)
    )
    assert answers == [(200, [11]), (200, [101]), (200, [1001]), (200, [1])] * 3
    wish(chain.folder, "ten", "hundred", "broken")
    await until_known(chain, "thousand", known=False)
    assert (await ask(chain, "thousand", 1))[0] == 404


async def test_after_the_model_server_was_killed_names_mean_what_they_meant(chain: Chain) -> None:
    await until_known(chain, "ten", known=True)
    wish(chain.folder, "hundred", "ten", "broken")  # numbered in another order by the next process
    await chain.model.kill()
    waiting = [asyncio.create_task(ask(chain, name, 1)) for name in ("ten", "hundred")]
    await chain.model.start()
    await until_known(chain, "ten", known=True)
    for task, right in zip(waiting, ([11], [101]), strict=True):
        status, answer = await task
        assert (status, answer) == (200, right) or status in (404, 503)
    assert await ask(chain, "ten", 1) == (200, [11])
    assert await ask(chain, "hundred", 1) == (200, [101])
