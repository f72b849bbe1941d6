"""What a start is at, by the lines of the processes: pure.

Called by `run`. The model server's lines tell its state and how far a download is; the batcher's
ready line, which the announcer reads, is the end.
"""

import re
from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.link.model_state import ModelState

_STARTING: Final = "starting the processes"
_WORDS: Final = {
    ModelState.LOADING: "loading the model",
    ModelState.WARMING: "warming up",
}
_STATE: Final = re.compile(rf"\bINFO ({ModelState.LOADING}|{ModelState.WARMING}): ")
_DOWNLOAD: Final = re.compile(r"\bINFO (?:\d+ files, )?(\S+ \S+ of \S+ \S+ \(\d+ %\).*)")
_COMPLETE: Final = re.compile(r"\bINFO complete: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One of a start, since when it lasts."""

    name: str
    since: float
    """Seconds of the clock that its lines came by."""

    def line(self, now: float) -> str:
        """For a person who reads lines."""
        return f"{self.name}, for {now - self.since:.0f} s"


def first_stage(now: float) -> Stage:
    """Before any line."""
    return Stage(name=_STARTING, since=now)


def stage_after(stage: Stage, line: str, now: float) -> Stage:
    """What the start is at behind this line of the model server's."""
    state = _STATE.search(line)
    if state is not None:
        return Stage(name=_WORDS[ModelState(state[1])], since=now)
    if _COMPLETE.search(line):
        return Stage(name=_WORDS[ModelState.LOADING], since=now)
    download = _DOWNLOAD.search(line)
    if download is None:
        return stage
    since = stage.since if stage.name.startswith("downloading") else now
    return Stage(name=f"downloading: {download[1]}", since=since)
