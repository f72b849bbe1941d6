"""Electors with their waiting and time limits, in virtual time, at an API server that fails."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from batchedmodel_kube.election import Election
from batchedmodel_kube.elector import LEASE_SECONDS, RENEW_SECONDS, RETRY_SECONDS
from batchedmodel_kube.errors import ClusterError
from batchedmodel_kube.reading import Object


class _Failed(ClusterError):
    """What the client of these tests raises."""


class _Panic(BaseException):
    """Of a library in another language."""


class _Leases:
    """One Lease, and an API server that is away for some of its callers."""

    def __init__(self) -> None:
        self.body: dict[str, Any] | None = None
        self.mood = "well"
        self.requests = 0
        self._versions = 0

    async def read(self) -> Object | None:
        await self._delay()
        return self.body

    async def write(self, manifest: Object) -> Object:
        await self._delay()
        version = "" if self.body is None else self.body["metadata"]["resourceVersion"]
        if manifest["metadata"].get("resourceVersion", "") != version:
            raise _Failed("it has changed")
        self._versions += 1
        metadata = {**manifest["metadata"], "resourceVersion": str(self._versions)}
        self.body = {**manifest, "metadata": metadata}
        return self.body

    async def _delay(self) -> None:
        self.requests += 1
        if self.mood == "hangs":
            await asyncio.Event().wait()
        if self.mood == "refuses":
            raise _Failed("429: too many requests")
        if self.mood == "panics":
            raise _Panic


class _Client:
    """The same Lease by a connection of one's own."""

    def __init__(self, leases: _Leases, *, late_by: float = 0.0) -> None:
        self._leases = leases
        self._late_by = late_by
        self.cut = False

    async def read(self) -> Object | None:
        await self._pass()
        found = await self._leases.read()
        await asyncio.sleep(self._late_by)
        return found

    async def write(self, manifest: Object) -> Object:
        await self._pass()
        written = await self._leases.write(manifest)
        await asyncio.sleep(self._late_by)
        return written

    async def _pass(self) -> None:
        if self.cut:
            await asyncio.Event().wait()


def _now() -> float:
    return asyncio.get_running_loop().time()


def _election(
    leases: _Leases | _Client, identity: str, *, ahead: timedelta = timedelta()
) -> Election:
    return Election(
        read=leases.read,
        write=leases.write,
        namespace="system",
        name="operator",
        identity=identity,
        clock=_now,
        calendar=lambda: datetime(2026, 1, 1, tzinfo=UTC) + ahead,
    )


@pytest.mark.looptime
async def test_a_lease_says_who_holds_it_since_when_and_for_how_long() -> None:
    leases = _Leases()
    await _election(leases, "a").won()
    assert leases.body is not None
    assert leases.body["spec"] == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 10,
        "leaseTransitions": 0,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:00.000000Z",
    }


@pytest.mark.looptime
async def test_a_lease_whose_transitions_somebody_set_to_the_most_is_taken_all_the_same() -> None:
    leases = _Leases()
    first = _election(leases, "a")
    await first.won()
    assert leases.body is not None
    leases.body["spec"]["leaseTransitions"] = 2**31 - 1
    await first.release()
    await _election(leases, "b").won()
    assert leases.body["spec"]["leaseTransitions"] < 2**31


@pytest.mark.looptime
async def test_a_graceful_end_hands_over_within_one_try() -> None:
    leases = _Leases()
    first, second = _election(leases, "a"), _election(leases, "b")
    await first.won()
    waiting = asyncio.create_task(second.won())
    await asyncio.sleep(5)
    await first.release()
    assert not first.leads()
    began = _now()
    await waiting
    assert _now() - began <= RETRY_SECONDS


@pytest.mark.looptime
@pytest.mark.parametrize("late_by", [0.5, 1.4, 1.6, 2.0, 2.9])
async def test_whom_an_api_server_answers_late_leads_all_the_same(late_by: float) -> None:
    leases = _Leases()
    slow = _election(_Client(leases, late_by=late_by), "a")
    async with asyncio.timeout(15):
        await slow.won()
    losing = asyncio.create_task(slow.lost())
    await asyncio.sleep(60)
    assert slow.leads()
    losing.cancel()


