"""Handlers without torch, each with one habit; also named as custom handlers of real processes."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from batchedmodel_contract.inference.batch import BatchRequest, ragged
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.manifest.batching import MAX_LENGTH
from batchedmodel_model_server.api.handler import (
    DTYPES,
    Array,
    Batch,
    Handler,
    Invalid,
    Param,
    Spec,
)
from batchedmodel_model_server.batching.declaration import declaration_of
from batchedmodel_model_server.execution.forward import LoadedModel


class OnHost(Handler):
    """Base: no torch, no device."""

    def device(self) -> str:
        """None that torch would know."""
        return "host"


class Echo(OnHost):
    """Answers its tokens, their sum and a vector, so that mixed-up rows are seen."""

    inputs: Mapping[str, Spec] = {"x": Spec("INT64", ("L",), pad=-7, max=1000)}
    outputs: Mapping[str, Spec] = {
        "y": Spec("INT64", ("L",)),
        "sum": Spec("FP32", ()),
        "pair": Spec("FP32", (2,)),
    }

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Echo."""
        x = batch.array("x")
        total = np.where(x == -7, 0, x).sum(1)
        return {"y": x, "sum": total, "pair": np.stack([total, -total], 1)}


@dataclass
class Clock:
    """Simulated time in seconds; a sleep is over at once."""

    now: float = 0.0

    def read(self) -> float:
        """The time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class Timed(Echo):
    """Takes `pace` for each token, three times as long for a shape it sees for the first time."""

    def __init__(self, clock: Clock, pace: float = 1.0) -> None:
        self.clock = clock
        self.pace = pace
        self.seen: list[tuple[int, int]] = []

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Let the time pass, and echo."""
        rows, length = batch.array("x").shape
        first = (rows, length) not in self.seen
        self.seen.append((rows, length))
        self.clock.sleep(self.pace * rows * length * (3 if first else 1))
        return super().forward(batch)


class Maskless(OnHost):
    """Answers the mean of its numbers, and takes the padding for some of them."""

    inputs: Mapping[str, Spec] = {"x": Spec("FP32", ("L",), max=64)}
    outputs: Mapping[str, Spec] = {"mean": Spec("FP32", ())}

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Average."""
        return {"mean": batch.array("x").mean(1)}


class Sum(OnHost):
    """Answers the sum of as many numbers as one row may hold, so that answers are small."""

    inputs: Mapping[str, Spec] = {"x": Spec("INT64", ("L",), max=MAX_LENGTH)}
    outputs: Mapping[str, Spec] = {"y": Spec("INT64", ())}

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Add up."""
        return {"y": batch.array("x").sum(1)}


class Scaled(OnHost):
    """Answers its numbers as each item's request wants them."""

    inputs: Mapping[str, Spec] = {"x": Spec("FP32", ("L",), max=100)}
    outputs: Mapping[str, Spec] = {"y": Spec("FP32", ("L",))}
    params: Mapping[str, Param] = {
        "scale": Param("FP32", 1.0, min=-10, max=10),
        "shift": Param("INT64", 0),
        "negate": Param("BOOL", False),
        "rounding": Param("BYTES", "none", choices=("none", "down", "up")),
    }

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Compute."""
        params = batch.params
        y = batch.array("x") * params.array("scale")[:, None] + params.array("shift")[:, None]
        y = np.where(params.array("negate")[:, None], -y, y)
        rounded = {"none": y, "down": np.floor(y), "up": np.ceil(y)}
        return {"y": [rounded[wanted][row] for row, wanted in enumerate(params["rounding"])]}


class Failing(Echo):
    """Fails a batch that holds a 13, refuses an item that starts with 99, stumbles over 98."""

    def check(self, item: Mapping[str, Array]) -> None:
        """Refuse 99, stumble over 98."""
        if item["x"][0] == 99:
            raise Invalid("x: 99 is not served here")
        if item["x"][0] == 98:
            raise IndexError("98")

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Echo, or raise."""
        if (batch.array("x") == 13).any():
            raise RuntimeError("13 brings bad luck")
        return super().forward(batch)


