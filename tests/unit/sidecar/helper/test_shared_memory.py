"""Memory that is given up, wherever the collector happens to find it."""

import gc
import os
import threading
import time

import pytest

from batchedmodel_sidecar.helper import shared_memory
from batchedmodel_sidecar.helper.shared_memory import Closer, SharedMemory, are_scarce

SECONDS = 10.0


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def closed(descriptor: int) -> bool:
    """Whether it is, before long: another thread does it."""
    until = time.monotonic() + SECONDS
    while is_open(descriptor) and time.monotonic() < until:
        time.sleep(0.001)
    return not is_open(descriptor)


def test_memory_that_nobody_refers_to_is_closed() -> None:
    descriptor = SharedMemory().descriptor
    assert closed(descriptor)


def test_a_view_outlives_its_memory_and_takes_the_pages_with_it() -> None:
    held = SharedMemory()
    held.write(b"abc")
    view = held.view()
    held.close()
    assert bytes(view) == b"abc"


def test_where_files_are_scarce_a_view_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    counted = Closer()
    counted.most = 2
    monkeypatch.setattr(shared_memory, "_closer", counted)
    held = SharedMemory()
    held.write(b"abc")
    assert not are_scarce()
    mapped = held.view()
    assert are_scarce()
    files = len(os.listdir("/proc/self/fd"))
    copied = held.view()
    assert (bytes(mapped), bytes(copied)) == (b"abc", b"abc")
    assert len(os.listdir("/proc/self/fd")) == files
    del mapped
    until = time.monotonic() + SECONDS
    while are_scarce() and time.monotonic() < until:
        time.sleep(0.001)
    assert counted.files == 1
    held.close()


@pytest.mark.timeout(30)
def test_memory_that_the_collector_finds_while_other_memory_is_given_up_stops_nothing() -> None:
    threshold = gc.get_threshold()
    descriptors = []
    try:
        # The collector comes at one place after the other within what is called.
        for place in range(1, 60):
            gc.disable()
            lost: list[object] = [SharedMemory()]
            lost.append(lost)  # found by the collector alone
            given_up = SharedMemory()
            del lost
            gc.set_threshold(gc.get_count()[0] + place)
            gc.enable()
            given_up.close()
            descriptors.append(given_up._descriptor)
    finally:
        gc.set_threshold(*threshold)
        gc.enable()
    gc.collect()
    assert all(map(closed, descriptors))


def test_a_thread_that_could_not_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    closer = Closer()
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError):
            closer.start()
    descriptor = os.memfd_create("given up")
    closer.start()
    closer.close(descriptor)
    assert closed(descriptor)
