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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.invalid_input import InvalidManifest
from batchedmodel_contract.processes import logs
from batchedmodel_contract.processes.environment import EXIT_WRONG_SETTINGS, from_environment
from batchedmodel_contract.processes.listening import raise_descriptors
from batchedmodel_contract.processes.logs import LogLevel
from batchedmodel_http.ports.listener import CannotListen
from batchedmodel_kube.client import Client
from batchedmodel_kube.election import Election, election
from batchedmodel_kube.errors import ENDINGS, ClusterError, Forbidden
from batchedmodel_operator.cluster.client import KubernetesCluster
from batchedmodel_operator.cluster.handlers import Add, registry, watch
from batchedmodel_operator.cluster.sidecars import SidecarAdmin
from batchedmodel_operator.cluster.watching import (
    Definition,
    keep_watching,
    keep_watching_in,
    listen,
    unless,
)
from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.observed.state import Key, is_news
from batchedmodel_operator.probes import Vitals, probes
from batchedmodel_operator.reconcile.reconcile import Reconciler
from batchedmodel_operator.reconcile.turns import SETTLED, Turns, standing
from batchedmodel_operator.reconcile.work_queue import Workers, WorkQueue
from batchedmodel_operator.render import Images
from batchedmodel_operator.settings import OperatorSettings

_log: Final = logging.getLogger("batchedmodel_operator")
EXIT_FAILED: Final = 1
EXIT_LEASE_LOST: Final = 3
_MOST_AT_ONCE: Final = 16
_LOOK_AGAIN_SECONDS: Final = 60.0


def main() -> int:
    """Run until SIGTERM or SIGINT."""
    try:
        settings = from_environment(OperatorSettings, os.environ)
    except InvalidManifest as error:
        print(error, file=sys.stderr)  # noqa: T201  # logging is configured by these settings
        return EXIT_WRONG_SETTINGS
    logs.configure(settings.log_level, settings.log_format, logs.Process.OPERATOR)
    if settings.log_level is not LogLevel.DEBUG:
        # A line for each event of each object, all of which say "succeeded".
        logging.getLogger("kopf").setLevel(logging.WARNING)
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
    told = asyncio.Event()
    listen(told)
    # What is here by now stays: libraries mostly. Each search of it for garbage stops all else for
    # 60 ms.
    gc.collect()
    gc.freeze()
    # Several slow pages within one reconcile must not make it count as stuck.
    client = await Client.connect(os.environ, page_seconds=30.0)
    leases = await Client.connect(os.environ)
    candidacy = election(leases, settings.namespace, settings.lease_name)
    cluster = KubernetesCluster(client, may_write=candidacy.leads)
    turns: Turns[Key] = Turns(settings.upgrades_at_once)

    def look_at(key: Key) -> None:
        workers.add(key)

    queue: WorkQueue[Key] = WorkQueue(
        jitter=random.random, group=lambda key: key.namespace, places=_MOST_AT_ONCE
    )
    reconciler = Reconciler(
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
        turns=turns,
        look_at=look_at,
        edits_wait=lambda key: queue.edits_wait(key, time.monotonic()),
    )
    workers: Workers[Key] = Workers(
        queue,
        reconciler.reconcile,
        at_most=_MOST_AT_ONCE,
        clock=time.monotonic,
        log_fields=Key.fields,
    )

    def add(key: Key, *, awaited: bool = False, version: str = "", autoscaler: str = "") -> None:
        # A status of ours, whose words may be others each time, must not bring the next look. Nor
        # must the numbers that each HPA writes every 15 s: a look is eight reads.
        known = reconciler.wrote(key, version) or reconciler.looked_at(key, autoscaler)
        if awaited or not known:
            workers.add(key, awaited=awaited)

    def class_changed(name: str) -> None:
        for key in reconciler.of_class(name):
            workers.add(key)

    def vitals() -> Vitals:
        return Vitals(
            leads=candidacy.leads(),
            longest_reconcile_seconds=workers.longest_reconcile(),
            keys=len(workers),
            reconciles=workers.reconciles,
        )

    port = probes(settings.probe_port, vitals)
    try:
        await port.use(None)
        await unless(told, candidacy.won())
        if not told.is_set():
            watching = Watching(
                cluster=cluster,
                add=add,
                class_changed=class_changed,
                turns=turns,
                look_at=look_at,
                namespaces=settings.watch_namespaces,
            )
            await _lead(watching, candidacy, workers, told)
    finally:
        # Not before the last reconcile has ended: from then on somebody else may write.
        await candidacy.release()
        await port.close()
        await client.close()
        await leases.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Watching:
    """What is watched, and who hears of it."""

    cluster: KubernetesCluster
    add: Add
    class_changed: Callable[[str], None]
    turns: Turns[Key]
    look_at: Callable[[Key], None]
    namespaces: Sequence[str]
    """Empty: all of them."""