class Slow(Echo):
    """Takes half a second to load."""

    def load(self, path: Path | None, device: str) -> None:
        """Sleep."""
        time.sleep(0.5)


class Lingering(Echo):
    """Takes a third of a second to unload."""

    def unload(self) -> None:
        """Sleep, and say so."""
        time.sleep(0.3)
        logging.getLogger(__name__).info("lingered long enough")


class Broken(Echo):
    """Cannot be loaded."""

    def load(self, path: Path | None, device: str) -> None:
        """Raise."""
        raise FileNotFoundError("weights.bin")


class Quitting(Echo):
    """Tries to end the process from within."""

    def load(self, path: Path | None, device: str) -> None:
        """Raise SystemExit."""
        raise SystemExit(3)


class Times(OnHost):
    """Answers its numbers times the one that its folder holds, and fails on a 0 there."""

    inputs: Mapping[str, Spec] = {"x": Spec("INT64", ("L",), max=64)}
    outputs: Mapping[str, Spec] = {"y": Spec("INT64", ("L",))}

    def load(self, path: Path | None, device: str) -> None:
        """Read the factor, taking the seconds that a second file says."""
        assert path is not None
        self.factor = int((path / "factor.txt").read_text())
        slow = path / "seconds.txt"
        time.sleep(float(slow.read_text()) if slow.exists() else 0)

    def forward(self, batch: Batch) -> Mapping[str, Any]:
        """Multiply."""
        if self.factor == 0:
            raise RuntimeError("a factor of 0 is of no use")
        return {"y": batch.array("x") * self.factor}


def version_of(folder: Path, factor: int, seconds: float = 0.0) -> None:
    """Put such a model's files into a folder, which appears as a whole."""
    coming = folder.with_name(f"{folder.name}.coming")
    coming.mkdir(parents=True)
    (coming / "factor.txt").write_text(str(factor))
    (coming / "seconds.txt").write_text(str(seconds))
    coming.rename(folder)


class NoForward(OnHost):
    """Lacks its one method."""

    inputs: Mapping[str, Spec] = {"x": Spec("INT64", (1,))}
    outputs: Mapping[str, Spec] = {"y": Spec("INT64", (1,))}


class Unmakeable(Echo):
    """Wants an argument that nobody gives."""

    def __init__(self, argument: str) -> None:
        self.argument = argument


class Giving(OnHost):
    """Answers whatever it was made with."""

    def __init__(
        self, given: Any, outputs: Mapping[str, Spec], inputs: Mapping[str, Spec] | None = None
    ) -> None:
        self.inputs = inputs or {"x": Spec("INT64", ("L",), max=100)}
        self.outputs = outputs
        self._given = given

    def forward(self, batch: Batch) -> Any:
        """The given."""
        return self._given


def loaded(handler: Handler, device: str = "host") -> LoadedModel:
    """The handler as if it had been loaded from a manifest."""
    return LoadedModel(handler=handler, declaration=declaration_of(handler), device=device)


def batch_of(**inputs: list[Any]) -> BatchRequest:
    """A batch; each input is a list of one array per item, all of one datatype."""
    of_dtype = {dtype: datatype for datatype, dtype in DTYPES.items()}
    tensors = []
    for name, items in inputs.items():
        arrays = [np.asarray(item) for item in items]
        datatype = of_dtype[arrays[0].dtype] if arrays else Datatype.INT64
        tensors.append(ragged(name, datatype, [(a.shape, a.tobytes()) for a in arrays]))
    return BatchRequest(inputs=tuple(tensors))


def arrays_of(output: Any) -> list[Array]:
    """The items of a reply's tensor."""
    dtype = DTYPES[output.datatype]
    return [
        np.frombuffer(data, dtype).reshape(shape)
        for data, shape in zip(output.items(), output.shapes, strict=True)
    ]
