"""Batches that run in parts beside texts: every item has the answer that it has in one pass."""

import asyncio
import random
import threading
from dataclasses import replace

import numpy as np
import pytest

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.inference.profile import Profile, ProfilePoint
from batchedmodel_model_server.batching.declaration import Declaration, Sharing
from batchedmodel_model_server.batching.items import Collated, Examined, collate
from batchedmodel_model_server.execution.device_thread import DeviceThread, Divisible
from batchedmodel_model_server.execution.passes import PartTimes
from support.model_server_handlers import Echo, Failing, arrays_of, batch_of, loaded
from support.model_server_runner import runner_of


class Beside(DeviceThread):
    """A device that texts want as well, so that batches have so many seconds at a time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(asyncio.get_running_loop())
        self.seconds = seconds
        self.parts = 0

    async def divided(self, work: Divisible) -> None:
        self.run(work)

    def run(self, work: Divisible) -> None:
        self.parts += 1
        while not work.run(self.seconds):
            self.parts += 1


def items(rows: int, seed: int) -> list[list[int]]:
    chance = random.Random(seed)
    return [[100 + row] * chance.randint(1, 8) for row in range(rows)]


@pytest.mark.parametrize("sharing", [Sharing.PADDED, Sharing.APART])
async def test_items_have_their_own_answers_whatever_parts_they_are_in(sharing: Sharing) -> None:
    model = loaded(Echo())
    model = replace(model, declaration=replace(model.declaration, sharing=sharing))
    sent = items(20, seed=1)
    beside = Beside(0.0031)
    reply = await runner_of(model, beside, row_seconds=0.001).run(batch_of(x=sent))
    assert beside.parts > 5
    assert reply.passes == beside.parts
    assert reply.statuses == (200,) * 20
    assert [a.tolist() for a in arrays_of(reply.outputs[0])] == sent
    assert [a.item() for a in arrays_of(reply.outputs[1])] == [sum(one) for one in sent]
    assert reply.long_rows == 0


async def test_a_row_that_fails_costs_only_its_own_part_another_pass() -> None:
    sent = items(12, seed=2)
    sent[5] = [13, 13]
    beside = Beside(0.0031)
    runner = runner_of(loaded(Failing()), beside, row_seconds=0.001)
    beside.start()
    reply = await runner.run(batch_of(x=sent))
    beside.finish()
    beside.join(5)
    assert [status for at, status in enumerate(reply.statuses) if at != 5] == [200] * 11
    assert reply.statuses[5] == 500
    assert [a.tolist() for a in arrays_of(reply.outputs[0])] == [
        [] if at == 5 else one for at, one in enumerate(sent)
    ]
    # As many as without a failure, and at most a few to find it among three.
    assert reply.passes <= 4 + 3 + 4


async def test_a_big_batch_that_goes_on_behind_a_failed_part_does_not_hold_up_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collating = set[int]()

    def noted(declaration: Declaration, examined: Examined) -> Collated:
        collating.add(threading.get_ident())
        return collate(declaration, examined)

    class Aside(Beside):
        async def divided(self, work: Divisible) -> None:
            await asyncio.to_thread(self.run, work)

    monkeypatch.setattr("batchedmodel_model_server.execution.runner.collate", noted)
    sent = [[13] * 1000] + [[100 + row] * 1000 for row in range(199)]
    beside = Aside(0.0505)
    runner = runner_of(loaded(Failing()), beside, row_seconds=0.001)
    beside.start()
    reply = await runner.run(batch_of(x=sent))
    beside.finish()
    beside.join(5)
    assert reply.statuses == (500, *[200] * 199)
    assert beside.parts > 1
    assert threading.get_ident() not in collating


async def test_rows_that_take_longer_than_there_is_time_run_alone_and_are_counted() -> None:
    beside = Beside(0.0005)
    reply = await runner_of(loaded(Echo()), beside, row_seconds=0.001).run(
        batch_of(x=[[1], [2], [3]])
    )
    assert (beside.parts, reply.long_rows, reply.statuses) == (3, 3, (200, 200, 200))


async def test_a_batch_of_which_nothing_is_known_runs_whole() -> None:
    beside = Beside(0.0005)
    reply = await runner_of(loaded(Echo()), beside).run(batch_of(x=items(20, seed=3)))
    assert (beside.parts, reply.long_rows) == (1, 0)


def times(rule: CostRule) -> PartTimes:
    """A millisecond for each row, or for each token."""
    rows, lengths = (1, 2, 4, 8, 16, 32), (1, 8, 64)
    tokens = rule is not CostRule.ROWS
    points = tuple(
        ProfilePoint(rows=row, length=length, seconds=0.001 * row * (length if tokens else 1))
        for row in rows
        for length in lengths
    )
    return PartTimes(Profile(cost_rule=rule, device="test", points=points))


@pytest.mark.parametrize("rule", list(CostRule))
def test_as_many_rows_fit_as_nine_of_ten_passes_have_time_for(rule: CostRule) -> None:
    known, chance = times(rule), random.Random(4)
    for _ in range(200):
        lengths = [chance.randint(1, 64) for _ in range(chance.randint(1, 32))]
        seconds = chance.uniform(0.001, 0.3)
        rows = known.fitting(lengths, seconds)
        assert 1 <= rows <= len(lengths)
        if rows > 1:
            assert known.seconds(lengths[:rows]) <= seconds * 1.001
        if rows < len(lengths):
            assert known.seconds(lengths[: rows + 1]) > seconds * 0.999


def test_parts_become_smaller_where_passes_take_longer_than_the_profile_says() -> None:
    known = times(CostRule.ROWS)
    before = known.fitting([1] * 32, 0.010)
    for _ in range(100):
        known.took([1] * 4, 0.012)
        known.took([1] * 8, 0.024)
    assert before >= 9
    assert known.fitting([1] * 32, 0.010) <= 4
    assert np.isfinite(known.seconds([1] * 32))
