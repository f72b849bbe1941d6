"""Puts the parts together and runs them: the only place that knows them all."""

import asyncio
import logging
import time
from typing import Final

from prometheus_client import CollectorRegistry

from batchedmodel_contract.inference.profile import extent_of
from batchedmodel_contract.manifest.tenants import Share, share_of
from batchedmodel_contract.processes.environment import SidecarSettings
from batchedmodel_contract.processes.listening import (
    authority,
    bound_sockets,
    raise_descriptors,
    reachable,
)
from batchedmodel_contract.processes.stats import SidecarStats
from batchedmodel_http.ports.listener import Listener, port_errors
from batchedmodel_scheduling.batching.decisions import MemoryCap
from batchedmodel_sidecar.admin_client import new_token
from batchedmodel_sidecar.backends.native.link import NativeLink
from batchedmodel_sidecar.backends.upstream.catalogue import Upstream
from batchedmodel_sidecar.backends.upstream.client import Client
from batchedmodel_sidecar.backends.upstream.link import UpstreamLink
from batchedmodel_sidecar.batching.batcher import Batcher, TimerFd
from batchedmodel_sidecar.batching.pending_request import MODEL_GONE
from batchedmodel_sidecar.body.byte_budget import ByteBudget, Hold
from batchedmodel_sidecar.body.shared_regions import SharedRegions
from batchedmodel_sidecar.codec.codec import Codec, body_helper
from batchedmodel_sidecar.compiled import is_compiled
from batchedmodel_sidecar.discovery.discovery import Discovery
from batchedmodel_sidecar.discovery.example import curl_line, example_of
from batchedmodel_sidecar.generation.generation import (
    Generation,
    UpstreamGeneration,
    generation_of,
)
from batchedmodel_sidecar.generation.text_queue import TextQueue
from batchedmodel_sidecar.helper import shared_memory
from batchedmodel_sidecar.http.admin import ADMIN_BOUNDS, Admin
from batchedmodel_sidecar.http.admission import Admission
from batchedmodel_sidecar.http.body_reader import BodyReader
from batchedmodel_sidecar.http.connections import Connections
from batchedmodel_sidecar.http.data_handler import DataHandler
from batchedmodel_sidecar.http.inference import InferenceHandler
from batchedmodel_sidecar.http.lone_turns import LoneTurns
from batchedmodel_sidecar.http.passthrough import Passthrough
from batchedmodel_sidecar.http.request import Router
from batchedmodel_sidecar.http.responses import Refusals
from batchedmodel_sidecar.lifecycle import DrainEnd, Lifecycle
from batchedmodel_sidecar.lora.served import ServedAdapters
from batchedmodel_sidecar.model import Link, ReadyModel
from batchedmodel_sidecar.settings import SettingsFolder
from batchedmodel_sidecar.telemetry.generation_counts import GenerationCounts, with_batches
from batchedmodel_sidecar.telemetry.ledger import Durations, Ledger, RecentArrivals
from batchedmodel_sidecar.telemetry.metrics import (
    AdaptersCollector,
    DurationsCollector,
    GenerationCollector,
    LedgerCollector,
)

logger: Final = logging.getLogger(__name__)

_OWN_DESCRIPTORS: Final = 256
_BACKLOG: Final = 4096
_ANSWERS_OF_BUDGET: Final = 4
"""An answer to a batch has at most so great a part of the bytes that may be held."""
_FOR_FILES: Final = 1 / 8
"""Of all descriptors, for large bodies; each idle caller has one of the others."""
_ANSWERS_LEAVE_SECONDS: Final = 5.0
_TIME_IS_OVER: Final = "this pod is stopping and its time is over"
STRAGGLERS_SECONDS: Final = 0.5
"""Callers of the last batch who come back at once get a 503 for so long, and no reset."""


