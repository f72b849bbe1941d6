"""The versions of the model that the process knows: one that serves, others that come or go.

Owned by the service, which decides; this keeps order among them: their names, which are never those
of two at a time, and how many of those that have ended are remembered.
"""

from collections.abc import Iterator
from typing import Final

from batchedmodel_model_server.batching.declaration import FIRST_VERSION
from batchedmodel_model_server.errors import CannotLoad, UnknownModel
from batchedmodel_model_server.lifecycle.version import Version
from batchedmodel_model_server.sources.contents import Content

_MOST_ENDED: Final = 8
"""Remembered, for the reasons why they ended."""


class Versions:
    """In the order in which they came."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._all: list[Version] = []
        self.serving: Version | None = None

    def __iter__(self) -> Iterator[Version]:
        return iter(tuple(self._all))

    @property
    def present(self) -> Version | None:
        """The one that serves, or else the one that came last."""
        return self.serving or (self._all[-1] if self._all else None)

    def named(self, name: str) -> Version:
        """The version of that name; raises `UnknownModel`."""
        for one in self._all:
            if one.name == name:
                return one
        raise UnknownModel(f"version {name!r} of model {self._model!r} is not known here")

    def add(self, version: Version) -> None:
        """Remember it; of those that have ended, the oldest are forgotten."""
        if version not in self._all:
            self._all.append(version)
        ended = [one for one in self._all if one.gone.is_set() and one is not version]
        for one in ended[:-_MOST_ENDED]:
            self._all.remove(one)

    async def name(self, version: Version, content: Content) -> None:
        """Call it by its number, or by the next one where versions have none.

        Waits for the end of one that has the same name and is on its way out. Raises `CannotLoad`
        when that name is the served one's.
        """
        name = self._name_of(content)
        for other in self:
            if other.name != name or other is version:
                continue
            if other is self.serving:
                raise CannotLoad(
                    f"version {name} is served, and its files have changed since it was loaded: "
                    "other files need a number of their own"
                )
            await other.gone.wait()
            if other in self._all:
                self._all.remove(other)
        version.name, version.content = name, content

    def _name_of(self, content: Content) -> str:
        if content.number is not None:
            return str(content.number)
        known = {one.name: one.content for one in self._all if one.name is not None}
        for name, loaded in known.items():
            if loaded == content:
                return name
        return str(1 + max(map(int, known))) if known else FIRST_VERSION
