"""Takes part in the election among the replicas of a process: reads and writes the Lease.

`elector` decides; here are the calls, their time limits and the waiting between them. A call that
fails, in whatever way, makes a failed try and nothing else.
"""

import asyncio
import logging
import socket
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from batchedmodel_kube.client import Client, path_of
from batchedmodel_kube.elector import LEASE_SECONDS, RETRY_SECONDS, Elector, Record
from batchedmodel_kube.errors import ENDINGS, ClusterError
from batchedmodel_kube.reading import Object

_log: Final = logging.getLogger(__name__)
_TRY_SECONDS: Final = 3.0
_MOST_TRANSITIONS: Final = 2**31 - 2  # one more must fit
"""For reading and writing together. Two such tries fit between a good one and the deadline."""


class Election:
    """One replica's part in it."""

    def __init__(
        self,
        *,
        read: Callable[[], Awaitable[Object | None]],
        write: Callable[[Object], Awaitable[object]],
        namespace: str,
        name: str,
        identity: str,
        clock: Callable[[], float],
        calendar: Callable[[], datetime],
    ) -> None:
        """`read`: the Lease of that name, None when it is not there. `write`: the whole of it.

        A write with a version must fail if the Lease has another one meanwhile, and one without if
        it is there. `clock`: monotonic seconds; `calendar`: the time for people, with its zone.
        """
        self._read = read
        self._write = write
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._elector = Elector(identity)
        self._tried_at = float("-inf")
        """When the last try began."""
        self._clock = clock
        self._calendar = calendar

    def leads(self) -> bool:
        """Whether this replica may write, at this moment."""
        return self._elector.remaining(self._clock()) > 0

    async def won(self) -> None:
        """Wait until this replica leads."""
        _log.info("%s waits for the lease %s/%s", self._identity, self._namespace, self._name)
        while True:
            await self._try(_TRY_SECONDS)
            if self.leads():
                _log.info("%s leads", self._identity)
                return
            await asyncio.sleep(self._tried_at + RETRY_SECONDS - self._clock())

    async def lost(self) -> None:
        """Renew for as long as this replica leads, and return at once when it leads no more."""
        while (remaining := self._elector.remaining(self._clock())) > 0:
            rest = self._tried_at + RETRY_SECONDS - self._clock()
            await asyncio.sleep(min(rest, remaining))
            if (remaining := self._elector.remaining(self._clock())) > 0:
                await self._try(min(_TRY_SECONDS, remaining))

    async def take_part(self) -> None:
        """Win, lead, and win again for as long as the task lives."""
        while True:
            await self.won()
            await self.lost()
            _log.warning("%s leads no more", self._identity)

    async def release(self) -> None:
        """Give the Lease back. This replica must write nothing afterwards."""
        try:
            async with asyncio.timeout(_TRY_SECONDS):
                body = await self._read()
                claim = self._elector.resign(_record(body))
                if claim is not None:
                    await self._write(self._manifest(claim))
                    _log.info("%s gave the lease back", self._identity)
        except ENDINGS:
            raise
        except BaseException as error:
            self._warn(f"not given back: {error!r}")

    async def _try(self, seconds: float) -> None:
        self._tried_at = self._clock()
        try:
            async with asyncio.timeout(seconds):
                body = await self._read()
                now = self._clock()
                claim = self._elector.step(_record(body), now)
                if claim is not None:
                    await self._write(self._manifest(claim))
                    self._elector.confirmed(now)
        except TimeoutError:
            self._warn(f"no answer within {seconds:.1f} s")
        except ENDINGS:
            raise
        except BaseException as error:
            self._warn(str(error) if isinstance(error, ClusterError) else repr(error))

    def _warn(self, what: str) -> None:
        _log.warning("the lease %s/%s: %s", self._namespace, self._name, what)

    def _manifest(self, claim: Record) -> dict[str, Any]:
        now = self._calendar().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        metadata = {"name": self._name, "namespace": self._namespace}
        if claim.version:
            metadata["resourceVersion"] = claim.version
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": claim.holder,
                # For people and other tools. An elector goes by its own clock.
                "leaseDurationSeconds": int(LEASE_SECONDS),
                "leaseTransitions": claim.transitions,
                "acquireTime": claim.acquired or now,
                "renewTime": now,
            },
        }


def election(client: Client, namespace: str, name: str) -> Election:
    """This process's part in the election for the Lease.

    `client` should do nothing else, so that no other request that hangs costs the Lease.
    """
    group, version = "coordination.k8s.io", "v1"
    path = path_of(group, version, "leases", namespace=namespace, name=name)
    return Election(
        read=partial(client.get, path),
        write=partial(client.replace, path),
        namespace=namespace,
        name=name,
        # In a pod the host's name is the pod's, which lasts longer than a process.
        identity=f"{socket.gethostname()}_{uuid.uuid4()}",
        clock=time.monotonic,
        calendar=client.calendar,
    )


def _record(body: Object | None) -> Record | None:
    if body is None:
        return None
    spec = body.get("spec") or {}
    return Record(
        holder=spec.get("holderIdentity") or "",
        version=body["metadata"]["resourceVersion"],
        # A number of 32 bits that anybody may have written.
        transitions=min(spec.get("leaseTransitions") or 0, _MOST_TRANSITIONS),
        acquired=spec.get("acquireTime") or "",
    )
