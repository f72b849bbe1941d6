"""A BatchedModel, an operator and an API server in memory, with time as a number."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from batchedmodel_contract.manifest.batching import FILE_NAME, settings_from_json
from batchedmodel_kube.manifest.spec import PullPolicy
from batchedmodel_kube.names import BATCHER_CONTAINER, MODEL_CONTAINER, NAME_LABEL, REVISION_LABEL
from batchedmodel_operator.kinds import RESOURCES, Kind, child_name
from batchedmodel_operator.observed.state import Key
from batchedmodel_operator.reconcile.reconcile import Reconciler
from batchedmodel_operator.reconcile.turns import Turns
from batchedmodel_operator.render import Images
from support.operator_cluster import FakeCluster, FakeSidecars

KEY = Key(namespace="team", name="minilm")
IMAGES = Images(
    sidecar="registry.example/sidecar:1",
    model_server="registry.example/model-server:1",
    pull_policy=PullPolicy.IF_NOT_PRESENT,
)
SIMULATED: dict[str, Any] = {"model": {"handler": "simulated"}}


def manifest(spec: Mapping[str, Any] = SIMULATED) -> dict[str, Any]:
    """A BatchedModel as a person writes it."""
    return {
        "apiVersion": RESOURCES[Kind.BATCHED_MODEL].api_version,
        "kind": Kind.BATCHED_MODEL.value,
        "metadata": {"name": KEY.name, "namespace": KEY.namespace},
        "spec": dict(spec),
    }


def owner_reference(kind: Kind, owner: Mapping[str, Any]) -> dict[str, Any]:
    """What makes an object the controller of another."""
    return {
        "apiVersion": RESOURCES[kind].api_version,
        "kind": kind.value,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }


class World:
    """What a test changes and looks at."""

    def __init__(self, spec: Mapping[str, Any] = SIMULATED) -> None:
        self.cluster = FakeCluster()
        self.sidecars = FakeSidecars()
        self.now = 1000.0
        self.calendar_jump = timedelta()
        """How far somebody has set the clock, in which only people believe."""
        self.come_back_after: float | None = None
        self.edits_wait = 0.0
        """Seconds for which the queue lets edits wait."""
        self.cluster.put(manifest(spec))
        self.restart()

    def restart(self, images: Images = IMAGES) -> None:
        """The operator starts anew and remembers nothing; another one may be told other images."""
        self.turns = Turns[Key](1)
        self.turns.all_known()
        self.called: list[Key] = []
        """Models whose turn has come, as others are told."""
        self._reconciler = Reconciler(
            known=self.cluster,
            cluster=self.cluster,
            sidecars=self.sidecars,
            images=images,
            clock=lambda: self.now,
            calendar=self.calendar,
            turns=self.turns,
            look_at=self.called.append,
            edits_wait=lambda _: self.edits_wait,
        )

    def calendar(self, ago: float = 0.0) -> datetime:
        """The time for people, or so many seconds before it."""
        began = datetime(2026, 1, 1, tzinfo=UTC) + self.calendar_jump
        return began + timedelta(seconds=self.now - ago)

    async def look(self) -> float | None:
        """One reconcile; raises what it raises."""
        self.come_back_after = await self._reconciler.reconcile(KEY)
        return self.come_back_after

    async def settle(self) -> None:
        """Reconcile until nothing is written any more."""
        for _ in range(20):
            before = self.cluster.writes
            delay = await self.look()
            if self.cluster.writes == before and (delay is None or delay > 1):
                return
            self.now += delay if delay is not None and delay <= 1 else 0
        raise AssertionError("the operator goes on writing")

    def spec(self, spec: Mapping[str, Any]) -> None:
        """A person applies another spec, in which fields may be gone."""
        body = self.cluster.objects[Kind.BATCHED_MODEL, KEY.namespace, KEY.name]
        body["spec"] = dict(spec)
        body["metadata"]["generation"] += 1

    def of_class(self, name: str) -> tuple[Key, ...]:
        """The BatchedModels that were seen to name this class."""
        return self._reconciler.of_class(name)

    def child(self, kind: Kind) -> dict[str, Any]:
        return self.cluster.objects[kind, KEY.namespace, child_name(kind, KEY.name)]

    def has(self, kind: Kind) -> bool:
        return (kind, KEY.namespace, child_name(kind, KEY.name)) in self.cluster.objects

    def events(self) -> list[tuple[str, str, str]]:
        """Type, reason and message of each Event that there is, by their age."""
        kind = Kind.EVENT
        found = [body for (one, _, _), body in self.cluster.objects.items() if one == kind]
        return [(one["type"], one["reason"], one["message"]) for one in found]

    def revisions(self) -> list[str]:
        """Names of the pod templates that are kept."""
        kind = Kind.CONTROLLER_REVISION
        return [name for one, _, name in self.cluster.objects if one == kind]

    def edit(self, kind: Kind, change: Mapping[str, Any]) -> None:
        self.cluster.edit(kind, KEY.namespace, child_name(kind, KEY.name), change)

    def remove(self, kind: Kind) -> None:
        self.cluster.remove(kind, KEY.namespace, child_name(kind, KEY.name))

    def condition(self, name: str) -> dict[str, Any]:
        """A condition of the BatchedModel."""
        status = self.cluster.objects[Kind.BATCHED_MODEL, KEY.namespace, KEY.name]["status"]
        found: dict[str, Any] = next(one for one in status["conditions"] if one["type"] == name)
        return found

    def verdict(self, name: str) -> tuple[str, str]:
        """A condition's status and reason."""
        found = self.condition(name)
        return found["status"], found["reason"]

    async def learn(self, **capacity: float) -> Any:
        """The autoscaler writes what it has learnt, and nothing else; what the status then says."""
        head = {**manifest(), "status": {"capacity": capacity}}
        head.pop("spec")
        live = await self.cluster.apply(head, manager="autoscaler", subresource="status")
        return live["status"]["capacity"]

    def settings(self) -> str:
        """The hash of the settings in the ConfigMap."""
        return settings_from_json(self.child(Kind.CONFIG_MAP)["data"][FILE_NAME]).digest()

    def start_pod(self, name: str, **status: Any) -> None:
        """A pod of the present revision with both containers running, unless `status` differs."""
        template = self.child(Kind.DEPLOYMENT)["spec"]["template"]
        ready = {"type": "Ready", "status": "True"}
        self.cluster.put(
            {
                "apiVersion": "v1",
                "kind": Kind.POD.value,
                "metadata": {
                    "name": name,
                    "namespace": KEY.namespace,
                    "ownerReferences": [self._replica_set()],
                    "creationTimestamp": self.calendar().isoformat(),
                    "labels": {
                        NAME_LABEL: KEY.name,
                        REVISION_LABEL: template["metadata"]["labels"][REVISION_LABEL],
                    },
                },
                "spec": template["spec"],
                "status": {
                    "podIP": f"10.0.0.{name}",
                    "conditions": [ready],
                    "initContainerStatuses": [
                        {"name": BATCHER_CONTAINER, "started": True, "ready": True}
                    ],
                    "containerStatuses": [{"name": MODEL_CONTAINER, "ready": True}],
                    **status,
                },
            }
        )
        self.sidecars.answers[f"10.0.0.{name}"] = self.settings()

    def _replica_set(self) -> dict[str, Any]:
        """The reference to that of the present revision, which is made if it is not there."""
        deployment = self.child(Kind.DEPLOYMENT)
        revision = deployment["spec"]["template"]["metadata"]["labels"][REVISION_LABEL]
        name = f"{KEY.name}-{revision}"
        kind = Kind.REPLICA_SET
        there = self.cluster.objects.get((kind, KEY.namespace, name))
        owner = owner_reference(Kind.DEPLOYMENT, deployment)
        if there is None or there["metadata"]["ownerReferences"] != [owner]:
            there = self.cluster.put(
                {
                    "apiVersion": RESOURCES[kind].api_version,
                    "kind": kind.value,
                    "metadata": {
                        "name": name,
                        "namespace": KEY.namespace,
                        "labels": {NAME_LABEL: KEY.name},
                        "ownerReferences": [owner],
                    },
                }
            )
        return owner_reference(kind, there)

    def remove_pod(self, name: str) -> None:
        """A pod has ended and is gone."""
        self.cluster.remove(Kind.POD, KEY.namespace, name)

    def deployment_status(self, **status: Any) -> None:
        """The Deployment's controller reports."""
        body = self.child(Kind.DEPLOYMENT)
        body["status"] = {"observedGeneration": body["metadata"]["generation"], **status}

    def all_ready(self) -> None:
        """Every pod that exists is ready and of the present revision."""
        count = sum(kind == Kind.POD for kind, _, _ in self.cluster.objects)
        names = ("replicas", "readyReplicas", "availableReplicas", "updatedReplicas")
        self.deployment_status(**dict.fromkeys(names, count))
