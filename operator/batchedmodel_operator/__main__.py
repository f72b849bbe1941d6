"""Process entry of the operator: settings from the environment, the election, then watch and work.

Exit codes: 0 after SIGTERM or SIGINT, 1 when no API server is configured, the port for probes is
taken, or it failed by itself, 2 for wrong settings, 3 when the Lease was lost.
"""

import asyncio
import gc
import logging
import os
import random
import sys
import time
from contextlib import suppress
from functools import partial
from typing import Final

from batchedmodel_contract.invalid_input import InvalidManifest
from batchedmodel_contract.processes import logs
from batchedmodel_contract.processes.environment import EXIT_WRONG_SETTINGS, from_environment
from batchedmodel_contract.processes.listening import raise_descriptors
from batchedmodel_contract.processes.logs import LogLevel
from batchedmodel_http.ports.listener import CannotListen
from batchedmodel_kube.client import Client
from batchedmodel_kube.election import Election, election
from batchedmodel_kube.errors import ENDINGS, ClusterError
from batchedmodel_kube.informer import follow
from batchedmodel_operator.cluster.client import KubernetesCluster
from batchedmodel_operator.cluster.frame import in_frame
from batchedmodel_operator.cluster.sidecars import SidecarAdmin
from batchedmodel_operator.cluster.store import Record, Store
from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.observed.state import Key
from batchedmodel_operator.probes import Vitals, probes
from batchedmodel_operator.reconcile.reconcile import Reconciler
from batchedmodel_operator.reconcile.turns import Turns, standing
from batchedmodel_operator.reconcile.work_queue import Workers, WorkQueue
from batchedmodel_operator.render import Images
from batchedmodel_operator.settings import OperatorSettings

_log: Final = logging.getLogger("batchedmodel_operator")
EXIT_FAILED: Final = 1
EXIT_LEASE_LOST: Final = 3
_MOST_AT_ONCE: Final = 16
_FIRST_LISTS_SECONDS: Final = 30.0
"""Ten thousand objects take a few. What is not listed by then is not known, and said to be so."""


def main() -> int:
    """Run until SIGTERM or SIGINT."""
    try:
        settings = from_environment(OperatorSettings, os.environ)
    except InvalidManifest as error:
        print(error, file=sys.stderr)  # noqa: T201  # logging is configured by these settings
        return EXIT_WRONG_SETTINGS
    logs.configure(settings.log_level, settings.log_format, logs.Process.OPERATOR)
    if settings.log_level is not LogLevel.DEBUG:
        # It warns that it ends.
        logging.getLogger("kopf").setLevel(logging.ERROR)
    if not settings.admission_policy:
        _log.warning(
            "no admission policy bounds its account to objects of BatchedModels: a thief of its "
            "token may change others' as far as its roles allow"
        )
    raise_descriptors()
    try:
        asyncio.run(_run(settings))
    except (ClusterError, CannotListen, OSError) as error:
        _log.error("%s", error)
        return EXIT_FAILED
    except Exception:
        _log.exception("failed unexpectedly: it ends, to be started again")
        return EXIT_FAILED
    return 0


async def _run(settings: OperatorSettings) -> None:
    # What is here by now stays: libraries mostly. Each search of it for garbage stops all else for
    # 60 ms.
    gc.collect()
    gc.freeze()
    client = await Client.connect(os.environ)
    leases = await Client.connect(os.environ)
    candidacy = election(leases, settings.namespace, settings.lease_name)
    operator = Operator(settings, client, candidacy)
    port = probes(settings.probe_port, operator.vitals)
    try:
        await port.use(None)
        await in_frame(partial(_work, operator, candidacy))
    finally:
        # Not before the last reconcile has ended: from then on somebody else may write.
        await candidacy.release()
        await port.close()
        await client.close()
        await leases.close()


