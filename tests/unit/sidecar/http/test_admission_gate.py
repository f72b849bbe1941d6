"""Whether calls are taken is asked once for a call that never waits, and again behind a wait."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Final, cast

import pytest

from batchedmodel_contract.outcomes import Rejection
from batchedmodel_sidecar.body.byte_budget import ByteBudget
from batchedmodel_sidecar.body.shared_regions import SharedRegions
from batchedmodel_sidecar.codec.codec import Codec, body_helper
from batchedmodel_sidecar.http.body_reader import BodyReader
from batchedmodel_sidecar.http.data_handler import DataHandler
from batchedmodel_sidecar.http.request import RequestHead
from batchedmodel_sidecar.lifecycle import Lifecycle
from batchedmodel_sidecar.protocols.protocol import Parsed
from support.handler_world import data_handler
from support.hostile_tokenizers import Panic
from support.sidecar_world import World, world

pytestmark = [pytest.mark.looptime, pytest.mark.interpreted]

BODY: Final = json.dumps(
    {"inputs": [{"name": "x", "datatype": "UINT8", "shape": [1, 2], "data": [1, 2]}]}
).encode()


@dataclass
class Gate:
    """A life cycle that counts how often it is asked."""

    closed: bool = False
    asked: int = 0

    def takes_calls(self) -> bool:
        self.asked += 1
        return not self.closed


class Slow(Codec):
    """Reads bodies after a while."""

    seconds = 0.0

    async def parse(self, *arguments: Any) -> Parsed:
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return await super().parse(*arguments)


@dataclass
class Here:
    """A front with nothing but what it needs for a small call."""

    world: World
    gate: Gate
    front: DataHandler

    async def asks(self) -> int:
        """The status of a call that came whole."""
        asked = RequestHead(
            method="POST", target="/v2/models/m/infer", headers={}, declared=len(BODY)
        )
        return (await self.front.respond(asked, BODY)).status


def here(seconds: float) -> Here:
    made, gate = world(), Gate()
    codec = Slow(body_helper(), most_rows=lambda share: 100)
    codec.seconds = seconds
    front = data_handler(
        made,
        lifecycle=cast("Lifecycle", gate),
        bodies=BodyReader(max_bytes=10_000, budget=ByteBudget(10_000), slots=SharedRegions(1)),
        codec=codec,
    )
    return Here(made, gate, front)


async def test_a_call_that_waits_for_nothing_asks_once() -> None:
    place = here(seconds=0.0)
    assert await place.asks() == 200
    assert place.gate.asked == 1


async def test_a_call_that_was_read_for_a_while_asks_again() -> None:
    place = here(seconds=0.5)
    call = asyncio.create_task(place.asks())
    await asyncio.sleep(0.1)
    place.gate.closed = True
    assert await call == 503
    assert place.gate.asked == 2
    assert place.world.ledger.rejected == {Rejection.DRAINING: 1}


@pytest.mark.parametrize("seconds", [0.0, 0.5])
async def test_whatever_is_raised_over_a_call_its_caller_is_told_and_it_is_counted(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def panics(self: Slow, *arguments: Any) -> Parsed:
        if seconds:
            await asyncio.sleep(seconds)
        raise Panic("of a library")

    monkeypatch.setattr(Slow, "parse", panics)
    place = here(seconds=0.0)
    assert await place.asks() == 500
    assert place.world.ledger.rejected == {Rejection.INVALID: 1}
