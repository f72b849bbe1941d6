"""Changes of a model in the real process, with nobody in front of it."""

import asyncio
from pathlib import Path

from batchedmodel_contract.server_api import ModelState, unload_path
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
