"""Compares parts of the custom resource with what an API server says of Kubernetes' own types."""

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

_REFERENCE = "#/components/schemas/"


class DescribedTypes:
    """The types in an OpenAPI document of an API server."""

    def __init__(self, document: Schema) -> None:
        self._types: Schema = document["components"]["schemas"]

    def differences(self, ours: Schema, type_name: str) -> list[str]:
        """Where a schema is not of the form of a type such as `io.k8s.api.core.v1.Volume`."""
        return list(self._differences(ours, self._types[type_name], ""))

    def _differences(self, ours: Schema, theirs: Schema, path: str) -> Iterator[str]:
        theirs = self._followed(theirs)
        kind, expected = _kind(ours), _kind(theirs)
        if kind != expected:
            yield f"{path or 'all'}: {kind} instead of {expected}"
        elif kind == "object":
            mine, others = ours["properties"], theirs["properties"]
            yield from (f"{path}.{name}: missing" for name in others if name not in mine)
            yield from (f"{path}.{name}: unknown to Kubernetes" for name in mine.keys() - others)
            for name in mine.keys() & others:
                yield from self._differences(mine[name], others[name], f"{path}.{name}")
        elif kind in ("array", "map"):
            below = "items" if kind == "array" else "additionalProperties"
            yield from self._differences(ours[below], theirs[below], f"{path}[]")

    def _followed(self, schema: Schema) -> Schema:
        # A reference with a default beside it stands in an `allOf` of one.
        while (
            target := schema.get("$ref") or schema.get("allOf", [{}])[0].get("$ref")
        ) is not None:
            schema = self._types[target.removeprefix(_REFERENCE)]
        return schema


def _kind(schema: Schema) -> str:
    if schema.get("x-kubernetes-int-or-string") or "oneOf" in schema:
        return "integer or string"
    kind: str = schema["type"]
    return "map" if kind == "object" and "additionalProperties" in schema else kind
