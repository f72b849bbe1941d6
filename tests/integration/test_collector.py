"""What is loaded when a process starts is looked at by no collection of garbage later."""

import signal
from pathlib import Path

from support.chain import running_chain

LOADED = 20_000
"""Objects that any of the processes has by then, at least; in fact there are several times more."""


async def test_the_sidecar_is_frozen_once_it_listens(tmp_path: Path) -> None:
    async with running_chain(
        tmp_path,
        handler="none",
        start_model=False,
        sidecar_module="support.measured_sidecar",
    ) as chain:
        chain.sidecar.send(signal.SIGUSR1)
        told = await chain.sidecar.wait_for(r"collector: (\d+) frozen, (\d+) followed, (\d+) new")
        frozen, followed, between = map(int, told.groups())
        assert frozen > LOADED
        assert followed < frozen / 4, "what a service is made of, and no modules"
        assert between > 10_000, "a collection is rare"


async def test_the_model_server_is_frozen_once_it_is_ready(tmp_path: Path) -> None:
    async with running_chain(tmp_path, handler="support.frozen_handler:Frozen") as chain:
        body = {"inputs": [{"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [1]}]}
        async with chain.session.post(chain.url(chain.infer_path), json=body) as response:
            (frozen,) = (await response.json())["outputs"][0]["data"]
        assert frozen > LOADED
