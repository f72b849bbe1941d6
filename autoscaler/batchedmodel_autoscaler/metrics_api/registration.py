"""Keeps our APIServices right, and removes them when the autoscaler is being uninstalled.

The chart makes them, and only their caBundle is written here. An APIService without a server keeps
every namespace of the cluster from being deleted, so it must not outlive its server.
"""

import asyncio
import base64
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Final

from batchedmodel_autoscaler.cluster.objects import ApiService
from batchedmodel_autoscaler.metrics_api.certificates import Rotation, bundle_with, holds
from batchedmodel_autoscaler.telemetry import Telemetry
from batchedmodel_kube.client import Client, path_of
from batchedmodel_kube.errors import ClusterError, Conflict, Gone
from batchedmodel_kube.informer import pause_after

logger: Final = logging.getLogger(__name__)

_LOOK_AGAIN_SECONDS: Final = 15.0
"""The rotation is judged at least this often; certificates end in days."""
_WRITES_IN_A_BURST: Final = 4
_BETWEEN_WRITES_SECONDS: Final = 15.0
"""Of one APIService after a burst. Else processes that undo each other's writes would write as fast
as they hear of them."""


class Registration:
    """Announces the rotation's authorities; the caches tell it what is there."""

    def __init__(
        self,
        client: Client,
        rotation: Rotation,
        *,
        namespace: str,
        service: str,
        telemetry: Telemetry,
        clock: Callable[[], datetime],
    ) -> None:
        self._client = client
        self._rotation = rotation
        self._points_at = (namespace, service)
        self._telemetry = telemetry
        self._clock = clock
        self._there: dict[str, ApiService] = {}
        self._met: dict[str, str] = {}
        """The uid that each had when it was last seen before the uninstallation, or at first."""
        self._paid_until: dict[str, float] = {}
        """When the writes of each so far would end at the steady rate, by its name; loop time."""
        self._uninstalled = False
        self._changed = asyncio.Event()
        self.renewed: Final = asyncio.Event()
        """Set when another identity serves; whoever puts it to use clears it."""

    def seen(self, found: ApiService) -> None:
        """An APIService is there, or has changed."""
        before = self._there.get(found.name)
        self._there[found.name] = found
        if not self._uninstalled or found.name not in self._met:
            self._met[found.name] = found.uid
        told = before is not None and _owner(before) == _owner(found)
        if not self._is_ours(found) and not told:
            logger.error(
                "%s is served by %s: it owns this API and keeps it, so no HPA will ask here",
                *(found.name, _owner(found)),
            )
        self._changed.set()

    def gone(self, found: ApiService) -> None:
        """An APIService is no more."""
        self._there.pop(found.name, None)
        self._changed.set()

    @property
    def untrusting(self) -> list[str]:
        """Our APIServices whose bundle does not hold the authority that serves yet.

        Those that are being deleted or are to be removed do not count: nothing is written there.
        """
        if self._uninstalled:
            return []
        return [
            found.name
            for found in self._ours()
            if not found.leaving and not holds(found.bundle, self._rotation.serving.authority)
        ]

    def home_seen(self, leaving: bool) -> None:
        """Our namespace or our Deployment is there, or has changed."""
        if leaving:
            self.home_gone(leaving)

    def home_gone(self, leaving: bool) -> None:
        """Our namespace or our Deployment has been deleted."""
        if not self._uninstalled:
            logger.info("being uninstalled: the APIServices go first")
        self._uninstalled = True
        self._changed.set()

    async def run(self) -> None:
        """Keep things right for as long as the task lives."""
        failures = 0
        while True:
            self._changed.clear()
            try:
                await self._reconcile()
                failures, pause = 0, _LOOK_AGAIN_SECONDS
            except ClusterError as error:
                failures += 1
                pause = pause_after(failures, random.random())
                logger.warning("%s; again in %.1f s", error, pause)
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _reconcile(self) -> None:
        if self._uninstalled:
            for found in self._ours():
                # An APIService of the same name that came later is the next installation's.
                if found.uid == self._met[found.name] and not found.leaving:
                    with suppress(Conflict):
                        await self._client.delete(_path(found), uid=found.uid)
                    logger.info("deleted %s", found.name)
            return
        # An APIService of another owner must not keep an old certificate in use until it ends.
        announced = self._right() == len(self._ours())
        if self._rotation.step(announced, self._clock()):
            logger.info("another certificate serves, good until %s", self._rotation.serving.end)
            self.renewed.set()
        for found in self._ours():
            await self._correct(found)
        self._telemetry.registered.set(self._right())
        self._telemetry.certificate_ends.set(self._rotation.serving.end.timestamp())

    async def _correct(self, found: ApiService) -> None:
        wanted = bundle_with(found.bundle, self._rotation.authorities, self._clock())
        now = asyncio.get_running_loop().time()
        paid_until = max(now, self._paid_until.get(found.name, now))
        in_advance = (_WRITES_IN_A_BURST - 1) * _BETWEEN_WRITES_SECONDS
        if wanted == found.bundle or found.leaving or paid_until > now + in_advance:
            return
        patch = {
            # With the version, as another process may just be adding its own authority.
            "metadata": {"resourceVersion": found.version},
            "spec": {"caBundle": base64.b64encode(wanted).decode()},
        }
        try:
            await self._client.merge(_path(found), patch)
            self._paid_until[found.name] = paid_until + _BETWEEN_WRITES_SECONDS
            logger.info("%s: caBundle brought up to date", found.name)
        except (Gone, Conflict):
            # It has changed or gone meanwhile; the watch will tell.
            return

    def _right(self) -> int:
        """How many of ours hold all of our authorities."""
        return sum(
            all(holds(found.bundle, one) for one in self._rotation.authorities)
            for found in self._ours()
        )

    def _ours(self) -> list[ApiService]:
        return [found for found in self._there.values() if self._is_ours(found)]

    def _is_ours(self, found: ApiService) -> bool:
        return (found.namespace, found.service) == self._points_at


def _path(found: ApiService) -> str:
    return path_of("apiregistration.k8s.io", "v1", "apiservices", name=found.name)


def _owner(found: ApiService) -> str:
    """Who serves it, for people."""
    if not found.service:
        return "the API server itself"
    return f"Service {found.namespace}/{found.service}"
