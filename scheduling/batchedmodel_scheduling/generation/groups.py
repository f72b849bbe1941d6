"""Groups of calls that an agent announced: one is done when its last call is done.

So once a call of a group has left, its others come before calls of the same priority.
"""

from collections.abc import Hashable
from typing import Final

from batchedmodel_scheduling.generation.requests import GenerationRequest, Waiting


class _Group:
    __slots__ = ("running", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[int, Waiting] = {}
        self.running = 0


class StartedGroups:
    """The groups that have members here; a group is one tenant's."""

    def __init__(self) -> None:
        self._groups: Final[dict[tuple[str, Hashable], _Group]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def arrived(self, waiting: Waiting) -> None:
        """A request begins to wait."""
        if waiting.request.group is None:
            return
        key = _key_of(waiting.request)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group()
        group.waiting[waiting.request.id] = waiting
        waiting.group_started = group.running > 0

    def released(self, waiting: Waiting) -> list[Waiting]:
        """A request goes to the server; returns those that now come earlier."""
        if waiting.request.group is None:
            return []
        group = self._groups[_key_of(waiting.request)]
        del group.waiting[waiting.request.id]
        group.running += 1
        moved = [other for other in group.waiting.values() if not other.group_started]
        for other in moved:
            other.group_started = True
        return moved

    def withdrawn(self, request: GenerationRequest) -> None:
        """A request waits no more, and was not released."""
        if request.group is not None and (group := self._groups.get(_key_of(request))) is not None:
            group.waiting.pop(request.id, None)
            self._forget(request, group)

    def ended(self, request: GenerationRequest) -> None:
        """A released request ended."""
        if request.group is not None and (group := self._groups.get(_key_of(request))) is not None:
            group.running -= 1
            self._forget(request, group)

    def _forget(self, request: GenerationRequest, group: _Group) -> None:
        if not group.waiting and group.running <= 0:
            del self._groups[_key_of(request)]


def _key_of(request: GenerationRequest) -> tuple[str, Hashable]:
    assert request.group is not None
    return request.share.tenant, request.group.id
