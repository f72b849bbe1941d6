"""The requests at the server: what they have been given, and what that says of the server.

A stream without a first token is overdue when it takes clearly longer than prompts ahead of it and
its own usually take: then it waits there for a place.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from batchedmodel_scheduling.batching.items import NEVER
from batchedmodel_scheduling.generation.ordered import Ordered
from batchedmodel_scheduling.generation.requests import Waiting

_CLEARLY: Final = 2.0
"""Times the usual time to the first token, and so many times between tokens more."""
_CLEARLY_TOKENS: Final = 3.0


class Running:
    """A request at the server."""

    __slots__ = (
        "alone",
        "cached",
        "first_at",
        "overdue",
        "prompt_seconds",
        "released_at",
        "tokens",
        "usual",
        "waiting",
    )

    def __init__(self, waiting: Waiting, now: float, *, alone: bool, prompt_seconds: float) -> None:
        self.waiting: Final = waiting
        self.released_at: Final = now
        self.alone: Final = alone
        """Whether it met a server with room, so that its first token shows how long that takes."""
        self.prompt_seconds: Final = prompt_seconds
        self.usual = NEVER
        """How long its first token takes if it need not wait for a place."""
        self.first_at = NEVER
        self.tokens = 0
        self.cached = 0
        """Tokens of its prompt that the server did not have to read, as far as it tells."""
        self.overdue = False

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
    reading: float
    """Of the streams, those whose prompts it should have been reading."""
    started: float
    """Of the streams, those that got their first token."""
    prompt_tokens: int
    """Of prompts that were read."""
    overdue: int
    """Streams that were overdue at once, at most."""
    tokens: int
    """Seen of streams."""
    whole_seconds: float
    """Of ended requests that are no streams, from their first token on, by guess."""
    whole_tokens: float
    completed: int


class AtServer:
    """Requests that were released and have not ended."""

    def __init__(self) -> None:
        self._running: Final[dict[int, Running]] = {}
        self._due: Final = Ordered[int, Running]()
        """Streams without a first token, by when they are overdue."""
        self._reading_until = 0.0
        """When it has read all prompts that it was given, if it reads one after the other."""
        self.sequences = 0
        self.reading_seconds = 0.0
        """Of prompts that it has not read, as far as streams show."""
        self.unstarted = 0
        """Streams without a first token."""
        self.work = 0.0
        """Expected of all that are here when they were released."""
        self.tokens = 0
        """That all that are here were given after their first."""
        self._streams = self._generating = self._overdue = 0
        self._began = self._at = 0.0
        self._sum_taken = self._sum_streams = self._sum_generating = self._sum_reading = 0.0
        self._most_overdue = self._span_tokens = self._completed = self._started = 0
        self._prompt_tokens = 0
        self._whole_seconds = self._whole_tokens = 0.0

    def __len__(self) -> int:
        return len(self._running)

    def newest(self) -> Iterator[Running]:
        """All that are here, the newest first."""
        return reversed(self._running.values())

    def get(self, request_id: int) -> Running | None:
        """The request, if it is here."""
        return self._running.get(request_id)

    def released(
        self, waiting: Waiting, now: float, *, room: bool, prompt: float, base: float, token: float
    ) -> None:
        """A request goes there.

        Reading its prompt takes `prompt` seconds, a first token `base` beside that, and any other
        `token`. `room`: the server has many more places than requests.
        """
        self._pass(now)
        request = waiting.request
        running = Running(waiting, now, alone=room and not self.unstarted, prompt_seconds=prompt)
        self._running[request.id] = running
        self.sequences += running.waiting.places
        self.work += waiting.work
        if not request.streams:
            return
        self._reading_until = max(self._reading_until, now) + prompt
        running.usual = self._reading_until + base - now
        self._streams += running.waiting.places
        self.unstarted += 1
        self.reading_seconds += prompt
        overdue = now + _CLEARLY * running.usual + _CLEARLY_TOKENS * token
        self._due.put(request.id, (overdue,), running)

    def found(self, running: Running, tokens: int, work: float) -> None:
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
        reading = min(running.usual, now - running.released_at)
        self._sum_reading += reading * running.waiting.places
        self._begin(running)
        running.first_at = now
        self._generating += running.waiting.places
        self._started += running.waiting.places
        self._prompt_tokens += running.waiting.request.prompt_tokens
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
        request = running.waiting.request
        self.sequences -= running.waiting.places
        self.tokens -= running.tokens
        self.work = max(0.0, self.work - running.waiting.work) if self._running else 0.0
        if request.streams:
            self._streams -= running.waiting.places
            if running.started:
                self._generating -= running.waiting.places
            else:
                self._begin(running)
        elif output:
            took = now - running.released_at - running.prompt_seconds
            self._whole_seconds += max(0.0, took) * running.waiting.places
            self._whole_tokens += output
        self._completed += well
        return running

    def look(self, now: float) -> Load | None:
        """What happened since the last look; None when no time has passed."""
        self._pass(now)
        seconds = now - self._began
        if seconds <= 0:
            return None
        load = Load(
            seconds=seconds,
            taken=self._sum_taken / seconds,
            streams=self._sum_streams / seconds,
            generating=self._sum_generating / seconds,
            reading=self._sum_reading / seconds,
            started=self._started,
            prompt_tokens=self._prompt_tokens,
            overdue=self._most_overdue,
            tokens=self._span_tokens,
            whole_seconds=self._whole_seconds,
            whole_tokens=self._whole_tokens,
            completed=self._completed,
        )
        self._sum_taken = self._sum_streams = self._sum_generating = self._sum_reading = 0.0
        self._whole_seconds = self._whole_tokens = 0.0
        self._span_tokens = self._completed = self._started = 0
        self._prompt_tokens = 0
        self._most_overdue, self._began = self._overdue, now
        return load

    def since_look(self, now: float) -> float:
        """Seconds since the last look."""
        return now - self._began

    def begin_at(self, now: float) -> None:
        """Nothing happened before: the first look is at what comes from now on."""
        self._began = self._at = now

    def _begin(self, running: Running) -> None:
        """A stream waits for its first token no more."""
        self.unstarted -= 1
        self._due.discard(running.waiting.request.id)
        if running.overdue:
            self._overdue -= 1
        else:
            self._read(running)

    def _read(self, running: Running) -> None:
        left = self.reading_seconds - running.prompt_seconds
        self.reading_seconds = max(0.0, left) if self.unstarted else 0.0

    def _pass(self, now: float) -> None:
        """Add up the time that has passed, and find what is overdue."""
        passed = now - self._at
        if passed > 0:
            self._sum_taken += passed * self.sequences
            self._sum_streams += passed * self._streams
            self._sum_generating += passed * self._generating
            self._at = now
        while (key := self._due.first_key()) is not None and key[0] <= now:
            running = self._due.first()
            assert running is not None
            self._due.discard(running.waiting.request.id)
            running.overdue = True
            self._overdue += 1
            self._most_overdue = max(self._most_overdue, self._overdue)
            self._read(running)
        if not self.unstarted:
            self._reading_until = min(self._reading_until, now)
