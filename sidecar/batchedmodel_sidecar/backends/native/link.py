"""The link to our model server: its life line and its batches.

The life line is the server's event stream, which the link keeps open. A line says when the model is
ready; the stream's end says at once that the server is gone. Nothing is asked periodically. Errors
of the HTTP client and answers that make no sense become `Unserved` here.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import aiohttp
import orjson
from yarl import URL

from batchedmodel_contract.adapters.state import AdapterState
from batchedmodel_contract.inference import packed
from batchedmodel_contract.inference.batch import BatchReply, BatchRequest
from batchedmodel_contract.inference.batch_wire import (
    read_reply,
    write_request,
)
from batchedmodel_contract.inference.profile import extent_of
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.inference.v2 import HEADER_LENGTH
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.processes import server_api
from batchedmodel_contract.processes.server_api import (
    ModelState,
    StateEvent,
    state_event_from_mapping,
)
from batchedmodel_scheduling.core.policy import MemoryCap
from batchedmodel_sidecar.adapters.served import ServedAdapters
from batchedmodel_sidecar.backends.base import LinkListener, LinkStatus
from batchedmodel_sidecar.backends.native.answer_rooms import AnswerRooms
from batchedmodel_sidecar.backends.native.handshake import BASE, Handshake, LinkBroken
from batchedmodel_sidecar.backends.native.http1_client import (
    Answered,
    BrokenOff,
    Garbled,
    Http1Client,
    Unreachable,
)
from batchedmodel_sidecar.backends.native.memory_offer import MemoryOffer
from batchedmodel_sidecar.body.byte_budget import ByteBudget
from batchedmodel_sidecar.body.shared_slots import SharedSlots
from batchedmodel_sidecar.errors import Busy, Lost, Unserved
from batchedmodel_sidecar.model import ReadyModel

logger: Final = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 5.0
_LONGEST_ABSENCE: Final = 0.5
"""Between two tries where nobody listens on the socket: they cost next to nothing, and a server
that is started again is found soon."""
_HANDSHAKE_SECONDS: Final = 30.0
_MOST_DOUBLINGS: Final = 10
_THREADS: Final = 2
_LINE_BUFFER: Final = 4 << 20
"""Bytes; a line may have twice as many. It has the reasons of all adapters that failed."""
_BINARY: Final = "application/octet-stream"
_UNANSWERED: Final = 2  # batches in a row after which only a restart helps
_DEPTH: Final = 2  # one batch that runs and one handed over just in time


class _Route(NamedTuple):
    """How one version of the model is asked, and what it answers."""

    head: str
    """Of the HTTP request, up to its content type."""
    outputs: list[tuple[str, Datatype]]
    packs: bool = False
    """Whether the server has given a packed reply."""


class NativeLink:
    """Follows one model server over its Unix socket and carries batches to it."""

    def __init__(
        self,
        name: str,
        socket_path: str,
        listener: LinkListener,
        slots: SharedSlots,
        budget: ByteBudget,
        adapters: ServedAdapters,
    ) -> None:
        """`adapters` hears what the server says of them. `slots`: where bodies lie whose rows the
        server finds by itself.
        """
        self._name = name
        self._listener = listener
        self._adapters = adapters
        # No limit and no time-out of the session: the batcher bounds both.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path=socket_path, limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._http = Http1Client(socket_path)
        self._slots = slots
        self._rooms = AnswerRooms(budget)
        self._memory = MemoryOffer(socket_path, slots, self._rooms)
        self._routes: dict[str, _Route] = {}
        """By version: the model's, and those that it replaced and that requests still need."""
        self._releases: set[asyncio.Task[None]] = set()
        self._stream: aiohttp.ClientResponse | None = None
        self._distrusted = False
        self._model: ReadyModel | None = None
        self._reason = "the model server has not been reached yet"
        self._stuck = False
        self._hung = False
        """Whether the server itself says that its pass hangs."""
        self._profile = 0
        """The number of the one that was learnt last."""
        self._max_cost: int | None = None
        """What its memory holds, as the listener was told last."""
        self._handshake = Handshake(name, self._session)
        self._failures = 0
        """Broken links in a row; a ready model sets it back."""
        self._unanswered = 0
        """Batches in a row that had no answer in time; an answered one sets it back."""
        self._distrusts = 0
        """Links given up for what the server answered; an answered batch sets it back."""

    @property
    def status(self) -> LinkStatus:
        """Whether the model can be asked now."""
        # One unanswered batch may have been a pause that is over. After a second one a new
        # handshake proves nothing: what answers it is not the pass that hangs.
        stuck = self._hung or self._stuck or self._unanswered >= _UNANSWERED
        return LinkStatus(model=self._model, reason=self._reason, stuck=stuck)

    async def follow(self) -> None:
        """Keep the life line open for ever, with growing pauses while it breaks."""
        while True:
            longest = _LONGEST_PAUSE
            try:
                await self._hold_line()
                self._lose("the model server closed the connection")
            except (LinkBroken, InvalidInput) as error:
                self._lose(str(error))
            except (aiohttp.ClientError, OSError) as error:
                logger.debug("life line: %s", type(error).__name__)
                if isinstance(error, aiohttp.ClientConnectorError):
                    self._begins_anew()
                    longest = _LONGEST_ABSENCE
                self._lose("the model server cannot be reached")
            except asyncio.CancelledError:
                raise
            except BaseException as bug:
                # What a server says must not end the process that stands in front of it.
                logger.error("life line", exc_info=bug)
                self._lose(f"error in the sidecar: {bug!r}")
            # The exponent is bounded: days of failures must not overflow a float.
            attempts = min(max(self._failures, self._distrusts), _MOST_DOUBLINGS)
            self._failures += 1
            await asyncio.sleep(min(longest, _FIRST_PAUSE * 2**attempts))

    async def infer(self, request: BatchRequest, seconds: float) -> BatchReply:
        """The server's reply to a batch; raises `Unserved`."""
        version = request.version or ""
        route = self._routes.get(version)
        if route is None:
            raise Busy(f"version {request.version} of the model is not served any more")
        shared, head = self._slots.rows, route.head + packed.PACKED
        room = self._rooms.room(len(request.inputs[0].shapes))
        answer: Answered | None = None
        try:
            if route.packs and room is None and packed.can_pack_batch(request, shared):
                parts = packed.write_batch(request)
            else:
                told = None if room is None else room.told
                length, parts = write_request(request, orjson.dumps, shared, told)
                head = f"{route.head}{_BINARY}\r\n{HEADER_LENGTH}: {length}"
            answer = await self._http.post(head, parts, seconds)
        except TimeoutError as error:
            self._stuck = True
            self._unanswered += 1
            self._distrust("the model server does not answer")
            raise Unserved("the model server does not answer", status=504) from error
        except Unreachable as error:
            # Nothing was sent, so nothing was in work.
            raise Busy("the model server cannot be reached") from error
        except BrokenOff as error:
            logger.debug("batch: %s", type(error).__name__)
            raise Lost("the model server went away while it worked on this") from error
        except Garbled as error:
            raise self._nonsense("the model server answers nonsense", quoting=error) from error
        finally:
            self._rooms.over(room, answered=answer is not None)
            if answer is None:
                room = None  # an error keeps this frame, which must keep no memory
        if answer.status != 200:
            raise self._refused(answer)
        try:
            if answer.header("Content-Type") == packed.PACKED:
                reply = packed.read_reply(answer.body)
                if not route.packs and version in self._routes:
                    self._routes[version] = route._replace(packs=True)
            else:
                length_of_head = answer.header(HEADER_LENGTH)
                memory = None if room is None else room.memory
                reply = read_reply(answer.body, length_of_head, orjson.loads, memory)
            self._rooms.learn(reply, answer.body, room)
        except InvalidInput as error:
            raise self._nonsense("the model server answers nonsense", quoting=error) from error
        rows = len(request.inputs[0].shapes)
        if len(reply.statuses) != rows:
            raise self._nonsense(f"the model answered {len(reply.statuses)} of {rows} rows")
        if [(output.name, output.datatype) for output in reply.outputs] != route.outputs:
            raise self._nonsense("the model answered other outputs than it declares")
        self._distrusts = self._unanswered = 0
        self._stuck = False
        served = self._model and self._model.description.version
        if served == request.version and reply.max_cost != self._max_cost:
            self._max_cost = reply.max_cost
            self._listener.memory_bound(MemoryCap(cost=reply.max_cost))
        return reply

    def watch(self, closely: bool) -> None:
        """See `Link`: the life line ends with the server, so there is nothing to do."""

    async def close(self) -> None:
        """Hang up."""
        self._memory.end()
        self._http.close()
        for release in self._releases:
            release.cancel()
        await self._session.close()
        self._handshake.close()

    async def _hold_line(self) -> None:
        async for line in self._events():
            event = _event(line)
            self._hung = event.state is ModelState.HUNG
            if event.adapters is not None:
                await self._hear(event.adapters)
            model, before = self._model, self._profile
            self._profile = event.profile
            if (
                model is not None
                and event.state is ModelState.READY
                and event.version == model.description.version
            ):
                if event.profile != before:
                    await self._learn_profile(model)
                    continue
                if event.adapters is not None:
                    continue  # nothing else is new
            if event.state is ModelState.READY:
                async with asyncio.timeout(_HANDSHAKE_SECONDS):
                    self._found(await self._handshake.learn(event.version), event.version)
                self._memory.begin()
            else:
                detail = f": {event.detail}" if event.detail else ""
                coming = event.state in (ModelState.LOADING, ModelState.WARMING)
                if coming:
                    self._begins_anew()
                level = logging.INFO if coming else logging.WARNING
                self._lose(f"the model is {event.state}{detail}", level)

    async def _learn_profile(self, model: ReadyModel) -> None:
        async with asyncio.timeout(_HANDSHAKE_SECONDS):
            profile = await self._handshake.profile(model.description.version)
        if self._model is model:  # it may have been lost meanwhile
            self._model = replace(model, profile=profile)
            self._max_cost = profile.max_cost
            self._listener.profile_measured(profile)
            logger.info("the model's profile is %s", extent_of(profile))

    async def _hear(self, states: Sequence[AdapterState]) -> None:
        """Learn the states of adapters, and the labels of those that are new."""
        lacking = self._adapters.unlabelled(states)
        async with asyncio.timeout(_HANDSHAKE_SECONDS):
            found = {number: await self._handshake.labels(number) for number in lacking}
        labels = {number: told for number, told in found.items() if told is not None}
        self._adapters.told(states, labels)

    async def _events(self) -> AsyncIterator[bytes]:
        url = BASE + server_api.events_path(self._name)
        async with asyncio.timeout(_HANDSHAKE_SECONDS):
            # A stopped process still has its connections taken by the kernel, and says nothing.
            opened = await self._session.get(url, read_bufsize=_LINE_BUFFER)
        async with opened as response:
            if response.status != 200:
                raise LinkBroken(
                    f"the model server answers {response.status} at {response.url.path}"
                )
            self._stream = response
            try:
                async for line in response.content:
                    yield line
            finally:
                self._memory.end()
                self._stream = None
                self._hung = False
                self._adapters.lost()

    def _found(self, model: ReadyModel, version: str | None) -> None:
        path = URL(server_api.infer_path(self._name, version)).raw_path
        route = _Route(
            head=f"POST {path} HTTP/1.1\r\nHost: model\r\nAccept: {packed.PACKED}\r\n"
            "Content-Type: ",
            outputs=[(spec.name, spec.datatype) for spec in model.description.outputs],
        )
        self._failures = 0
        replaced, self._model = self._model, model
        # After a loss the versions are those of another process, perhaps.
        others = {} if replaced is None else self._routes
        self._routes = {**others, model.description.version: route}
        self._max_cost = model.profile.max_cost if model.profile else None
        self._reason = ""
        self._stuck = False
        self._listener.model_ready(model)
        if replaced is not None and replaced.description.version != model.description.version:
            gone = replaced.description.version
            logger.info("version %s takes the place of %s", model.description.version, gone)
            replaced.users.replaced(lambda: self._release(gone))

    def _release(self, version: str) -> None:
        """Let the server end a version that it has replaced and that no request needs."""
        if self._model is not None and self._model.description.version == version:
            return  # it has come back meanwhile
        self._routes.pop(version, None)
        releasing = asyncio.get_running_loop().create_task(self._released(version))
        self._releases.add(releasing)
        releasing.add_done_callback(self._releases.discard)

    async def _released(self, version: str) -> None:
        url = BASE + server_api.release_path(self._name, version)
        try:
            async with asyncio.timeout(_HANDSHAKE_SECONDS), self._session.post(url):
                pass
        except (aiohttp.ClientError, OSError) as error:
            # The server ends it by itself later.
            logger.debug("version %s could not be released: %s", version, type(error).__name__)

    def _begins_anew(self) -> None:
        """No batch is with a model that loads, nor with a process that is not there."""
        self._stuck = False
        self._unanswered = 0

    def _lose(self, reason: str, level: int = logging.WARNING) -> None:
        if self._distrusted:
            # The line ended because we hung up. Callers are told why we did.
            self._distrusted = False
            return
        if reason != self._reason:
            logger.log(level, "model not ready: %s", reason)
        self._model = None
        self._reason = reason
        self._listener.model_lost(reason)

    def _refused(self, answer: Answered) -> Unserved:
        text = bytes(answer.body[:200]).decode("utf-8", "replace")
        answered = f"the model server answered {answer.status}"
        message = f"{answered}: {text}"
        if answer.status == 503:
            return Lost(message) if answer.header(server_api.AT_WORK) else Busy(message)
        self._distrust(answered)
        return Unserved(message, status=502)

    def _nonsense(self, found: str, *, quoting: Exception | None = None) -> Unserved:
        self._distrust(found)
        return Unserved(found if quoting is None else f"{found}: {quoting}", status=502)

    def _distrust(self, reason: str) -> None:
        """Hang up: the model is not ready until a fresh handshake succeeds.

        The reason is logged and told to other callers, so it quotes no answer: that may quote a
        request.
        """
        if self._stream is None:
            return
        self._distrusts += 1
        self._lose(reason)
        self._distrusted = True
        self._stream.close()


def _event(line: bytes) -> StateEvent:
    try:
        return state_event_from_mapping(orjson.loads(line))
    except orjson.JSONDecodeError as error:
        raise LinkBroken("the model server's events are no JSON") from error
