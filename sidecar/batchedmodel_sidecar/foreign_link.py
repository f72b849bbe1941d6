"""The connection to a v2 server of somebody else's, over TCP.

Such a server has no events and no batch extension: it is asked for its readiness, its rows must be
rectangular, and it gets one batch at a time. Whatever it answers to a batch, status included, goes
to the batch's callers.
"""

import asyncio
import logging
from typing import Any, Final

import aiohttp
import orjson

from batchedmodel_contract.batch_wire import OK, BatchReply, BatchRequest, Ragged
from batchedmodel_contract.description import (
    RAGGED,
    CostRule,
    ModelDescription,
    TensorSpec,
)
from batchedmodel_contract.mistakes import InvalidInput
from batchedmodel_contract.tensors import Datatype, Tensor
from batchedmodel_contract.v2 import read_body, to_json
from batchedmodel_sidecar.errors import Unserved
from batchedmodel_sidecar.link import LinkListener, LinkStatus
from batchedmodel_sidecar.model import ReadyModel

logger: Final = logging.getLogger(__name__)

_CHECK_SECONDS: Final = 2.0  # between questions for readiness, while it is ready and while not
_ANSWER_WITHIN: Final = 5.0
_RETRY_SOON: Final = 1.0
_SHOWN_BYTES: Final = 500


class ForeignLink:
    """Follows one v2 server and carries batches to it as plain v2 requests in JSON."""

    def __init__(self, name: str, url: str, listener: LinkListener) -> None:
        self._name = name
        self._model_url = f"{url}/v2/models/{name}"
        self._listener = listener
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        self._model: ReadyModel | None = None
        self._reason = "the model has not been reached yet"
        self._stuck = False
        self._at_work = 0
        """Batches that the server has now."""

    @property
    def status(self) -> LinkStatus:
        """Whether the model can be asked now."""
        return LinkStatus(model=self._model, reason=self._reason, stuck=self._stuck)

    async def follow(self) -> None:
        """Ask for readiness for ever: nothing else tells when a foreign server comes or goes."""
        while True:
            try:
                async with asyncio.timeout(_ANSWER_WITHIN):
                    await self._check()
            except TimeoutError:
                # A server with one thread answers nothing while it computes, and that is no loss.
                if not self._at_work:
                    self._lose("the model does not answer the question for readiness")
            except InvalidInput as error:
                self._lose(str(error))
            except (aiohttp.ClientError, OSError) as error:
                logger.debug("check: %r", error)
                self._lose("the model cannot be reached")
            except Exception as bug:
                # What a server says must not end the process that stands in front of it.
                logger.error("check", exc_info=bug)
                self._lose(f"error in the sidecar: {type(bug).__name__}")
            await asyncio.sleep(_CHECK_SECONDS)

    async def infer(self, request: BatchRequest, seconds: float) -> BatchReply:
        """One v2 call for the whole batch; raises `Unserved`."""
        rows = len(request.inputs[0].shapes)
        inputs = [to_json(_rectangle(tensor)) for tensor in request.inputs]
        started = asyncio.get_running_loop().time()
        self._at_work += 1
        try:
            async with (
                asyncio.timeout(seconds),
                self._session.post(
                    f"{self._model_url}/infer",
                    data=orjson.dumps({"inputs": inputs}),
                    headers={"Content-Type": "application/json"},
                ) as response,
            ):
                body = await response.read()
        except TimeoutError as error:
            self._stuck = True
            raise Unserved("the model does not answer", status=504) from error
        except (aiohttp.ClientError, OSError) as error:
            logger.debug("batch: %r", error)
            message = "the model went away while it worked on this"
            raise Unserved(message, status=503, retry_after=_RETRY_SOON) from error
        finally:
            self._at_work -= 1
        self._stuck = False
        if response.status != OK:
            text = body[:_SHOWN_BYTES].decode("utf-8", "replace")
            retry_after = _RETRY_SOON if response.status in (429, 503) else None
            raise Unserved(text, status=response.status, retry_after=retry_after)
        try:
            _, tensors = read_body(body, None, "outputs", orjson.loads)
            outputs = tuple(_rows_of(tensor, rows) for tensor in tensors)
        except InvalidInput as error:
            raise Unserved(f"the model answers nonsense: {error}", status=502) from error
        return BatchReply(
            outputs=outputs,
            statuses=(OK,) * rows,
            errors=("",) * rows,
            compute_seconds=asyncio.get_running_loop().time() - started,
            queue_seconds=0.0,
            tokens=rows,
            padded_tokens=rows,
        )

    async def close(self) -> None:
        """Hang up."""
        await self._session.close()

    async def _check(self) -> None:
        async with self._session.get(f"{self._model_url}/ready") as response:
            if response.status != OK:
                self._lose(f"the model answers {response.status} to the question for readiness")
                return
        # It answers again: whatever it was stuck in is over.
        self._stuck = False
        if self._model is None:
            async with self._session.get(self._model_url) as response:
                if response.status != OK:
                    self._lose(f"the model answers {response.status} to the question for metadata")
                    return
                self._found(_described(self._name, await response.read()))

    def _found(self, description: ModelDescription) -> None:
        self._model = ReadyModel(
            description=description, profile=None, tokens=None, depth=1, rows_pad=False
        )
        self._reason = ""
        self._stuck = False
        self._listener.model_ready(self._model)

    def _lose(self, reason: str) -> None:
        if reason != self._reason:
            logger.warning("model not ready: %s", reason)
        self._model = None
        self._reason = reason
        self._listener.model_lost(reason)


def _described(name: str, document: bytes) -> ModelDescription:
    """What can be learnt from v2 metadata; raises `InvalidInput` when it cannot be batched."""
    try:
        metadata = orjson.loads(document)
        return ModelDescription(
            name=name,
            version=str((metadata.get("versions") or ["1"])[-1]),
            platform=str(metadata.get("platform", "")),
            inputs=tuple(_spec(entry) for entry in metadata["inputs"]),
            outputs=tuple(_spec(entry) for entry in metadata.get("outputs", [])),
            cost_rule=CostRule.ROWS,
        )
    except InvalidInput:
        raise
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise InvalidInput("metadata", f"is not that of a v2 model: {error!r}") from error


def _spec(entry: Any) -> TensorSpec:
    shape = tuple(int(size) for size in entry["shape"])
    if not shape or shape[0] != RAGGED:
        rule = "has no variable first dimension, so its rows cannot be batched"
        raise InvalidInput(f"metadata of {entry['name']}", rule, list(shape))
    return TensorSpec(name=entry["name"], datatype=Datatype(entry["datatype"]), shape=shape[1:])


def _rectangle(tensor: Ragged) -> Tensor:
    """The rows as one tensor: rows of other shapes have another key and are in another batch."""
    return Tensor(
        name=tensor.name,
        datatype=tensor.datatype,
        shape=(len(tensor.shapes), *tensor.shapes[0]),
        data=tensor.data,
    )


def _rows_of(tensor: Tensor, rows: int) -> Ragged:
    if not tensor.shape or tensor.shape[0] != rows:
        rule = f"has not {rows} rows in its first dimension"
        raise InvalidInput(f"outputs.{tensor.name}.shape", rule, list(tensor.shape))
    return Ragged(
        name=tensor.name,
        datatype=tensor.datatype,
        shapes=(tensor.shape[1:],) * rows,
        parts=(tensor.data,),
    )
