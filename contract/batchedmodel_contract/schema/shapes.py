"""Rules for parts of a manifest that have the form of one of Kubernetes' own types.

They follow the protocol of `rules`. What such a part means Kubernetes judges, when the operator
applies it; here it is judged by its fields, their kinds and their bounds. So an API server takes no
part that is nested deeper, or is wider, than its type allows. `kubernetes_types` and
`kubernetes_volumes` hold the types.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.schema.rules import Broken, Rule, Schema, Truth, Whole, refuse_repeats

_LABEL: Final = 63
_SHOWN: Final = 64
_LARGEST: Final = 10**15
"""Above all that Kubernetes counts, and the same to all who read JSON."""
_PREFIX_OF_ENTRIES: Final = "["


class Misshapen(Broken):
    """A part of the value breaks a rule; `where` leads to it from the value."""

    def __init__(self, where: str, broken: Broken) -> None:
        self.where = where
        self.why = str(broken)
        if isinstance(broken, Misshapen):
            dot = "" if broken.where.startswith(_PREFIX_OF_ENTRIES) else "."
            self.where = f"{where}{dot}{broken.where}"
            self.why = broken.why
        super().__init__(f"has at {self.where} a value that {self.why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """An object with some fields, none of which has to be there; it is passed on as it is."""

    fields: Mapping[str, Rule]
    form: str = "a mapping"

    def read(self, value: object) -> object:
        if not isinstance(value, dict):
            raise Broken(f"is not {self.form}")
        for name, part in value.items():
            if name not in self.fields:
                raise Misshapen(str(name)[:_SHOWN], Broken("belongs to no known field"))
            # null means what leaving it out means, as to an API server.
            if part is not None:
                _read_at(str(name), self.fields[name], part)
        return value

    def schema(self) -> Schema:
        return {
            "type": "object",
            "properties": {name: rule.schema() for name, rule in self.fields.items()},
        }

    def __str__(self) -> str:
        return self.form


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOf:
    """A list of such parts, in an order that matters."""

    each: Rule
    at_most: int = 64
    form: str = "a list"

    def read(self, value: object) -> object:
        entries = _list(value, form=self.form, at_most=self.at_most)
        for index, entry in enumerate(entries):
            _read_at(f"[{index}]", self.each, entry)
        return value

    def schema(self) -> Schema:
        return {
            "type": "array",
            "items": self.each.schema(),
            "maxItems": self.at_most,
            "x-kubernetes-list-type": "atomic",
        }

    def __str__(self) -> str:
        return self.form


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedEntries:
    """A list of objects that have names."""

    each: Shape
    form: str
    at_most: int = 32
    unique: bool = True
    """Whether a name may be there only once."""

    def read(self, value: object) -> list[object]:
        entries = _list(value, form=self.form, at_most=self.at_most)
        names = [entry.get("name") if isinstance(entry, dict) else None for entry in entries]
        if not all(isinstance(name, str) and 0 < len(name) <= _LABEL for name in names):
            raise Broken(f"has an entry without a name of 1 to {_LABEL} characters")
        if self.unique:
            refuse_repeats(names)
        for index, entry in enumerate(entries):
            _read_at(f"[{index}]", self.each, entry)
        return entries

    def schema(self) -> Schema:
        entry = self.each.schema()
        entry["properties"]["name"] = {"type": "string", "minLength": 1, "maxLength": _LABEL}
        keys = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
        return {
            "type": "array",
            "items": {"required": ["name"], **entry},
            "maxItems": self.at_most,
            **(keys if self.unique else {"x-kubernetes-list-type": "atomic"}),
        }

    def __str__(self) -> str:
        return self.form


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyText:
    """A string, which may be empty."""

    longest: int = 32_768

    def read(self, value: object) -> str:
        if not isinstance(value, str):
            raise Broken("is not a string (quote numbers)")
        if len(value) > self.longest:
            raise Broken(f"is longer than {self.longest} characters")
        return value

    def schema(self) -> Schema:
        return {"type": "string", "maxLength": self.longest}

    def __str__(self) -> str:
        return "a text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A whole number or a string, such as a quantity, or a port by its number or its name."""

    longest: int = 64

    def read(self, value: object) -> int | str:
        if isinstance(value, str):
            return AnyText(longest=self.longest).read(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise Broken("is neither an integer nor a string (quote fractions)")
        return WHOLE.read(value)

    def schema(self) -> Schema:
        return {
            "x-kubernetes-int-or-string": True,
            "minimum": WHOLE.minimum,
            "maximum": WHOLE.maximum,
            "maxLength": self.longest,
        }

    def __str__(self) -> str:
        return "an integer or a text"


WHOLE: Final = Whole(minimum=-_LARGEST, maximum=_LARGEST)
_TEXT: Final = AnyText()
_TRUTH: Final = Truth()
_AMOUNT: Final = Amount()
_TEXTS: Final = ListOf(each=_TEXT, at_most=256)


def shape(
    form: str = "a mapping",
    *,
    text: str = "",
    whole: str = "",
    truth: str = "",
    amount: str = "",
    texts: str = "",
    **others: Rule,
) -> Shape:
    """A shape with the fields whose names are given by their kind, and others with a rule each."""
    kinds = ((text, _TEXT), (whole, WHOLE), (truth, _TRUTH), (amount, _AMOUNT), (texts, _TEXTS))
    fields: dict[str, Rule] = {}
    for names, rule in kinds:
        fields |= dict.fromkeys(names.split(), rule)
    fields |= others
    return Shape(form=form, fields=dict(sorted(fields.items())))


def _list(value: object, *, form: str, at_most: int) -> list[object]:
    if not isinstance(value, list):
        raise Broken(f"is not {form}")
    if len(value) > at_most:
        raise Broken(f"has {len(value)} entries, more than the {at_most} allowed")
    return value


def _read_at(where: str, rule: Rule, part: object) -> None:
    try:
        rule.read(part)
    except Broken as broken:
        raise Misshapen(where, broken) from broken
