"""The devices and the loads of the benchmark `throughput`, as data.

The limit of a device is what its formula leaves when batches are serialised: no way of asking gets
more out of it.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.tensors import HEADER_LENGTH
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_kube.manifest.batching import Batching
from batchedmodel_kube.manifest.pod_settings import batch_settings
from batchedmodel_kube.manifest.spec import Model, Spec
from scheduling_bench.affine import Affine


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A simulated device behind a sidecar with a manifest's defaults."""

    name: str
    curve: Affine
    max_batch_size: int
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Further ones of the simulated handler."""

    @property
    def limit(self) -> float:
        """Rows per second."""
        return self.max_batch_size / self.curve.seconds([1] * self.max_batch_size)

    @property
    def settings(self) -> BatchSettings:
        """What a manifest says that gives nothing but the largest batch."""
        batching = Batching(max_batch_size=self.max_batch_size)
        return batch_settings(Spec(model=Model(), batching=batching))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request: its body and what else tells of it."""

    body: bytes
    rows: int = 1
    headers: Mapping[str, str] | None = None
    """None says that the body is JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """A closed loop on a device."""

    name: str
    device: Device
    connections: int
    ask: Ask


FIRST_CURVE: Final = Affine(fixed=0.005, per_row=0.0001, rule=CostRule.ROWS)
SECOND_CURVE: Final = Affine(fixed=0.002, per_row=0.00005, rule=CostRule.ROWS)
FIRST: Final = Device(name="device 1", curve=FIRST_CURVE, max_batch_size=32)
SECOND: Final = Device(name="device 2", curve=SECOND_CURVE, max_batch_size=64)
UNBATCHED: Final = Device(name="device 1 unbatched", curve=FIRST_CURVE, max_batch_size=1)
_NUMBERS: Final = Device(
    name="device 1 that answers 384 floats",
    curve=FIRST_CURVE,
    max_batch_size=32,
    parameters={"floats": "384"},
)
_PIXELS: Final = 3 * 224 * 224
_IMAGES: Final = Device(
    name="device 1 that takes images",
    curve=FIRST_CURVE,
    max_batch_size=32,
    parameters={"datatype": "FP32", "elements": str(_PIXELS), "floats": "1000"},
)
DEVICES: Final = (FIRST, SECOND, UNBATCHED, _NUMBERS, _IMAGES)


def _json(rows: int, elements: int, largest: int, least: int = 1) -> Ask:
    values = random.Random(0).choices(range(least, largest + 1), k=rows * elements)
    x = {"name": "x", "shape": [rows, elements], "datatype": "INT64", "data": values}
    return Ask(body=orjson.dumps({"inputs": [x]}), rows=rows)


def _image() -> Ask:
    data = random.Random(0).randbytes(2 * _PIXELS)
    pixels = b"".join(data[at : at + 2] + b"\x80\x3f" for at in range(0, len(data), 2))
    x = {"name": "x", "shape": [1, _PIXELS], "datatype": "FP32"}
    head = orjson.dumps({"inputs": [x | {"parameters": {"binary_data_size": len(pixels)}}]})
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(head))}
    return Ask(body=head + pixels, headers=headers)


ONE_ROW: Final = _json(1, 4, 9)

BUSY: Final = (
    Closed(name="device 1, closed loop 256", device=FIRST, connections=256, ask=ONE_ROW),
    Closed(name="device 2, closed loop 512", device=SECOND, connections=512, ask=ONE_ROW),
)
LONE: Final = (
    Closed(name="device 1, lone request", device=FIRST, connections=1, ask=ONE_ROW),
    Closed(name="device 2, lone request", device=SECOND, connections=1, ask=ONE_ROW),
)
SINGLE: Final = Closed(
    name="device 1 unbatched, closed loop 256", device=UNBATCHED, connections=256, ask=ONE_ROW
)
SHAPES: Final = (
    Closed(
        name="device 1, rows of 128 tokens",
        device=FIRST,
        connections=256,
        ask=_json(1, 128, 30_000),
    ),
    Closed(name="device 1, answers of 384 floats", device=_NUMBERS, connections=256, ask=ONE_ROW),
    Closed(name="device 1, lists of 32 rows", device=FIRST, connections=32, ask=_json(32, 4, 9)),
    Closed(
        name="device 1, images of 600 kB in binary", device=_IMAGES, connections=64, ask=_image()
    ),
)
LARGE: Final = Closed(
    name="13 MiB JSON bodies",
    device=FIRST,
    connections=2,
    ask=_json(32, 2**15, 10**12 - 1, least=10**11),
)
"""Numbers of twelve digits and a comma; the answers are as large."""
