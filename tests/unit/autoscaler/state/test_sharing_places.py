"""Pods of one namespace, whatever they do, keep nobody from hearing those of another."""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from batchedmodel_autoscaler.cluster.objects import Model, ModelKey, Owned, Pod
from batchedmodel_autoscaler.polling.poller import FIRST_ROUND_SECONDS, Poller
from batchedmodel_autoscaler.state.cluster_state import ClusterState
from batchedmodel_autoscaler.state.pace import fair_share, seconds_between
from batchedmodel_autoscaler.telemetry import Telemetry
from batchedmodel_contract.processes.stats import SidecarStats
from batchedmodel_kube.admin_client import NoAnswer, Whom
from support.autoscaler_world import CALM, TARGET, pod

pytestmark = pytest.mark.looptime

OLDEST = 10.0
"""Seconds that an answer of an honest pod may be old, whatever others do."""
HONEST = ModelKey("honest", "minilm")
TIMEOUT = 1.0


def world(models: dict[ModelKey, int]) -> tuple[ClusterState, dict[ModelKey, list[Pod]]]:
    """Models with so many ready pods each."""
    known, addresses = ClusterState(2.0), itertools.count()
    pods: dict[ModelKey, list[Pod]] = {}
    for key, count in models.items():
        name = f"{key.namespace}-{key.name}"
        known.model_seen(Model(key=key, uid=name, target=TARGET, capacity=None))
        deployment = Owned(uid=f"{name}-deployment", model=key, owner=name)
        known.ownership.seen(replace(deployment, replicas=count))
        known.ownership.seen(Owned(uid=f"{name}-set", model=key, owner=deployment.uid))
        pods[key] = [
            replace(
                pod(number),
                uid=f"{name}-{number}",
                model=key,
                address=f"10.{at // 65536}.{at // 256 % 256}.{at % 256}",
                owner=f"{name}-set",
            )
            for number, at in zip(range(count), addresses, strict=False)
        ]
        for one in pods[key]:
            known.pod_seen(one)
    return known, pods


class Sidecars:
    """Those of honest pods answer at once, all others never."""

    def __init__(self, honest: Sequence[Pod], *, seconds: float = TIMEOUT) -> None:
        self.heard: dict[str, list[float]] = {one.address: [] for one in honest}
        """When each honest pod was."""
        self.seconds = seconds
        """That the others take."""
        self.answer = False
        """Whether these say something in the end."""

    async def stats(self, address: str, whom: Whom) -> SidecarStats:
        if address in self.heard:
            await asyncio.sleep(0.01)
            self.heard[address].append(asyncio.get_running_loop().time())
            return CALM
        await asyncio.sleep(self.seconds)
        if not self.answer:
            raise NoAnswer("no answer")
        return CALM

    def oldest(self, since: float, until: float) -> float:
        """The longest that an answer of an honest pod was the last one."""
        gaps = []
        for times in self.heard.values():
            within = [at for at in times if since <= at <= until]
            gaps += [b - a for a, b in itertools.pairwise([since, *within, until])]
        return max(gaps)


async def asked_for(
    known: ClusterState, sidecars: Sidecars, pods: list[Pod], seconds: float
) -> None:
    """Ask for so long, with the pods found in this order."""
    telemetry = Telemetry(CollectorRegistry())
    poller = Poller(known, sidecars.stats, telemetry=telemetry)
    for one in pods:
        poller.follow(one.uid)
    asking = asyncio.create_task(poller.run())
    await asyncio.sleep(seconds)
    assert not asking.done()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def oldest_beside(models: dict[ModelKey, int], *, answer: bool, seconds: float) -> float:
    """How old an answer of twenty honest pods gets in a minute beside others that are slow."""
    known, pods = world({**models, HONEST: 20})
    sidecars = Sidecars(pods[HONEST], seconds=seconds)
    sidecars.answer = answer
    began = asyncio.get_running_loop().time()
    await asked_for(known, sidecars, list(itertools.chain(*pods.values())), 60)
    return sidecars.oldest(began, asyncio.get_running_loop().time())


