"""What a reader has to read to follow one request: the modules that run code for it."""

import json
import signal
from pathlib import Path
from typing import Final

import pytest

from support.chain import running_chain

MOST_MODULES: Final = 72
"""Of all packages of ours. A module that joins them is one more to read for each request."""
BODY: Final = {
    "inputs": [{"name": "x", "datatype": "INT64", "shape": [1, 4], "data": [1, 2, 3, 4]}]
}


@pytest.mark.slow
async def test_a_small_inference_runs_code_of_few_modules_of_the_sidecar(tmp_path: Path) -> None:
    async with running_chain(
        tmp_path, handler="simulated", sidecar_module="support.traced_sidecar"
    ) as chain:

        async def infer() -> int:
            async with chain.session.post(chain.url(chain.infer_path), json=BODY) as response:
                await response.read()
                return response.status

        # What is looked up once for all equal requests, and the connection, is there then.
        assert [await infer() for _ in range(3)] == [200, 200, 200]
        chain.sidecar.send(signal.SIGUSR1)
        await chain.sidecar.wait_for("tracing")
        assert await infer() == 200
        chain.sidecar.send(signal.SIGUSR2)
        told = await chain.sidecar.wait_for("modules: (.*)")
        modules = json.loads(told[1])
        assert 10 < len(modules) <= MOST_MODULES, "\n".join(modules)
