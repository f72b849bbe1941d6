"""What conditions are judged by: one observation of the cluster, the plan and its outcome."""

from dataclasses import dataclass

from batchedmodel_operator.interfaces import Body
from batchedmodel_operator.observed.pod_failures import Diagnosis, diagnose
from batchedmodel_operator.observed.state import Child, Observed, Pod
from batchedmodel_operator.planning.plan import Failure, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many pods a Deployment has."""

    desired: int
    replicas: int
    ready: int
    updated: int
    current: bool
    """Whether the numbers are about the Deployment as it is now."""

    @classmethod
    def of(cls, deployment: Child | None) -> "Counts":
        """None: there is no Deployment."""
        if deployment is None:
            return cls(desired=0, replicas=0, ready=0, updated=0, current=False)
        body, status = deployment.body, deployment.body.get("status") or {}
        generation = body["metadata"].get("generation", 0)
        return cls(
            desired=body["spec"].get("replicas", 1),
            replicas=status.get("replicas", 0),
            ready=status.get("readyReplicas", 0),
            updated=status.get("updatedReplicas", 0),
            current=status.get("observedGeneration", 0) >= generation,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All that conditions are judged by."""

    observed: Observed
    plan: Plan
    failure: Failure | None
    counts: Counts
    newest: tuple[Pod, ...]
    """Pods of the Deployment's revision."""
    diagnosis: Diagnosis | None
    """What keeps the newest pods from serving."""

    @classmethod
    def of(cls, observed: Observed, plan: Plan, failure: Failure | None) -> "View":
        """`observed` holds the children as they are after the steps of `plan`."""
        newest, startups = observed.newest, observed.memory.startups
        return cls(
            observed=observed,
            plan=plan,
            failure=failure,
            counts=Counts.of(observed.deployment),
            newest=newest,
            diagnosis=diagnose(observed.model.spec, observed.deployment, newest, startups),
        )

    @property
    def suspended(self) -> bool:
        """Whether a person has sent the model to rest."""
        spec = self.observed.model.spec
        return spec is not None and spec.suspend

    @property
    def empty(self) -> bool:
        """Whether no pods are wanted."""
        return self.observed.deployment is not None and self.counts.desired == 0

    @property
    def living(self) -> tuple[Pod, ...]:
        """The newest pods that are not on their way out."""
        return tuple(pod for pod in self.newest if not pod.deleting)

    @property
    def older(self) -> tuple[Pod, ...]:
        """Pods of other revisions that are still to go."""
        newest = {pod.uid for pod in self.newest}
        pods = self.observed.pods
        return tuple(pod for pod in pods if pod.uid not in newest and not pod.deleting)

    @property
    def taken_back(self) -> str:
        """What became of the revision that the manifest asks for, if an earlier one is back."""
        rollout = self.plan.rollout
        if rollout.fault is None:
            return ""
        return f"{rollout.target} was taken back: {rollout.fault.reason}: {rollout.fault.message}"

    @property
    def deployment_status(self) -> Body:
        """Empty where there is no Deployment."""
        deployment = self.observed.deployment
        status: Body = {} if deployment is None else deployment.body.get("status") or {}
        return status
