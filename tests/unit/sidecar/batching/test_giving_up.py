"""Calls with a time and a priority of their own, and calls that the policy gives up."""

import asyncio
import csv
import io
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from batchedmodel_contract.manifest.batching import BatchSettings, Lateness, PolicyName
from batchedmodel_contract.outcomes import Outcome, Rejection
from batchedmodel_scheduling.batching import policies
from batchedmodel_scheduling.batching.decisions import Decision, Finished, MemoryCap, Slots
from batchedmodel_scheduling.queue.items import Item, Priority, Refusal, RequestGroup, Shed
from batchedmodel_sidecar.errors import CallError, Expired, GivenUp, Rejected
from batchedmodel_sidecar.protocols.headers import RequestOptions
from support.sidecar_world import FIXED, MODEL, PER_ROW, World, answered, call_of, rows_of, world

pytestmark = [pytest.mark.looptime, pytest.mark.interpreted]

SETTINGS = BatchSettings(policy=PolicyName.GREEDY, max_batch_size=4)


class Choosy:
    """A real policy that gives up, or refuses, rows of the lengths that the test names."""

    def __init__(self, policy: Any, wanted: "Wanted") -> None:
        self._policy = policy
        self._wanted = wanted
        self._waiting: dict[int, Item] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def offer_call(self, items: Sequence[Item], now: float) -> Refusal | None:
        self._wanted.offered += items
        if any(item.length in self._wanted.refused for item in items):
            return Refusal(reason=Rejection.PREDICTED_LATE, retry_after=0.25)
        self._waiting |= {item.id: item for item in items}
        refusal: Refusal | None = self._policy.offer_call(items, now)
        return refusal

    def observe(self, event: Any, now: float) -> None:
        self._wanted.observed.append(event)
        if not isinstance(event, MemoryCap):
            self._policy.observe(event, now)

    def poll(self, now: float, slots: Slots) -> Decision:
        shed = []
        for item in [i for i in self._waiting.values() if i.length in self._wanted.given_up]:
            del self._waiting[item.id]
            self._policy.withdraw(item.id, now)
            shed.append(Shed(item=item, outcome=self._wanted.given_up[item.length]))
        decision: Decision = self._policy.poll(now, slots)
        return replace(decision, shed=(*shed, *decision.shed))


