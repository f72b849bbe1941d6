"""What a reader has to read to follow one request: the modules that run code for it."""

from pathlib import Path
from typing import Final

import pytest

from support.chain import running_chain
from support.module_traces import modules_of

MOST_MODULES: Final = 40
"""Of all packages of ours. A module that joins them is one more to read for each request."""
BODY: Final = {
    "inputs": [{"name": "x", "datatype": "INT64", "shape": [1, 4], "data": [1, 2, 3, 4]}]
}


@pytest.mark.slow
async def test_a_small_inference_runs_code_of_few_modules_of_the_sidecar(tmp_path: Path) -> None:
    async with running_chain(
        tmp_path, handler="simulated", sidecar_module="support.traced_sidecar"
    ) as chain:

        async def infer() -> None:
            async with chain.session.post(chain.url(chain.infer_path), json=BODY) as response:
                await response.read()
                assert response.status == 200

        modules = await modules_of(chain, infer)
    assert 10 < len(modules) <= MOST_MODULES, "\n".join(modules)
