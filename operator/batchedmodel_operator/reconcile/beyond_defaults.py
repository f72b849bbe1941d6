"""What a manifest says beyond the contract's defaults. Pure.

Of that digests are made that must outlast an operator and a definition: a field that comes into
being later changes nothing for those who do not use it, nor does one that is written out.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any


def beyond_defaults(value: Any) -> Any:
    """The value as JSON, without what is as the contract has it anyway."""
    if dataclasses.is_dataclass(value):
        return {
            field.name: beyond_defaults(given)
            for field in dataclasses.fields(value)
            if (given := getattr(value, field.name)) != default_of(field)
        }
    if isinstance(value, Mapping):
        return {str(name): beyond_defaults(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [beyond_defaults(inner) for inner in value]
    return value


def default_of(field: "dataclasses.Field[Any]") -> Any:
    """What the field has where nothing is said."""
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()
