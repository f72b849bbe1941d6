"""What is refused leaves nothing behind: neither its body nor the memory that it lay in."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from support import refused_bodies
from support.chain import Chain, running_chain
from support.process_memory import resident_bytes, shared_files

pytestmark = pytest.mark.asyncio(loop_scope="module")

COUNT = 40
CALLERS = 8
SPARE = 16 << 20
SOON = 20.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    folder = tmp_path_factory.mktemp("refused")
    async with running_chain(
        folder,
        handler="simulated",
        parameters={"generates": "true"},
        sidecar_module="support.uncollected_sidecar",
    ) as running:
        yield running


@pytest.mark.parametrize("form", refused_bodies.FORMS)
@pytest.mark.parametrize("kind", refused_bodies.KINDS)
async def test_refused_bodies_are_gone_without_a_collection_of_cycles(
    chain: Chain, kind: str, form: str
) -> None:
    """Those of chats and completions stayed: 40 took 70 to 120 MiB and 80 memfds."""
    pid = chain.sidecar.pid
    path, body = refused_bodies.bodies()[kind]
    wire = refused_bodies.on_the_wire(path, body, form)
    await refused_bodies.send(chain.port, wire, count=1, callers=1)  # starts what it needs
    files, before = len(shared_files(pid)), resident_bytes(pid)
    answers = await refused_bodies.send(chain.port, wire, count=COUNT, callers=CALLERS)
    assert answers == {400: COUNT}
    async with asyncio.timeout(SOON):
        while len(shared_files(pid)) > files or resident_bytes(pid) > before + SPARE:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
