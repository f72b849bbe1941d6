"""What a connection is sent of the model: all of it when it begins, then each change."""

from collections.abc import Callable, Sequence

from batchedmodel_contract.inference.tensors import Buffer
from batchedmodel_contract.link.kinds import Kind
from batchedmodel_contract.link.model_frames import (
    Adapters,
    ServedModel,
    write_adapters,
    write_model,
    write_profile,
    write_state,
)
from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_model_server.lifecycle.service import ModelService
from batchedmodel_model_server.lifecycle.state import Topic
from batchedmodel_model_server.lifecycle.versions import Version

SendFrame = Callable[[Kind, int, Sequence[Buffer]], None]
_MODEL_ID = 0  # of frames about the model, which keep their order by it


class Announcements:
    """Sends frames about the model over one connection."""

    def __init__(self, service: ModelService, send: SendFrame) -> None:
        self._service = service
        self._send = send
        self._described: Version | None = None
        """The version whose MODEL was sent last."""
        self._labelled: set[int] = set()
        """Adapters whose labels were sent."""

    def begin(self) -> None:
        """Send all of it."""
        self.changed(Topic.ADAPTERS)
        self.changed(Topic.STATE)

    def changed(self, topic: Topic) -> None:
        """Send what has changed; the first frame about a version is all that is known of it."""
        serving = self._service.serving
        if topic is Topic.ADAPTERS:
            self._send_adapters()
        elif topic is Topic.PROFILE:
            if serving is not None:
                self._announce(Kind.PROFILE, [write_profile(serving.profile)])
        else:
            state = self._service.lifecycle.event
            if state.state is ModelState.READY and serving is not None:
                self._send_model(serving)
            self._announce(Kind.STATE, [write_state(state)])

    def _send_model(self, serving: Version) -> None:
        if serving is self._described:
            return
        self._described = serving
        model = ServedModel(
            description=serving.description,
            profile=serving.profile,
            generation=serving.generation,
            tokenizer=serving.tokenizer or b"",
        )
        self._announce(Kind.MODEL, write_model(model))

    def _send_adapters(self) -> None:
        states, serving = self._service.lifecycle.adapters, self._service.serving
        if states is None:
            return
        labels: dict[int, tuple[str, ...]] = {}
        if serving is not None and serving.adapters is not None:
            for number in {one.number for one in states} - self._labelled:
                names = serving.adapters.labels_of(number)
                if names is not None:
                    labels[number] = names
        self._labelled |= labels.keys()
        self._announce(Kind.ADAPTERS, [write_adapters(Adapters(states=states, labels=labels))])

    def _announce(self, kind: Kind, parts: Sequence[Buffer]) -> None:
        self._send(kind, _MODEL_ID, parts)
