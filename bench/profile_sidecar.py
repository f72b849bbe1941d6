"""Where the microseconds of a request go: shares of the sidecar's CPU time by module and function.

A running sidecar (`profiled_sidecar`) notes where it is by a timer of its CPU time, under the loads
of `throughput` that a request costs least and most in: full batches and lone requests on device 2.
The kernel's account of its threads, divided by what was answered, weighs the shares.

    python bench/profile_sidecar.py [SECONDS]
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

from batchedmodel_contract.outcomes import Outcome
from batchedmodel_contract.processes import sidecar_metrics
from device_chain import Chain, device_chain, target
from load_generator import ClosedLoop, run_load
from process_cpu import cpu_seconds
from throughput_loads import BUSY, LONE, SECOND, Closed

SECONDS: Final = 10.0
_LEAST_SHARE: Final = 0.005
"""Functions below are in the sums of their modules only."""


async def profile(seconds: float) -> None:
    """Both loads, one after the other, and a table for each."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        # The sidecar's own process finds the module beside this one.
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        async with device_chain(
            Path(folder),
            curve=SECOND.curve,
            settings=SECOND.settings,
            sidecar_module="profiled_sidecar",
            compiled=False,  # what is compiled has no stack that could be noted
        ) as chain:
            for closed in (*BUSY, *LONE):
                if closed.device is SECOND:
                    await _profile(chain, closed, seconds)


async def _profile(chain: Chain, closed: Closed, seconds: float) -> None:
    aim = target(chain, closed.ask.body, closed.ask.headers)
    await asyncio.to_thread(run_load, aim, ClosedLoop(connections=closed.connections, seconds=1.0))
    await _samples(chain)
    spent, answered = cpu_seconds(chain.sidecar.pid), await _answered(chain)
    load = ClosedLoop(connections=closed.connections, seconds=seconds)
    await asyncio.to_thread(run_load, aim, load)
    spent, answered = cpu_seconds(chain.sidecar.pid) - spent, await _answered(chain) - answered
    functions = await _samples(chain)
    modules: Counter[str] = Counter()
    for name, count in functions.items():
        modules[name.split()[0]] += count
    each = spent / answered * 1e6
    print(f"\n{closed.name}: {each:.1f} us per request, {functions.total()} samples")
    for names in (modules, functions):
        print(f"\n{'us per request':>14}  {'share':>6}")
        for name, count in names.most_common():
            share = count / functions.total()
            if share >= _LEAST_SHARE:
                print(f"{share * each:14.2f}  {share:6.1%}  {name}")


async def _samples(chain: Chain) -> Counter[str]:
    """How often each function was met since last asked."""
    seen = len(chain.sidecar.lines)
    chain.sidecar.send(signal.SIGUSR1)
    told = await chain.sidecar.wait_for("samples: (.*)", after=seen)
    return Counter(json.loads(told[1]))


async def _answered(chain: Chain) -> float:
    return await chain.metric(sidecar_metrics.REQUESTS_SETTLED, outcome=Outcome.COMPLETED.value)


if __name__ == "__main__":
    asyncio.run(profile(float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS))
