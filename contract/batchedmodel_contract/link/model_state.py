"""States of a model, as the model server sends them and the control plane reads them in logs."""

from enum import StrEnum
from typing import Final

ON_THE_CPU: Final = "computing on the CPU"
"""What a line of the server's log begins with, as an error, where an accelerator was wanted."""


class ModelState(StrEnum):
    """Life of a model, and of each of its versions."""

    LOADING = "LOADING"
    WARMING = "WARMING"
    READY = "READY"
    DRAINING = "DRAINING"
    FAILED = "FAILED"
    """It cannot be loaded; the process stays, so that the reason can be read."""
    HUNG = "HUNG"
    """A forward pass takes far too long. READY follows if it ends, else only a restart helps."""
    LOST = "LOST"
    """The device is gone, and the process ends to be started anew."""
    UNLOADED = "UNLOADED"
    """Its memory has been given back; the process stays and can load it again."""
