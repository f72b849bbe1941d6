"""Shows edits with their effects: lines for people, a document for machines. Pure.

docs/diff.md promises the keys of the document.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from batchedmodel_cli import formatting
from batchedmodel_cli.diff.edits import edits, in_order
from batchedmodel_cli.diff.live import LiveModel, pods_with
from batchedmodel_kube.manifest.effect import Effect
from batchedmodel_kube.manifest.spec import Spec
from batchedmodel_kube.manifest.workload import RolloutStrategy

VERSION: Final = 2
"""The document's; grows when a key changes its meaning or goes."""

_LONGEST: Final = 40
"""Characters of a value that stand in the table."""
_NONE: Final = (0, "0%")
_PLAIN: Final = {
    Effect.MAY_ROLL_PODS: "pods are replaced only in the case that the reference says of it",
    Effect.CHANGES_SERVICE: "the Service changes at once; another port replaces the present one",
    Effect.CHANGES_DISRUPTION: "the PodDisruptionBudget changes; no pod is replaced for it",
    Effect.CHANGES_ROLLOUT: "rollouts, this one too, go by other rules; no pod is replaced for it",
    Effect.NO_EFFECT: "no object in the cluster changes",
}


def document(name: str, live: LiveModel, new: Spec) -> dict[str, Any]:
    """Everything, as JSON has it."""
    made = edits(live.spec, new)
    effects = in_order(edit.effect for edit in made)
    return {
        "version": VERSION,
        "model": name,
        "changes": [asdict(edit) for edit in made],
        "effects": {effect.value: sentence(effect, live, new) for effect in effects},
        "pods": {"old": live.pods, "new": pods_with(new, live.pods)},
    }


def table(document: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a document: one for each field, then what each effect comes to."""
    name, changes = document["model"], document["changes"]
    if not changes:
        yield f"{name}: nothing is different"
        return
    yield f"{name}: {'1 field changes' if len(changes) == 1 else f'{len(changes)} fields change'}"
    yield ""
    rows = [
        (one["field"], f"{_shown(one['old'])} -> {_shown(one['new'])}", one["effect"])
        for one in changes
    ]
    yield from formatting.aligned(rows, indent=2)
    yield ""
    yield from (f"{effect}: {said}" for effect, said in document["effects"].items())


def sentence(effect: Effect, live: LiveModel, new: Spec) -> str:
    """An effect of all edits together, in words."""
    before, after = live.pods, pods_with(new, live.pods)
    match effect:
        case Effect.ROLLS_PODS:
            return _rolled(min(before, after), new)
        case Effect.SCALES_PODS:
            return _scaled(before, after, new)
        case Effect.EFFECTIVE_AT_ONCE:
            if not before:
                return "in force in new pods; there is none now"
            return f"in force in {_pods(before)} within two seconds; none restarts for it"
        case Effect.CHANGES_AUTOSCALING:
            return _autoscaled(before, after, new)
    return _PLAIN[effect]


def _shown(value: object) -> str:
    if value is None:
        return "absent"
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _rolled(pods: int, new: Spec) -> str:
    if not pods:
        return "new pods will have another template; none has to be replaced now"
    said = f"{_pods(pods)} {'is' if pods == 1 else 'are'} replaced"
    accelerator, rollout = new.accelerator, new.rollout
    if rollout.strategy is RolloutStrategy.IN_PLACE or rollout.max_surge in _NONE:
        said += " in place: old ones go first, and fewer serve meanwhile"
        return said if accelerator is None else f"{said}; no spare {accelerator.resource} is needed"
    said += ", new ones first"
    if accelerator is None:
        return said
    said += f": each needs {accelerator.count} spare {accelerator.resource}"
    # `maxUnavailable: 0` says that callers come first.
    if rollout.strategy is RolloutStrategy.AUTO and rollout.max_unavailable not in _NONE:
        said += f"; where none comes for {rollout.switch_after_seconds} s, in place"
    return said


def _scaled(before: int, after: int, new: Spec) -> str:
    said = f"{_pods(before)} before, {after} after"
    if after < before:
        return f"{said}; pods that go first answer what they have accepted"
    if after > before and new.accelerator is not None:
        more = (after - before) * new.accelerator.count
        return f"{said}: {more} more {new.accelerator.resource} needed"
    return said


def _autoscaled(before: int, after: int, new: Spec) -> str:
    scaling = new.autoscaling
    if scaling is None:
        return f"no HPA any more: the number of pods is the manifest's, {after}"
    said = f"an HPA scales by the new rules, {scaling.min_replicas} to {scaling.max_replicas} pods"
    return said if after in (0, before) else f"{said}: {before} become {after} at once"


def _pods(count: int) -> str:
    return f"{count} pod" if count == 1 else f"{count} pods"
