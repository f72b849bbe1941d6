"""Frames about the model."""

import struct

import pytest

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.link.model_frames import read_model


def test_a_description_that_would_stop_the_loop_is_not_read() -> None:
    """One of 250 MiB took 5 GB and 20 seconds, in which the sidecar answered nobody."""
    size = (8 << 20) + 1
    with pytest.raises(InvalidInput, match="bytes of JSON, more than 8388608"):
        read_model(memoryview(struct.pack("<I", size) + bytes(size)))
