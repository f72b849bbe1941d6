"""A runner with what a service would give it, for tests of batches without a service."""

import asyncio
from collections.abc import Callable

from batchedmodel_contract.inference.profile import Profile, ProfilePoint
from batchedmodel_model_server.errors import DeviceLost
from batchedmodel_model_server.execution.device_thread import DeviceThread
from batchedmodel_model_server.execution.forward import LoadedModel
from batchedmodel_model_server.execution.memory import MemoryCap
from batchedmodel_model_server.execution.runner import Runner
from batchedmodel_model_server.execution.watchdog import Watchdog


def runner_of(
    model: LoadedModel,
    compute: DeviceThread,
    cap: MemoryCap | None = None,
    lost: Callable[[DeviceLost], None] = lambda error: None,
    row_seconds: float = 0.0,
) -> Runner:
    """A runner that expects passes to take so long for each row."""
    points = tuple(
        ProfilePoint(rows=rows, length=length, seconds=rows * row_seconds)
        for rows in (1, 64)
        for length in (1, 8)
    )
    profile = Profile(cost_rule=model.declaration.cost_rule, device=model.device, points=points)
    return Runner(
        model,
        compute,
        profile=profile,
        cap=cap or MemoryCap(),
        watchdog=Watchdog(asyncio.get_running_loop(), lambda hung: None),
        lost=lost,
    )
