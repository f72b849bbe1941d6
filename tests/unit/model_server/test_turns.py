"""Trial passes that take turns with batches."""

import asyncio
import threading

from batchedmodel_model_server.compute import ComputeThread
from batchedmodel_model_server.turns import Turns


async def test_the_clock_stands_still_while_a_turn_is_waited_for() -> None:
    compute = ComputeThread(asyncio.get_running_loop())
    compute.start()
    now, handed_over = 0.0, threading.Event()

    def batch() -> None:
        nonlocal now
        assert handed_over.wait(5)
        now += 100.0

    def trial() -> str:
        nonlocal now
        now += 2.0
        return "done"

    def clock() -> float:
        if reads:
            reads.pop()
        else:
            handed_over.set()
        return now

    reads = ["when it began"]
    turns = Turns(asyncio.get_running_loop(), compute, clock)

    def load() -> tuple[str, float]:
        began = turns.clock()
        return turns.take(trial), turns.clock() - began

    served = asyncio.create_task(compute.call(batch))
    await asyncio.sleep(0)
    assert await asyncio.to_thread(load) == ("done", 2.0)
    await served
    compute.finish()
    compute.join(5)
