"""A warm-up from its beginning to its end, as if no moment were anything but idle."""

import math

from batchedmodel_contract.inference.profile import Profile
from batchedmodel_model_server.errors import DeviceLost, ForwardFailed
from batchedmodel_model_server.execution.forward import LoadedModel
from batchedmodel_model_server.execution.memory import MemoryBudget, MemoryCap
from batchedmodel_model_server.profiling.warmup import Clock, WarmUp, enough
from support.model_server_handlers import Clock as Simulated


def whole(
    model: LoadedModel,
    max_rows: int,
    cap: MemoryCap,
    clock: Clock | None = None,
    *,
    longest_pass: float = math.inf,
    budget: MemoryBudget | None = None,
) -> Profile:
    """All that passes of so long at most can tell."""
    warm_up = WarmUp(model, max_rows, cap, clock or Simulated().read, budget=budget)
    warm_up.begin()
    complete(warm_up, longest_pass)
    return warm_up.profile()


def complete(warm_up: WarmUp, longest_pass: float = math.inf) -> None:
    """Measure what is left."""
    while (shape := warm_up.next(longest_pass)) is not None:
        batch, passes = warm_up.batch(shape), list[float]()
        try:
            while not enough(passes):
                passes.append(warm_up.run(batch))
        except DeviceLost:
            raise
        except ForwardFailed as error:
            warm_up.failed(shape, error)
        else:
            warm_up.measured(shape, passes)
