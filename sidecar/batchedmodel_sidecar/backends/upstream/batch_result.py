"""What an upstream server's answers mean for each row of one batch, and what its callers are told.

Pure; the link uses it while it searches for the rows that spoil a batch.
"""

import re
from collections.abc import Hashable, Iterable, Sequence
from enum import Enum, auto
from typing import Any, Final

from batchedmodel_contract.inference.bisection import Rows
from batchedmodel_sidecar.backends.upstream.headers import end_to_end, shared
from batchedmodel_sidecar.backends.upstream.protocol import Response, SplitReply, Subject
from batchedmodel_sidecar.calls import Output, RawReply, RowAnswer, RowFailure
from batchedmodel_sidecar.errors import Busy, Unserved, UpstreamReply

_SHOWN_BYTES: Final = 500
_REST_SECONDS: Final = 1.0  # for a busy server that does not say how long
_MOST_DIGITS: Final = 9
_SERVER_ERROR: Final = 500
_INSUFFICIENT_STORAGE: Final = 507
_OUT_OF_MEMORY: Final = re.compile(
    rb"out of memory|outofmemory|cannot allocate memory|failed to allocate|bad_alloc"
    rb"|resource_exhausted|resource exhausted|memoryerror",
    re.IGNORECASE,
)
_BUSY: Final = frozenset({429, 503})
# About the request as such, about who sends it, or from a proxy on the way.
_NEVER_A_ROWS: Final = frozenset({401, 403, 404, 405, 406, 407, 408, 415, 501, 502, 504, 505})
_MOST_SUBJECTS: Final = 1024
_GROW_AFTER_SECONDS: Final = 60.0
"""For which full batches must have gone well before more is believed in."""


class Verdict(Enum):
    """What an answer of the server says about the rows that it was sent."""

    FINE = auto()
    SPOILT = auto()
    """A row may be to blame."""
    OUTGROWN = auto()
    """Its memory does not hold so many."""
    BUSY = auto()
    """It wants to be left alone for a while, and has done nothing."""
    WHOLE = auto()
    """No row can be to blame."""


def judged(status: int, body: bytes) -> Verdict:
    """The verdict in a status and the first kilobytes of a body."""
    if 200 <= status < 300:
        return Verdict.FINE
    if status == _INSUFFICIENT_STORAGE or (status >= 500 and _OUT_OF_MEMORY.search(body)):
        return Verdict.OUTGROWN
    if status in _BUSY:
        return Verdict.BUSY
    if status in _NEVER_A_ROWS or status < 400:
        return Verdict.WHOLE
    return Verdict.SPOILT


