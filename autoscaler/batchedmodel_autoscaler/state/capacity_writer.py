"""Writes what was learnt of each model into its status, for the time after a restart.

`capacity_estimator` says what is worth writing. Of several replicas the one that leads writes: they
hear the same pods, but have not seen the same ones start, and would correct each other for ever.
Namespaces take turns, so that thousands of models of one keep no other's waiting.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice, zip_longest
from typing import Any, Final

from batchedmodel_autoscaler.cluster.objects import Model, ModelKey
from batchedmodel_autoscaler.state.capacity_estimator import is_news
from batchedmodel_kube.capacity import FIELD, Capacity
from batchedmodel_kube.client import path_of
from batchedmodel_kube.errors import ENDINGS, ClusterError, Conflict, Gone, Refused
from batchedmodel_kube.names import API_VERSION, GROUP, KIND, PLURAL, VERSION

logger: Final = logging.getLogger(__name__)

FIELD_MANAGER: Final = "batchedmodel-autoscaler"
LEAST_SECONDS: Final = 60.0
"""Between two writes of one model."""
_LOOK_SECONDS: Final = 15.0
MOST_WRITES: Final = 150
"""In one look, ten a second; the rest waits for the next one."""
_News = tuple[Model, Capacity]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    capacity: Capacity
    uid: str
    at: float
    refused: bool = False
    """Or failed in another way. It is tried again after a while, and not before others."""


class CapacityWriter:
    """Looks at all models now and then; used inside one event loop."""

    def __init__(
        self,
        models: Callable[[], Sequence[Model]],
        capacity: Callable[[ModelKey], Capacity | None],
        apply: Callable[..., Awaitable[object]],
        *,
        leads: Callable[[], bool],
        calendar: Callable[[], datetime],
    ) -> None:
        """`models`: all there are; `capacity`: what was learnt of one; `apply`: as `Client.apply`.

        `leads`: whether this replica may write, at this moment. `calendar`: the time for people,
        with its zone. Needs a running loop.
        """
        self._models = models
        self._learnt = capacity
        self._apply = apply
        self._leads = leads
        self._clock = asyncio.get_running_loop().time
        self._calendar = calendar
        self._written: dict[ModelKey, _Written] = {}

    async def run(self) -> None:
        """Write what is news for as long as the task lives."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self._look()

    async def _look(self) -> None:
        models = self._models()
        keys = {model.key for model in models}
        self._written = {key: one for key, one in self._written.items() if key in keys}
        due: dict[str, list[_News]] = {}
        for model in models:
            # An HPA that asks does not wait for a thousand models.
            await asyncio.sleep(0)
            capacity = self._capacity(model)
            if capacity is not None:
                due.setdefault(model.key.namespace, []).append((model, capacity))
        await self._write_all(due)

    def _capacity(self, model: Model) -> Capacity | None:
        """What is to be written of a model, if anything. A failure keeps no other model waiting."""
        try:
            capacity = self._learnt(model.key)
            return capacity if capacity is not None and self._is_due(model, capacity) else None
        except ENDINGS:
            raise
        except BaseException:
            logger.exception(
                "what was learnt of %s cannot be told", model.key, extra=model.key.fields()
            )
            return None

    async def _write_all(self, due: Mapping[str, Iterable[_News]]) -> None:
        failing: set[str] = set()
        for model, capacity in islice(_in_turns(due), MOST_WRITES):
            namespace = model.key.namespace
            if namespace in failing:
                continue
            if not self._leads():
                return
            if not await self._write(model, capacity):
                # One namespace may fail by itself. If a second one fails too, all do.
                failing.add(namespace)
                if len(failing) > 1:
                    return

    def _is_due(self, model: Model, capacity: Capacity) -> bool:
        if not is_news(capacity, model.capacity):
            return False
        before = self._written.get(model.key)
        if before is None or before.uid != model.uid:
            return True
        # A custom resource of an earlier version drops the field, which is then not written again.
        news = before.refused or is_news(capacity, before.capacity)
        return news and self._clock() - before.at >= LEAST_SECONDS

    async def _write(self, model: Model, capacity: Capacity) -> bool:
        """Whether others of its namespace may be written, whatever became of this one."""
        key = model.key
        before = self._written.get(key)
        written = _Written(capacity=capacity, uid=model.uid, at=self._clock())
        self._written[key] = written
        where = {"namespace": key.namespace, "name": key.name}
        path = path_of(GROUP, VERSION, PLURAL, **where, subresource="status")
        at = self._calendar().strftime("%Y-%m-%dT%H:%M:%SZ")
        manifest: dict[str, Any] = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            # With the uid, or it would be said of a later one of the same name.
            "metadata": {**where, "uid": model.uid},
            "status": {FIELD: capacity.to_mapping(at=at)},
        }
        try:
            await self._apply(path, manifest, manager=FIELD_MANAGER)
        except (Gone, Conflict):
            # Another may have its name. There is nothing to write.
            return True
        except ClusterError as error:
            self._written[key] = replace(written, refused=True)
            if before is None or not before.refused:
                logger.warning("%s/%s: %s", key.namespace, key.name, error, extra=key.fields())
            return isinstance(error, Refused)
        learnt = manifest["status"][FIELD]
        logger.info("%s/%s: learnt %s", key.namespace, key.name, learnt, extra=key.fields())
        return True


def _in_turns(due: Mapping[str, Iterable[_News]]) -> Iterator[_News]:
    """One of each namespace, then the next of each."""
    for one_of_each in zip_longest(*due.values()):
        yield from (news for news in one_of_each if news is not None)