async def _work(operator: "Operator", candidacy: Election, stop: asyncio.Event) -> None:
    """Wait for the Lease, and work, until `stop` is set."""
    winning, stopping = (asyncio.create_task(one) for one in (candidacy.won(), stop.wait()))
    try:
        await asyncio.wait((winning, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not winning.done():
            return
        await winning
        losing = asyncio.create_task(_end_when_lost(candidacy), name="lease")
        try:
            await operator.lead(stop)
        finally:
            losing.cancel()
    finally:
        winning.cancel()
        stopping.cancel()


class Operator:
    """What one process knows and does once it leads."""

    def __init__(self, settings: OperatorSettings, client: Client, candidacy: Election) -> None:
        self._client = client
        self._candidacy = candidacy
        self._listed = asyncio.Event()
        """Set once it was tried to list everything, or long enough."""
        self._turns: Turns[Key] = Turns(settings.upgrades_at_once)
        self._store = Store(settings.watch_namespaces, self._changed)
        queue: WorkQueue[Key] = WorkQueue(
            jitter=random.random, group=lambda key: key.namespace, places=_MOST_AT_ONCE
        )
        cluster = KubernetesCluster(client, may_write=candidacy.leads, wrote=self._store.wrote)
        self._reconciler = Reconciler(
            known=self._store,
            cluster=cluster,
            sidecars=SidecarAdmin(),
            images=Images(
                sidecar=settings.sidecar_image,
                model_server=settings.model_server_image,
                pull_policy=settings.image_pull_policy,
                ids=settings.ids,
                log_format=settings.log_format,
                via=settings.via,
                upgrade=settings.upgrade,
            ),
            clock=time.monotonic,
            calendar=client.calendar,
            turns=self._turns,
            look_at=lambda key: self._workers.add(key),
            edits_wait=lambda key: queue.edits_wait(key, time.monotonic()),
        )
        self._workers: Workers[Key] = Workers(
            queue,
            self._reconciler.reconcile,
            at_most=_MOST_AT_ONCE,
            clock=time.monotonic,
            log_fields=Key.fields,
        )

    def vitals(self) -> Vitals:
        """What probes are told."""
        return Vitals(
            leads=self._candidacy.leads(),
            longest_reconcile_seconds=self._workers.longest_reconcile(),
            keys=len(self._workers),
            reconciles=self._workers.reconciles,
        )

    async def lead(self, stop: asyncio.Event) -> None:
        """Watch and reconcile until `stop` is set; the reconciles that have begun end first.

        Raises what a part of it failed for, which is a bug.
        """
        following = [
            asyncio.create_task(follow(self._client, one.collection, one.cache))
            for one in self._store.watches
        ]
        stopping = asyncio.create_task(stop.wait())
        knowing = asyncio.create_task(self._know_turns())
        working = asyncio.create_task(self._work())
        parts = (*following, working)
        try:
            await asyncio.wait((*parts, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._workers.close()
            for task in (*following, stopping, knowing):
                task.cancel()
            if not self._listed.is_set():
                working.cancel()
            await asyncio.wait(parts)
        for task in parts:
            if not task.cancelled():
                await task

    async def _work(self) -> None:
        # One kind that cannot be listed, or only slowly, keeps no other waiting for long.
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_LISTS_SECONDS):
                for watch in self._store.watches:
                    await watch.cache.tried.wait()
        self._listed.set()
        await self._workers.run()

    async def _know_turns(self) -> None:
        """Find out which models roll for what concerns many: before, none begins."""
        for watch in self._store.watches:
            if watch.kind is Kind.BATCHED_MODEL:
                await watch.cache.complete.wait()
        for body in self._store.models():
            metadata = body["metadata"]
            key = Key(namespace=metadata["namespace"], name=metadata["name"])
            self._turns.seen(key, standing(body.get("status") or {}))
        for key in self._turns.all_known():
            self._workers.add(key)

    def _changed(self, record: Record) -> None:
        keys = record.models
        if record.kind is Kind.MODEL_CLASS:
            keys = self._reconciler.of_class(record.name)
        for key in keys:
            self._workers.add(key, awaited=record.awaited)


async def _end_when_lost(election: Election) -> None:
    try:
        await election.lost()
        _log.error("the lease was lost: whoever takes it goes on")
    except ENDINGS:
        raise
    except BaseException:
        # Our bug; without renewals the lease is lost all the same.
        _log.exception("renewing the lease failed unexpectedly")
    # At once. An orderly end would wait for reconciles, which may write no more.
    os._exit(EXIT_LEASE_LOST)


if __name__ == "__main__":
    sys.exit(main())
