"""Versions of a model behind a sidecar: both processes for real, swapped under load."""

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from support.books import assert_all_are_settled, assert_books_balance
from support.chain import Chain, running_chain
from support.model_server_handlers import version_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

TIMES = "support.model_server_handlers:Times"
CALLERS = 16
INDEX = "/v2/repository/index"
LOAD = "/v2/repository/models/m/load"
UNLOAD = "/v2/repository/models/m/unload"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    """One for all tests, each of which adds versions and leaves the newest one serving."""
    folder = tmp_path_factory.mktemp("versions")
    version_of(folder / "model" / "1", factor=1)
    source = {"path": str(folder / "model")}
    async with running_chain(folder, handler=TIMES, source=source) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def chain(served: Chain) -> Chain:
    """It goes by the usual settings when a test begins."""
    await served.goes_by(BatchSettings())
    return served


def newest(chain: Chain) -> int:
    """The number of the version that serves; its factor is the same."""
    return max(int(folder.name) for folder in (chain.folder / "model").iterdir())


def add(chain: Chain, *, seconds: float = 0.0) -> int:
    """One more version, which takes so long to load; its number, which is its factor as well."""
    number = newest(chain) + 1
    version_of(chain.folder / "model" / str(number), factor=number, seconds=seconds)
    return number


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

    def __init__(self, chain: Chain, callers: int = CALLERS) -> None:
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


async def test_under_load_a_new_version_takes_over_without_a_failed_request(chain: Chain) -> None:
    first, before = newest(chain), await index(chain)
    load = Load(chain)
    await asyncio.sleep(0.2)
    for number in (first + 1, first + 2):
        assert add(chain, seconds=0.5) == number
        answered = load.answers.total()
        assert await command(chain, LOAD, **chain.token) == (200, "{}")
        assert load.answers.total() > answered + 2 * CALLERS, (
            "the old one answers while the new one loads"
        )
        await chain.sidecar.wait_for(f"version {number} takes the place of {number - 1}")
        await until(chain, str(number - 1), "UNLOADED")
        await asyncio.sleep(0.2)
    await load.stop()
    assert load.wrong == []
    last = first + 2
    assert load.answers.keys() == {(200, str(number)) for number in range(first, last + 1)}
    assert await times(chain, 7) == (200, str(last), [7 * last])
    unloaded = {str(number): "UNLOADED" for number in (first, first + 1)}
    assert await index(chain) == before | unloaded | {str(last): "READY"}
    async with chain.session.get(chain.url("/v2/models/m")) as response:
        assert (await response.json())["versions"] == [str(last)]
    await assert_books_balance(chain)
    await assert_all_are_settled(chain)


async def test_a_request_that_waits_is_answered_by_the_version_that_it_was_read_for(
    chain: Chain,
) -> None:
    await chain.goes_by(
        BatchSettings(policy=PolicyName.WINDOW, max_wait_seconds=2.0, max_batch_size=4)
    )
    old = newest(chain)
    waiting = asyncio.create_task(times(chain, 5))
    await chain.until("batchedmodel_queue_length", lambda rows: rows == 1)
    new = add(chain)
    assert (await command(chain, LOAD, **chain.token))[0] == 200
    await chain.sidecar.wait_for(f"version {new} takes the place of {old}")
    assert await asyncio.gather(*(times(chain, n) for n in range(4))) == [
        (200, str(new), [new * n]) for n in range(4)
    ]
    assert not waiting.done()
    assert (await index(chain))[str(old)] == "DRAINING"
    assert await waiting == (200, str(old), [5 * old])
    await until(chain, str(old), "UNLOADED")


@pytest.mark.parametrize("factor", ["none", "0"], ids=["load", "warm-up"])
async def test_a_broken_new_version_leaves_the_old_one_serving_and_says_why(
    chain: Chain, factor: str
) -> None:
    old, before = str(newest(chain)), await index(chain)
    load = Load(chain, callers=4)
    coming = chain.folder / "coming"
    broken = chain.folder / "model" / str(1 + max(map(int, before)))
    version_of(coming, factor=2)
    (coming / "factor.txt").write_text(factor)
    coming.rename(broken)
    status, text = await command(chain, LOAD, **chain.token)
    assert status == 400
    reason = "a factor of 0 is of no use" if factor == "0" else "invalid literal"
    assert reason in text
    assert await index(chain) == before | {broken.name: "FAILED"}
    async with chain.session.post(chain.url(INDEX), json={"ready": True}) as response:
        assert [row["version"] for row in await response.json()] == [old]
    assert await chain.admin("/ready") == (200, "ready\n")
    await load.stop()
    assert load.answers.keys() == {(200, old)}
    assert load.wrong == []
    shutil.rmtree(broken)


async def test_what_is_unloaded_is_not_ready_and_says_so_until_it_is_loaded_again(
    chain: Chain,
) -> None:
    version, before = newest(chain), await index(chain)
    assert await command(chain, UNLOAD, **chain.token) == (200, "{}")
    why = "the model is UNLOADED: unloaded because somebody asked for it"
    assert await chain.admin("/ready") == (503, f"{why}\n")
    assert (await chain.admin("/model/live"))[0] == 200, "a restart would load it again"
    assert await times(chain, 1) == (503, why, [])
    assert await index(chain) == before | {str(version): "UNLOADED"}
    seen = len(chain.sidecar.lines)
    assert await command(chain, LOAD, **chain.token) == (200, "{}")
    await chain.ready(after=seen)
    assert await times(chain, 3) == (200, str(version), [3 * version])


async def test_callers_may_read_the_index_and_only_holders_of_the_token_load_and_unload(
    chain: Chain,
) -> None:
    before = await index(chain)
    for path in (LOAD, UNLOAD):
        async with chain.session.post(chain.url(path), headers=chain.token) as response:
            assert response.status == 404, "not on the port of the callers"
        assert (await command(chain, path))[0] == 403
    assert (await command(chain, "/v2/repository/models/other/load", **chain.token))[0] == 404
    async with chain.session.get(chain.url(INDEX)) as response:
        assert response.status == 405
    async with chain.session.post(chain.url(INDEX), data=b"[1]") as response:
        assert response.status == 400
        assert "is not an object" in (await response.json())["error"]
    async with chain.session.post(chain.url(INDEX), data=b" " * 20_000) as response:
        assert response.status == 413
    assert await index(chain) == before
    assert before[str(newest(chain))] == "READY"
    assert (await command(chain, INDEX))[0] == 200


async def test_a_server_that_is_restarted_serves_the_newest_version(chain: Chain) -> None:
    old = newest(chain)
    new = add(chain)
    shutil.rmtree(chain.folder / "model" / str(old))
    await chain.model.stop()
    async with chain.session.post(chain.url(INDEX)) as response:
        assert response.status == 503
        assert "cannot be reached" in (await response.json())["error"]
    seen = len(chain.sidecar.lines)
    await chain.model.start()
    await chain.ready(after=seen)
    assert await times(chain, 3) == (200, str(new), [3 * new])
