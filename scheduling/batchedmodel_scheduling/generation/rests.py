"""Keys that the server refused a moment ago, and the requests that wait for them meanwhile."""

from collections.abc import Hashable
from typing import Final

from batchedmodel_scheduling.batching.items import NEVER
from batchedmodel_scheduling.generation.requests import Waiting

_MOST: Final = 64


class Rests:
    """At most 64 keys rest; of more, the one whose rest ends first may go at once."""

    def __init__(self) -> None:
        self._until: Final[dict[Hashable, float]] = {}
        self._parked: Final[dict[Hashable, dict[int, Waiting]]] = {}
        self.next_end = NEVER
        """When the next rest ends."""

    def __len__(self) -> int:
        return len(self._until)

    def __contains__(self, key: object) -> bool:
        return key in self._until

    def rest(self, key: Hashable, until: float) -> list[Waiting]:
        """Let a key rest at least so long; returns those that another no longer keeps."""
        freed: list[Waiting] = []
        if key not in self._until and len(self._until) >= _MOST:
            freed = self._end(min(self._until, key=self._until.__getitem__))
        self._until[key] = max(until, self._until.get(key, until))
        self.next_end = min(self._until.values())
        return freed

    def ended(self, now: float) -> list[Waiting]:
        """Those whose keys rest no more; they wait here no more."""
        freed: list[Waiting] = []
        if self.next_end <= now:
            for key in [key for key, until in self._until.items() if until <= now]:
                freed += self._end(key)
            self.next_end = min(self._until.values(), default=NEVER)
        return freed

    def park(self, waiting: Waiting) -> None:
        """A request waits until its key, which rests, may be asked again."""
        self._parked.setdefault(waiting.request.key, {})[waiting.request.id] = waiting

    def discard(self, waiting: Waiting) -> None:
        """Forget a parked request."""
        parked = self._parked.get(waiting.request.key)
        if parked is not None and parked.pop(waiting.request.id, None) is not None and not parked:
            del self._parked[waiting.request.key]

    def _end(self, key: Hashable) -> list[Waiting]:
        del self._until[key]
        return list(self._parked.pop(key, {}).values())
