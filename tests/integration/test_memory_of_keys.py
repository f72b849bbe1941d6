"""What requests had beside their rows is not kept once they are answered."""

from io import BytesIO
from pathlib import Path

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.upstream import ServerProtocol
from support.process_memory import resident_bytes
from support.row_server import RowServer, in_front

MEBIBYTE = 2**20
LARGE = 1_000_000
"""Bytes of a parameter; more than a mebibyte is refused."""
ROWS = '"inputs":[{"name":"x","datatype":"INT64","shape":[1,1],"data":[1]}]'


async def test_thirty_large_parameters_that_all_differ_leave_little_behind(tmp_path: Path) -> None:
    async def ask(parameter: str) -> None:
        body = BytesIO(f'{{{ROWS},"parameters":{{"a":"{parameter}"}}}}'.encode())
        async with chain.session.post(chain.url(chain.infer_path), data=body) as response:
            await response.read()
            assert response.status == 200

    async with (
        RowServer() as server,
        in_front(server, tmp_path, ServerProtocol.V2, BatchSettings()) as chain,
    ):
        for _ in range(15):  # so many until the allocator keeps what one of them takes
            await ask("x" * LARGE)
        before = resident_bytes(chain.sidecar.pid)
        for number in range(30):
            await ask(f"{number:02}" * (LARGE // 2))
        assert resident_bytes(chain.sidecar.pid) - before < 8 * MEBIBYTE
