"""A data handler in front of a batcher in virtual time."""

import asyncio
from typing import Any

from batchedmodel_sidecar.codec.codec import Codec
from batchedmodel_sidecar.http.body_reader import BodyReader
from batchedmodel_sidecar.http.data_handler import DataHandler
from batchedmodel_sidecar.http.inference import InferenceHandler
from batchedmodel_sidecar.http.refusals import Refusals
from batchedmodel_sidecar.lifecycle import Lifecycle
from support.sidecar_world import World


def data_handler(
    made: World, *, lifecycle: Lifecycle, bodies: BodyReader, codec: Codec, link: Any = None
) -> DataHandler:
    """For the model `m` of our own server."""
    refusals = Refusals(made.ledger, codec.adapters)
    return DataHandler(
        "m",
        inferences=InferenceHandler(
            batcher=made.batcher,
            link=link,
            lifecycle=lifecycle,
            ledger=made.ledger,
            recorder=made.recorder,
            bodies=bodies,
            codec=codec,
            is_foreign=False,
            passes_on=False,
            clock=asyncio.get_running_loop().time,
            refusals=refusals,
        ),
        refusals=refusals,
        batcher=made.batcher,
        link=link,
        lifecycle=lifecycle,
        ledger=made.ledger,
        bodies=bodies,
        adapters=codec.adapters,
        foreign=None,
        passthrough=None,
        repository=None,
    )
