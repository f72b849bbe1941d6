"""Many edits, many events, and hands in what the operator makes."""

import asyncio
import contextlib
from typing import Any, Final

from batchedmodel_kube.names import MANAGED_BY, MANAGED_BY_LABEL, NAME_LABEL
from support.plane_attacks.aim import API_VERSION, Aim, Theme, model

STORM: Final = Theme(name="storm")
HANDS: Final = Theme(name="hands")
_EDITED: Final = 30
_EDITS_A_SECOND: Final = 5


@STORM.attack(4)
async def thirty_models_edited_five_times_a_second(aim: Aim) -> None:
    names = [f"restless-{number}" for number in range(_EDITED)]
    for name in names:
        await aim.make("batchedmodels", model(name))

    await aim.begins()

    async def edit_on(name: str) -> None:
        while not aim.until.is_set():
            size = {"maxBatchSize": 1 + aim.number() % 4_000}
            await aim.change("batchedmodels", name, {"spec": {"batching": size}})
            await aim.rest(1 / _EDITS_A_SECOND)

    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(edit_on(name))


@STORM.attack()
async def models_that_come_and_go(aim: Aim) -> None:
    await aim.begins()
    while not aim.until.is_set():
        name = f"brief-{aim.number()}"
        await aim.make("batchedmodels", model(name))
        await aim.rest(0.1)
        await aim.drop("batchedmodels", name)


@STORM.attack()
async def floods_of_events(aim: Aim) -> None:
    """Children of models that there are not change without end."""
    head = {"apiVersion": "v1", "kind": "ConfigMap"}
    names = [f"event-{number}" for number in range(10)]
    for name in names:
        labels = {NAME_LABEL: name, MANAGED_BY_LABEL: MANAGED_BY}
        await aim.make("configmaps", {**head, "metadata": {"name": name, "labels": labels}})

    await aim.begins()

    async def change_on(name: str) -> None:
        while not aim.until.is_set():
            label = {"metadata": {"labels": {NAME_LABEL: f"{name}-{aim.number()}"}}}
            await aim.change("configmaps", name, label)
            await aim.rest(0.1)

    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(change_on(name))


@HANDS.attack()
async def names_of_children_that_strangers_have(aim: Aim) -> None:
    large = {"data": {f"k{number}": "x" * 1_000 for number in range(900)}}
    port = {"spec": {"ports": [{"port": 1}]}}
    head = {"apiVersion": "v1"}
    for number in range(4):
        name = f"taken-{number}"
        metadata = {"name": f"{name}-batching"}
        await aim.make("configmaps", {**head, "kind": "ConfigMap", "metadata": metadata, **large})
        await aim.make("services", {**head, "kind": "Service", "metadata": {"name": name}, **port})
        await aim.make("batchedmodels", model(name))
    await aim.begins()
    while not aim.until.is_set():
        for number in range(4):
            env = {"N": str(aim.number())}
            await aim.change("batchedmodels", f"taken-{number}", {"spec": {"model": {"env": env}}})
        await aim.rest(1.0)


@HANDS.attack()
async def children_edited_by_hand(aim: Aim) -> None:
    await aim.make("batchedmodels", model("handled", autoscaling={"maxReplicas": 2}))
    await aim.begins()
    while not aim.until.is_set():
        number = aim.number()
        note: dict[str, Any] = {"metadata": {"annotations": {"hand": str(number)}}}
        size = {"spec": {"minReplicas": 1, "maxReplicas": 1 + number % 900}}
        await aim.change("horizontalpodautoscalers", "handled", size)
        await aim.change("services", "handled", {"spec": {"ports": None}})
        await aim.change("services", "handled", note)
        await aim.change("configmaps", "handled-batching", {"data": {"batching.json": "[" * 900}})
        paused = {"spec": {"paused": bool(number % 2), "replicas": number % 5}}
        await aim.change("deployments", "handled", paused)
        await aim.rest(0.2)