class Service:
    """One sidecar, from its settings to the end of its drain."""

    def __init__(self, settings: SidecarSettings, folder: SettingsFolder) -> None:
        """Needs a running loop.

        Raises `InvalidInput` when the folder holds no usable settings, or the token cannot be
        written.
        """
        self._settings = settings
        self._folder = folder
        self._ledger = Ledger()
        recorder = RecentArrivals(time.monotonic())
        registry = CollectorRegistry()
        budget = ByteBudget(settings.max_queue_bytes)
        self._process = body_helper(budget.hold(Share("(helper)")))
        codec = Codec(self._process, most_rows=lambda share: self._batcher.most_rows(share))
        durations, loop = Durations(), asyncio.get_running_loop()
        regions = SharedRegions(settings.max_queue_bytes)
        served = ServedAdapters(settings.model_name, settings.adapter_header)
        self._link: Link
        self._passthrough: Passthrough | None = None
        self._generation: Generation | None = None
        native: NativeLink | None = None
        self._connections: Connections | None = None
        theirs: Upstream | None = None
        client: Client | None = None
        if settings.upstream_url:
            theirs = Upstream(
                settings.upstream_protocol,
                settings.model_name,
                settings.replicated_outputs,
                settings.pass_paths,
            )
            client = Client(
                settings.upstream_url,
                keeps=self._keeps_connections,
                most=settings.max_queue_bytes // _ANSWERS_OF_BUDGET,
            )
            self._link = link = UpstreamLink(
                client=client,
                protocol=theirs.protocol,
                deal=codec.dealt,
                listener=self,
                idempotent=settings.idempotent,
                workers=lambda: self._batcher.settings.max_concurrent_batches,
            )
            self._passthrough = Passthrough(
                client,
                ledger=self._ledger,
                turns=LoneTurns(
                    at_once=lambda: self._batcher.settings.max_concurrent_batches,
                    asking=lambda: self._batcher.asking(),
                    clock=time.monotonic,
                ),
                working=link.working,
            )
        else:
            self._link = native = NativeLink(settings.model_socket, self, regions, served)
        self._batcher = Batcher(
            folder.read(),
            infer=self._link.infer,
            clock=time.monotonic,
            timer=lambda callback: TimerFd(loop, callback, durations.loop_lag.observe),
            ledger=self._ledger,
            durations=durations,
            recorder=recorder,
            idempotent=settings.idempotent,
            one_by_one=not settings.upstream_url,
            adapter_slots=settings.adapter_slots,
        )
        self._lifecycle = Lifecycle(
            self._batcher,
            passing=self._idle,
            model=lambda: self._link.status,
            watch=self._link.watch,
            delay=settings.drain_delay_seconds,
            limit=settings.drain_timeout_seconds,
            refuses=self._end_idle_connections,
            model_gone=self._end_texts,
        )
        registry.register(DurationsCollector(durations))
        registry.register(
            LedgerCollector(
                ledger=self._ledger,
                settings_hash=lambda: self._batcher.settings.digest(),
                settings_errors=lambda: folder.errors,
                model_is_ready=lambda: self._link.status.model is not None,
                circuit_is_open=lambda: self._batcher.closed is not None,
                oldest_age=self._oldest_age,
                signals=lambda: self._batcher.policy.signals(),
                clock=time.monotonic,
            )
        )
        self._bodies = BodyReader(max_bytes=settings.max_body_bytes, budget=budget, slots=regions)
        refusals = Refusals(self._ledger, codec.protocols)
        counts = GenerationCounts(self._ledger, loop.time())
        admission = Admission(
            batcher=self._batcher,
            link=self._link,
            lifecycle=self._lifecycle,
            bodies=self._bodies,
            codec=codec,
            adapters=served,
            is_upstream=theirs is not None,
            passes_on=self._passthrough is not None,
        )
        inferences = InferenceHandler(
            admission=admission,
            batcher=self._batcher,
            recorder=recorder,
            refusals=refusals,
            bodies=self._bodies,
            codec=codec,
            clock=time.monotonic,
        )
        self._generation = generation_of(
            settings,
            TextQueue(self._batcher.settings, counts, refusals, admission.open_for_work),
            link=native,
            client=client,
            bodies=self._bodies,
            adapters=served,
        )
        if self._generation is not None:
            queue = self._generation.queue
            registry.register(
                GenerationCollector(
                    counts=counts,
                    admission=lambda: queue.admission,
                    model=lambda: self._link.status.model,
                )
            )
            if served.are_known:
                registry.register(
                    AdaptersCollector(
                        served=served,
                        counts=self._ledger.adapters,
                        works=(self._batcher.adapters, queue.adapters),
                        slots=settings.adapter_slots,
                    )
                )
        router = Router(
            settings.model_name,
            protocols=codec.protocols,
            upstream=theirs,
            generates=self._generation is not None,
            has_lora=served.are_known,
            local_to=settings.local_to,
        )
        self._data_handler = DataHandler(
            router=router,
            admission=admission,
            bodies=self._bodies,
            refusals=refusals,
            inferences=inferences,
            texts=None if self._generation is None else self._generation.queue,
            passthrough=self._passthrough,
            discovery=Discovery(
                settings.model_name,
                router.find,
                served,
                upstream=theirs is not None,
                repository=native,
            ),
        )
        self._admin = Admin(
            name=settings.model_name,
            batcher=self._batcher,
            link=self._link,
            lifecycle=self._lifecycle,
            registry=registry,
            recorder=recorder,
            repository=native,
            stats=self._stats,
            adapters=served,
            token=new_token(settings.token_file),
            pod_uid=settings.pod_uid,
            local_to=settings.local_to,
        )
        self._port = settings.port

    def model_ready(self, model: ReadyModel) -> None:
        """From the link: work may flow."""
        is_back = self._batcher.model is None
        if self._generation is not None:
            self._generation.model_ready(model)  # refuses what cannot be read, before batches go
        self._batcher.attach(model)
        if is_back:  # a new version beside the old one is no restart, which would end a drain
            self._lifecycle.resume()
        host, port = self._settings.host, self._port
        if not self._settings.upstream_url:
            example = example_of(model.description, model.generation)
            service = f"http://{authority(reachable(host), port)}"
            logger.info("try: %s", curl_line(example, service))
        logger.info("ready: %s on http://%s", model.description.name, authority(host, port))

    def model_lost(self, reason: str) -> None:
        """From the link: work must wait."""
        self._batcher.detach()
        if self._generation is not None:
            self._generation.model_lost()
        self._lifecycle.model_lost()
        self._end_idle_connections()

    def _end_texts(self) -> None:
        """No model comes back in time. A server of others may still answer what it has."""
        if self._generation is not None:
            is_ours = not isinstance(self._generation, UpstreamGeneration)
            is_lost = self._lifecycle.terminating and is_ours
            self._generation.queue.give_up(MODEL_GONE, under_way=is_lost)

    def profile_measured(self, model: ReadyModel) -> None:
        """From the link: more is known of how long batches take."""
        self._batcher.expect(model)
        logger.info("the model's profile is %s", extent_of(model.profile))

    def memory_bound(self, cap: MemoryCap) -> None:
        """From the link: batches must not be larger."""
        self._batcher.bound(cap)

    def _stats(self, draining: bool) -> SidecarStats:
        batcher = self._batcher
        batches = batcher.offered.stats(
            batcher.settings,
            time.monotonic(),
            batcher.policy,
            model_ready=batcher.model is not None,
            draining=draining,
        )
        if self._generation is not None and self._generation.queue.counts.any:
            queue, now = self._generation.queue, asyncio.get_running_loop().time()
            texts = queue.counts.texts_stats(
                queue.settings,
                now,
                backlog=queue.admission.backlog_work,
                at_once=queue.admission.limit,
                model_ready=batches.model_ready,
                draining=draining,
            )
            return with_batches(texts, batches)
        return batches

    def _oldest_age(self) -> float:
        texts = 0.0 if self._generation is None else self._generation.queue.oldest_age()
        return max(self._batcher.oldest_age(), texts)

    async def _idle(self) -> None:
        """Return once nothing is on its way past the batcher."""
        if self._passthrough is not None:
            await self._passthrough.idle()
        if self._generation is not None:
            await self._generation.queue.idle()

    def _keeps_connections(self) -> bool:
        """Whether connections to an upstream server outlive their request.

        With several batches at a time they do not: each of the server's workers may serve one
        connection until its end.
        """
        return self._batcher.settings.max_concurrent_batches == 1

    def _hold_of(self, address: str) -> Hold:
        """The memory that a caller at this address uses."""
        return self._bodies.hold(share_of(address, {}, self._batcher.settings.tenants))

    def _end_idle_connections(self) -> None:
        if self._connections is not None:
            self._connections.end_idle()

    async def run(self, stop: asyncio.Event) -> bool:
        """Serve until `stop` is set, then drain; True when everything accepted was served.

        Raises `CannotListen`.
        """
        descriptors = raise_descriptors()
        files = int(descriptors * _FOR_FILES)
        shared_memory.use_at_most(files // shared_memory.DESCRIPTORS)
        connections = self._connections = Connections(
            self._data_handler,
            unread=self._bodies.unread,
            hold=self._hold_of,
            mean_age=self._settings.connection_age_seconds,
            at_most=descriptors - files - ADMIN_BOUNDS.connections - _OWN_DESCRIPTORS,
        )
        listeners: list[asyncio.Server] = []
        admin: Listener | None = None
        try:
            loop = asyncio.get_running_loop()
            host, port = self._settings.host, self._settings.port
            with port_errors(host, port):
                for bound in bound_sockets(host, port):
                    opened = loop.create_server(connections.open, sock=bound, backlog=_BACKLOG)
                    listeners.append(await opened)
            self._port = int(listeners[0].sockets[0].getsockname()[1])
            application, admin_port = self._admin.application(), self._settings.admin_port
            admin = Listener(application, host, admin_port, ADMIN_BOUNDS)
            await admin.use(None)
            form = "compiled" if is_compiled() else "interpreted"
            logger.info("listening: data port %d, admin port %d, %s", self._port, admin.port, form)
            return await self._serve(stop)
        finally:
            # The order matters: callers get their answers before the connection to the model goes.
            for listener in listeners:
                listener.close()
            await connections.close(_ANSWERS_LEAVE_SECONDS)
            await self._process.close()
            await self._batcher.close()
            parts = (self._generation, self._link, admin)
            for part in parts:
                if part is not None:
                    await part.close()

    async def _serve(self, stop: asyncio.Event) -> bool:
        background = [
            asyncio.create_task(self._link.follow()),
            asyncio.create_task(self._follow_settings()),
        ]
        if isinstance(self._generation, UpstreamGeneration):
            background.append(asyncio.create_task(self._generation.gauges.follow()))
        stopped = asyncio.create_task(stop.wait())
        # A background task that ends at all has met a bug of ours: end with it, to be restarted.
        await asyncio.wait([*background, stopped], return_when=asyncio.FIRST_COMPLETED)
        emptied = await self._lifecycle.terminate() is DrainEnd.EMPTY
        if not emptied:
            # An answer that says so is better than a connection that breaks.
            self._batcher.give_up(_TIME_IS_OVER)
            if self._generation is not None:
                self._generation.queue.give_up(_TIME_IS_OVER)
        await asyncio.sleep(STRAGGLERS_SECONDS)
        for task in (*background, stopped):
            task.cancel()
        for error in await asyncio.gather(*background, return_exceptions=True):
            if error is not None and not isinstance(error, asyncio.CancelledError):
                raise error
        return emptied

    async def _follow_settings(self) -> None:
        async for settings in self._folder.changes(self._batcher.settings):
            self._batcher.configure(settings)
            if self._generation is not None:
                self._generation.configure(settings)
            logger.info("settings %s in force: %s", settings.digest(), settings.to_json())
