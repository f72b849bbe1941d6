"""Shows a difference: lines for people, a document for machines. Pure.

docs/diff.md promises the keys of the document.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from batchedmodel_cli import formatting
from batchedmodel_cli.diff.dry_run import Kind, Outcome
from batchedmodel_cli.diff.effects import Difference, Edited, Effect, Followed
from batchedmodel_kube.manifest.workload import RolloutStrategy

if TYPE_CHECKING:
    from batchedmodel_cli.diff.forecast import Forecast, Side

VERSION: Final = 1
"""The document's; grows when a key changes its meaning or goes."""

_ABSENT: Final = "absent"
_NOTHING: Final = "-"
_LONGEST: Final = 40


def table(name: str, difference: Difference, forecast: Forecast | None) -> Iterator[str]:
    """One line for each field, then what each effect comes to."""
    if not difference.edited:
        yield f"{name}: nothing is different"
        return
    count = len(difference.edited)
    yield f"{name}: {'1 field changes' if count == 1 else f'{count} fields change'}"
    yield ""
    old, new = difference.before.in_force, difference.after.in_force
    rows = [_row(one, old, new) for one in difference.edited]
    yield from formatting.aligned([*rows, *map(_following, difference.followed)], indent=2)
    yield ""
    for effect in difference.effects:
        yield f"{effect}: {sentence(effect, difference.before, difference.after)}"
    if forecast is not None:
        yield ""
        yield from _predicted(forecast)


def document(name: str, difference: Difference, forecast: Forecast | None) -> dict[str, Any]:
    """Everything, as JSON has it. Rates in requests a second, times in seconds, shares 0 to 1."""
    before, after = difference.before, difference.after
    return {
        "version": VERSION,
        "model": name,
        "changes": [
            {
                "field": one.edit.path,
                "old": one.edit.old,
                "new": one.edit.new,
                "effects": [effect.value for effect in one.effects],
            }
            for one in difference.edited
        ],
        "followed": [asdict(one) for one in difference.followed],
        "effects": {effect.value: sentence(effect, before, after) for effect in difference.effects},
        "pods": {"old": before.pods, "new": after.pods},
        "replacement": asdict(replacement(before, after))
        if Effect.ROLLS_PODS in difference.effects
        else None,
        "forecast": None
        if forecast is None
        else {
            "rate": forecast.traffic.rate,
            "arrivals": forecast.traffic.described,
            "old": _side(forecast.before),
            "new": _side(forecast.after),
        },
    }


def _row(one: Edited, old: Mapping[str, object], new: Mapping[str, object]) -> tuple[str, ...]:
    edit = one.edit
    change = f"{_shown(edit.old, old.get(edit.path))} -> {_shown(edit.new, new.get(edit.path))}"
    return edit.path, change, ", ".join(one.effects)


def _following(one: Followed) -> tuple[str, ...]:
    return one.path, f"{_shown(one.old)} -> {_shown(one.new)}", "(follows)"


def _shown(value: object, in_force: object = None) -> str:
    if value is None:
        return _ABSENT if in_force is None else f"{_ABSENT} ({_shown(in_force)})"
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _predicted(forecast: Forecast) -> Iterator[str]:
    traffic, sides = forecast.traffic, (forecast.before, forecast.after)
    yield f"simulated, {formatting.rate(traffic.rate)}/s ({traffic.described}):"
    names = ("", "pods", "p50 latency", "p99 latency", "in time", "sustained at most")
    columns = (_column("now", forecast.before), _column("then", forecast.after))
    yield from formatting.aligned(list(zip(names, *columns, strict=True)), indent=2)
    for when, side in zip(("now", "then"), sides, strict=True):
        if side.outlook is None:
            yield f"note: {when}: {side.reason}"
    for note in dict.fromkeys(note for side in sides for note in side.notes):
        yield f"note: {note}"


def _column(when: str, side: Side) -> tuple[str, ...]:
    if side.outlook is None:
        return when, str(side.pods), _NOTHING, _NOTHING, _NOTHING, _NOTHING
    offered = side.outlook.offered
    latency = offered.latency
    return (
        when,
        str(side.pods),
        _NOTHING if latency is None else formatting.time(latency.p50),
        _NOTHING if latency is None else formatting.time(latency.p99),
        formatting.percent(offered.in_time_share),
        f"{formatting.rate(side.outlook.highest_rate)}/s",
    )


