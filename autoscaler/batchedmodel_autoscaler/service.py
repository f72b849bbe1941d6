"""Puts the parts together and runs them: the only place that knows them all."""

import asyncio
import gc
import logging
import ssl
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry

from batchedmodel_autoscaler.cluster.objects import (
    FrontProxy,
    Pod,
    read_api_service,
    read_front_proxy,
    read_leaving,
    read_model,
    read_owned,
    read_pod,
)
from batchedmodel_autoscaler.cluster.resources import (
    API_SERVICES,
    FRONT_PROXY,
    MODELS,
    PODS,
    REPLICA_SETS,
    SIZES,
    own_deployment,
    own_namespace,
    within,
)
from batchedmodel_autoscaler.metrics_api.certificates import Rotation, server_context
from batchedmodel_autoscaler.metrics_api.registration import Registration
from batchedmodel_autoscaler.metrics_api.server import MetricsApi
from batchedmodel_autoscaler.model_metrics import exposition
from batchedmodel_autoscaler.polling.poller import Poller
from batchedmodel_autoscaler.polling.sidecars import Sidecars, most_kept
from batchedmodel_autoscaler.settings import AutoscalerSettings
from batchedmodel_autoscaler.state.capacity_writer import CapacityWriter
from batchedmodel_autoscaler.state.cluster_state import ClusterState
from batchedmodel_autoscaler.telemetry import StateCollector, Telemetry, admin_application
from batchedmodel_contract.processes.listening import raise_descriptors
from batchedmodel_http.ports.listener import Listener
from batchedmodel_kube.client import Client, Collection
from batchedmodel_kube.election import election
from batchedmodel_kube.informer import Cache, follow
from batchedmodel_kube.names import EXTERNAL_METRICS_GROUP, METRICS_GROUP
from batchedmodel_kube.reading import Object

logger: Final = logging.getLogger(__name__)
_T = TypeVar("_T")
_Work = Coroutine[Any, Any, None]
_LEAVING_SECONDS: Final = 5.0
"""What API servers are given to hear that this replica ends; they go on asking it until then."""


