"""A data handler in front of a batcher in virtual time."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_http.response import Response, StreamedResponse
from batchedmodel_sidecar.body.byte_budget import ByteBudget
from batchedmodel_sidecar.body.shared_regions import SharedRegions
from batchedmodel_sidecar.codec.codec import Codec, body_helper
from batchedmodel_sidecar.discovery.discovery import Discovery
from batchedmodel_sidecar.http.admission import Admission
from batchedmodel_sidecar.http.body_reader import BodyReader
from batchedmodel_sidecar.http.data_handler import DataHandler
from batchedmodel_sidecar.http.inference import InferenceHandler
from batchedmodel_sidecar.http.request import RequestHead, Router
from batchedmodel_sidecar.http.responses import Refusals
from batchedmodel_sidecar.lifecycle import Lifecycle
from batchedmodel_sidecar.lora.served import ServedAdapters
from batchedmodel_sidecar.model import LinkStatus
from support.sidecar_world import MODEL, World, world


def data_handler(
    made: World,
    *,
    lifecycle: Lifecycle,
    bodies: BodyReader,
    codec: Codec,
    link: Any = None,
    names: ServedAdapters | None = None,
) -> DataHandler:
    """For the model `m` of our own server, which has no adapters unless `names` finds some."""
    names = names or ServedAdapters("m")
    refusals = Refusals(made.ledger, codec.protocols)
    clock = asyncio.get_running_loop().time
    admission = Admission(
        batcher=made.batcher,
        link=link,
        lifecycle=lifecycle,
        bodies=bodies,
        codec=codec,
        adapters=names,
        is_upstream=False,
        passes_on=False,
    )
    router = Router(
        "m", protocols=codec.protocols, upstream=None, generates=False, has_lora=names.are_known
    )
    return DataHandler(
        router=router,
        admission=admission,
        bodies=bodies,
        refusals=refusals,
        inferences=InferenceHandler(
            admission=admission,
            batcher=made.batcher,
            recorder=made.recorder,
            refusals=refusals,
            bodies=bodies,
            codec=codec,
            clock=clock,
        ),
        texts=None,
        passthrough=None,
        discovery=Discovery("m", router.find, names, upstream=False),
    )


SETTINGS: Final = BatchSettings(policy=PolicyName.GREEDY, max_batch_size=4)


def body(*values: object, **more: object) -> bytes:
    """A row of these values, in the form that is known once it was read."""
    x = {"name": "x", "datatype": "UINT8", "shape": [1, len(values)], "data": list(values)}
    return json.dumps({"inputs": [x], **more}).encode()


class PretendLink:
    """To a server that is ready."""

    status = LinkStatus(model=MODEL, reason="")

    def watch(self, closely: bool) -> None:
        """See `Link`."""


@dataclass
class Here:
    """A data handler in front of a batcher in virtual time."""

    world: World
    bodies: BodyReader
    lifecycle: Lifecycle
    handler: DataHandler
    told: list[Response] = field(default_factory=list)
    hears: Callable[[int], None] = lambda _: None
    """Called with the number of each answer."""

    def begin(self, sent: bytes, headers: Mapping[str, str] | None = None, name: str = "m") -> Any:
        """Begin to answer a call, to a model of this name, that came whole."""
        target = f"/v2/models/{name}/infer"
        head = RequestHead(method="POST", target=target, headers=headers or {}, declared=len(sent))
        return self.handler.answer(head, sent, "127.0.0.1", self._heard)

    def _heard(
        self, response: Response | StreamedResponse | None, error: BaseException | None
    ) -> None:
        assert error is None
        assert isinstance(response, Response)
        self.told.append(response)
        self.hears(len(self.told) - 1)

    async def asked(self, path: str) -> Response:
        """The answer to a question without a body."""
        head = RequestHead(method="GET", target=path, headers={}, declared=0)
        response = await self.handler.respond(head, b"")
        assert isinstance(response, Response)
        return response

    async def answer(
        self, sent: bytes, headers: Mapping[str, str] | None = None, name: str = "m"
    ) -> Response:
        """The answer to a call that came whole."""
        before = len(self.told)
        self.begin(sent, headers, name)
        await asyncio.sleep(1.0)
        (response,) = self.told[before:]
        return response

    @property
    def held(self) -> int:
        """Bytes that the budget counts."""
        return self.bodies._budget.in_use


async def here(
    settings: BatchSettings = SETTINGS,
    *,
    knows: bytes = body(1, 2),
    names: ServedAdapters | None = None,
) -> Here:
    """`knows`: a body whose form has been read before; `names`: see `data_handler`."""
    made, link = world(settings), PretendLink()
    bodies = BodyReader(max_bytes=10_000_000, budget=ByteBudget(50_000_000), slots=SharedRegions(1))
    lifecycle = Lifecycle(
        made.batcher, model=lambda: link.status, watch=link.watch, delay=0.0, limit=1.0
    )
    handler = data_handler(
        made,
        lifecycle=lifecycle,
        bodies=bodies,
        codec=Codec(body_helper(), most_rows=made.batcher.most_rows),
        link=link,
        names=names,
    )
    place = Here(made, bodies, lifecycle, handler)
    assert (await place.answer(knows)).status == 200
    return place


def text(response: Response) -> str:
    """The body of an answer."""
    return b"".join(map(bytes, response.parts)).decode()
