"""What a process holds counts once, however often it has it open or mapped."""

import mmap
import os

from support.process_memory import held_bytes

_SIZE = 48 * 2**20
_NOISE = 8 * 2**20


def test_a_file_in_memory_counts_once_though_it_is_open_twice_and_mapped() -> None:
    before = held_bytes(os.getpid())
    first = os.memfd_create("rows")
    os.ftruncate(first, _SIZE)
    second = os.dup(first)
    mapped = mmap.mmap(first, _SIZE)
    mapped[:] = bytes(_SIZE)
    assert abs(held_bytes(os.getpid()) - before - _SIZE) < _NOISE
    os.close(first)
    os.close(second)
    assert abs(held_bytes(os.getpid()) - before - _SIZE) < _NOISE, "it is mapped still"
    mapped.close()
    assert abs(held_bytes(os.getpid()) - before) < _NOISE


def test_a_file_in_memory_counts_though_nobody_maps_it() -> None:
    before = held_bytes(os.getpid())
    own = os.memfd_create("rows")
    for _ in range(_SIZE // 2**20):
        os.write(own, bytes(2**20))
    assert abs(held_bytes(os.getpid()) - before - _SIZE) < _NOISE
    os.close(own)
