"""Judges whether a model that computes where torch finds a device has what its manifest asks for.

Called while the model is loaded, and only for handlers that leave the choice of the device to us.
"""

import logging

from batchedmodel_contract.processes.environment import AcceleratorNeed
from batchedmodel_contract.processes.server_api import ON_THE_CPU
from batchedmodel_model_server.errors import CannotLoad

_log = logging.getLogger(__name__)


def look_for_accelerator(need: AcceleratorNeed, device: str) -> None:
    """Raise `CannotLoad` where one is required and the device is the CPU; where it is wanted, say
    so.
    """
    if need is AcceleratorNeed.NONE or device != "cpu":
        return
    lack = f"spec.accelerator asks for an accelerator, and torch finds none: {_why()}"
    if need is AcceleratorNeed.REQUIRED:
        raise CannotLoad(
            f"{lack}; it would compute on the CPU, many times slower. A handler that is to do so "
            "says it by device()"
        )
    _log.error("%s: %s", ON_THE_CPU, lack)


def _why() -> str:
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is built for CPUs only"
    return f"no device is visible to torch {torch.__version__} in this container"