def _side(side: Side) -> dict[str, Any]:
    found = side.outlook
    return {
        "device": side.device,
        "pods": side.pods,
        "offered": None if found is None else asdict(found.offered),
        "throughput_per_replica": None if found is None else found.throughput.requests,
        "highest_rate": None if found is None else found.highest_rate,
        "reason": side.reason,
        "notes": list(side.notes),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """How pods are replaced by new ones."""

    pods: int
    more: int
    """Pods beyond the wanted number, meanwhile."""
    fewer: int
    """Pods below the wanted number, meanwhile."""
    resource: str
    """The accelerator's; empty: the pods have none."""
    devices: int
    """Spare accelerators that are needed."""
    switches_after_seconds: int | None
    """How long new pods may lack one until they are replaced in place instead; None: no change."""


def replacement(before: Outcome, after: Outcome) -> Replacement:
    """How the present pods would be replaced, by the rules after the edit."""
    pods = min(before.pods, after.pods)
    rules = after.children[Kind.DEPLOYMENT]["spec"]["strategy"]["rollingUpdate"]
    # Kubernetes rounds the surge up and the missing pods down.
    more = min(pods, math.ceil(_share(rules["maxSurge"], after.pods)))
    fewer = min(pods, math.floor(_share(rules["maxUnavailable"], after.pods)))
    if not more and not fewer:
        fewer = min(pods, 1)
    accelerator, rollout = after.spec.accelerator, after.spec.rollout
    # `maxUnavailable: 0` says that callers come first.
    switches = (
        bool(more)
        and accelerator is not None
        and rollout.strategy is RolloutStrategy.AUTO
        and rollout.max_unavailable not in (0, "0%")
    )
    return Replacement(
        pods=pods,
        more=more,
        fewer=fewer,
        resource="" if accelerator is None else accelerator.resource,
        devices=0 if accelerator is None else more * accelerator.count,
        switches_after_seconds=rollout.switch_after_seconds if switches else None,
    )


def sentence(effect: Effect, before: Outcome, after: Outcome) -> str:
    """An effect of all edits together, in words."""
    match effect:
        case Effect.EFFECTIVE_AT_ONCE:
            return _at_once(before)
        case Effect.ROLLS_PODS:
            return _rolled(replacement(before, after))
        case Effect.MAY_ROLL_PODS:
            return (
                f"the pod template is made anew: {_pods(after.pods)} stay if operator and batch "
                "settings are the same as when it was last made, and are replaced otherwise"
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
            return "the rules for rollouts change, for this one too; no pod is replaced for it"
        case Effect.NO_EFFECT:
            return "no object in the cluster changes"


def _at_once(before: Outcome) -> str:
    if not before.pods:
        return "in force in new pods; there is none now"
    return f"in force in {_pods(before.pods)} within two seconds; none restarts for it"


def _rolled(how: Replacement) -> str:
    if not how.pods:
        return "new pods will have another template; none has to be replaced now"
    said = f"{_pods(how.pods)} {'is' if how.pods == 1 else 'are'} replaced"
    if how.more:
        fewer = f" and {how.fewer} fewer" if how.fewer else ""
        said += f", with up to {how.more} more{fewer} meanwhile"
        if how.resource:
            said += f", which needs {how.devices} spare {how.resource}"
        if how.switches_after_seconds is None:
            return said
        left = _serving(how.pods - max(1, how.fewer))
        return f"{said}; where none comes for {how.switches_after_seconds} s, in place: {left}"
    said += f" in place, {how.fewer} at a time: {_serving(how.pods - how.fewer)} meanwhile"
    return f"{said}; no spare {how.resource} is needed" if how.resource else said


def _serving(left: int) -> str:
    return f"{left} serve" if left > 1 else "1 serves" if left else "none serves"


def _scaled(before: Outcome, after: Outcome) -> str:
    said = f"{_pods(before.pods)} before, {after.pods} after"
    accelerator = after.spec.accelerator
    more = after.pods - before.pods
    if more > 0 and accelerator is not None:
        return f"{said}: {more * accelerator.count} more {accelerator.resource} needed"
    if more < 0:
        return f"{said}; pods that go first answer what they have accepted"
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
        return "the Service changes at once: its present port no longer answers callers"
    if old["type"] != new["type"]:
        return "the Service is reached in another way; its address within the cluster stays"
    return "the Service gets other annotations; pods and its address within the cluster stay"


def _disruption(after: Outcome) -> str:
    found: Any = after.children.get(Kind.DISRUPTION_BUDGET)
    if found is None:
        return "no PodDisruptionBudget any more: whoever drains nodes may evict all pods"
    most = found["spec"]["maxUnavailable"]
    return f"whoever drains nodes may evict {most} of the pods at a time"


def _share(given: int | str, pods: int) -> float:
    """A number of pods, or a percentage of them such as "25%", as a number."""
    return given if isinstance(given, int) else pods * int(given.removesuffix("%")) / 100


def _pods(count: int) -> str:
    return f"{count} pod" if count == 1 else f"{count} pods"
