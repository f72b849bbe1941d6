"""Real processes in front of a simulated device: what the benchmarks that load them share.

Load generator, sidecar and simulated model server are three processes on loopback, the sidecar with
compiled modules, as in its image. Called by
`throughput`, `fidelity` and `profile_sidecar`; it knows how they are started and aimed at, not what
is measured.
"""

import os
import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from load_generator import Target, cache_folder

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("tests", "images")]

from batchedmodel_contract.manifest.batching import BatchSettings
from compile_modules import compiled_modules
from scheduling_bench.affine import Affine
from support.chain import Chain, Process, running_chain  # the tests' processes, as in a pod

__all__ = ["Chain", "Plan", "Process", "device_chain", "running_chain", "target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long and how often to measure."""

    rounds: int
    seconds: float
    warm_up_seconds: float


def device_chain(
    folder: Path,
    *,
    curve: Affine,
    settings: BatchSettings,
    parameters: Mapping[str, str] | None = None,
    sidecar_module: str = "batchedmodel_sidecar",
    compiled: bool = True,
) -> AbstractAsyncContextManager[Chain]:
    """A sidecar and a model server whose device takes so long for a batch and for each row.

    `parameters` are further ones of the simulated handler; `sidecar_module` is what is run as the
    sidecar, which may be one that is watched. `compiled`: as in its image.
    """
    seconds = {"fixedSeconds": str(curve.fixed), "rowSeconds": str(curve.per_row)}
    return running_chain(
        folder,
        handler="simulated",
        parameters={**seconds, **(parameters or {})},
        settings=settings,
        sidecar_module=sidecar_module,
        compiled=compiled_modules(cache_folder(os.environ)) if compiled else None,
    )


def target(chain: Chain, body: bytes, headers: Mapping[str, str] | None = None) -> Target:
    """Where the load generator sends this body, which is JSON unless the headers say otherwise."""
    return Target(
        port=chain.port,
        path=chain.infer_path,
        headers={"Content-Type": "application/json"} if headers is None else headers,
        bodies=[body],
    )
