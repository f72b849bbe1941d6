"""What each effect comes to, in words: how many pods, in which way, at whose cost. Pure."""

import math
from dataclasses import dataclass
from typing import Any, Final

from batchedmodel_cli.diff.dry_run import Kind, Outcome
from batchedmodel_cli.diff.effects import Effect

_PERCENT: Final = "%"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """How pods are replaced by new ones."""

    pods: int
    more: int
    """Pods that there may be beside those that are wanted."""
    fewer: int
    """Pods that may be missing meanwhile."""
    resource: str
    """The accelerator's; empty: none is needed."""
    devices: int
    """Accelerators that have to be to spare."""


def replacement(before: Outcome, after: Outcome) -> Replacement:
    """How the pods that there are would be replaced, by the rules that hold then."""
    pods = min(before.pods, after.pods)
    rules = after.children[Kind.DEPLOYMENT]["spec"]["strategy"]["rollingUpdate"]
    # Kubernetes rounds so that there are rather more pods than fewer.
    more = min(pods, math.ceil(_share(rules["maxSurge"], after.pods)))
    fewer = min(pods, math.floor(_share(rules["maxUnavailable"], after.pods)))
    if not more and not fewer:
        fewer = min(pods, 1)
    accelerator = after.spec.accelerator
    return Replacement(
        pods=pods,
        more=more,
        fewer=fewer,
        resource="" if accelerator is None else accelerator.resource,
        devices=0 if accelerator is None else more * accelerator.count,
    )


def sentence(effect: Effect, before: Outcome, after: Outcome) -> str:
    """The effect of all edits together."""
    match effect:
        case Effect.EFFECTIVE_AT_ONCE:
            return _at_once(before)
        case Effect.ROLLS_PODS:
            return _rolled(replacement(before, after))
        case Effect.MAY_ROLL_PODS:
            return (
                f"the pods' template is made anew: {_pods(after.pods)} stay if operator and batch "
                "settings are as they were when it was made last, and are replaced otherwise"
            )
        case Effect.SCALES_PODS:
            return _scaled(before, after)
        case Effect.CHANGES_AUTOSCALING:
            return _autoscaled(before, after)
        case Effect.CHANGES_SERVICE:
            return _service(before, after)
        case Effect.CHANGES_DISRUPTION:
            return _disruption(after)
        case Effect.CHANGES_ROLLOUT:
            return "other rules for rollouts, this one's included; no pod is replaced for them"
        case Effect.NO_EFFECT:
            return "no object in the cluster changes"


def _at_once(before: Outcome) -> str:
    if not before.pods:
        return "holds for the pods to come; there is none now"
    return f"in force in {_pods(before.pods)} within two seconds; none restarts for it"


def _rolled(how: Replacement) -> str:
    if not how.pods:
        return "the pods to come are others; none has to be replaced"
    said = f"{_are(how.pods)} replaced"
    if not how.more:
        said += f" in place, {how.fewer} at a time"
        left = how.pods - how.fewer
        said += f": {_serve(left)} meanwhile"
        return f"{said}; no {how.resource} has to be to spare" if how.resource else said
    said += f", with up to {how.more} more"
    if how.fewer:
        said += f" and {how.fewer} fewer"
    said += " meanwhile"
    if how.resource:
        said += f", which takes {_devices(how.devices, how.resource)} to spare"
    return said


def _scaled(before: Outcome, after: Outcome) -> str:
    said = f"{_pods(before.pods)} before, {after.pods} after"
    accelerator = after.spec.accelerator
    more = after.pods - before.pods
    if more > 0 and accelerator is not None:
        return f"{said}: {_devices(more * accelerator.count, accelerator.resource)} more needed"
    if more < 0:
        return f"{said}; those that go answer first what they have accepted"
    return said


def _autoscaled(before: Outcome, after: Outcome) -> str:
    found: Any = after.children.get(Kind.AUTOSCALER)
    if found is None:
        return "no HPA any more: the number of pods is the manifest's"
    bounds = f"{found['spec']['minReplicas']} to {found['spec']['maxReplicas']} pods"
    if Kind.AUTOSCALER not in before.children:
        return f"an HPA takes over the number of pods: {bounds}"
    said = f"the HPA scales by other rules from its next look on, {bounds}"
    if not after.pods or after.pods == before.pods:
        return said
    return f"{said}: {before.pods} become {after.pods} at once"


def _service(before: Outcome, after: Outcome) -> str:
    old, new = (one.children[Kind.SERVICE]["spec"] for one in (before, after))
    if old["ports"] != new["ports"]:
        return "the Service changes at once: callers of its present port reach nothing any more"
    if old["type"] != new["type"]:
        return "the Service is reached in another way; its address within the cluster stays"
    return "the Service is annotated otherwise; pods and its address within the cluster stay"


def _disruption(after: Outcome) -> str:
    found: Any = after.children.get(Kind.DISRUPTION_BUDGET)
    if found is None:
        return "no PodDisruptionBudget any more: whoever drains nodes may evict all pods"
    most = found["spec"]["maxUnavailable"]
    return f"whoever drains nodes may evict {most} of the pods at a time"


def _share(given: int | str, pods: int) -> float:
    if isinstance(given, str):
        return pods * int(given.removesuffix(_PERCENT)) / 100
    return given


def _pods(count: int) -> str:
    return f"{count} pod" if count == 1 else f"{count} pods"


def _are(count: int) -> str:
    return "1 pod is" if count == 1 else f"{count} pods are"


def _serve(left: int) -> str:
    if not left:
        return "none serves"
    return "1 serves" if left == 1 else f"{left} serve"


def _devices(count: int, resource: str) -> str:
    return f"{count} {resource}"
