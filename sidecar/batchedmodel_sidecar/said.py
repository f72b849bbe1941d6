"""What an upstream server answers beside rows. It passes to the helper and back."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What an upstream server answered beside the rows."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    """The headers that may pass to whoever shares the answer."""
    content_type: str = "application/json"
    body: bytes = b""
    """The whole body, where one caller gets it as it is."""
    frame: Any = None
    """What the protocol keeps of the answer, such as the model's version."""