@pytest.mark.parametrize(
    ("count", "answer", "seconds"),
    [(3_000, False, 1.0), (3_000, True, 0.99), (8_000, True, 0.01)],
    ids=["never answer", "answer at the last moment", "are very many"],
)
async def test_honest_pods_are_heard_beside_those_of_another_namespace_that(
    count: int, answer: bool, seconds: float
) -> None:
    slow = ModelKey("slow", "minilm")
    assert await oldest_beside({slow: count}, answer=answer, seconds=seconds) < OLDEST


async def test_slow_pods_of_another_model_of_the_namespace_make_no_answer_old() -> None:
    slow = ModelKey(HONEST.namespace, "slow")
    assert await oldest_beside({slow: 3_000}, answer=True, seconds=0.99) < OLDEST


async def test_slow_pods_of_many_models_of_another_namespace_make_no_answer_old() -> None:
    many = {ModelKey("slow", f"model-{number}"): 30 for number in range(100)}
    assert await oldest_beside(many, answer=True, seconds=0.99) < OLDEST


async def test_a_namespace_of_very_many_pods_makes_the_answers_of_no_other_count_for_longer() -> (
    None
):
    many = ModelKey("many", "minilm")
    known, pods = world({many: 8_000, HONEST: 20})
    sidecars = Sidecars(pods[HONEST])
    await asked_for(known, sidecars, pods[HONEST], 4.0)
    now = asyncio.get_running_loop().time()
    assert all(one.answers for one in known.observation(HONEST, now).pods)
    assert not any(one.answers for one in known.observation(HONEST, now + OLDEST).pods)


async def test_thousands_of_silent_pods_keep_a_new_autoscaler_from_answering_for_a_moment() -> None:
    slow = ModelKey("slow", "minilm")
    known, pods = world({slow: 3_000, HONEST: 20})
    sidecars, loop = Sidecars(pods[HONEST]), asyncio.get_running_loop()
    telemetry = Telemetry(CollectorRegistry())
    poller = Poller(known, sidecars.stats, telemetry=telemetry)
    for one in itertools.chain(*pods.values()):
        poller.follow(one.uid)
    asking = asyncio.create_task(poller.run())
    async with asyncio.timeout(FIRST_ROUND_SECONDS + 1):
        await poller.all_asked()
    assert all(one.answers for one in known.observation(HONEST, loop.time()).pods)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_thousands_of_pods_without_an_address_leave_the_loop_to_others() -> None:
    key = ModelKey("pending", "minilm")
    known, pods = world({key: 5_000})
    telemetry = Telemetry(CollectorRegistry())
    poller = Poller(known, Sidecars([]).stats, telemetry=telemetry)
    for one in pods[key]:
        known.pod_seen(replace(one, address=""))
        poller.follow(one.uid)
    heard, asking = asyncio.create_task(poller.all_asked()), asyncio.create_task(poller.run())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not heard.done()
    await asyncio.sleep(0.1)
    assert heard.done()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


def test_who_wishes_for_less_than_an_equal_share_leaves_the_rest_to_the_others() -> None:
    assert fair_share([5, 1, 5], 9) == 4
    assert fair_share([1, 2, 3], 9) == 9
    assert fair_share([1], 0.5) == 0.5


def test_namespaces_share_the_questions_of_a_second_and_then_their_models() -> None:
    key, small = ModelKey("many", "minilm"), ModelKey("many", "small")
    assert seconds_between({key: 1_200}, key, 2.0) == 2.0
    assert seconds_between({}, key, 2.0) == 2.0
    pods = {key: 8_000, small: 10, HONEST: 190}
    assert seconds_between(pods, HONEST, 2.0) == 2.0
    assert seconds_between(pods, small, 2.0) == 2.0
    assert seconds_between(pods, key, 2.0) == 16.0