class Wanted:
    """What the choosy policy shall do, and what it was told."""

    def __init__(self) -> None:
        self.given_up: dict[int, Outcome] = {}
        self.refused: set[int] = set()
        self.offered: list[Item] = []
        self.observed: list[object] = []


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> Wanted:
    told = Wanted()

    def choosy(make: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **named: Choosy(make(*arguments, **named), told)

    for name in ("new_policy", "relearning"):
        monkeypatch.setattr(policies, name, choosy(getattr(policies, name)))
    return told


def now() -> float:
    return asyncio.get_running_loop().time()


async def verdict(task: "asyncio.Task[Any]") -> CallError:
    with pytest.raises(CallError) as caught:
        await task
    return caught.value


def recorded(w: World) -> Counter[str]:
    text = b"".join(w.recorder.csv()).decode()
    return Counter(row["outcome"] for row in csv.DictReader(io.StringIO(text)))


async def test_a_callers_own_time_ends_its_call_and_no_other() -> None:
    w = world(SETTINGS, attached=False)
    started = now()
    hasty, patient = w.send(b"a", options=RequestOptions(timeout=0.5)), w.send(b"b")
    error = await verdict(hasty)
    assert isinstance(error, Expired)
    assert (str(error), error.status) == ("not answered within 0.5 s", 504)
    assert now() - started == pytest.approx(0.5)
    w.batcher.attach(MODEL)
    assert rows_of(await patient) == [b"b"]


async def test_a_callers_own_time_counts_from_the_arrival_of_its_request() -> None:
    w = world(SETTINGS, attached=False)
    started = now()
    with pytest.raises(Expired):
        await answered(w.batcher, call_of([b"a"]), started - 0.4, RequestOptions(timeout=0.5))
    assert now() - started == pytest.approx(0.1)


async def test_a_call_whose_time_is_over_already_is_not_accepted(wanted: Wanted) -> None:
    w = world(SETTINGS)
    with pytest.raises(Rejected, match="not understood within 0.5 s") as caught:
        await answered(w.batcher, call_of([b"a"]), now() - 0.6, RequestOptions(timeout=0.5))
    assert (caught.value.reason, caught.value.status) == (Rejection.EXPIRED, 504)
    assert wanted.offered == []
    assert recorded(w) == {"expired": 1}


@pytest.mark.parametrize(("lateness", "limit"), [(Lateness.SERVE, 2.0), (Lateness.REFUSE, 0.1)])
async def test_all_rows_of_a_call_have_its_terms(
    wanted: Wanted, lateness: Lateness, limit: float
) -> None:
    w = world(
        replace(
            SETTINGS,
            target_seconds=0.1,
            request_timeout_seconds=2.0,
            lateness=lateness,
            trust_priority=True,
        )
    )
    group = RequestGroup(id="a", size=8)
    await w.send(b"a", b"bb", options=RequestOptions(priority=Priority.HIGH, request_group=group))
    terms = {(i.due, i.deadline, i.priority, i.request_group) for i in wanted.offered}
    assert terms == {(0.1, limit, Priority.HIGH, group)}


@pytest.mark.parametrize(("stall", "late"), [(0.08, 0), (0.12, 1), (1.5, 1)])
async def test_an_answer_after_its_target_is_counted_as_late(stall: float, late: int) -> None:
    w = world(replace(SETTINGS, target_seconds=0.1, request_timeout_seconds=2.0))
    w.server.stalls[b"a"] = stall
    await w.send(b"a")
    assert w.ledger.settled == {Outcome.COMPLETED: 1}
    assert w.ledger.late == late


async def test_without_a_target_and_of_calls_without_an_answer_nothing_is_late() -> None:
    w = world(replace(SETTINGS, request_timeout_seconds=2.0))
    w.server.stalls[b"a"] = 1.5
    await w.send(b"a")
    w.batcher.configure(replace(SETTINGS, target_seconds=0.1, request_timeout_seconds=2.0))
    w.server.stalls[b"b"] = 9.0
    with pytest.raises(Expired):
        await w.send(b"b")
    assert w.ledger.settled == {Outcome.COMPLETED: 1, Outcome.EXPIRED: 1}
    assert w.ledger.late == 0


async def test_priority_that_a_caller_is_not_trusted_with_is_counted_and_not_given(
    wanted: Wanted,
) -> None:
    w = world(SETTINGS)
    for priority in Priority:
        await w.send(b"a", options=RequestOptions(priority=priority))
    high, normal, low = [item.priority for item in wanted.offered]
    assert (high, normal, low) == (Priority.NORMAL, Priority.NORMAL, Priority.LOW)
    assert w.ledger.untrusted_priorities == 1


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (Outcome.SHED, "given up: it would not have been answered in time (it had 30 s)"),
        (
            Outcome.EVICTED,
            "given up: it was late, and the queue was full of others that are not (it had 30 s)",
        ),
    ],
    ids=str,
)
async def test_a_call_that_is_given_up_is_told_why_and_when_to_come_back(
    wanted: Wanted, outcome: Outcome, message: str
) -> None:
    w = world(SETTINGS)
    wanted.given_up[2] = outcome
    kept, given_up = w.send(b"a"), w.send(b"bb")
    error = await verdict(given_up)
    assert isinstance(error, GivenUp)
    assert (str(error), error.status, error.counted_as) == (message, 503, outcome)
    assert error.retry_after == pytest.approx(1.0), "nothing has been served: nobody knows better"
    assert rows_of(await kept) == [b"a"]
    assert w.ledger.settled == {Outcome.COMPLETED: 1, outcome: 1}
    assert recorded(w) == {"completed": 1, outcome.value: 1}


