"""Where bodies are parsed and made, and what callers are told when the helper cannot."""

from array import array
from dataclasses import replace
from typing import Any, Final

import orjson
import pytest

from batchedmodel_contract.inference.description import (
    RAGGED,
    Activation,
    Classification,
    TensorSpec,
    TextInput,
)
from batchedmodel_contract.inference.tensors import Datatype
from batchedmodel_contract.manifest.tenants import NOBODY
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_http.response import LARGE
from batchedmodel_sidecar.body.buffers import json_bytes
from batchedmodel_sidecar.body.byte_budget import ByteBudget, Hold
from batchedmodel_sidecar.calls import Answer, Output, Value
from batchedmodel_sidecar.codec.codec import LARGE_ANSWER, Codec, body_helper
from batchedmodel_sidecar.errors import RETRY_SOON, CallError, Rejected, Unserved
from batchedmodel_sidecar.helper.client import HelperClient
from batchedmodel_sidecar.helper.shared_memory import SharedMemory
from batchedmodel_sidecar.http.body_reader import placed
from batchedmodel_sidecar.lora.served import ChosenAdapter, ServedAdapters
from batchedmodel_sidecar.protocols.routes import Endpoint
from batchedmodel_sidecar.protocols.table import public_protocols
from batchedmodel_sidecar.tokenizer import Tokens, text_threads
from support.sidecar_world import MODEL
from support.text_handlers import tokenizer_json

OURS: Final = public_protocols()[Endpoint.V2_INFER]


class NoHelper(HelperClient):
    """Takes jobs and fails at them all."""

    def __init__(self, *, full: bool = False) -> None:
        super().__init__("large bodies", "nothing", places=0 if full else 16)
        self.jobs: list[Any] = []

    async def do(self, job: Any, *args: Any, **more: Any) -> Any:
        self.jobs.append(job)
        raise Rejected(Rejection.NOT_READY, "it is not there", retry_after=RETRY_SOON)


def codec(helper: HelperClient) -> Codec:
    return Codec(helper, most_rows=lambda share: 100)


def held() -> Hold:
    return ByteBudget(1 << 30).hold(NOBODY)


def question(**more: Any) -> bytes:
    entry = {"name": "x", "datatype": "UINT8", "shape": [1, 2], "data": [1, 2]}
    return orjson.dumps({"inputs": [entry], **more})


def answer(size: int) -> Answer:
    value = Value((size,), bytes(size))
    return Answer(outputs=(Output("y", Datatype.UINT8),), rows=((value,),))


@pytest.mark.parametrize(
    ("size", "head", "expected"),
    [(9, None, 9), (9, "3", 3), (9, "30", 9), (9, "-3", 0), (9, "3.0", 0), (9, "9" * 19, 0)],
)
def test_how_much_of_a_body_is_json(size: int, head: str | None, expected: int) -> None:
    assert json_bytes(size, head) == expected


def test_a_body_lies_in_shared_memory_if_its_json_is_large() -> None:
    large = bytes(LARGE + 1)
    assert isinstance(placed(large, None), SharedMemory)
    assert placed(large, "100") is large
    assert placed(large[:-1], None) is not None


async def test_a_body_that_the_helper_fails_at_may_come_again() -> None:
    memory = SharedMemory()
    memory.write(question())
    with pytest.raises(Rejected) as refused:
        await codec(NoHelper()).parse(OURS, memory, None, MODEL, held())
    assert (refused.value.status, refused.value.retry_after) == (503, 1.0)


async def test_a_body_that_finds_no_place_may_come_later() -> None:
    with pytest.raises(Rejected) as refused:
        codec(NoHelper(full=True)).refuse_large(NOBODY)
    assert (refused.value.status, refused.value.reason) == (429, "queue_full")
    assert refused.value.retry_after


async def test_small_bodies_and_answers_need_no_helper() -> None:
    helper = NoHelper()
    ours = codec(helper)
    parsed = await ours.parse(OURS, question(), None, MODEL, held())
    await ours.render(OURS, parsed, answer(LARGE_ANSWER), MODEL)
    assert helper.jobs == []


async def test_a_large_answer_in_binary_needs_no_helper() -> None:
    helper = NoHelper()
    ours = codec(helper)
    body = question(parameters={"binary_data_output": True})
    parsed = await ours.parse(OURS, body, None, MODEL, held())
    rendered = await ours.render(OURS, parsed, answer(LARGE_ANSWER + 1), MODEL)
    assert sum(map(len, rendered.tail)) == LARGE_ANSWER + 1
    assert helper.jobs == []


async def test_a_large_answer_that_the_helper_fails_at_is_an_error_of_its_call() -> None:
    helper = body_helper()
    await helper.close()
    ours = codec(helper)
    parsed = await ours.parse(OURS, question(), None, MODEL, held())
    with pytest.raises(Unserved, match="this pod is stopping") as failed:
        await ours.render(OURS, parsed, answer(LARGE_ANSWER + 1), MODEL)
    assert (failed.value.status, failed.value.retry_after) == (503, 1.0)


@pytest.mark.parametrize("own", [None, ("C", "D")], ids=["the model's", "an adapter's"])
@pytest.mark.parametrize(("words", "helped"), [(20, False), (500, False), (1000, True)])
async def test_labels_of_many_tokens_are_made_by_the_helper(
    words: int, helped: bool, own: tuple[str, str] | None
) -> None:
    text = TextInput(name="text", tokens="ids", max_tokens=4096)
    labels = Classification(output="y", labels=("A", "B"), activation=Activation.SOFTMAX)
    description = replace(
        MODEL.description,
        inputs=(TensorSpec(name="ids", datatype=Datatype.INT64, shape=(RAGGED,), max_length=4096),),
        outputs=(TensorSpec(name="y", datatype=Datatype.FP32, shape=(RAGGED, 2)),),
        text=text,
        classification=labels,
    )
    tokens = Tokens(tokenizer_json(), text, text_threads(1))
    tagger = replace(MODEL, description=description, tokens=tokens)
    helper = NoHelper()
    ours, classify = codec(helper), public_protocols()[Endpoint.CLASSIFY]
    body = orjson.dumps({"inputs": " ".join(["w1"] * words)})
    parsed = await ours.parse(classify, body, None, tagger, held())
    chosen = ChosenAdapter("a", 1, 0, ServedAdapters("m"), own)
    parsed = parsed if own is None else parsed.for_adapter(chosen)
    length = parsed.call.rows[0].length
    scores = Value((length, 2), array("f", [1, 3] * length).tobytes())
    # Of a size that is nothing to write when the numbers are all there is.
    given = Answer(outputs=(Output("y", Datatype.FP32),), rows=((scores,),))
    assert given.size < LARGE_ANSWER
    if helped:
        with pytest.raises(CallError):
            await ours.render(classify, parsed, given, tagger)
        assert helper.jobs[0].args[-1] == own
    else:
        told = await ours.render(classify, parsed, given, tagger)
        entries = orjson.loads(bytes(told.data))
        assert len(entries) >= words
        assert {entry["entity"] for entry in entries} == {"B" if own is None else "D"}
    assert len(helper.jobs) == helped
