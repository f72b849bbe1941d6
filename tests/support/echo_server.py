"""A model server that gives its inputs back, whatever datatypes they have, for tests of the front.

Our model server takes what a device can hold; this one takes everything that the protocols can say.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from batchedmodel_contract.inference.batch import BatchReply, BatchRequest
from batchedmodel_contract.inference.batch_wire import (
    to_request,
    write_reply,
)
from batchedmodel_contract.inference.description import (
    RAGGED,
    CostRule,
    ModelDescription,
    TensorSpec,
)
from batchedmodel_contract.inference.ragged import Ragged
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.inference.v2 import HEADER_LENGTH, read_body
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.processes import server_api
from support.chain import Chain, running_chain
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


class EchoServer:
    """Speaks to the sidecar as our model server does."""

    def __init__(self, description: ModelDescription) -> None:
        self._description = description

    @asynccontextmanager
    async def serving(self, socket: Path) -> AsyncIterator[None]:
        """Listen on the socket."""
        application = web.Application(client_max_size=1 << 30)
        application.router.add_get(server_api.events_path("m"), self._events)
        application.router.add_get(server_api.model_path("m"), self._metadata)
        application.router.add_get(server_api.profile_path("m"), self._profile)
        application.router.add_post(server_api.infer_path("m"), self.infer)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.UnixSite(runner, str(socket)).start()
            yield
        finally:
            await runner.cleanup()

    async def _events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        async for state in self.states():
            await response.write(b'{"state": "%s", "detail": ""}\n' % state.encode())
        await asyncio.Event().wait()
        return response

    async def states(self) -> AsyncIterator[str]:
        """Those that it tells whoever follows it."""
        yield "READY"

    async def _metadata(self, request: web.Request) -> web.Response:
        return web.json_response(self._description.to_metadata())

    async def _profile(self, request: web.Request) -> web.Response:
        return web.json_response(PROFILE.to_mapping())

    async def infer(self, request: web.Request) -> web.Response:
        """Answer one batch."""
        length = request.headers[HEADER_LENGTH]
        head, tensors = read_body(await request.read(), length, "inputs", json.loads)
        head_length, parts = write_reply(echoed(to_request(head, tensors)))
        return web.Response(body=b"".join(parts), headers={HEADER_LENGTH: str(head_length)})


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
