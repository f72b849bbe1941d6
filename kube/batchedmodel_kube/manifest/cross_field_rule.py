"""A rule over several fields of a manifest, stated once for the two languages that judge it.

A `Condition` is a predicate in Python and the same in CEL; both grow together from small ones. A
`Check` says which condition is a fault, and what its author is told. `cross_field_rules` makes
them, `manifest` applies them where a file is read, `crds/custom_resource` states them to an API
server.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from batchedmodel_contract.invalid_input import Mistake, shown
from batchedmodel_contract.schema.rules import Text, Truth, Whole
from batchedmodel_kube.manifest.spec import Spec
from batchedmodel_kube.schema.paths import declared_at, getter, value_at

_SHORT: Final = 16
"""Characters of a text that a message shows."""
PLACEHOLDER: Final = re.compile(r"\{([\w.]+)\}", re.ASCII)
"""In the rule of a check, where the value of a field is to stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Something that may be so in a spec; `&`, `|` and `~` mean what they say."""

    holds: Callable[[Spec], bool]
    cel: str
    """The same in CEL, as an operand. `self` is the spec as its author gave it."""

    def __and__(self, other: "Condition") -> "Condition":
        return Condition(
            holds=lambda spec: self.holds(spec) and other.holds(spec),
            cel=f"({self.cel} && {other.cel})",
        )

    def __or__(self, other: "Condition") -> "Condition":
        return Condition(
            holds=lambda spec: self.holds(spec) or other.holds(spec),
            cel=f"({self.cel} || {other.cel})",
        )

    def __invert__(self) -> "Condition":
        cel = self.cel[1:] if self.cel.startswith("!") else f"!{self.cel}"
        return Condition(holds=lambda spec: not self.holds(spec), cel=cel)


def where(test: Callable[..., bool], cel: str, *paths: str) -> Condition:
    """Whether the values under some paths, such as ``batching.policy``, pass a test.

    `cel` is the test of ``{0}``, ``{1}`` and so on. Where one of the values, or a section on the
    way to it, is absent, the condition does not hold.
    """
    reads = [read_in_cel(path) for path in paths]
    tests = [guard for guards, _ in reads for guard in guards]
    tests += [cel.format(*(value for _, value in reads))] if cel else []
    getters = [getter(Spec, path) for path in paths]

    def holds(spec: Spec) -> bool:
        values = [value(spec) for value in getters]
        return all(value is not None for value in values) and test(*values)

    assert tests, f"always holds: {paths}"
    joined = " && ".join(dict.fromkeys(tests))
    return Condition(holds=holds, cel=f"({joined})" if " " in joined else joined)


def read_in_cel(path: str) -> tuple[tuple[str, ...], str]:
    """What CEL must ask before it may read the value under a path, and how it reads it.

    A value that has a default is read with it: an API server does not fill it in.
    """
    below, guards, known = "self", list[str](), list[str]()
    default: object = None
    for field, declared in declared_at(Spec, path):
        below, default = f"{below}.{declared.name}", field.default
        if declared.required:
            continue
        known.append(f"has({below})")
        if default is None or default == ():
            guards += known
            known = []
    if not known:
        return tuple(guards), below
    text = json.dumps(default)
    literal = repr(str(default)) if isinstance(default, str) else text
    return tuple(guards), f"({' && '.join(known)} ? {below} : {literal})"


def given(path: str) -> Condition:
    """Whether a field says something: a list is not empty, a truth is true, others are there."""
    field, declared = declared_at(Spec, path)[-1]
    if isinstance(declared.rule, Truth):
        return where(bool, "{0}", path)
    if field.default == ():
        return where(bool, "size({0}) != 0", path)
    return where(lambda value: True, "", path)


def one_given(*paths: str) -> Condition:
    """Whether exactly one of the fields says something."""
    each = [given(path) for path in paths]
    return Condition(
        holds=lambda spec: sum(one.holds(spec) for one in each) == 1,
        cel=f"[{', '.join(one.cel for one in each)}].exists_one(given, given)",
    )


def among(path: str, *values: int | str) -> Condition:
    """Whether a field has one of these values."""
    literals = [value if isinstance(value, int) else str(value) for value in values]
    cel = " || ".join(f"{{0}} == {literal!r}" for literal in literals)
    return where(lambda value: value in values, cel if len(values) == 1 else f"({cel})", path)


class Reason(StrEnum):
    """What kind of mistake an API server reports."""

    REQUIRED = "FieldValueRequired"
    FORBIDDEN = "FieldValueForbidden"
    INVALID = "FieldValueInvalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule over several fields."""

    field: str
    """Where the fault is shown: a path below `spec`."""
    fault: Condition
    rule: str
    """End of the sentence; ``{drain.timeoutSeconds}`` stands for the value of that field."""
    reason: Reason = Reason.INVALID

    def broken(self, spec: Spec) -> bool:
        """Whether the spec breaks the rule."""
        return self.fault.holds(spec)

    def mistakes(self, spec: Spec) -> Iterator[Mistake]:
        """The mistake, if the spec breaks the rule."""
        if self.broken(spec):
            yield Mistake(
                field=f"spec.{self.field}",
                rule=PLACEHOLDER.sub(lambda found: str(value_at(spec, found[1])), self.rule),
                value=shown(value_at(spec, self.field)) if self.shows_its_value() else "",
            )

    def shows_its_value(self) -> bool:
        """Whether the sentence begins with the value of the field."""
        # A text may be long and a section has no one value; a number says it all.
        _, declared = declared_at(Spec, self.field)[-1]
        rule = declared.rule
        return isinstance(rule, Whole) or (isinstance(rule, Text) and rule.at_most <= _SHORT)


def invalid(field: str, fault: Condition, rule: str) -> Check:
    """A rule that is broken where the fault holds."""
    return Check(field=field, fault=fault, rule=rule)


def required(field: str, when: Condition, rule: str) -> Check:
    """A rule that a field is given where the condition holds."""
    return Check(field=field, fault=when & ~given(field), rule=rule, reason=Reason.REQUIRED)


def forbidden(field: str, when: Condition, rule: str) -> Check:
    """A rule that a field is not given where the condition holds."""
    return Check(field=field, fault=given(field) & when, rule=rule, reason=Reason.FORBIDDEN)


def reserved(field: str, fault: Condition, rule: str) -> Check:
    """A rule that is broken where a field takes what is not its author's to give."""
    return Check(field=field, fault=fault, rule=rule, reason=Reason.FORBIDDEN)
