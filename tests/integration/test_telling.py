"""Commands to a sidecar of the same container, as the kubelet's hook and people give them."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from batchedmodel_contract.processes import sidecar_api
from support.chain import TOKEN_FILE, Chain, running_chain

pytestmark = pytest.mark.slow

DEVICE = {"fixedSeconds": "0.01", "rowSeconds": "0"}


async def tell(chain: Chain, *words: str, **others: str) -> tuple[int, str]:
    """Exit code and what was said, with the variables of the sidecar's container."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "batchedmodel_sidecar.admin_client", *words),
        env={**os.environ, **_variables(chain), **others},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    return await process.wait(), said.decode().strip()


def _variables(chain: Chain) -> Mapping[str, str]:
    return {
        "BATCHEDMODEL_MODEL_NAME": chain.name,
        "BATCHEDMODEL_SETTINGS_FOLDER": str(chain.folder / "settings"),
        "BATCHEDMODEL_ADMIN_PORT": str(chain.admin_port),
        "BATCHEDMODEL_TOKEN_FILE": str(chain.folder / TOKEN_FILE),
    }


async def test_the_hooks_of_a_pod_drain_it_while_a_stranger_cannot(tmp_path: Path) -> None:
    async with running_chain(tmp_path, handler="simulated", parameters=DEVICE) as chain:
        for path in (sidecar_api.DRAIN, f"/v2/repository/models/{chain.name}/load"):
            url = f"http://127.0.0.1:{chain.admin_port}{path}"
            for headers in ({}, {sidecar_api.TOKEN_HEADER: "guessed"}):
                async with chain.session.post(url, headers=headers) as response:
                    assert response.status == 403
        assert (await chain.admin(sidecar_api.READY))[0] == 200
        models_hook = asyncio.create_task(chain.admin(sidecar_api.DRAINED))
        assert await tell(chain, "drain") == (0, "draining")
        assert await models_hook == (200, "empty\n")
        assert (await chain.admin(sidecar_api.READY))[0] == 503
        chain.sidecar.send(signal.SIGTERM)
        assert await chain.sidecar.ended() == 0


async def test_versions_are_loaded_and_unloaded_by_who_is_in_the_container(tmp_path: Path) -> None:
    async with running_chain(tmp_path, handler="simulated", parameters=DEVICE) as chain:
        assert await tell(chain, "unload") == (0, "{}")
        assert await tell(chain, "load") == (0, "{}")
        code, said = await tell(chain, "load", BATCHEDMODEL_TOKEN_FILE=str(tmp_path / "other"))
        assert (code, "no answer" in said) == (3, True)
        (tmp_path / "other").write_text("guessed")
        code, said = await tell(chain, "load", BATCHEDMODEL_TOKEN_FILE=str(tmp_path / "other"))
        assert (code, said) == (1, "X-Admin-Token is wrong")
        assert (await tell(chain, "reboot"))[0] == 2
        assert (await tell(chain, "drain", BATCHEDMODEL_TOKEN_FILE=""))[0] == 2


async def test_every_answer_names_the_model_and_the_pod(tmp_path: Path) -> None:
    async with running_chain(tmp_path, handler="none", start_model=False, pod_uid="6a-7b") as chain:
        for path in (
            sidecar_api.STATS,
            sidecar_api.SETTINGS,
            sidecar_api.MODEL_STARTUP,
            sidecar_api.ARRIVALS,
            "/nowhere",
        ):
            url = f"http://127.0.0.1:{chain.admin_port}{path}"
            async with chain.session.get(url) as response:
                assert response.headers[sidecar_api.MODEL_HEADER] == chain.name
                assert response.headers[sidecar_api.POD_HEADER] == "6a-7b"