@HANDS.attack()
async def children_deleted_by_hand(aim: Aim) -> None:
    await aim.make("batchedmodels", model("robbed", autoscaling={"maxReplicas": 2}))
    await aim.begins()
    while not aim.until.is_set():
        for plural in ("deployments", "services", "horizontalpodautoscalers"):
            await aim.drop(plural, "robbed")
        await aim.drop("configmaps", "robbed-batching")
        for kept in await aim.there("controllerrevisions", "robbed"):
            await aim.drop("controllerrevisions", kept["metadata"]["name"])
        await aim.rest(0.3)


@HANDS.attack()
async def children_that_cannot_go(aim: Aim) -> None:
    await aim.make("batchedmodels", model("stuck"))
    await aim.begins()
    finalizers = {"metadata": {"finalizers": ["example.com/never"]}}
    while not aim.until.is_set():
        for plural in ("deployments", "services"):
            await aim.change(plural, "stuck", finalizers)
            await aim.drop(plural, "stuck")
        await aim.rest(0.5)


@HANDS.attack()
async def a_status_written_by_hand(aim: Aim) -> None:
    names = [f"told-{number}" for number in aim.some(4)]
    for name in names:
        await aim.make("batchedmodels", model(name, autoscaling={"maxReplicas": 2}))
    await aim.begins()
    while not aim.until.is_set():
        for number, name in enumerate(names):
            await aim.report("batchedmodels", name, _odd_status(number + aim.number()))
        await aim.rest(0.3)


def _odd_status(number: int) -> dict[str, Any]:
    long = "x" * 200_000
    odd: tuple[dict[str, Any], ...] = (
        {"capacity": {"revision": long, "rowsPerSecond": 1e300, "startupSeconds": 1e-300}},
        {"observedGeneration": -(2**62), "replicas": 2**53, "selector": long},
        {"rollout": {"goodRevision": long, "failedRevision": "x", "strategyLatched": "InPlace"}},
        {"capacity": {"revision": "", "learntAt": "0001-01-01t00:00:00.123456789+23:59"}},
        {
            "conditions": [
                {
                    "type": f"Odd{one}",
                    "status": "True",
                    "reason": "Odd",
                    "message": "token " * 5_000,
                    "lastTransitionTime": "2026-01-01t00:00:00.123456789-23:59",
                }
                for one in range(10)
            ]
        },
        {"effective": {"autoscaling": {"targetQueueLength": -1}}, "url": long},
    )
    return odd[number % len(odd)]


@HANDS.attack()
async def namespaces_that_end_amid_it(aim: Aim) -> None:
    await aim.begins()
    while not aim.until.is_set():
        space = f"{aim.space}-{aim.number()}"
        metadata: dict[str, Any] = {"name": space}
        head = {"apiVersion": "v1", "kind": "Namespace"}
        await aim.ask("POST", "/api/v1/namespaces", {**head, "metadata": metadata})
        for number in range(3):
            path = aim.path("batchedmodels", space=space)
            await aim.ask("POST", path, model(f"ends-{number}"))
        await aim.ask("DELETE", f"/api/v1/namespaces/{space}")
        with contextlib.suppress(RuntimeError):
            await aim.rest(2.0)


@HANDS.attack()
async def owners_that_lie(aim: Aim) -> None:
    await aim.make("batchedmodels", model("claimed"))
    await aim.begins()
    owner = {"apiVersion": API_VERSION, "kind": "BatchedModel", "controller": True}
    head = {"apiVersion": "v1", "kind": "ConfigMap"}
    while not aim.until.is_set():
        number = aim.number()
        # The collector looks for each of them, and finds none.
        metadata = {
            "name": f"lie-{number}",
            "labels": {NAME_LABEL: "claimed", MANAGED_BY_LABEL: MANAGED_BY},
            "ownerReferences": [{**owner, "name": f"model-{number % 10}", "uid": f"uid-{number}"}],
        }
        await aim.make("configmaps", {**head, "metadata": metadata})
        await aim.rest(0.2)
