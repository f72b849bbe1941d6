"""What a manifest says beyond the defaults, and whether it reads otherwise than before.

Pure. An API server drops what the present definition of BatchedModel does not know from whatever it
reads, and makes no new generation of it. So a definition that is replaced by an earlier one takes
fields out of manifests that nobody has edited.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from batchedmodel_contract.spec import Spec
from batchedmodel_operator.observed import Model, digest

FIELD: Final = "observedSpec"
"""Of the status: the digest of the spec of `observedGeneration`."""


def spec_digest(spec: Spec) -> str:
    """The same for all that differs by defaults only, which a definition may write out or not."""
    return digest(beyond_defaults(spec))


def altered(model: Model) -> bool:
    """Whether the spec is not the one that was applied, although its generation is the same."""
    if model.spec is None or model.status.get("observedGeneration") != model.generation:
        return False
    known = model.status.get(FIELD)
    return bool(known) and known != spec_digest(model.spec)


def beyond_defaults(value: Any) -> Any:
    """The value as JSON, without what is as the contract has it anyway.

    A field that comes into being with a later operator so changes nothing for those who do not use
    it.
    """
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
