"""How the two ends of the link agree on a version before the first frame.

The sidecar connects and sends one hello, with the descriptor of the memory that it shares, if any;
the server answers with one of its own: the version that both speak, or 0, and whether it sees that
memory. Pure.
"""

import struct
from typing import Final, NamedTuple

from batchedmodel_contract.invalid_input import InvalidInput

MIN_VERSION: Final = 1
MAX_VERSION: Final = 1
"""Versions of the frames that this release reads and writes. A release serves the frames of the one
before it, so these differ once the frames change. The operator brings its sidecar beside a model
server of the manifest's own image where the running one tells one of them."""
OTHER_RELEASE: Final = "the model server's image is of another release"
"""What a sidecar's reason begins with where it has no version of the frames in common with it."""
_HELLO: Final = struct.Struct("<8sHH?3x")
HELLO_BYTES: Final = _HELLO.size
_MAGIC: Final = b"BMLINK\r\n"


class Hello(NamedTuple):
    """What one end says of itself. An answer names one version twice, or 0 where none is common."""

    min_version: int
    max_version: int
    shares_memory: bool = False
    """In an answer: whether the server sees the memory that came with the sidecar's hello."""


OURS: Final = Hello(MIN_VERSION, MAX_VERSION)


def write_hello(hello: Hello = OURS) -> bytes:
    """The bytes of a hello."""
    return _HELLO.pack(_MAGIC, *hello)


def read_hello(data: bytes) -> Hello:
    """The hello in `HELLO_BYTES` bytes; raises `InvalidInput` for a peer that speaks no frames."""
    if len(data) != HELLO_BYTES or not data.startswith(_MAGIC):
        raise InvalidInput("hello", "is not one: the peer is of a release without frames")
    _, least, most, shares_memory = _HELLO.unpack(data)
    return Hello(least, most, shares_memory)


def common_version(theirs: Hello, ours: Hello = OURS) -> int:
    """The highest version that both ends speak; 0 where there is none."""
    highest = min(theirs.max_version, ours.max_version)
    return highest if highest >= max(theirs.min_version, ours.min_version) else 0
