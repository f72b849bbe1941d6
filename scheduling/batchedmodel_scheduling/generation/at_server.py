"""The requests that a server has: what they were given, and what that shows of the server."""

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from batchedmodel_scheduling.generation.requests import Waiting
from batchedmodel_scheduling.queue.items import NEVER
from batchedmodel_scheduling.queue.shared_room import SharedRoom


class Running:
    """A request at the server."""

    __slots__ = ("begun_before", "cached", "first_at", "released_at", "tokens", "waiting")

    def __init__(self, waiting: Waiting, now: float, begun: int) -> None:
        """`begun`: streams that had begun at the server before it went."""
        self.waiting: Final = waiting
        self.begun_before: Final = begun
        self.released_at: Final = now
        self.first_at = NEVER
        self.tokens = 0
        """That came after the first."""
        self.cached = 0
        """Tokens of its prompt that the server did not have to read, as far as it tells."""

    @property
    def read_tokens(self) -> int:
        """Of its prompt, that the server has to read."""
        return max(0, self.waiting.request.prompt_tokens - self.cached)

    @property
    def started(self) -> bool:
        """Whether its first token has been seen."""
        return self.first_at != NEVER


class Load(NamedTuple):
    """What the server did in a span of time; sequences are choices of requests, on average."""

    seconds: float
    taken: float
    """Sequences of requests at the server."""
    streams: float
    """Of these, those whose tokens are seen."""
    generating: float
    """Of the streams, those that have a first token."""
    started: int
    """Of the streams, those that got their first token."""
    prompt_tokens: int
    """Of prompts that were read."""
    tokens: int
    """Seen of streams."""
    whole_seconds: float
    """Of ended requests that are no streams, from when they went, times their sequences."""
    whole_tokens: int
    completed: int


class AtServer:
    """Requests that were released and have not ended."""

    def __init__(self, here: SharedRoom) -> None:
        """`here` counts them as well, beside those that wait."""
        self.here: Final = here
        self.sequences = 0
        self.of: Final = Counter[str]()
        """Sequences by tenant."""
        self.unread: Final[dict[int, Running]] = {}
        """Streams without a first token, the oldest first."""
        self.unread_tokens = 0
        """Of their prompts."""
        self._begun = 0
        """Streams that have begun so far."""
        self.work = 0.0
        """Expected of all that are here when they were released."""
        self.tokens = 0
        """That all that are here were given after their first."""
        self.streams = self.generating = 0
        """Sequences of streams, and of requests that have a first token."""
        self._running: Final[dict[int, Running]] = {}
        self._at = 0.0
        self.began = 0.0
        """When the span began of which `look` tells."""
        self._sum_taken = self._sum_streams = self._sum_generating = self._whole_seconds = 0.0
        self._span_tokens = self._completed = self._started = self._prompt_tokens = 0
        self.whole_tokens = 0
        """Of requests that are no streams and ended in the span."""

    def __len__(self) -> int:
        return len(self._running)

    def newest(self) -> Iterator[Running]:
        """All that are here, the newest first."""
        return reversed(self._running.values())

    def get(self, request_id: int) -> Running | None:
        """The request, if it is here."""
        return self._running.get(request_id)

    def set_overtaken_aside(self) -> None:
        """Streams count as read once as many others have begun since they went as are here.

        One other is not enough: of several engines behind one address the slower begins later.
        """
        for one in list(self.unread.values()):
            if self._begun - one.begun_before >= self.sequences and self._is_read(one):
                self.streams -= one.waiting.places

    def released(self, waiting: Waiting, now: float) -> None:
        """A request goes there."""
        self._pass(now)
        request = waiting.request
        running = self._running[request.id] = Running(waiting, now, self._begun)
        self.here.take(request.share, 1)
        self.of[request.share.tenant] += waiting.places
        self.sequences += waiting.places
        self.work += waiting.work
        if request.streams:
            self.streams += waiting.places
            self.unread[request.id] = running
            self.unread_tokens += request.there.prompt_tokens

    def cached_prefix(self, running: Running, tokens: int, work: float) -> None:
        """The server had so many tokens of its prompt: it costs so much less."""
        running.cached += tokens
        running.waiting.work -= work
        self.work = max(0.0, self.work - work)

    def first_token(self, request_id: int, now: float) -> Running | None:
        """A stream begins; None if it is not here, or began before."""
        running = self._running.get(request_id)
        if running is None or running.started or not running.waiting.request.streams:
            return None
        self._pass(now)
        if not self._is_read(running):
            self.streams += running.waiting.places
        running.first_at = now
        self._begun += 1
        self.generating += running.waiting.places
        self._started += running.waiting.places
        self._prompt_tokens += running.read_tokens
        return running

    def count_tokens(self, request_id: int, count: int) -> None:
        """So many tokens came after the first."""
        running = self._running.get(request_id)
        if running is not None:
            running.tokens += count
            self.tokens += count
            self._span_tokens += count

    def ended(
        self, request_id: int, now: float, *, output: int | None = None, well: bool = False
    ) -> Running | None:
        """A request ended, after so many tokens as far as is known; None if it is not here."""
        self._pass(now)
        running = self._running.pop(request_id, None)
        if running is None:
            return None
        request, places = running.waiting.request, running.waiting.places
        self.here.give_back(request.share.tenant, 1)
        self.of[request.share.tenant] -= places
        if not self.of[request.share.tenant]:
            del self.of[request.share.tenant]
        self.sequences -= places
        self.tokens -= running.tokens
        self.work = max(0.0, self.work - running.waiting.work) if self._running else 0.0
        if request.streams:
            if running.started:
                self.streams -= places
                self.generating -= places
            elif self._is_read(running):
                self.streams -= places
        elif output:
            self._whole_seconds += (now - running.released_at) * places
            self.whole_tokens += output
        self._completed += well
        return running

    def look(self, now: float) -> Load:
        """What happened since the last look, which was before now."""
        self._pass(now)
        seconds = now - self.began
        load = Load(
            seconds=seconds,
            taken=self._sum_taken / seconds,
            streams=self._sum_streams / seconds,
            generating=self._sum_generating / seconds,
            started=self._started,
            prompt_tokens=self._prompt_tokens,
            tokens=self._span_tokens,
            whole_seconds=self._whole_seconds,
            whole_tokens=self.whole_tokens,
            completed=self._completed,
        )
        self.begin_at(now)
        return load

    def begin_at(self, now: float) -> None:
        """A span begins."""
        self.began = self._at = now
        self._sum_taken = self._sum_streams = self._sum_generating = self._whole_seconds = 0.0
        self._span_tokens = self._completed = self._started = self.whole_tokens = 0
        self._prompt_tokens = 0

    def _is_read(self, running: Running) -> bool:
        """Whether it counted as one that is not."""
        request = running.waiting.request
        if self.unread.pop(request.id, None) is None:
            return False
        self.unread_tokens -= request.there.prompt_tokens
        return True

    def _pass(self, now: float) -> None:
        """Add up the time that has passed."""
        passed = now - self._at
        if passed > 0:
            self._sum_taken += passed * self.sequences
            self._sum_streams += passed * self.streams
            self._sum_generating += passed * self.generating
            self._at = now
