"""Changes of a model in the real process, with nobody in front of it."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest
import pytest_asyncio

from batchedmodel_contract.processes.server_api import ModelState, load_path, unload_path
from support.checkpoints import text_checkpoint
from support.model_server_process import NAME, ModelServerProcess, model_server

HANDLERS = "support.model_server_handlers"


async def asked_to_unload(server: ModelServerProcess) -> int:
    async with server.session.post(unload_path(NAME)) as answer:
        return answer.status


async def test_a_server_that_is_told_to_stop_while_it_unloads_ends_when_that_is_done(
    tmp_path: Path,
) -> None:
    async with model_server(tmp_path, f"{HANDLERS}:Lingering") as server:
        assert (await server.settled()).state is ModelState.READY
        unloading = asyncio.create_task(asked_to_unload(server))
        async for event in server.events():
            if event.state is ModelState.DRAINING:
                break
        code = await asyncio.wait_for(server.stop(), 20)
        said = "\n".join(server.log)
        assert code == 0, said
        assert await unloading == 200
        assert "lingered long enough" in said
        assert "Traceback" not in said


async def embedding(server: ModelServerProcess) -> tuple[str, list[float]]:
    """The version that answered, and its answer to three tokens."""
    entry = {"name": "input_ids", "datatype": "INT64", "shape": [1, 3], "data": [5, 6, 7]}
    status, document = await server.post(orjson.dumps({"inputs": [entry]}))
    assert status == 200, document
    return document["model_version"], document["outputs"][0]["data"]


async def loaded_again(server: ModelServerProcess) -> Any:
    async with server.session.post(load_path(NAME)) as answer:
        return answer.status, await answer.text()


def is_mapped(server: ModelServerProcess, file: Path) -> bool:
    return str(file) in Path(f"/proc/{server.process.pid}/maps").read_text()


AS_STORED = {"dtype": "float32"}
"""Weights that are converted are mapped nowhere."""


class Served(NamedTuple):
    """A real model and the folder that it was loaded from."""

    server: ModelServerProcess
    folder: Path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """One for both tests: each leaves a folder without numbers, and the weights that lie in it."""
    folder = tmp_path_factory.mktemp("served")
    source = {"path": str(text_checkpoint(folder / "model", "Bert"))}
    async with model_server(
        folder, "hf", source=source, parameters=AS_STORED, max_batch_size=2
    ) as server:
        event = await server.settled()
        assert event.state is ModelState.READY, event.detail
        yield Served(server, folder / "model")


@pytest.mark.torch
@pytest.mark.asyncio(loop_scope="module")
async def test_a_folder_without_numbers_may_be_written_over_in_place_while_it_is_served(
    tmp_path: Path, served: Served
) -> None:
    server, weights = served.server, served.folder / "model.safetensors"
    others = text_checkpoint(tmp_path / "others", "Bert", initializer_range=0.3)
    assert not is_mapped(server, weights)
    before = await embedding(server)
    # As `cp` does it: the same file, cut to nothing and then written.
    os.truncate(weights, 0)
    assert await embedding(server) == before
    status, reason = await loaded_again(server)
    assert status == 400, "half of a model is none"
    assert "cannot be read as safetensors: it ends before its header" in reason
    weights.write_bytes((others / "model.safetensors").read_bytes())
    assert await embedding(server) == before
    assert (await loaded_again(server))[0] == 200
    version, answer = await embedding(server)
    assert int(version) == int(before[0]) + 2, "the half one was the first"
    assert answer != before[1]


@pytest.mark.torch
@pytest.mark.asyncio(loop_scope="module")
async def test_weights_of_a_numbered_version_are_the_mapped_file(
    tmp_path: Path, served: Served
) -> None:
    server, numbered = served.server, served.folder / "100"
    text_checkpoint(tmp_path / "coming", "Bert").rename(numbered)
    assert (await loaded_again(server))[0] == 200
    assert (await embedding(server))[0] == numbered.name
    assert is_mapped(server, numbered / "model.safetensors")
    shutil.rmtree(numbered)
    assert (await loaded_again(server))[0] == 200
