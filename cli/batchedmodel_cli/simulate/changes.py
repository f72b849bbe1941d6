"""The changes of a manifest that a study tries, each of one setting. Pure."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from batchedmodel_contract.manifest.batching import BatchSettings, Lateness, Objective, PolicyName
from batchedmodel_contract.schema.reading import camel_case, declarations
from batchedmodel_contract.schema.rules import Broken
from batchedmodel_kube.manifest.batching import Batching
from batchedmodel_kube.manifest.cross_field_rules import CHECKS
from batchedmodel_kube.manifest.pod_settings import batch_settings
from batchedmodel_kube.manifest.spec import Spec

_RULES: Final = {field.name: declared.rule for field, declared in declarations(Batching)}
_SOME_WAIT: Final = 5  # milliseconds, for those who have none
_SHORTEST_EDGE: Final = 16
_MOST_AT_ONCE: Final = 4096
_CONCURRENT_REQUESTS: Final = (0.125, 0.25, 0.375, 0.5, 1.0, 1.25)
_SEQUENCES: Final = (0.125, 0.25, 0.5, 2.0, 4.0)
"""Of what an engine runs at once, as values to try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting changed, everything else as it is."""

    section: str
    """Of the manifest, such as `spec.batching`."""
    field: str
    """Below it, as the manifest has it."""
    present: str
    value: str
    settings: BatchSettings
    """The effective ones with the change."""
    beyond_profile: bool = False
    """Its batches are larger than any that was measured."""


def batch_changes(spec: Spec, longest: int, largest_measured: int) -> Iterator[Change]:
    """Every change of `spec.batching` that the manifest allows.

    `longest` is the greatest length in the traffic, `largest_measured` the rows of the largest
    batch in the profile.
    """
    known = max(spec.batching.max_batch_size, largest_measured)
    for name, value in _candidates(spec.batching, longest):
        try:
            if value is not None:
                _RULES[name].read(value)
        except Broken:
            continue
        wanted: dict[str, Any] = {name: value}
        batching = dataclasses.replace(spec.batching, **wanted)
        changed = dataclasses.replace(spec, batching=batching)
        if any(check.broken(changed) for check in CHECKS):
            continue
        yield Change(
            section="spec.batching",
            field=camel_case(name),
            present=shown(getattr(spec.batching, name)),
            value=shown(value),
            settings=batch_settings(changed),
            beyond_profile=batching.max_batch_size > known,
        )


def text_changes(settings: BatchSettings, sequences: int, *, ours: bool) -> Iterator[Change]:
    """Other numbers of texts at once, of an engine that runs so many sequences.

    Those that our own engine runs, or those that go to the engine of others.
    """
    name = concurrency_field(ours=ours)
    present: int | None = getattr(settings, name)
    parts = _SEQUENCES if ours else _CONCURRENT_REQUESTS
    values: set[int | None] = {min(_MOST_AT_ONCE, max(1, round(n * sequences))) for n in parts}
    # What runs at once as it is is no other value.
    values.discard(sequences if ours else present)
    if present is not None:
        values.add(None)
    for value in sorted(values, key=lambda one: one or 0):
        wanted: dict[str, Any] = {name: value}
        yield Change(
            section="spec.generation",
            field=camel_case(name),
            present=shown(present),
            value=shown(value),
            settings=dataclasses.replace(settings, **wanted),
        )


def concurrency_field(*, ours: bool) -> str:
    """The setting of how many texts run at once, in an engine of ours or in one of others."""
    return "max_sequences" if ours else "max_concurrent_requests"


def shown(value: object) -> str:
    """A value of a manifest; `absent` for a field that is left out."""
    if value is None:
        return "absent"
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


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
        if batching.policy is PolicyName.DEADLINE and longest > _SHORTEST_EDGE:
            by_rows = batching.objective is Objective.ROWS
            yield "objective", Objective.WORK if by_rows else Objective.ROWS
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
