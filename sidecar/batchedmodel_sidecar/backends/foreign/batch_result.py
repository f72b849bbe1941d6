"""What a foreign server's answers mean for each row of one batch, and what its callers are told.

Pure; filled by `upstream.link` while it searches for the rows that spoil a batch.
"""

from collections.abc import Sequence
from typing import Final

from batchedmodel_contract.inference.isolation import Rows
from batchedmodel_sidecar.backends.foreign.headers import Headers, end_to_end, shared
from batchedmodel_sidecar.backends.foreign.protocol import Response, SplitReply
from batchedmodel_sidecar.batching.batch_reply import RawReply, RowFailure
from batchedmodel_sidecar.calls import Output, RowAnswer, Said
from batchedmodel_sidecar.errors import Busy, Unserved

_SHOWN_BYTES: Final = 500
_REST_SECONDS: Final = 1.0  # for a busy server that does not say how long
_MOST_DIGITS: Final = 9
_SERVER_ERROR: Final = 500


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
        """Whether what these rows are told is told to one caller."""
        return len({self._owners[row] for row in rows}) == 1

    def answered(self, rows: Rows, dealt: SplitReply, said: Said) -> None:
        """These rows have answers."""
        self._names = dealt.outputs
        for row, values in zip(rows, dealt.rows, strict=True):
            self._answers[row] = RowAnswer(values, said)

    def refused(self, rows: Rows, response: Response) -> None:
        """These rows get the server's own words."""
        said, message = _words(response, alone=self.of_one_call(rows))
        for row in rows:
            self._answers[row] = RowFailure(status=response.status, message=message, said=said)

    def failed(self, rows: Sequence[int], error: Unserved) -> None:
        """These rows get words of ours."""
        for row in rows:
            self._answers[row] = RowFailure(
                status=error.status, message=error.message, answered=error.answered
            )

    def reply(self, seconds: float, *, passes: int) -> RawReply:
        """The reply, once every row is settled or there is a fault."""
        pairs = zip(self._owners, self._answers, strict=True)
        refused = {owner for owner, answer in pairs if _is_server_error(answer)}
        settled = len(self._answers) - self._answers.count(None)
        if self.fault is None:
            assert settled == len(self._answers), "a row was left without an answer: our bug"
        return RawReply(
            outputs=(),
            statuses=(),
            errors=(),
            compute_seconds=seconds,
            queue_seconds=0.0,
            tokens=settled,
            padded_tokens=settled,
            names=self._names,
            answers=tuple(self._answers),
            refused=len(refused),
            fault=self.fault,
            passes=passes,
        )


def _is_server_error(answer: RowAnswer | RowFailure | None) -> bool:
    return isinstance(answer, RowFailure) and answer.status >= _SERVER_ERROR


def said_to(response: Response, dealt: SplitReply, *, alone: bool) -> Said:
    """What those who are answered are told beside their rows."""
    return Said(
        status=response.status,
        headers=end_to_end(response.headers) if alone else shared(response.headers, refused=False),
        content_type=response.content_type,
        frame=dealt.frame,
    )


def _words(response: Response, *, alone: bool) -> tuple[Said | None, str]:
    """What the refused are told, whole, and its beginning for logs.

    Half of a document says nothing to a program: in its place they get words of ours.
    """
    given = end_to_end(response.headers) if alone else shared(response.headers, refused=True)
    body = bytes(response.body)
    if not response.whole:
        begins = body[:_SHOWN_BYTES].decode("utf-8", "replace")
        message = f"the model refused this with more than {len(body)} bytes, which begin: {begins}"
        return None, message
    said = Said(
        status=response.status,
        headers=given,
        content_type=response.content_type,
        body=body,
    )
    return said, body[:_SHOWN_BYTES].decode("utf-8", "replace")


def refusal(response: Response, *, busy: bool, alone: bool) -> Unserved:
    """What all members of a batch are told that no row has spoilt."""
    said, message = _words(response, alone=alone)
    if not busy:
        return Unserved(message, status=response.status, said=said, answered=True)
    seconds = _retry_after(response.headers)
    return Busy(
        message,
        status=response.status,
        retry_after=_REST_SECONDS if seconds is None else seconds,
        said=said,
        answered=True,
    )


def _retry_after(headers: Headers) -> float | None:
    """Seconds of the header, which may also be a date: that is passed on and not understood."""
    for name, value in headers:
        if name.lower() == "retry-after" and value.isascii() and value.isdigit():
            return float(value[:_MOST_DIGITS])
    return None
