"""Writes the table of Kubernetes' own types from what an API server says of them.

kubectl get --raw /openapi/v3/api/v1 > core.json
kubectl get --raw /openapi/v3/apis/autoscaling/v2 > autoscaling.json
python crds/kubernetes_types.py core.json autoscaling.json
"""

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from batchedmodel_kube.schema.kubernetes_types import TABLE

Schema = Mapping[str, Any]
ROOTS: Final = (
    *("Affinity", "Container", "EnvFromSource", "HorizontalPodAutoscalerBehavior"),
    *("SecurityContext", "Toleration", "TopologySpreadConstraint", "Volume", "VolumeMount"),
)
"""The types that a manifest's fields have."""
_KEPT: Final = {"ObjectMeta": ("annotations", "labels")}
"""Fields of types of which Kubernetes refuses the others where a manifest has them."""


def content(documents: Iterable[Schema]) -> str:
    """What the table should hold, by the OpenAPI documents of an API server."""
    known = {
        name.rpartition(".")[2]: schema
        for document in documents
        for name, schema in document["components"]["schemas"].items()
    }
    types: dict[str, dict[str, str]] = {}
    waiting = list(ROOTS)
    while waiting:
        name = waiting.pop()
        fields = known[name].get("properties")
        if name in types or fields is None:
            continue
        types[name] = {field: _kind(fields[field]) for field in sorted(_KEPT.get(name, fields))}
        kinds = (re.sub(r"^\[\]|^map\[string\]", "", kind) for kind in types[name].values())
        waiting += [kind for kind in kinds if kind in known]
    lines = (f"{json.dumps(name)}: {json.dumps(types[name])}" for name in sorted(types))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _kind(schema: Schema) -> str:
    """The kind of a field as Go writes it, such as ``[]KeyToPath``."""
    (schema,) = schema.get("allOf", [schema])
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition(".")[2]
    if schema["type"] == "array":
        return f"[]{_kind(schema['items'])}"
    if schema["type"] == "object":
        return f"map[string]{_kind(schema['additionalProperties'])}"
    return str(schema["type"])


if __name__ == "__main__":
    TABLE.write_text(content(json.loads(Path(name).read_bytes()) for name in sys.argv[1:]), "utf-8")