async def _lead(
    watching: Watching, election: Election, workers: Workers[Key], told: asyncio.Event
) -> None:
    # Before Kopf's own tasks, with which it would end.
    losing = asyncio.create_task(_end_when_lost(election), name="lease")
    working = asyncio.create_task(_work(workers, told), name="workers")
    looking: asyncio.Task[None] | None = None
    try:
        if not await unless(told, _look_at_all(watching)):
            looking = asyncio.create_task(_look_again(watching), name="looking again")
        await _watch(watching, told)
    finally:
        if looking is not None:
            looking.cancel()
        workers.close()
        try:
            await working
        finally:
            losing.cancel()


async def _work(workers: Workers[Key], told: asyncio.Event) -> None:
    try:
        await workers.run()
    finally:
        # Without workers it would hold the Lease and do nothing.
        told.set()


async def _look_at_all(watching: Watching) -> bool:
    """Queue what was edited while nobody led, before Kopf has listed all children.

    Finds out as well which models roll for what concerns many: before, none begins. Whether all
    could be listed.
    """
    complete = True
    for namespace in watching.namespaces or ("",):
        try:
            async for body in watching.cluster.each(Kind.BATCHED_MODEL, namespace):
                metadata = body["metadata"]
                key = Key(namespace=metadata["namespace"], name=metadata["name"])
                stands = standing(body.get("status") or {})
                watching.turns.seen(key, stands)
                if is_news(body):
                    watching.add(key, awaited=True)
                elif stands != SETTLED:
                    # It may be gone before Kopf lists it.
                    watching.look_at(key)
        except ClusterError as error:
            # Kopf fails in the same way, and goes on asking.
            _log.info("edited models wait for Kopf: %s", error)
            # One of several namespaces that may not be seen has no models of ours.
            complete = complete and bool(namespace) and isinstance(error, Forbidden)
    if complete:
        for key in watching.turns.all_known():
            watching.look_at(key)
    return complete


async def _look_again(watching: Watching) -> None:
    complete = False
    while not complete:
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        try:
            complete = await _look_at_all(watching)
        except ENDINGS:
            raise
        except Exception:
            _log.exception("models could not be looked at")


async def _watch(watching: Watching, told: asyncio.Event) -> None:
    cluster, namespaces = watching.cluster, watching.namespaces

    async def everywhere(definition: Definition, stop: asyncio.Event) -> None:
        found = registry(watching.add, definition.changed, await _class_changed(watching))
        await watch(found, stop=stop, take_signals=lambda: listen(told))

    async def within(there: Sequence[str], stop: asyncio.Event) -> None:
        found = registry(watching.add, None, await _class_changed(watching))
        await watch(found, namespaces=there, stop=stop, take_signals=lambda: listen(told))

    if namespaces:
        await keep_watching_in(namespaces, within, lambda one: _holds_models(cluster, one), told)
    else:
        await keep_watching(everywhere, lambda: _serves_models(cluster), told)


async def _class_changed(watching: Watching) -> Callable[[str], None] | None:
    """Who hears of classes; None where they cannot be watched, which must end no other watching."""
    try:
        if not await watching.cluster.may_list(Kind.MODEL_CLASS, ""):
            _log.warning("edits of BatchedModelClasses go unseen: no such kind, or no right to it")
            return None
    except ClusterError:
        # Kopf fails in the same way, and goes on asking.
        pass
    return watching.class_changed


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


async def _serves_models(cluster: KubernetesCluster) -> bool:
    try:
        return await cluster.serves(Kind.BATCHED_MODEL)
    except ClusterError:
        # Kopf fails in the same way, and goes on asking.
        return False


async def _holds_models(cluster: KubernetesCluster, namespace: str) -> bool | None:
    try:
        return await cluster.may_list(Kind.BATCHED_MODEL, namespace)
    except ClusterError:
        return None


if __name__ == "__main__":
    sys.exit(main())
