"""Rules for objects that have the form of one of Kubernetes' own types, and for lists of them.

What such a part of a manifest means Kubernetes judges, when the operator applies it; here it is
judged by its fields, their kinds and their bounds. So an API server takes no part that is nested
deeper, or is wider, than its type allows. `kubernetes_types` holds the types.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from batchedmodel_contract.schema.rules import ANY_TEXT, Broken, Rule, Text
from batchedmodel_contract.schema.shapes import ListOf, MapOf, read_part, refuse_repeats
from batchedmodel_kube.schema.quantities import Quantity

LONGEST_LABEL: Final = 63
_SHOWN: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """What the fields of one object must be together, for both languages that judge it."""

    holds: Callable[[Mapping[str, Any]], bool]
    """Of the fields that are given; each keeps its own rule."""
    cel: str
    fault: str
    """What is said of an object that breaks it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """An object with some fields; it is passed on as it is."""

    fields: Mapping[str, Rule]
    form: str = "a mapping"
    required: tuple[str, ...] = ()
    """Fields that have to be there."""
    law: Law | None = None

    def read(self, value: object) -> object:
        if not isinstance(value, dict):
            raise Broken(f"is not {self.form}")
        for name, part in value.items():
            if name not in self.fields:
                raise Broken("belongs to no known field", str(name)[:_SHOWN])
            # null means what leaving it out means, as to an API server.
            if part is not None:
                read_part(str(name), self.fields[name], part)
        present = {name: part for name, part in value.items() if part is not None}
        for name in self.required:
            if name not in present:
                raise Broken(f"lacks {name}")
        if self.law is not None and not self.law.holds(present):
            raise Broken(self.law.fault)
        return value

    def __str__(self) -> str:
        return self.form


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedEntries(ListOf):
    """A list of objects that have names; it is passed on as it is."""

    at_most: int = 32
    key: str = "name"
    """The field whose value may be there only once."""

    def read(self, value: object) -> Any:
        entries = ListOf.read(self, value)
        names = [entry.get("name") for entry in entries]
        if not all(name is not None and 0 < len(name) <= LONGEST_LABEL for name in names):
            raise Broken(f"has an entry without a name of 1 to {LONGEST_LABEL} characters")
        refuse_repeats(entry[self.key] for entry in entries)
        return entries


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts(ListOf):
    """A list of strings, any of which may be empty, in an order that matters."""

    each: Rule = Text(at_least=0, at_most=8192)
    at_most: int = 256

    def read(self, value: object) -> tuple[str, ...]:
        return tuple(ListOf.read(self, value))

    def __str__(self) -> str:
        return f"up to {self.at_most} strings"


_QUALIFIED_NAME: Final = Text(
    pattern=r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?",
    form="a name such as team or example.com/team",
)
LABELS: Final = MapOf(
    each=Text(
        at_least=0,
        at_most=LONGEST_LABEL,
        pattern=r"([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?",
        form="a label value",
    ),
    called="strings by name",
    keys=_QUALIFIED_NAME,
)
ANNOTATIONS: Final = MapOf(
    each=ANY_TEXT,
    called="strings by name",
    # Kubernetes does not look at the case of these.
    keys=replace(_QUALIFIED_NAME, pattern=str(_QUALIFIED_NAME.pattern).replace("a-z0", "A-Za-z0")),
)
QUANTITIES: Final = MapOf(
    each=Quantity(), called="quantities by resource, such as cpu: 500m", at_most=16
)
