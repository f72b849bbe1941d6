"""Whether a server's outputs have a row for each row that was sent: known, and never guessed.

A server may have outputs without a batch dimension (labels, a threshold) and not say so. One of
three values looks like a row for each of three callers; but it does not become two when two rows
are sent. So an answer is divided among callers only when each of its outputs has been as long as
the rows for two numbers of rows. Pure; kept by `upstream.link` for one start of the server.
"""

from collections.abc import Hashable, Iterable
from typing import Final

_MOST_SUBJECTS: Final = 1024
_PROVEN: Final = 0


class Evidence:
    """What was seen of outputs, for each subject: what is asked and answered alike."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, dict[str, int]] = {}
        """By output the number of rows that it was once as long as, or that it is proven."""

    def wants_trial(self, subject: Hashable, rows: int) -> bool:
        """Whether an answer to so many rows could prove nothing, without one to fewer before it."""
        seen = self._seen.get(subject)
        if seen is None:
            return True
        # Where every output was for the request as a whole there is nothing to prove.
        return bool(seen) and all(size == rows for size in seen.values())

    def saw(self, subject: Hashable, outputs: Iterable[str], rows: int) -> str | None:
        """These were as long as the rows; returns one of which that proves nothing yet."""
        if subject not in self._seen and len(self._seen) >= _MOST_SUBJECTS:
            self._seen.clear()
        seen = self._seen.setdefault(subject, {})
        unproven = None
        for name in outputs:
            before = seen.setdefault(name, rows)
            if before not in (_PROVEN, rows):
                seen[name] = _PROVEN
            elif before == rows:
                unproven = name
        return unproven

    def contradicted(self, subject: Hashable) -> None:
        """An output was not as long as the rows: what was seen before may have been chance."""
        self._seen.pop(subject, None)
