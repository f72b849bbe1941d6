"""A model server that gives its inputs back, whatever datatypes they have, for tests of the front.

Our model server takes what a device can hold; this one takes everything that the protocols can say.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from batchedmodel_contract.inference.batch import (
    BatchReply,
    BatchRequest,
    Ragged,
)
from batchedmodel_contract.inference.description import (
    RAGGED,
    CostRule,
    ModelDescription,
    TensorSpec,
)
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.manifest.batching import BatchSettings
from support.chain import Chain, running_chain
from support.private_hop import Nonsense, PretendModel, serving
from support.sidecar_world import PROFILE

ECHO = "echo_"
"""What the name of an output begins with; its input's name follows."""


def echoing(**inputs: tuple[Datatype, tuple[int, ...]]) -> ModelDescription:
    """A model of these inputs, by name with datatype and shape, and an output for each."""
    specs = [
        TensorSpec(name=name, datatype=datatype, shape=shape)
        for name, (datatype, shape) in inputs.items()
    ]
    return ModelDescription(
        name="m",
        version="3",
        platform="echo",
        inputs=tuple(specs),
        outputs=tuple(
            TensorSpec(name=ECHO + spec.name, datatype=spec.datatype, shape=spec.shape)
            for spec in specs
        ),
        cost_rule=CostRule.ROWS,
    )


EVERY_DATATYPE = echoing(**{one.value.lower(): (one, (RAGGED,)) for one in Datatype})
"""An input of every datatype, named after it."""


def echoed(request: BatchRequest) -> BatchReply:
    """Every item as it came."""
    count = len(request.inputs[0].shapes)
    return BatchReply(
        outputs=tuple(
            Ragged(
                name=ECHO + one.name, datatype=one.datatype, shapes=one.shapes, parts=(one.data,)
            )
            for one in request.inputs
        ),
        statuses=(200,) * count,
        errors=("",) * count,
        compute_seconds=0.001,
        queue_seconds=0.0,
        tokens=count,
        padded_tokens=count,
    )


class EchoServer(PretendModel):
    """Speaks to the sidecar as our model server does."""

    def __init__(self, description: ModelDescription) -> None:
        super().__init__(description, PROFILE)

    def serving(self, socket: Path) -> AbstractAsyncContextManager[None]:
        """Listen on the socket."""
        return serving(socket, self)

    async def answer(self, batch: BatchRequest) -> BatchReply | Nonsense:
        """Answer one batch."""
        return echoed(batch)


@asynccontextmanager
async def echo_chain(
    folder: Path,
    description: ModelDescription,
    settings: BatchSettings | None = None,
    **sidecar_settings: Any,
) -> AsyncIterator[Chain]:
    """A real sidecar in front of an echo."""
    async with (
        EchoServer(description).serving(folder / "model.sock"),
        running_chain(
            folder, handler="none", start_model=False, settings=settings, **sidecar_settings
        ) as chain,
    ):
        await chain.ready()
        yield chain
