"""The sidecar as it is, with a timer of its CPU time that notes which line of ours it is at.

Run in the sidecar's place by `profile_sidecar`. On SIGUSR1 it tells how often each function was met
since the last time. What is done in C, the standard library or a foreign one counts for the
function of ours that called it; the event loop's own work for `main`, which runs the loop.
"""

import json
import signal
import sys
from collections import Counter
from types import FrameType
from typing import Final

from batchedmodel_sidecar.__main__ import main

_EVERY: Final = 0.001  # seconds of CPU time; the kernel's tick may make it more
_OURS: Final = "batchedmodel_"
_samples: Final[Counter[str]] = Counter()


def _note(_number: int, frame: FrameType | None) -> None:
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(_OURS):
            _samples[f"{module} {frame.f_code.co_qualname}"] += 1
            return
        frame = frame.f_back


def _tell(_number: int, _frame: FrameType | None) -> None:
    print("samples:", json.dumps(_samples), flush=True)
    _samples.clear()


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _tell)
    signal.signal(signal.SIGPROF, _note)
    signal.setitimer(signal.ITIMER_PROF, _EVERY, _EVERY)
    sys.exit(main())
