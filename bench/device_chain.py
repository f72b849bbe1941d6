"""Real processes in front of a simulated device: what the benchmarks that load them share.

Load generator, sidecar and simulated model server are three processes on loopback. Called by
`throughput` and `fidelity`; it knows how they are started and aimed at, not what is measured.
"""

import sys
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from load_generator import Target

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from batchedmodel_contract.batching import BatchSettings
from support.chain import Chain, running_chain  # the tests' processes, wired as in a pod

__all__ = ["Chain", "Plan", "device_chain", "target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long and how often to measure."""

    rounds: int
    seconds: float
    warm_up_seconds: float


def device_chain(
    folder: Path, *, fixed_seconds: float, row_seconds: float, settings: BatchSettings
) -> AbstractAsyncContextManager[Chain]:
    """A sidecar and a model server whose device takes so long for a batch and for each row."""
    return running_chain(
        folder,
        handler="simulated",
        parameters={"fixedSeconds": str(fixed_seconds), "rowSeconds": str(row_seconds)},
        settings=settings,
    )


def target(chain: Chain, body: bytes) -> Target:
    """Where the load generator sends this JSON body."""
    return Target(
        port=chain.port,
        path=chain.infer_path,
        headers={"Content-Type": "application/json"},
        bodies=[body],
    )
