"""What a connection asks of who answers its calls, and how it hears of their ends."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from batchedmodel_http.request_head import Head
from batchedmodel_http.response import Response
from batchedmodel_http.streamed_response import StreamedResponse

Reply = Callable[[Response | StreamedResponse | None, BaseException | None], None]
"""Hears how a call ended: one of the two. A streamed answer ends by itself."""
AskedIn = TypeVar("AskedIn", bound=Head, contravariant=True)


def unheard(response: Response | StreamedResponse | None, error: BaseException | None) -> None:
    """A `Reply` of a caller that has left."""


class Answers(Protocol[AskedIn]):
    """Who answers what is asked."""

    def is_call(self, asked: AskedIn) -> bool:
        """Whether `answer` is asked; `StreamingProtocol` gets all else."""
        ...

    def answer(self, asked: AskedIn, source: bytes, caller: str, reply: Reply) -> "Running":
        """Begin to answer a call with this body.

        `reply` is called once, perhaps before this returns: with a response or `NeedsStreaming`, or
        with an error where there is a bug.
        """
        ...


class Running(Protocol):
    """A call that is being answered."""

    def cancel(self) -> None:
        """Its caller has left: end it. Nobody is told anything any more."""
        ...
