"""One rule over several fields of a manifest, in the two languages that judge it.

`checks` makes them. `manifest` applies them where a file is read, `openapi` states them to an API
server in CEL. Both halves of a rule stand side by side, and their sentence exists once, so that an
author hears the same on one machine and in a cluster.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from batchedmodel_contract.invalid_input import Mistake, shown
from batchedmodel_contract.manifest.spec import Spec
from batchedmodel_contract.schema.reading import Setting, declaration_at, value_at
from batchedmodel_contract.schema.rules import Schema, Whole

_PLACEHOLDER: Final = re.compile(r"\{([\w.]+)\}", re.ASCII)


class Reason(StrEnum):
    """What kind of mistake an API server reports."""

    REQUIRED = "FieldValueRequired"
    FORBIDDEN = "FieldValueForbidden"
    INVALID = "FieldValueInvalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule over several fields."""

    name: str
    """The fault that it finds."""
    field: str
    """Where the fault is shown: a path below `spec`."""
    broken: Callable[[Spec], bool]
    holds: str
    """The same in CEL, true when the rule is kept; `self` is the spec with its defaults."""
    rule: str
    """End of the sentence; ``{drain.timeoutSeconds}`` stands for the value of that field."""
    reason: Reason = Reason.INVALID

    def mistakes(self, spec: Spec) -> Iterator[Mistake]:
        """The mistake, if the spec breaks the rule."""
        if self.broken(spec):
            yield Mistake(
                field=f"spec.{self.field}",
                rule=_PLACEHOLDER.sub(lambda found: str(value_at(spec, found[1])), self.rule),
                value=shown(value_at(spec, self.field)) if self._shows_its_value() else "",
            )

    def validation(self) -> Schema:
        """The rule as an entry of the spec's `x-kubernetes-validations`."""
        said = {"message": self.rule}
        fields = _PLACEHOLDER.findall(self.rule)
        sentence = _PLACEHOLDER.sub("%s", self.rule)
        if self._shows_its_value():
            fields, sentence = [self.field, *fields], f"%s {sentence}"
        if fields:
            # Joining texts by `+` would exceed the cost that an API server allows.
            values = ", ".join(f"self.{field}" for field in fields)
            said = {"messageExpression": f"{json.dumps(sentence)}.format([{values}])"}
        return {
            "rule": self.holds,
            **said,
            "fieldPath": f".{self.field}",
            "reason": self.reason.value,
        }

    def _shows_its_value(self) -> bool:
        # A text may be long and a section has no one value; a number says it all.
        declared = declaration_at(Spec, self.field)
        return isinstance(declared, Setting) and isinstance(declared.rule, Whole)
