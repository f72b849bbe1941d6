"""Versions of a model behind a sidecar: both processes for real, swapped under load."""

import asyncio
import contextlib
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_contract.batching import BatchSettings
from batchedmodel_contract.server_api import INDEX, load_path, unload_path
from batchedmodel_contract.spec import PolicyName
from support.books import assert_all_are_settled, assert_books_balance
from support.chain import DRAIN_TOKEN, Chain, running_chain
from support.model_server_handlers import version_of

TIMES = "support.model_server_handlers:Times"
TOKEN = {"X-Drain-Token": DRAIN_TOKEN}


@contextlib.asynccontextmanager
async def versions(tmp_path: Path, **settings: Any) -> AsyncIterator[Chain]:
    version_of(tmp_path / "model" / "1", factor=1)
    source = {"path": str(tmp_path / "model")}
    async with running_chain(tmp_path, handler=TIMES, source=source, **settings) as chain:
        yield chain


async def times(chain: Chain, *values: int) -> tuple[int, str, list[int]]:
    """The status, the version that answered, and the answer."""
    entry = {"name": "x", "datatype": "INT64", "shape": [1, len(values)], "data": list(values)}
    url = chain.url(chain.infer_path)
    async with chain.session.post(url, json={"inputs": [entry]}) as response:
        document = await response.json()
        if response.status != 200:
            return response.status, document["error"], []
        return 200, document["model_version"], document["outputs"][0]["data"]


async def command(chain: Chain, path: str, **token: str) -> tuple[int, Any]:
    url = f"http://127.0.0.1:{chain.admin_port}{path}"
    async with chain.session.post(url, headers=token) as response:
        text = await response.text()
        return response.status, text


async def index(chain: Chain) -> dict[str, str]:
    async with chain.session.post(chain.url(INDEX)) as response:
        assert response.status == 200
        rows = await response.json()
    assert all(row["name"] == "m" for row in rows)
    return {row["version"]: row["state"] for row in rows}


async def until(chain: Chain, version: str, state: str) -> None:
    async with asyncio.timeout(10):
        while (await index(chain))[version] != state:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


class Load:
    """Callers that ask without a pause, and what became of it."""

    def __init__(self, chain: Chain, callers: int = 16) -> None:
        self.answers: Counter[tuple[int, str]] = Counter()
        self.wrong: list[Any] = []
        self._chain = chain
        self._enough = asyncio.Event()
        self._callers = [asyncio.create_task(self._ask(1 + number)) for number in range(callers)]

    async def _ask(self, value: int) -> None:
        while not self._enough.is_set():
            status, version, answer = await times(self._chain, value, 2 * value)
            self.answers[status, version] += 1
            factor = int(version) if status == 200 else 0
            if answer != [value * factor, 2 * value * factor]:
                self.wrong.append((status, version, answer))

    async def stop(self) -> None:
        self._enough.set()
        await asyncio.gather(*self._callers)


async def test_under_load_a_new_version_takes_over_without_a_failed_request(
    tmp_path: Path,
) -> None:
    async with versions(tmp_path) as chain:
        load = Load(chain)
        await asyncio.sleep(0.2)
        for number in (2, 3):
            version_of(tmp_path / "model" / str(number), factor=number, seconds=0.5)
            before = load.answers.total()
            assert await command(chain, load_path("m"), **TOKEN) == (200, "{}")
            assert load.answers.total() > before + 50, "the old one answers while the new one loads"
            await chain.sidecar.wait_for(f"version {number} takes the place of {number - 1}")
            await until(chain, str(number - 1), "UNLOADED")
            await asyncio.sleep(0.2)
        await load.stop()
        assert load.wrong == []
        assert load.answers.keys() == {(200, "1"), (200, "2"), (200, "3")}
        assert await times(chain, 7) == (200, "3", [21])
        assert await index(chain) == {"1": "UNLOADED", "2": "UNLOADED", "3": "READY"}
        async with chain.session.get(chain.url("/v2/models/m")) as response:
            assert (await response.json())["versions"] == ["3"]
        await assert_books_balance(chain)
        await assert_all_are_settled(chain)


