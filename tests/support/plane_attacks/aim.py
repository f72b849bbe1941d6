"""What an attack is given: namespaces of its own in a cluster that others share."""

import asyncio
import itertools
import json
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from batchedmodel_kube.names import GROUP, NAME_LABEL, PLURAL, VERSION
from control_plane_api import Api
from support.plane_attacks.sidecars import Behaviour

MERGE: Final = "application/merge-patch+json"
API_VERSION: Final = f"{GROUP}/{VERSION}"
_JSON: Final = "application/json"
_PATHS: Final = {
    "pods": "/api/v1",
    "configmaps": "/api/v1",
    "services": "/api/v1",
    "deployments": "/apis/apps/v1",
    "replicasets": "/apis/apps/v1",
    "controllerrevisions": "/apis/apps/v1",
    "horizontalpodautoscalers": "/apis/autoscaling/v2",
    "poddisruptionbudgets": "/apis/policy/v1",
    PLURAL: f"/apis/{API_VERSION}",
}


def path_of(plural: str, space: str, name: str = "") -> str:
    """Of a collection, or of an object in it."""
    root = f"{_PATHS[plural]}/namespaces/{space}/{plural}"
    return f"{root}/{name}" if name else root


@dataclass
class Aim:
    """One attack's place."""

    api: Api
    space: str
    addresses: Mapping[Behaviour, str]
    """Where admin ports answer so."""
    healthy: Callable[[], list[str]]
    """Addresses of healthy pods."""
    until: asyncio.Event
    """The time is over."""
    share: float
    """Of each attack's number of objects; less by day, as one API server serves all at a time."""
    places: asyncio.Semaphore
    """For requests of all attackers: the API server is to be left time for others."""
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    begin: asyncio.Event = field(default_factory=asyncio.Event)
    told: Counter[int] = field(default_factory=Counter)
    """Answers of the API server, by status."""
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def path(self, plural: str, name: str = "", space: str = "") -> str:
        """As `path_of`, in the attack's own namespace unless another is named."""
        return path_of(plural, space or self.space, name)

    async def begins(self) -> None:
        """Once: all has been prepared, and what follows is to be judged."""
        self.ready.set()
        await self.begin.wait()

    def some(self, count: int) -> range:
        """So many by night."""
        return range(math.ceil(count * self.share))

    def number(self) -> int:
        """Another one each time."""
        return next(self._numbers)

    async def ask(self, method: str, path: str, body: object = None, kind: str = _JSON) -> int:
        """The status of the answer; `body` as text that is written already, or to be written."""
        data = body.encode() if isinstance(body, str) else body
        if data is not None and not isinstance(data, bytes):
            data = json.dumps(data).encode()
        async with self.places:
            status, _ = await self.api.send(method, path, data, kind=kind)
        self.told[status] += 1
        return status

    async def make(self, plural: str, manifest: object) -> int:
        """Create an object."""
        return await self.ask("POST", self.path(plural), manifest)

    async def change(self, plural: str, name: str, change: object) -> int:
        """Merge a change into one."""
        return await self.ask("PATCH", self.path(plural, name), change, MERGE)

    async def report(self, plural: str, name: str, status: Mapping[str, Any]) -> int:
        """Write a status as whoever runs it would."""
        path = f"{self.path(plural, name)}/status"
        return await self.ask("PATCH", path, {"status": status}, MERGE)

    async def drop(self, plural: str, name: str) -> int:
        """Delete one."""
        return await self.ask("DELETE", self.path(plural, name))

    async def there(self, plural: str, model: str = "") -> list[dict[str, Any]]:
        """The objects of a kind in the namespace, or those with a model's label."""
        label = f"{NAME_LABEL}={model}" if model else ""
        return await self.api.items(self.path(plural), label)

    async def pods_of(self, model: str, count: int) -> list[str]:
        """Names of a model's pods, once there are so many."""
        while True:
            names = [one["metadata"]["name"] for one in await self.there("pods", model)]
            if len(names) >= count:
                return names
            await asyncio.sleep(0.3)

    async def rest(self, seconds: float) -> None:
        """Until then, or until the time is over."""
        try:
            async with asyncio.timeout(seconds):
                await self.until.wait()
        except TimeoutError:
            return


def model(name: str, **spec: Any) -> dict[str, Any]:
    """A plain one."""
    return {
        "apiVersion": API_VERSION,
        "kind": "BatchedModel",
        "metadata": {"name": name},
        "spec": {"model": {"handler": "simulated"}, **spec},
    }


def model_text(name: str, field_text: str) -> str:
    """One with a free-form field that is written already."""
    return (
        f'{{"apiVersion":"{API_VERSION}","kind":"BatchedModel","metadata":{{"name":"{name}"}},'
        f'"spec":{{"model":{{"handler":"simulated"}},{field_text}}}}}'
    )


Run = Callable[[Aim], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """What somebody does until the time is over."""

    name: str
    run: Run
    rows: tuple[int, ...]
    """Of the table of attacks that were seen to succeed, those that it is of."""


@dataclass(slots=True, kw_only=True)
class Theme:
    """Attacks that run at the same time."""

    name: str
    attacks: list[Attack] = field(default_factory=list)

    def attack(self, *rows: int) -> Callable[[Run], Run]:
        """Note an attack, named as its function is."""

        def noted(run: Run) -> Run:
            name = run.__name__.replace("_", " ")
            self.attacks.append(Attack(name=name, run=run, rows=rows))
            return run

        return noted
