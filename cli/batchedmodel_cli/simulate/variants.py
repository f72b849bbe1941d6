"""The changes that a study tries: one setting each, with values that a manifest may hold. Pure."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.cross_field_rules import CHECKS
from batchedmodel_contract.manifest.spec import Batching, Lateness, PolicyName, Spec
from batchedmodel_contract.schema.reading import Setting, declarations
from batchedmodel_contract.schema.rules import Broken

_RULES: Final = {
    field.name: (declared.name, declared.rule)
    for field, declared in declarations(Batching)
    if isinstance(declared, Setting)
}
_SOME_WAIT: Final = 5  # milliseconds, for those who have none
_SHORTEST_EDGE: Final = 16
_ABSENT: Final = "absent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting changed, everything else as it is."""

    field: str
    """As the manifest has it, below `spec.batching`."""
    present: str
    value: str
    settings: BatchSettings
    """The effective ones with the change."""


def changes(spec: Spec, longest: int) -> Iterator[Change]:
    """Every change that the manifest allows; `longest` is the greatest length in the traffic.

    A field that is left out has the value "absent".
    """
    for name, value in _candidates(spec.batching, longest):
        written, rule = _RULES[name]
        try:
            if value is not None:
                rule.read(value)
        except Broken:
            continue
        wanted: dict[str, Any] = {name: value}
        batching = dataclasses.replace(spec.batching, **wanted)
        changed = dataclasses.replace(spec, batching=batching)
        if any(check.broken(changed) for check in CHECKS):
            continue
        yield Change(
            field=written,
            present=_shown(getattr(spec.batching, name)),
            value=_shown(value),
            settings=BatchSettings.of(batching),
        )


def _candidates(batching: Batching, longest: int) -> Iterator[tuple[str, Any]]:
    yield "max_batch_size", batching.max_batch_size * 2
    if batching.max_batch_size > 1:
        yield "max_batch_size", batching.max_batch_size // 2
    if batching.max_batch_tokens is not None:
        yield "max_batch_tokens", None
        yield "max_batch_tokens", batching.max_batch_tokens * 2
    if batching.policy is not PolicyName.GREEDY:
        wait = batching.max_wait_milliseconds
        if wait:
            yield "max_wait_milliseconds", 0
        yield "max_wait_milliseconds", wait * 4 or _SOME_WAIT
    for policy in PolicyName:
        if policy is not batching.policy:
            yield "policy", policy
    if batching.target_latency_milliseconds is not None:
        refuses = batching.lateness is Lateness.REFUSE
        yield "lateness", Lateness.SERVE if refuses else Lateness.REFUSE
    if batching.length_buckets:
        yield "length_buckets", ()
    elif batching.policy is not PolicyName.DEADLINE and longest > _SHORTEST_EDGE:
        # Deadline chooses its own; the others put everything into one class.
        yield "length_buckets", _edges(longest)


def _edges(longest: int) -> tuple[int, ...]:
    """16, 32, ... up to the first that is as long as the longest."""
    edges = [_SHORTEST_EDGE]
    while edges[-1] < longest:
        edges.append(edges[-1] * 2)
    return tuple(edges)


def _shown(value: object) -> str:
    if value is None:
        return _ABSENT
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)
