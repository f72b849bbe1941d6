"""The sidecar as it is, which notes the modules of ours that run code between two signals.

Run in the sidecar's place by the test that counts them. On SIGUSR1 it begins to note, on SIGUSR2
it tells them. What is compiled calls nothing that could be noted, so it runs in its plain form.
"""

import json
import signal
import sys
from types import FrameType
from typing import Any, Final

from batchedmodel_sidecar.__main__ import main

_OURS: Final = "batchedmodel_"
_modules: Final[set[str]] = set()


def _note(frame: FrameType, event: str, _: Any) -> None:
    module = frame.f_globals.get("__name__", "")
    if event == "call" and module.startswith(_OURS):
        _modules.add(module)


def _begin(_number: int, _frame: FrameType | None) -> None:
    sys.setprofile(_note)
    print("tracing", flush=True)  # noqa: T201


def _tell(_number: int, _frame: FrameType | None) -> None:
    sys.setprofile(None)
    print("modules:", json.dumps(sorted(_modules)), flush=True)  # noqa: T201
    _modules.clear()


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _begin)
    signal.signal(signal.SIGUSR2, _tell)
    sys.exit(main())
