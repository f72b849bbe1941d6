"""The process that prepares requests: it works for all, and its end harms nobody for long."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import orjson
import pytest
import pytest_asyncio

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.tenants import NOBODY
from batchedmodel_sidecar.body.byte_budget import ByteBudget
from batchedmodel_sidecar.errors import ModelNotFound, Rejected
from batchedmodel_sidecar.generation.native.preparer import TextEndpoint, TextPreparer, TextRequest
from batchedmodel_sidecar.generation.native.texts import Preparing
from support.byte_tokenizer import described, tokenizer_json

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELD = ByteBudget(1).hold(NOBODY)
_LOOPS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}"
    "{% if messages[0].content != 'loop' %}{% break %}{% endif %}"
    "{% endfor %}{% if messages[0].content != 'loop' %}{% break %}{% endif %}{% endfor %}"
    "{% if messages[0].content == 'grow' %}{{ 'x' * 10 ** 11 }}{% endif %}"
    "{{ messages[0].content }}"
)


def _chat(text: str, model: object = "m") -> bytes:
    return orjson.dumps({"model": model, "messages": [{"role": "user", "content": text}]})


@pytest.fixture(scope="module")
def texts() -> TextPreparer:
    return TextPreparer("m", described(chat_template=_LOOPS), tokenizer_json())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def preparing() -> AsyncIterator[Preparing]:
    made = Preparing()
    yield made
    await made.close()


async def _prepared(preparing: Preparing, texts: TextPreparer, body: bytes) -> TextRequest:
    async with asyncio.timeout(30):
        return await preparing.prepare(texts, TextEndpoint.CHAT, body, HELD)


async def test_requests_come_back_as_they_would_be_made_here(
    preparing: Preparing, texts: TextPreparer
) -> None:
    bodies = [_chat(f"text {number}") for number in range(50)]
    found = await asyncio.gather(*[_prepared(preparing, texts, body) for body in bodies])
    assert found == [texts.prepare(TextEndpoint.CHAT, body) for body in bodies]


async def test_refusals_keep_their_kind_and_their_field(
    preparing: Preparing, texts: TextPreparer
) -> None:
    with pytest.raises(InvalidInput, match="body: is not JSON"):
        await _prepared(preparing, texts, b"{")
    with pytest.raises(ModelNotFound) as refused:
        await _prepared(preparing, texts, _chat("a", model=7))
    assert (refused.value.status, refused.value.field) == (404, "model")


async def test_a_template_that_loops_costs_its_caller_alone(
    preparing: Preparing, texts: TextPreparer
) -> None:
    looping = asyncio.create_task(_prepared(preparing, texts, _chat("loop")))
    await asyncio.sleep(0)
    others = [_prepared(preparing, texts, _chat(str(number))) for number in range(5)]
    assert len(await asyncio.gather(*others)) == 5
    with pytest.raises(InvalidInput, match="busy for more than 1 s"):
        await looping


async def test_a_template_that_takes_all_memory_costs_its_caller_alone(
    preparing: Preparing, texts: TextPreparer
) -> None:
    growing = asyncio.create_task(_prepared(preparing, texts, _chat("grow")))
    await asyncio.sleep(0)
    others = [_prepared(preparing, texts, _chat(str(number))) for number in range(5)]
    assert len(await asyncio.gather(*others)) == 5
    with pytest.raises(InvalidInput, match="messages: make the model's chat template fail: Memory"):
        await growing


async def test_small_bodies_do_not_wait_for_large_ones(
    preparing: Preparing, texts: TextPreparer
) -> None:
    roomy = TextPreparer(
        "m", described(max_context_tokens=4_000_000, blocks=1_000_000), tokenizer_json()
    )
    large = [
        asyncio.create_task(_prepared(preparing, roomy, _chat("x" * 1_000_000))) for _ in range(8)
    ]
    await asyncio.sleep(0)
    for number in range(20):
        await _prepared(preparing, texts, _chat(str(number)))
    assert sum(one.done() for one in large) < 8
    for one in large:
        one.cancel()
    ended = await asyncio.gather(*large, return_exceptions=True)
    assert any(isinstance(one, asyncio.CancelledError) for one in ended)


async def test_what_leavers_left_is_not_begun(preparing: Preparing, texts: TextPreparer) -> None:
    looping = [asyncio.create_task(_prepared(preparing, texts, _chat("loop"))) for _ in range(30)]
    await asyncio.sleep(0.1)
    for one in looping:
        one.cancel()
    # What the process had is not given to the next one either.
    os.kill(_pid(preparing), signal.SIGKILL)
    assert (await _prepared(preparing, texts, _chat("a"))).prompts
    assert not preparing._small._room.in_use


async def test_bodies_that_were_there_when_it_was_killed_are_read_by_the_next_one(
    preparing: Preparing, texts: TextPreparer
) -> None:
    looping = asyncio.create_task(_prepared(preparing, texts, _chat("loop")))
    await asyncio.sleep(0)
    others = [
        asyncio.create_task(_prepared(preparing, texts, _chat(str(number)))) for number in range(5)
    ]
    await asyncio.sleep(0.1)
    os.kill(_pid(preparing), signal.SIGKILL)
    assert len(await asyncio.gather(*others)) == 5
    with pytest.raises(InvalidInput, match="busy for more than 1 s"):
        await looping


async def test_a_body_over_which_it_ends_twice_is_given_up(
    preparing: Preparing, texts: TextPreparer
) -> None:
    looping = asyncio.create_task(_prepared(preparing, texts, _chat("loop")))
    for _ in range(2):
        while preparing._small._process is None:  # noqa: ASYNC110  nobody else tells
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        os.kill(_pid(preparing), signal.SIGKILL)
        await asyncio.sleep(0.1)
    with pytest.raises(Rejected, match="the process that works on requests for text ended"):
        await looping


async def test_a_body_over_which_it_hangs_is_given_up_in_time(texts: TextPreparer) -> None:
    preparing = Preparing(stuck_seconds=0.4)
    try:
        async with asyncio.timeout(30):
            with pytest.raises(Rejected, match="is stuck"):
                await preparing.prepare(texts, TextEndpoint.CHAT, _chat("loop"), HELD)
    finally:
        await preparing.close()


async def test_another_model_is_told_before_its_first_body(preparing: Preparing) -> None:
    other = TextPreparer("other", described(), tokenizer_json())
    request = await _prepared(preparing, other, _chat("hi", model="other"))
    assert bytes(request.prompts[0].tolist()) == b"<user>hi\n<assistant>"


def _pid(preparing: Preparing) -> int:
    process = preparing._small._process
    assert process is not None
    assert process._child is not None
    return process._child.pid