async def test_who_is_given_up_comes_back_when_what_waits_is_served(wanted: Wanted) -> None:
    w = world(SETTINGS)
    await w.send(b"a", tenant="t")
    running = w.send(b"a", tenant="t")
    await asyncio.sleep(0)
    wanted.given_up[2] = Outcome.SHED
    waiting = [w.send(b"a", tenant="t") for _ in range(19)]
    error = await verdict(w.send(b"bb", tenant="t"))
    # Four of the 20 fill the server's second place; so far one row took one forward pass.
    assert error.retry_after == pytest.approx(16 * (FIXED + PER_ROW))
    await asyncio.gather(running, *waiting)


async def test_a_call_ends_with_the_first_of_its_rows_that_is_given_up(wanted: Wanted) -> None:
    """Also when another of its rows leaves in that very decision, beside a neighbour's."""
    w = world(SETTINGS)
    wanted.given_up[2] = Outcome.SHED
    mixed, neighbour = w.send(b"a", b"bb", b"c"), w.send(b"d")
    assert isinstance(await verdict(mixed), GivenUp)
    assert rows_of(await neighbour) == [b"d"]
    assert w.server.batches == [3]
    assert w.ledger.settled == {Outcome.SHED: 1, Outcome.COMPLETED: 1}
    assert recorded(w) == {"shed": 3, "completed": 1}
    assert w.ledger.rows_live == 0
    assert w.ledger.rows_waiting == w.ledger.rows_live == 0


async def test_a_call_that_would_be_late_is_refused_whole(wanted: Wanted) -> None:
    w = world(SETTINGS, attached=False)
    wanted.refused.add(2)
    error = await verdict(w.send(b"a", b"bb", options=RequestOptions(timeout=0.5)))
    assert isinstance(error, Rejected)
    assert (error.reason, error.status) == (Rejection.PREDICTED_LATE, 429)
    assert (str(error), error.retry_after) == ("it would not be answered within 0.5 s", 0.25)
    assert w.ledger.accepted == w.ledger.rows_waiting == 0
    assert recorded(w) == {"predicted_late": 2}
    w.batcher.attach(MODEL)
    await asyncio.sleep(1.0)
    assert w.server.batches == []


async def test_who_lost_its_place_to_a_call_that_was_then_refused_hears_of_it_at_once(
    wanted: Wanted,
) -> None:
    w = world(SETTINGS, attached=False)
    waiting = w.send(b"ccc")
    await asyncio.sleep(0)
    wanted.given_up[3] = Outcome.EVICTED
    wanted.refused.add(2)
    started = now()
    await verdict(w.send(b"a", b"bb"))
    assert isinstance(await verdict(waiting), GivenUp)
    assert now() == started


async def test_a_caller_in_a_hurry_does_not_make_a_slow_server_look_dead() -> None:
    w = world(SETTINGS)
    w.server.free_at = now() + 20.0
    with pytest.raises(Expired):
        await w.send(b"a", options=RequestOptions(timeout=0.01))
    await asyncio.sleep(10.0)
    assert w.ledger.batches_in_flight == 1
    assert rows_of(await w.send(b"b")) == [b"b"]


async def test_the_policy_learns_what_the_servers_memory_holds(wanted: Wanted) -> None:
    assert MODEL.profile is not None
    w = world(SETTINGS)
    assert not [event for event in wanted.observed if isinstance(event, MemoryCap)]
    w.batcher.attach(replace(MODEL, profile=replace(MODEL.profile, max_cost=64)))
    assert wanted.observed == [MemoryCap(cost=64)]


async def test_the_policy_is_told_whenever_the_servers_memory_turns_out_otherwise(
    wanted: Wanted,
) -> None:
    w = world(SETTINGS)
    w.batcher.bound(MemoryCap(cost=24))
    w.batcher.bound(MemoryCap(cost=None, rows=3))
    assert wanted.observed == [MemoryCap(cost=24), MemoryCap(cost=None, rows=3)]


@pytest.mark.parametrize(("passes", "seconds"), [(1, FIXED + PER_ROW), (11, None), (0, None)])
async def test_only_the_time_of_one_pass_is_that_of_its_batch(
    wanted: Wanted, passes: int, seconds: float | None
) -> None:
    w = world(SETTINGS)
    w.server.passes = passes
    await w.send(b"a")
    times = [event.compute_seconds for event in wanted.observed if isinstance(event, Finished)]
    assert times == [seconds]
