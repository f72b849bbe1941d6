"""Cost that is the same on every machine, however busy: bytecode instructions instead of seconds.

For tests of how cost grows. Loops inside C functions count as one instruction; what they call that
is written in Python counts whole. `CountedText` is such: looking for one in a list counts each.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class CountedText(str):
    """Text whose comparisons and hashes are counted."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        return str.__hash__(self)


def steps(act: Callable[[], object]) -> int:
    """Bytecode instructions that calling it takes, with all that it calls in this thread."""
    taken = 0

    def count(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal taken
        frame.f_trace_opcodes = True
        taken += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        act()
    finally:
        sys.settrace(before)
    return taken
