"""Changes of a model in the real process, with nobody in front of it."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from batchedmodel_contract.processes.server_api import ModelState
from support.checkpoints import text_checkpoint
from support.model_server_handlers import arrays_of
from support.model_server_process import ModelServerProcess, model_server, token_batch
from support.private_hop import HopError

HANDLERS = "support.model_server_handlers"


async def test_a_server_that_is_told_to_stop_while_it_unloads_ends_when_that_is_done(
    tmp_path: Path,
) -> None:
    async with model_server(tmp_path, f"{HANDLERS}:Lingering") as server:
        assert (await server.settled()).state is ModelState.READY
        unloading = asyncio.create_task(server.hop.unload())
        async for event in server.hop.states():
            if event.state is ModelState.DRAINING:
                break
        code = await asyncio.wait_for(server.stop(), 20)
        said = "\n".join(server.log)
        assert code == 0, said
        await unloading
        assert "lingered long enough" in said
        assert "Traceback" not in said


async def embedding(server: ModelServerProcess) -> tuple[str, list[float]]:
    """The version that serves, and its answer to three tokens."""
    version = (await server.hop.state()).version
    assert version is not None
    batch = token_batch("input_ids", [[5, 6, 7]])
    reply = await server.hop.infer(replace(batch, version=version))
    assert reply.statuses == (200,), reply.errors
    return version, arrays_of(reply.outputs[0])[0].tolist()


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
    with pytest.raises(HopError) as half:
        await server.hop.load()
    assert half.value.status == 400, "half of a model is none"
    assert "cannot be read as safetensors: it ends before its header" in half.value.message
    weights.write_bytes((others / "model.safetensors").read_bytes())
    assert await embedding(server) == before
    await server.hop.load()
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
    await server.hop.load()
    assert (await embedding(server))[0] == numbered.name
    assert is_mapped(server, numbered / "model.safetensors")
    shutil.rmtree(numbered)
    await server.hop.load()
