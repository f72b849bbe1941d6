"""Tells when another definition has altered a manifest, or a class that it names. Pure.

From whatever it reads, an API server drops the fields that the present definition lacks, and makes
no new generation of it. So an earlier definition that takes the place of a later one takes fields
out of objects that nobody has edited.
"""

from collections.abc import Mapping
from typing import Any, Final

from batchedmodel_operator.interfaces import Body

SPEC_FIELD: Final = "observedSpec"
"""Of the status: the digest of the spec of `observedGeneration`."""
CLASS_FIELD: Final = "observedClass"
"""Of the status: which class was read, its generation, and how many fields it had."""
_DIGITS: Final = 9
"""Of a number in a status that others may write."""


def is_altered(status: Body, *, generation: int, spec_digest: str, class_seen: str) -> bool:
    """Whether what is read is not what was applied, although it is of the same generation.

    `status`: of the BatchedModel. `spec_digest`: of what its spec says; empty where there is none.
    `class_seen`: of its class; empty where there is none.
    """
    if status.get("observedGeneration") != generation:
        return False
    known = status.get(SPEC_FIELD)
    if spec_digest and known and known != spec_digest:
        return True
    # A class loses nothing by our writes. What comes back to it is followed as an edit is.
    (was, had), (now, has) = (
        _parted(one) for one in (str(status.get(CLASS_FIELD, "")), class_seen)
    )
    return bool(now) and was == now and has < had


def class_seen(body: Body | None) -> str:
    """What `CLASS_FIELD` keeps of a class; empty where it is not there, or of no generation."""
    metadata = {} if body is None else body["metadata"]
    if body is None or "generation" not in metadata:
        return ""
    return f"{metadata['uid']}/{metadata['generation']}/{_fields(body.get('spec'))}"


def _fields(value: Any) -> int:
    if isinstance(value, Mapping):
        return len(value) + sum(_fields(inner) for inner in value.values())
    return sum(_fields(inner) for inner in value) if isinstance(value, list) else 0


def _parted(seen: str) -> tuple[str, int]:
    """Which class of which generation, and its number of fields."""
    which, _, fields = seen.rpartition("/")
    return (which, int(fields)) if fields.isdecimal() and len(fields) <= _DIGITS else ("", 0)