class MemoryRoom:
    """How many rows a server's memory is believed to hold: falls at once, grows slowly."""

    def __init__(self) -> None:
        self._since = 0.0
        self.rows: int | None = None
        """None while it never was too small."""

    def outgrown(self, room: int, now: float) -> None:
        """A batch did not fit, and so many rows do."""
        self.rows = room if self.rows is None else min(self.rows, room)
        self._since = now

    def fine(self, rows: int, now: float) -> bool:
        """So many rows were answered in one request; returns whether more are believed in now."""
        if self.rows is None or rows < self.rows or now - self._since < _GROW_AFTER_SECONDS:
            return False
        self.rows += max(1, self.rows // 8)
        self._since = now
        return True


class Evidence:
    """Whether a server's outputs have a row for each row that was sent: known, and never guessed.

    A server may have outputs without a batch dimension (labels, a threshold) and not say so. One of
    three values looks like a row for each of three callers; but it does not become two when two
    rows are sent. So an answer is divided among callers only when each of its outputs has been as
    long as the rows for two numbers of rows of one form: by the shape of a row or a parameter a
    caller could choose how long an output is. An output that followed the rows of one form does so
    for all. Kept for one start of the server. A subject of None needs no evidence.
    """

    def __init__(self) -> None:
        self._seen: dict[Subject, dict[str, int]] = {}
        """By output the number of rows that it was once as long as."""
        self._proven: dict[Hashable, set[str]] = {}
        """Outputs of what is asked that follow the rows."""

    def wants_trial(self, subject: Subject | None, rows: int) -> bool:
        """Whether an answer to so many rows proves nothing unless one to fewer comes first."""
        if subject is None or self._proven.get(subject.asked):
            return False
        seen = self._seen.get(subject)
        # Where every output was for the request as a whole there is nothing to prove.
        return seen is None or (bool(seen) and all(size == rows for size in seen.values()))

    def saw(self, subject: Subject | None, outputs: Iterable[str], rows: int) -> str | None:
        """These were as long as the rows; returns one of which that proves nothing yet."""
        if subject is None:
            return None
        proven = self._proven.get(subject.asked, set())
        left = [name for name in outputs if name not in proven]
        if proven and not left:
            return None
        _make_room(self._seen, subject)
        seen = self._seen.setdefault(subject, {})
        unproven = None
        for name in left:
            if seen.setdefault(name, rows) == rows:
                unproven = name
            else:
                _make_room(self._proven, subject.asked)
                self._proven.setdefault(subject.asked, set()).add(name)
        return unproven

    def contradicted(self, subject: Subject | None) -> None:
        """An output was not as long as the rows: what was seen before may have been chance."""
        if subject is not None:
            self._proven.pop(subject.asked, None)
            for one in [known for known in self._seen if known.asked == subject.asked]:
                del self._seen[one]


def _make_room(known: dict[Any, Any], key: Hashable) -> None:
    """The oldest makes room for a new one."""
    if key not in known and len(known) >= _MOST_SUBJECTS:
        del known[next(iter(known))]


class BatchResult:
    """What has become of each row of one batch."""

    def __init__(self, owners: Sequence[int]) -> None:
        """`owners` is the call of each row."""
        self._owners = owners
        self._answers: list[RowAnswer | RowFailure | None] = [None] * len(owners)
        self._names: tuple[Output, ...] = ()
        self.fault: Unserved | None = None
        """What ended the search before every row was settled."""

    def of_one_call(self, rows: Rows) -> bool:
        """Whether these rows are one call's."""
        return len({self._owners[row] for row in rows}) == 1

    def answered(self, rows: Rows, dealt: SplitReply, response: Response) -> None:
        """These rows have answers."""
        self._names = dealt.outputs
        reply = UpstreamReply(
            status=response.status,
            headers=self._headers(rows, response, refused=False),
            content_type=response.content_type,
            frame=dealt.frame,
        )
        for row, values in zip(rows, dealt.rows, strict=True):
            self._answers[row] = RowAnswer(values, reply)

    def refused(self, rows: Rows, response: Response) -> None:
        """These rows get the server's own words."""
        reply, message = self._words(rows, response)
        for row in rows:
            self._answers[row] = RowFailure(status=response.status, message=message, reply=reply)

    def failed(self, rows: Sequence[int], error: Unserved) -> None:
        """These rows get words of ours."""
        for row in rows:
            self._answers[row] = RowFailure(
                status=error.status, message=error.message, answered=error.answered
            )

    def refusal(self, rows: Rows, response: Response) -> Unserved:
        """The error for rows of which none is to blame for what the server answered."""
        reply, message = self._words(rows, response)
        if response.status not in _BUSY:
            return Unserved(message, status=response.status, reply=reply, answered=True)
        return Busy(
            message,
            status=response.status,
            retry_after=_retry_after(response),
            reply=reply,
            answered=True,
        )

    def reply(self, seconds: float, *, passes: int) -> RawReply:
        """The reply, once every row is settled or there is a fault."""
        refused = {
            owner
            for owner, answer in zip(self._owners, self._answers, strict=True)
            if isinstance(answer, RowFailure) and answer.status >= _SERVER_ERROR
        }
        settled = len(self._answers) - self._answers.count(None)
        if self.fault is None:
            assert settled == len(self._answers), "a row was left without an answer: our bug"
        return RawReply(
            compute_seconds=seconds,
            tokens=settled,
            padded_tokens=settled,
            names=self._names,
            answers=tuple(self._answers),
            refused=len(refused),
            fault=self.fault,
            passes=passes,
        )

    def _headers(
        self, rows: Rows, response: Response, *, refused: bool
    ) -> tuple[tuple[str, str], ...]:
        if self.of_one_call(rows):
            return end_to_end(response.headers)
        return shared(response.headers, refused=refused)

    def _words(self, rows: Rows, response: Response) -> tuple[UpstreamReply | None, str]:
        """What the refused are told, whole, and its beginning for logs.

        Half of a document says nothing to a program: in its place they get words of ours.
        """
        body = bytes(response.body)
        begins = body[:_SHOWN_BYTES].decode("utf-8", "replace")
        if not response.whole:
            many = f"the model refused this with more than {len(body)} bytes, which begin: {begins}"
            return None, many
        reply = UpstreamReply(
            status=response.status,
            headers=self._headers(rows, response, refused=True),
            content_type=response.content_type,
            body=body,
        )
        return reply, begins


def _retry_after(response: Response) -> float:
    """Seconds of the header, which may also be a date: that is passed on and not understood."""
    for name, value in response.headers:
        if name.lower() == "retry-after" and value.isascii() and value.isdigit():
            return float(value[:_MOST_DIGITS])
    return _REST_SECONDS
