"""Kinds of frames between sidecar and model server, and how long each may be.

The sidecar numbers its batches, texts and orders in one sequence; a frame that answers one has its
id. Frames about the model have id 0, those about an engine the engine's number.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB


class Kind(IntEnum):
    """What a frame is."""

    # From the sidecar
    BATCH = 1
    """Items for one forward pass. Exactly one REPLY or FAILED answers it, cancelled or not."""
    CANCEL = 2
    """The sidecar waits no more for a batch, or for a text or one of its choices."""
    SUBMIT = 3
    """A text to generate."""
    CONFIGURE = 4
    """Bounds of an engine from its next step on."""
    ORDER = 5
    """A call of the model repository: index, load or unload. One ANSWER answers it."""
    RELEASE = 6
    """The sidecar needs a version no more that another one has replaced."""

    # From the model server
    STATE = 16
    """The model's state; the first frame of a connection, then each change."""
    MODEL = 17
    """What a version takes, gives and costs; sent before the STATE that says that it is READY."""
    PROFILE = 18
    """More was measured of the version that is READY."""
    ADAPTERS = 19
    """All adapters of the model, and the labels of those that are new on this connection."""
    ENGINE = 20
    """An engine takes texts from now on; its number is the frame's id."""
    ENGINE_ENDED = 21
    """An engine is gone: its texts go on at the next one."""
    STEP = 22
    """What one step of an engine did."""
    REFUSED = 23
    """A text that an engine does not take, or gave up before its first token."""
    REPLY = 24
    """Outputs and statuses of a batch's items."""
    FAILED = 25
    """A batch as a whole has no reply."""
    ANSWER = 26
    """What came of an ORDER."""


TO_SERVER: Final[Mapping[int, int]] = {
    Kind.BATCH: 1024 * _MIB,
    Kind.CANCEL: 64,
    Kind.SUBMIT: 64 * _MIB,
    Kind.CONFIGURE: 4 * _KIB,
    Kind.ORDER: 20 * _KIB,
    Kind.RELEASE: _KIB,
}
"""Largest content in bytes of each kind that the model server takes."""

TO_SIDECAR: Final[Mapping[int, int]] = {
    Kind.STATE: 64 * _KIB,
    Kind.MODEL: 256 * _MIB,
    Kind.PROFILE: 4 * _MIB,
    Kind.ADAPTERS: 4 * _MIB,
    Kind.ENGINE: _KIB,
    Kind.ENGINE_ENDED: 0,
    Kind.STEP: 4 * _MIB,
    Kind.REFUSED: 64 * _KIB,
    Kind.REPLY: 1024 * _MIB,
    Kind.FAILED: 64 * _KIB,
    Kind.ANSWER: 4 * _MIB,
}
"""Largest content in bytes of each kind that the sidecar takes. What it parses as JSON on its event
loop has at most 4 MiB, which takes a twentieth of a second."""
