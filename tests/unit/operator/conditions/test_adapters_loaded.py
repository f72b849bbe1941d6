"""Which adapters serve in how many pods, as their sidecars tell."""

from typing import Any, Final

import pytest

from batchedmodel_contract.lora import AdapterPhase, AdapterState
from batchedmodel_operator.kinds import Kind
from support.operator_world import KEY, SIMULATED, World

SPEC: Final[dict[str, Any]] = {
    **SIMULATED,
    "replicas": 2,
    "adapters": {"items": [{"name": name, "source": {"path": "/a"}} for name in ("sql", "chat")]},
}
READY, FETCHING = AdapterPhase.READY, AdapterPhase.FETCHING
LOADING, FAILED = AdapterPhase.LOADING, AdapterPhase.FAILED


def told(**phases: AdapterPhase) -> list[AdapterState]:
    return [
        AdapterState(
            name=name,
            number=number,
            phase=phase,
            reason="its rank is 32, above 16" if phase is FAILED else "",
        )
        for number, (name, phase) in enumerate(phases.items(), 1)
    ]


async def told_by(*pods: list[AdapterState] | None) -> World:
    world = World(SPEC)
    await world.settle()
    for number, states in enumerate(pods):
        world.start_pod(str(number))
        if states is not None:
            world.sidecars.adapters_told[f"10.0.0.{number}"] = states
    await world.settle()
    return world


def listed(world: World) -> Any:
    body = world.cluster.objects[Kind.BATCHED_MODEL, KEY.namespace, KEY.name]
    return body["status"].get("adapters")


@pytest.mark.parametrize(
    ("pods", "status", "reason", "message"),
    [
        ([], "Unknown", "NoPods", "there are no pods"),
        ([None, None], "Unknown", "NotStarted", "no pod has told of its adapters yet"),
        (
            [told(sql=READY, chat=READY), None],
            *("Unknown", "NotStarted", "1 of 2 pods have not told of their adapters"),
        ),
        (
            [told(sql=READY, chat=FETCHING), told(sql=LOADING, chat=READY)],
            *("False", "AdaptersLoading", "not loaded in every pod yet: chat, sql"),
        ),
        (
            [told(sql=READY, chat=READY), told(sql=READY)],
            *("False", "AdaptersLoading", "not loaded in every pod yet: chat"),
        ),
        (
            [told(sql=FAILED, chat=LOADING), None],
            *("False", "AdapterFailed", "sql: its rank is 32, above 16"),
        ),
        (
            [told(sql=READY, chat=READY), told(sql=READY, chat=READY)],
            *("True", "AdaptersLoaded", "2 adapters serve in 2 of 2 pods"),
        ),
    ],
)
async def test_the_condition_says_what_pods_tell(
    pods: list[Any], status: str, reason: str, message: str
) -> None:
    world = await told_by(*pods)
    assert world.verdict("AdaptersLoaded") == (status, reason)
    assert world.condition("AdaptersLoaded")["message"].startswith(message)


async def test_the_status_lists_each_adapter_with_its_pods_and_a_reason() -> None:
    world = await told_by(told(sql=READY, found=READY), told(sql=FAILED, found=READY))
    assert listed(world) == [
        {
            "name": "chat",
            "readyReplicas": 0,
            "replicas": 2,
            "reason": "a pod does not know it yet",
        },
        {"name": "found", "readyReplicas": 2, "replicas": 2},
        {
            "name": "sql",
            "readyReplicas": 1,
            "replicas": 2,
            "reason": "FAILED: its rank is 32, above 16",
        },
    ]


async def test_a_version_that_fails_while_the_one_before_serves_is_told() -> None:
    older = AdapterState(name="sql", number=1, phase=READY)
    newer = AdapterState(name="sql", number=4, phase=FAILED, reason="DoRA is not taken")
    world = await told_by([older, newer, *told(chat=READY)])
    assert world.verdict("AdaptersLoaded") == ("False", "AdapterFailed")
    assert [one["readyReplicas"] for one in listed(world)] == [1, 1]


async def test_a_model_without_adapters_has_no_such_condition() -> None:
    world = World(SIMULATED)
    await world.settle()
    body = world.cluster.objects[Kind.BATCHED_MODEL, KEY.namespace, KEY.name]
    assert "AdaptersLoaded" not in [one["type"] for one in body["status"]["conditions"]]
    assert listed(world) is None
