"""What reading and answering a call asks of a public protocol."""

from typing import Any, Final, Protocol

import orjson

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_sidecar.calls import Answer, Call
from batchedmodel_sidecar.errors import CallError
from batchedmodel_sidecar.lora.served import ChosenAdapter, Labels
from batchedmodel_sidecar.model import ReadyModel
from batchedmodel_sidecar.protocols.headers import NO_OPTIONS, RequestOptions


class Body:
    """The body of an answer, with the headers that belong to its form."""

    __slots__ = ("content_type", "data", "headers", "tail")

    def __init__(
        self,
        data: Buffer,
        tail: tuple[Buffer, ...] = (),
        content_type: str = "application/json",
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """`tail`: what follows `data`, in as many buffers as it happens to lie in."""
        self.data: Final = data
        self.tail: Final = tail
        self.content_type: Final = content_type
        self.headers: Final = headers


class Parsed:
    """A call, what its body wishes, and what the adapter must remember to answer it."""

    __slots__ = ("_labels", "call", "kept", "memo", "named", "options")

    def __init__(
        self,
        call: Call,
        memo: Any,
        options: RequestOptions = NO_OPTIONS,
        kept: int = 0,
        named: str | None = None,
        labels: Labels | None = None,
    ) -> None:
        """Only the protocol looks into `memo`, which can be pickled.

        `kept`: bytes of the memory in which rows and memo lie, where they lie in some of their own.
        `named`: what the body names beside the model, such as one of its fine-tunings. `labels`:
        those of the call's adapter, where the call comes without it.
        """
        self.call: Final = call
        self.memo: Final = memo
        self.options: Final = options
        self.kept: Final = kept
        self.named: Final = named
        self._labels: Final = labels

    def for_adapter(self, chosen: ChosenAdapter) -> "Parsed":
        """The same for one of the model's fine-tunings, by whose name it is answered."""
        call = self.call.for_adapter(chosen)
        return Parsed(call, self.memo, self.options, self.kept, chosen.name)

    @property
    def labels(self) -> Labels | None:
        """By which its adapter classifies; None: by those of the model."""
        adapter = self.call.adapter
        return self._labels if adapter is None else adapter.labels

    def answered_by(self, model: ReadyModel) -> str:
        """Who answers, by the name that the answer says."""
        return self.named or model.description.name


class PublicProtocol(Protocol):
    """One public protocol."""

    async def parse(
        self, body: Buffer, header_length: str | None, model: ReadyModel, most_rows: int
    ) -> Parsed:
        """The call in a body, of at most so many rows; raises `InvalidInput` or `Rejected`."""
        ...

    def texts(self, parsed: Parsed, answer: Answer) -> int:
        """How many bytes of tensors `render` turns into JSON, or what takes it as long."""
        return answer.size

    def render(self, parsed: Parsed, answer: Answer, model: ReadyModel) -> Body:
        """The body that answers the call; raises `InvalidInput` when JSON cannot say it."""
        ...

    def error(self, error: CallError) -> Body:
        """An error in the protocol's own form."""
        return Body(data=orjson.dumps({"error": error.message}))
