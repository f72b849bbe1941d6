"""Pods that say much, pretend to be somebody's, or have somebody's address."""

from typing import Any, Final

from batchedmodel_kube.names import MANAGED_BY, MANAGED_BY_LABEL, MODEL_CONTAINER, NAME_LABEL
from support.plane_attacks.aim import Aim, Theme, model
from support.plane_attacks.healthy import SPACE
from support.plane_attacks.node import container, ready_at
from support.plane_attacks.sidecars import Behaviour

THEME: Final = Theme(name="pods")
_LAST_WORDS: Final = ("token" * 900)[:4_095]
_LAST_TIME: Final = "9999-12-31T23:59:59Z"
_FIRST_TIME: Final = "0001-01-01T00:00:01Z"


def _pod(name: str, of: str, *owners: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {NAME_LABEL: of, MANAGED_BY_LABEL: MANAGED_BY},
            "ownerReferences": list(owners),
        },
        "spec": {"containers": [{"name": MODEL_CONTAINER, "image": "none", **spec}]},
    }


@THEME.attack(2)
async def last_words_of_tokens(aim: Aim) -> None:
    await aim.make("batchedmodels", model("wordy", replicas=4))
    pods = await aim.pods_of("wordy", 4)
    await aim.begins()
    while not aim.until.is_set():
        for number, pod in enumerate(pods):
            ended = {"exitCode": aim.number() % 250, "message": _LAST_WORDS[number:]}
            failing = container(
                MODEL_CONTAINER,
                ready=False,
                restartCount=5,
                lastState={"terminated": ended},
                state={"waiting": {"reason": "CrashLoopBackOff", "message": _LAST_WORDS}},
            )
            status = ready_at(aim.addresses[Behaviour.MUTE], ready=False)
            await aim.report("pods", pod, {**status, "containerStatuses": [failing]})
        await aim.rest(0.5)


@THEME.attack(7)
async def pods_with_the_label_alone(aim: Aim) -> None:
    await aim.make("batchedmodels", model("labelled", replicas=1))
    await aim.begins()
    for number in aim.some(150):
        of = "labelled" if number % 2 else f"nobody-{number}"
        await aim.make("pods", _pod(f"label-{number}", of))
        await aim.report("pods", f"label-{number}", ready_at(aim.addresses[Behaviour.OTHER]))
    await aim.rest(60.0)


@THEME.attack(7)
async def pods_of_a_healthy_model_of_another_namespace(aim: Aim) -> None:
    uids = [
        one["metadata"]["uid"]
        for one in await aim.api.items(aim.path("replicasets", space=SPACE), NAME_LABEL)
    ]
    await aim.begins()
    for number, uid in enumerate(uids):
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": uid}
        pod = _pod(f"lie-{number}", f"model-{number}", {**owner, "controller": True})
        await aim.make("pods", pod)
        await aim.report("pods", f"lie-{number}", ready_at(aim.addresses[Behaviour.OTHER]))
    await aim.rest(60.0)


@THEME.attack(5)
async def pods_that_are_large(aim: Aim) -> None:
    await aim.make("batchedmodels", model("large", replicas=1))
    await aim.pods_of("large", 1)
    sets = await aim.there("replicasets", "large")
    uid = sets[0]["metadata"]["uid"] if sets else "none"
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "large", "uid": uid}
    env = [{"name": f"V{number}"} for number in range(20_000)]
    for number in aim.some(30):
        owners = () if number % 2 else ({**owner, "controller": True},)
        await aim.make("pods", _pod(f"large-{number}", "large", *owners, env=env))
    await aim.begins()
    while not aim.until.is_set():
        env_of_model = {"N": str(aim.number())}
        await aim.change("batchedmodels", "large", {"spec": {"model": {"env": env_of_model}}})
        await aim.rest(1.0)


@THEME.attack(8)
async def pods_with_the_address_of_others(aim: Aim) -> None:
    await aim.make("batchedmodels", model("reusing", replicas=5))
    pods = await aim.pods_of("reusing", 5)
    addresses = aim.healthy()
    await aim.begins()
    while not aim.until.is_set():
        for pod, address in zip(pods, addresses, strict=False):
            await aim.report("pods", pod, ready_at(address))
        await aim.rest(1.0)
        addresses = addresses[1:] + addresses[:1]


@THEME.attack()
async def pods_of_odd_times(aim: Aim) -> None:
    await aim.make("batchedmodels", model("timeless", replicas=4))
    pods = await aim.pods_of("timeless", 4)
    await aim.begins()
    while not aim.until.is_set():
        for number, pod in enumerate(pods):
            at = (_LAST_TIME, _FIRST_TIME)[(number + aim.number()) % 2]
            status = ready_at(aim.addresses[Behaviour.STEADY])
            for one in status["conditions"]:
                one["lastTransitionTime"] = at
            homeless = {"type": "PodScheduled", "status": "False", "lastTransitionTime": at}
            if number % 2:
                status["conditions"] = [{**homeless, "message": "insufficient " * 2_000}]
            await aim.report("pods", pod, {**status, "startTime": at})
        await aim.rest(0.7)


@THEME.attack()
async def replica_sets_that_lie(aim: Aim) -> None:
    await aim.make("batchedmodels", model("lied-about", replicas=1))
    await aim.pods_of("lied-about", 1)
    found = await aim.there("deployments", "lied-about")
    uid = found[0]["metadata"]["uid"] if found else "none"
    await aim.begins()
    label = {NAME_LABEL: "lied-about"}
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x", "uid": uid}
    for number in aim.some(20):
        metadata = {
            "name": f"set-{number}",
            "labels": label,
            "ownerReferences": [{**owner, "controller": True}],
        }
        template = {
            "metadata": {"labels": {**label, "set": str(number)}},
            "spec": {"containers": [{"name": "x", "image": "none"}]},
        }
        spec = {
            "replicas": 2,
            "selector": {"matchLabels": template["metadata"]["labels"]},  # type: ignore[index]
            "template": template,
        }
        head = {"apiVersion": "apps/v1", "kind": "ReplicaSet"}
        await aim.make("replicasets", {**head, "metadata": metadata, "spec": spec})
        await aim.rest(0.3)
    await aim.rest(60.0)