async def test_a_request_that_waits_is_answered_by_the_version_that_it_was_read_for(
    tmp_path: Path,
) -> None:
    settings = BatchSettings(policy=PolicyName.WINDOW, max_wait_seconds=2.0, max_batch_size=4)
    async with versions(tmp_path, settings=settings) as chain:
        waiting = asyncio.create_task(times(chain, 5))
        await chain.until("batchedmodel_queue_length", lambda rows: rows == 1)
        version_of(tmp_path / "model" / "2", factor=2)
        assert (await command(chain, load_path("m"), **TOKEN))[0] == 200
        await chain.sidecar.wait_for("version 2 takes the place of 1")
        assert await asyncio.gather(*(times(chain, n) for n in range(4))) == [
            (200, "2", [2 * n]) for n in range(4)
        ]
        assert not waiting.done()
        assert (await index(chain))["1"] == "DRAINING"
        assert await waiting == (200, "1", [5])
        await until(chain, "1", "UNLOADED")


@pytest.mark.parametrize("factor", ["none", "0"], ids=["load", "warm-up"])
async def test_a_broken_new_version_leaves_the_old_one_serving_and_says_why(
    tmp_path: Path, factor: str
) -> None:
    async with versions(tmp_path) as chain:
        load = Load(chain, callers=4)
        version_of(tmp_path / "coming", factor=2)
        (tmp_path / "coming" / "factor.txt").write_text(factor)
        (tmp_path / "coming").rename(tmp_path / "model" / "2")
        status, text = await command(chain, load_path("m"), **TOKEN)
        assert status == 400
        reason = "a factor of 0 is of no use" if factor == "0" else "invalid literal"
        assert reason in text
        assert await index(chain) == {"1": "READY", "2": "FAILED"}
        async with chain.session.post(chain.url(INDEX), json={"ready": True}) as response:
            assert [row["version"] for row in await response.json()] == ["1"]
        assert await chain.admin("/ready") == (200, "ready\n")
        await load.stop()
        assert load.answers.keys() == {(200, "1")}
        assert load.wrong == []


async def test_what_is_unloaded_is_not_ready_and_says_so_until_it_is_loaded_again(
    tmp_path: Path,
) -> None:
    async with versions(tmp_path) as chain:
        assert await command(chain, unload_path("m"), **TOKEN) == (200, "{}")
        why = "the model is UNLOADED: unloaded because somebody asked for it"
        assert await chain.admin("/ready") == (503, f"{why}\n")
        assert (await chain.admin("/model/live"))[0] == 200, "a restart would load it again"
        assert await times(chain, 1) == (503, why, [])
        assert await index(chain) == {"1": "UNLOADED"}
        seen = len(chain.sidecar.lines)
        assert await command(chain, load_path("m"), **TOKEN) == (200, "{}")
        await chain.ready(after=seen)
        assert await times(chain, 3) == (200, "1", [3])


async def test_callers_may_read_the_index_and_only_holders_of_the_token_load_and_unload(
    tmp_path: Path,
) -> None:
    async with versions(tmp_path) as chain:
        for path in (load_path("m"), unload_path("m")):
            async with chain.session.post(chain.url(path), headers=TOKEN) as response:
                assert response.status == 404, "not on the port of the callers"
            assert (await command(chain, path))[0] == 403
        assert (await command(chain, load_path("other"), **TOKEN))[0] == 404
        async with chain.session.get(chain.url(INDEX)) as response:
            assert response.status == 405
        async with chain.session.post(chain.url(INDEX), data=b"[1]") as response:
            assert response.status == 400
            assert "is not an object" in (await response.json())["error"]
        async with chain.session.post(chain.url(INDEX), data=b" " * 20_000) as response:
            assert response.status == 413
        assert await index(chain) == {"1": "READY"}
        assert (await command(chain, INDEX))[0] == 200
        await chain.model.stop()
        async with chain.session.post(chain.url(INDEX)) as response:
            assert response.status == 503
            assert "cannot be reached" in (await response.json())["error"]


async def test_a_server_that_is_restarted_serves_the_newest_version(tmp_path: Path) -> None:
    async with versions(tmp_path) as chain:
        version_of(tmp_path / "model" / "2", factor=2)
        shutil.rmtree(tmp_path / "model" / "1")
        await chain.model.stop()
        seen = len(chain.sidecar.lines)
        await chain.model.start()
        await chain.ready(after=seen)
        assert await times(chain, 3) == (200, "2", [6])
