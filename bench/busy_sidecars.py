"""One process that answers for the sidecars of thousands of pods whose load comes and goes.

Started by `control_plane_world` as `many_sidecars` is. All pods have the same load: that of the
first answers for a while, then that of the others for as long. Each line of standard input is
answered with a line of nothing.

    python busy_sidecars.py '{"/path": ["200 OK", "body"], ...}' '{"/path": ...}' SECONDS
"""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from many_sidecars import NOT_FOUND, answer_for_all, read_answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Answers that take turns."""

    answers: Sequence[Mapping[bytes, bytes]]
    seconds: float
    """For which each of them stays."""
    clock: Callable[[], float]

    def answer(self, address: str, path: bytes) -> bytes:
        """To a GET, whatever pod is asked."""
        turn = int(self.clock() / self.seconds) % len(self.answers)
        return self.answers[turn].get(path, NOT_FOUND)


async def _serve(busy: str, calm: str, seconds: str) -> None:
    read = read_answers(busy)
    turns = Turns(
        answers=(read, read | read_answers(calm)),
        seconds=float(seconds),
        clock=asyncio.get_running_loop().time,
    )
    await answer_for_all(turns.answer, lambda _: None)


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
