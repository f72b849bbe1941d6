"""Files of a model that change while it is served, and an end while it unloads."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_contract.manifest.batching import BatchSettings
from support.chain import Chain, running_chain
from support.checkpoints import text_checkpoint
from support.model_server_process import model_server

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


async def embedding(chain: Chain) -> tuple[str, list[float]]:
    """The version that answered, and its answer to three tokens."""
    entry = {"name": "input_ids", "datatype": "INT64", "shape": [1, 3], "data": [5, 6, 7]}
    async with chain.session.post(chain.url(chain.infer_path), json={"inputs": [entry]}) as answer:
        document = await answer.json()
    assert answer.status == 200, document
    return document["model_version"], document["outputs"][0]["data"]


async def loaded_again(chain: Chain) -> tuple[int, str]:
    """Status and text of the command, once the new version serves if there is one."""
    seen = len(chain.sidecar.lines)
    url = f"http://127.0.0.1:{chain.admin_port}/v2/repository/models/{chain.name}/load"
    async with chain.session.post(url, headers=chain.token) as answer:
        status, text = answer.status, await answer.text()
    if status == 200:
        await chain.sidecar.wait_for("takes the place of", after=seen)
    return status, text


def is_mapped(chain: Chain, file: Path) -> bool:
    return str(file) in Path(f"/proc/{chain.model.pid}/maps").read_text()


AS_STORED = {"dtype": "float32"}
"""Weights that are converted are mapped nowhere."""


class Served(NamedTuple):
    """A real model and the folder that it was loaded from."""

    chain: Chain
    folder: Path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """One for both tests: each leaves a folder without numbers, and the weights that lie in it."""
    folder = tmp_path_factory.mktemp("served")
    source = {"path": str(text_checkpoint(folder / "model", "Bert"))}
    settings = BatchSettings(max_batch_size=2)
    async with running_chain(
        folder, handler="hf", source=source, parameters=AS_STORED, settings=settings
    ) as chain:
        yield Served(chain, folder / "model")


@pytest.mark.torch
@pytest.mark.asyncio(loop_scope="module")
async def test_a_folder_without_numbers_may_be_written_over_in_place_while_it_is_served(
    tmp_path: Path, served: Served
) -> None:
    chain, weights = served.chain, served.folder / "model.safetensors"
    others = text_checkpoint(tmp_path / "others", "Bert", initializer_range=0.3)
    assert not is_mapped(chain, weights)
    before = await embedding(chain)
    # As `cp` does it: the same file, cut to nothing and then written.
    os.truncate(weights, 0)
    assert await embedding(chain) == before
    status, reason = await loaded_again(chain)
    assert status == 400, "half of a model is none"
    assert "cannot be read as safetensors: it ends before its header" in reason
    weights.write_bytes((others / "model.safetensors").read_bytes())
    assert await embedding(chain) == before
    assert (await loaded_again(chain))[0] == 200
    version, answer = await embedding(chain)
    assert int(version) == int(before[0]) + 2, "the half one was the first"
    assert answer != before[1]


@pytest.mark.torch
@pytest.mark.asyncio(loop_scope="module")
async def test_weights_of_a_numbered_version_are_the_mapped_file(
    tmp_path: Path, served: Served
) -> None:
    chain, numbered = served.chain, served.folder / "100"
    text_checkpoint(tmp_path / "coming", "Bert").rename(numbered)
    assert (await loaded_again(chain))[0] == 200
    assert (await embedding(chain))[0] == numbered.name
    assert is_mapped(chain, numbered / "model.safetensors")
    shutil.rmtree(numbered)
    assert (await loaded_again(chain))[0] == 200
