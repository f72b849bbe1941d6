"""Cost that is the same on every machine, however busy: bytecode instructions instead of seconds.

For tests of how cost grows. Loops inside C functions count as one instruction; what they call that
is written in Python counts whole.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


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
