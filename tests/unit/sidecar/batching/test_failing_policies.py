"""A policy with a mistake of ours in it costs no caller more than it must, and is found out."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from batchedmodel_contract.manifest.batching import BatchSettings, PolicyName
from batchedmodel_scheduling.batching.decisions import Finished, HandedOver
from batchedmodel_sidecar.errors import Busy, Expired, Lost, Unserved
from support.sidecar_world import World, rows_of, world

pytestmark = [pytest.mark.looptime, pytest.mark.interpreted]

SETTINGS = BatchSettings(policy=PolicyName.GREEDY, max_batch_size=8, request_timeout_seconds=3.0)
FAILURE = "the policy failed over what it was told"


def mistake(*_: object, **__: object) -> Any:
    raise ZeroDivisionError


def broken_over(kind: type, observe: Callable[..., None]) -> Callable[..., None]:
    """Fails over events of this kind before anything else is done with them."""
    return lambda event, now: mistake() if isinstance(event, kind) else observe(event, now)


def break_over(w: World, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = w.batcher.policy
    monkeypatch.setattr(policy, "observe", broken_over(kind, policy.observe))


async def test_a_batch_whose_end_the_policy_does_not_take_in_is_answered_and_liveness_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    w = world(SETTINGS)
    break_over(w, Finished, monkeypatch)
    assert rows_of(await w.send(b"a")) == [b"a"]
    assert FAILURE in caplog.text
    assert w.batcher.ailment() == "the policy does not know that a batch has ended"
    await asyncio.sleep(60.0)
    assert w.batcher.ailment() is not None, "a good decision is no cure"


def stop_learning(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(w.batcher.policy.pipeline.times, "observe", mistake)


def hide_hand_overs(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    break_over(w, HandedOver, monkeypatch)


@pytest.mark.parametrize("harm", [stop_learning, hide_hand_overs])
async def test_a_policy_that_fails_without_losing_track_goes_on(
    harm: Callable[[World, pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    w = world(SETTINGS)
    harm(w, monkeypatch)
    assert rows_of(await w.send(b"a")) == [b"a"]
    assert rows_of(await w.send(b"b")) == [b"b"]
    assert FAILURE in caplog.text
    assert w.batcher.ailment() is None


@pytest.mark.parametrize(
    ("failure", "where"),
    [
        (Busy("later", status=503, retry_after=0.1), "policy.come_back"),
        (Lost("the model server went away"), "_quarantine.takes"),
    ],
)
async def test_a_row_that_cannot_be_tried_again_is_told_so_at_once(
    failure: Unserved, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = world(SETTINGS)
    owner, method = where.split(".")
    w.server.failure = failure
    with monkeypatch.context() as patch:
        part = getattr(w.batcher, owner)
        patch.setattr(part, method, mistake)
        began = asyncio.get_running_loop().time()
        with pytest.raises(Unserved, match="error in the sidecar: ZeroDivisionError"):
            await w.send(b"a")
        assert asyncio.get_running_loop().time() - began < 0.1
    w.server.failure = None
    await asyncio.sleep(1.0)
    assert rows_of(await w.send(b"b")) == [b"b"]
    assert w.batcher.ailment() is None


async def test_who_cannot_be_withdrawn_from_the_policy_is_told_that_time_is_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    w = world(SETTINGS, attached=False)
    monkeypatch.setattr(w.batcher.policy, "withdraw", mistake)
    began = asyncio.get_running_loop().time()
    with pytest.raises(Expired):
        await w.send(b"a")
    assert asyncio.get_running_loop().time() - began == pytest.approx(3.0)
    assert FAILURE in caplog.text