@pytest.mark.looptime
@pytest.mark.parametrize("late_by", [0.5, 1.4, 1.6, 2.0, 2.9, 3.0, 8.0, 20.0])
async def test_whom_it_answers_late_keeps_nobody_else_from_leading(late_by: float) -> None:
    leases = _Leases()
    slow, quick = _election(_Client(leases, late_by=late_by), "a"), _election(leases, "b")
    parts = [asyncio.create_task(slow.take_part())]
    await asyncio.sleep(4)
    parts.append(asyncio.create_task(quick.take_part()))
    led = 0
    for _ in range(200):
        await asyncio.sleep(1)
        leaders = slow.leads() + quick.leads()
        assert leaders <= 1
        led += leaders
    assert led >= 180
    for part in parts:
        part.cancel()


@pytest.mark.looptime
@pytest.mark.parametrize("hours", [-1, 1])
async def test_by_what_the_clocks_of_two_differ_has_no_part_in_who_leads(hours: int) -> None:
    leases = _Leases()
    client = _Client(leases)
    first = _election(client, "a", ahead=timedelta(hours=hours))
    second = _election(leases, "b")
    parts = [asyncio.create_task(first.take_part())]
    await asyncio.sleep(1)
    parts.append(asyncio.create_task(second.take_part()))
    await asyncio.sleep(60)
    assert (first.leads(), second.leads()) == (True, False)
    client.cut = True
    await asyncio.sleep(RENEW_SECONDS)
    assert (first.leads(), second.leads()) == (False, False)
    await asyncio.sleep(LEASE_SECONDS)
    assert (first.leads(), second.leads()) == (False, True)
    for part in parts:
        part.cancel()


@pytest.mark.looptime
async def test_a_leader_that_is_cut_off_is_followed_after_it_has_stopped() -> None:
    leases = _Leases()
    client = _Client(leases)
    first, second = _election(client, "a"), _election(leases, "b")
    await first.won()
    losing, waiting = asyncio.create_task(first.lost()), asyncio.create_task(second.won())
    await asyncio.sleep(30)
    assert first.leads()
    client.cut = True
    began = _now()
    await losing
    assert _now() - began <= RENEW_SECONDS
    assert not waiting.done(), "between the two nobody leads"
    await waiting
    assert _now() - began <= LEASE_SECONDS + RETRY_SECONDS


@pytest.mark.looptime
@pytest.mark.parametrize("mood", ["hangs", "refuses", "panics"])
async def test_a_short_outage_costs_nobody_the_lease(mood: str) -> None:
    leases = _Leases()
    election = _election(leases, "a")
    await election.won()
    losing = asyncio.create_task(election.lost())
    await asyncio.sleep(10)
    leases.mood = mood
    await asyncio.sleep(3)
    leases.mood = "well"
    await asyncio.sleep(60)
    assert not losing.done()
    losing.cancel()


@pytest.mark.looptime
@pytest.mark.parametrize("mood", ["hangs", "refuses"])
async def test_a_long_outage_does_and_is_not_answered_with_a_storm(mood: str) -> None:
    leases = _Leases()
    election = _election(leases, "a")
    await election.won()
    losing = asyncio.create_task(election.lost())
    leases.mood, leases.requests = mood, 0
    await losing
    assert not election.leads()
    waiting = asyncio.create_task(_election(leases, "b").won())
    await asyncio.sleep(600)
    assert leases.requests < 320
    leases.mood = "well"
    await waiting


@pytest.mark.looptime
async def test_a_release_at_an_api_server_that_hangs_ends() -> None:
    leases = _Leases()
    election = _election(leases, "a")
    await election.won()
    leases.mood = "hangs"
    async with asyncio.timeout(4):
        await election.release()


@pytest.mark.looptime
async def test_who_took_part_and_lost_leads_again_once_it_can() -> None:
    leases = _Leases()
    client = _Client(leases)
    election = _election(client, "a")
    taking_part = asyncio.create_task(election.take_part())
    await asyncio.sleep(1)
    assert election.leads()
    client.cut = True
    await asyncio.sleep(30)
    assert not election.leads()
    client.cut = False
    await asyncio.sleep(10)
    assert election.leads()
    taking_part.cancel()


@pytest.mark.looptime
@pytest.mark.parametrize("mood", ["hangs", "refuses", "panics"])
async def test_a_lease_that_cannot_be_given_back_keeps_nobody_from_ending(mood: str) -> None:
    leases = _Leases()
    election = _election(leases, "a")
    await election.won()
    leases.mood = mood
    began = _now()
    await election.release()
    assert _now() - began <= 3
