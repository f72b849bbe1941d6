"""Polls in virtual time, and what is watched."""

import asyncio
import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from batchedmodel_autoscaler.cluster.resources import MODELS, PODS, within
from batchedmodel_autoscaler.polling.poller import MOST_AT_ONCE, Poller
from batchedmodel_autoscaler.state.pace import MOST_POLLS_PER_SECOND
from batchedmodel_autoscaler.telemetry import Telemetry
from batchedmodel_contract.processes.stats import SidecarStats
from batchedmodel_kube.admin_client import NoAnswer, Whom
from support.autoscaler_world import CALM, KEY, fleet, pod
from support.running_task import running

pytestmark = pytest.mark.looptime

MOST_IN_A_MOMENT = 13
"""Starts ahead of their pace and those behind it, after a rest."""


def test_what_is_watched_of_namespaces_is_asked_for_within_each_of_them() -> None:
    assert within(PODS, []) == (PODS,)
    found = within(PODS, ["a", "b"])
    assert [str(one) for one in found] == ["/api/v1/namespaces/a/pods", "/api/v1/namespaces/b/pods"]
    assert {one.labels for one in found} == {PODS.labels}
    (models,) = within(MODELS, ["a"])
    assert str(models) == "/apis/batchedmodel.dev/v1alpha1/namespaces/a/batchedmodels"


class PretendSidecars:
    """Takes a time to answer; some addresses never do."""

    def __init__(self, *, seconds: float = 0.01) -> None:
        self.seconds = seconds
        self.silent: set[str] = set()
        self.asked: list[tuple[float, str]] = []
        self.at_once = self.most_at_once = 0

    async def stats(self, address: str, whom: Whom) -> SidecarStats:
        self.asked.append((asyncio.get_running_loop().time(), address))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.seconds)
            if address in self.silent:
                raise NoAnswer("no answer")
            return CALM
        finally:
            self.at_once -= 1


def poller(known: Any, sidecars: PretendSidecars) -> Poller:
    telemetry = Telemetry(CollectorRegistry())
    return Poller(known, sidecars.stats, telemetry=telemetry)


async def test_every_pod_is_asked_every_two_seconds_or_so() -> None:
    known, sidecars = fleet([pod(1), pod(2)]), PretendSidecars()
    asking = poller(known, sidecars)
    async with running(asking.run()):
        for number in (1, 2):
            asking.follow(f"uid-{number}")
            asking.follow(f"uid-{number}")
        await asyncio.sleep(60.5)
    times = [at for at, address in sidecars.asked if address == "10.0.0.1"]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(1.8 <= gap <= 2.22 for gap in gaps)
    assert 27 <= len(times) <= 34
    now = asyncio.get_running_loop().time()
    assert all(one.answers for one in known.observation(KEY, now).pods)


async def test_a_silent_pod_is_asked_more_rarely_and_at_its_pace_again_once_it_answers() -> None:
    known, sidecars = fleet([pod(1)]), PretendSidecars()
    sidecars.silent.add("10.0.0.1")
    asking = poller(known, sidecars)
    async with running(asking.run()):
        asking.follow("uid-1")
        await asyncio.sleep(80)
        assert 10 <= len(sidecars.asked) <= 15
        sidecars.silent.clear()
        await asyncio.sleep(10)
        before = len(sidecars.asked)
        await asyncio.sleep(20)
        assert len(sidecars.asked) - before >= 9


async def test_no_more_than_a_few_dozen_are_asked_at_once() -> None:
    pods = [pod(number) for number in range(300)]
    known, sidecars = fleet(pods), PretendSidecars(seconds=0.5)
    asking = poller(known, sidecars)
    async with running(asking.run()):
        for one in pods:
            asking.follow(one.uid)
        await asyncio.sleep(5)
    assert sidecars.most_at_once == MOST_AT_ONCE
    assert len({address for _, address in sidecars.asked}) == 300


@pytest.mark.parametrize("rest", [0.0, 60.0])
async def test_however_many_are_due_no_more_than_so_many_are_begun_in_a_second(rest: float) -> None:
    pods = [pod(number) for number in range(300)]
    known, sidecars = fleet(pods), PretendSidecars(seconds=0.001)
    asking = poller(known, sidecars)
    async with running(asking.run()):
        if rest:
            asking.follow(pods[0].uid)
            await asyncio.sleep(rest)
            sidecars.asked.clear()
        for one in pods:
            asking.follow(one.uid)
        await asyncio.sleep(1)
    times = [at for at, _ in sidecars.asked]
    assert len(times) >= 299
    assert times[-1] - times[0] > 0.4
    together = max(Counter(times).values())
    assert together <= MOST_IN_A_MOMENT
    if rest:
        assert together == MOST_IN_A_MOMENT
    for (first, start), (last, end) in itertools.combinations(enumerate(times), 2):
        assert last - first <= (end - start) * MOST_POLLS_PER_SECOND + MOST_IN_A_MOMENT


async def test_all_have_been_asked_once_each_has_answered_or_was_silent_or_has_no_address() -> None:
    known = fleet([pod(1), pod(2), pod(3, address=""), pod(4)])
    sidecars = PretendSidecars(seconds=0.5)
    sidecars.silent.add("10.0.0.2")
    asking = poller(known, sidecars)
    await asking.all_asked()
    for number in range(1, 5):
        asking.follow(f"uid-{number}")
    known.pod_gone(pod(4))
    heard = asyncio.create_task(asking.all_asked())
    async with running(asking.run()):
        await asyncio.sleep(0.4)
        assert not heard.done()
        await asyncio.sleep(0.2)
        assert heard.done()


async def test_pods_that_come_later_keep_nobody_waiting_until_all_have_been_asked() -> None:
    known, sidecars = fleet([pod(1)]), PretendSidecars(seconds=0.5)
    asking = poller(known, sidecars)
    asking.follow("uid-1")
    heard = asyncio.create_task(asking.all_asked())
    async with running(asking.run()):
        for number in range(2, 12):
            known.pod_seen(pod(number))
            asking.follow(f"uid-{number}")
            await asyncio.sleep(0.3)
            assert heard.done() == (number > 2)


async def test_a_pod_that_has_gone_is_asked_no_more_and_one_without_address_not_yet() -> None:
    known, sidecars = fleet([pod(1), pod(2, address="")]), PretendSidecars()
    asking = poller(known, sidecars)
    async with running(asking.run()):
        asking.follow("uid-1")
        asking.follow("uid-2")
        await asyncio.sleep(1)
        known.pod_gone(pod(1))
        await asyncio.sleep(10)
        assert [address for _, address in sidecars.asked] == ["10.0.0.1"]
        known.pod_seen(replace(pod(2), address="10.0.0.2"))
        await asyncio.sleep(3)
        assert sidecars.asked[-1][1] == "10.0.0.2"
        sidecars.asked.clear()
        known.pod_seen(pod(1))
        asking.follow("uid-1")
        await asyncio.sleep(0.1)
        assert "10.0.0.1" in {address for _, address in sidecars.asked}