class Service:
    """One autoscaler, from its settings to its end."""

    def __init__(self, settings: AutoscalerSettings, cluster: Client, leases: Client) -> None:
        """Needs a running loop; raises `CannotListen`.

        `leases`: the same cluster by connections of their own, so that no other request that hangs
        costs the Lease.
        """
        self._settings = settings
        self._cluster = cluster
        self._leases = leases
        registry = CollectorRegistry()
        telemetry = Telemetry(registry)
        self._state = ClusterState(settings.poll_seconds)
        self._sidecars = Sidecars(most_kept(raise_descriptors()))
        self._poller = Poller(self._state, self._sidecars.stats, telemetry=telemetry)
        host_name = f"{settings.service_name}.{settings.namespace}.svc"
        self._rotation = Rotation([host_name], cluster.calendar())
        self._registration = Registration(
            cluster,
            self._rotation,
            namespace=settings.namespace,
            service=settings.service_name,
            telemetry=telemetry,
            clock=cluster.calendar,
        )
        self._election = election(leases, settings.namespace, settings.lease_name)
        self._remembering = CapacityWriter(
            self._state.models,
            self._state.capacity,
            cluster.apply,
            leads=self._election.leads,
            calendar=cluster.calendar,
        )
        self._caches = self._all_caches()
        registry.register(
            StateCollector(lambda: self._state.counts, self._election.leads, self._left_out)
        )
        self._heard_all = False
        self._leaving = False
        self._api = MetricsApi(self._state, telemetry, calendar=cluster.calendar)
        self._listener = Listener(self._api.application(), settings.host, settings.port)
        self._admin = Listener(
            admin_application(registry, self._missing, self._metrics_of_models),
            settings.host,
            settings.admin_port,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Raises `CannotListen`."""
        try:
            await self._listener.use(self._context())
            await self._admin.use(None)
            logger.info(
                "listening: metrics API on port %d, admin on port %d",
                *(self._listener.port, self._admin.port),
            )
            await self._work_until(stop)
        finally:
            await self._listener.close()
            await self._admin.close()
            self._sidecars.close()
            await self._cluster.close()
            await self._leases.close()

    async def _work_until(self, stop: asyncio.Event) -> None:
        lasting: list[_Work] = [
            self._poll(),
            self._registration.run(),
            self._remembering.run(),
            self._election.take_part(),
            self._use_renewed_certificates(),
            *(follow(self._cluster, resource, cache) for resource, cache in self._caches),
        ]
        try:
            await last(lasting, once=self._hear_all(), until=self._end(stop))
        finally:
            await self._election.release()

    async def _poll(self) -> None:
        # Whose a pod is takes four kinds of objects; what is nobody's yet would not be asked.
        for _, cache in self._caches:
            await cache.complete.wait()
        await self._poller.run()

    async def _hear_all(self) -> None:
        for _, cache in self._caches:
            await cache.complete.wait()
        await self._poller.all_asked()
        # What is here by now stays, most of it Kubernetes' client. Looking through it for garbage
        # would take longer than an HPA should wait, again and again.
        gc.collect()
        gc.freeze()
        self._heard_all = True

    async def _end(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._leaving = True
        await asyncio.sleep(_LEAVING_SECONDS)

    async def _metrics_of_models(self) -> str:
        return await exposition(self._state, asyncio.get_running_loop().time)

    async def _use_renewed_certificates(self) -> None:
        while True:
            await self._registration.renewed.wait()
            self._registration.renewed.clear()
            await self._listener.use(self._context())

    def _left_out(self) -> int:
        return self._cluster.left_out + sum(cache.left_out for _, cache in self._caches)

    def _context(self) -> ssl.SSLContext:
        front = self._api.front_proxy
        try:
            return server_context(self._rotation.serving, front.authority)
        except ssl.SSLError as error:
            logger.error("the API server's authority for clients is unusable: %s", error)
            self._api.front_proxy = FrontProxy()
            return server_context(self._rotation.serving, "")

    def _front_proxy_seen(self, front: FrontProxy) -> None:
        self._api.front_proxy = front
        self._registration.renewed.set()

    def _front_proxy_gone(self, front: FrontProxy) -> None:
        # Whoever deletes it makes the API server write it anew; until then it still holds.
        logger.warning("%s is gone", FRONT_PROXY)

    def _pod_seen(self, pod: Pod) -> None:
        self._state.pod_seen(pod)
        self._poller.follow(pod.uid)

    def _missing(self) -> list[str]:
        if self._leaving:
            return ["it ends"]
        awaited = [str(resource) for resource, cache in self._caches if not cache.complete.is_set()]
        if not awaited and not self._api.front_proxy.authority:
            awaited.append("whom to trust: the aggregation layer is off")
        if not awaited:
            # Else a rollout would end the old pod before API servers believe the new one.
            names = self._registration.untrusting
            awaited += [f"our authority in {name}" for name in names]
        if not awaited and not self._heard_all:
            # Else an HPA that is sent here and not to the old pod would learn nothing.
            awaited.append("the first answers of sidecars")
        return awaited

    def _all_caches(self) -> list[tuple[Collection, Cache[Any]]]:
        state, registration, settings = self._state, self._registration, self._settings
        ownership = state.ownership

        def caches(
            collections: Sequence[Collection],
            read: Callable[[Object], _T],
            seen: Callable[[_T], None],
            gone: Callable[[_T], None],
        ) -> list[tuple[Collection, Cache[Any]]]:
            return [(one, Cache(read, seen=seen, gone=gone)) for one in collections]

        home = (
            own_namespace(settings.namespace),
            own_deployment(settings.namespace, settings.deployment_name),
        )
        custom = API_SERVICES[METRICS_GROUP] if settings.custom_metrics else ()
        external = API_SERVICES[EXTERNAL_METRICS_GROUP] if settings.external_metrics else ()
        registered = (*custom, *external)
        models, sizes, replica_sets, pods = (
            within(one, settings.watch_namespaces) for one in (MODELS, SIZES, REPLICA_SETS, PODS)
        )
        return [
            *caches(
                (FRONT_PROXY,), read_front_proxy, self._front_proxy_seen, self._front_proxy_gone
            ),
            *caches(home, read_leaving, registration.home_seen, registration.home_gone),
            *caches(registered, read_api_service, registration.seen, registration.gone),
            *caches(models, read_model, state.model_seen, state.model_gone),
            *caches((*sizes, *replica_sets), read_owned, ownership.seen, ownership.gone),
            *caches(pods, read_pod, self._pod_seen, state.pod_gone),
        ]


async def last(lasting: Iterable[_Work], *, once: _Work, until: _Work) -> None:
    """Until `until` has ended. What is `lasting` must not end before it; `once` may, but not fail.

    Whatever fails has met a bug of ours, and without it the rest would look alive and do nothing:
    it is raised in a group, for the process to be started again. All has been cancelled by then.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_endless(one)) for one in lasting]
        tasks.append(group.create_task(once))
        await until
        for task in tasks:
            task.cancel()


async def _endless(work: _Work) -> None:
    await work
    raise RuntimeError(f"{work!r} has ended")
