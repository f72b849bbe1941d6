"""Reads a whole BatchedModel manifest.

`batchedmodel run` calls it with a mapping from YAML, the operator with one from the API server. The
rules over several fields, and the bound of the whole, are judged once every field keeps its own.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from batchedmodel_contract.invalid_input import InvalidManifest, Mistake, shown
from batchedmodel_contract.schema.reading import read
from batchedmodel_contract.schema.rules import Text
from batchedmodel_kube.manifest.cross_field_rules import CHECKS
from batchedmodel_kube.manifest.model_class import (
    ModelClass,
    comes_from,
    mapping_of,
    merged,
    metadata_of,
    wrong_head,
)
from batchedmodel_kube.manifest.spec import Spec
from batchedmodel_kube.names import CLASS_KIND, KIND

LONGEST_NAME: Final = 48
"""Characters in a BatchedModel's name: those of its children are longer, up to a label's 63."""
MODEL_NAME: Final = Text(
    pattern=rf"[a-z]([a-z0-9-]{{0,{LONGEST_NAME - 2}}}[a-z0-9])?",
    form=f"a name of 1 to {LONGEST_NAME} lower-case letters, digits and '-' "
    "that starts with a letter",
)
TAKEN_NAMES: Final = ["kubernetes", "kubernetes-service"]
TAKEN_NAME_RULE: Final = (
    "is a name whose variables (KUBERNETES_SERVICE_...) tell pods where the API server is"
)
SAME_NAME_RULE: Final = "holds an adapter that has the model's own name"
LARGEST_SPEC: Final = 65_536
"""Bytes as JSON, as the author wrote it; with a class, of both together as well."""
SIZE_RULE: Final = f"has more than {LARGEST_SPEC} bytes as JSON"
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(", ", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedModel:
    """A manifest that was read and found right."""

    name: str
    spec: Spec


def read_manifest(manifest: object, model_class: ModelClass | None = None) -> BatchedModel:
    """The record of a manifest, with the values of the class that it names.

    Raises `InvalidManifest` with the mistakes of its head and every mistake that a single field of
    its spec makes; if none does, with every mistake that fields make together. These say what comes
    from the class.
    """
    manifest = mapping_of(manifest)
    mistakes = [*wrong_head(manifest, KIND, MODEL_NAME)]
    metadata = metadata_of(manifest)
    if metadata.get("name") in TAKEN_NAMES:
        mistakes.append(
            Mistake(field="metadata.name", rule=TAKEN_NAME_RULE, value=shown(metadata["name"]))
        )
    spec, namespace = None, metadata.get("namespace")
    if manifest.get("spec") is None:
        mistakes.append(Mistake(field="spec", rule="is required"))
    else:
        spec = read(Spec, manifest["spec"], "spec", mistakes)
    if spec is not None:
        if rule := too_large(manifest["spec"]):
            mistakes.append(Mistake(field="spec", rule=rule))
        if spec.class_name is None:
            mistakes.extend(_together(spec))
        elif model_class is None or model_class.name != spec.class_name:
            mistakes.append(_no_class(spec.class_name))
        elif namespace is not None and not model_class.allows(namespace):
            mistakes.append(_not_allowed(spec.class_name, namespace))
        elif not mistakes:
            spec = _with_class(manifest["spec"], model_class, mistakes)
    if spec is not None:
        mistakes.extend(_named_as_an_adapter(manifest, spec))
    if spec is None or mistakes:
        raise InvalidManifest(tuple(mistakes))
    return BatchedModel(name=manifest["metadata"]["name"], spec=spec)


def read_own_spec(manifest: Mapping[str, object]) -> Spec | None:
    """What a manifest's spec says itself, whatever its class says; None where a field is wrong."""
    return read(Spec, manifest.get("spec"), "spec", [])


def _together(spec: Spec) -> Iterator[Mistake]:
    return (mistake for check in CHECKS for mistake in check.mistakes(spec))


def _no_class(name: str) -> Mistake:
    rule = f"is a {CLASS_KIND} that is not there"
    return Mistake(field="spec.className", rule=rule, value=shown(name))


def _not_allowed(name: str, namespace: object) -> Mistake:
    rule = (
        f"is a {CLASS_KIND} whose allowedNamespaces do not name {namespace}; one that gives pods "
        "service accounts, Secrets or claims is for those alone"
    )
    return Mistake(field="spec.className", rule=rule, value=shown(name))


def _with_class(
    given: Mapping[str, Any], model_class: ModelClass, mistakes: list[Mistake]
) -> Spec | None:
    """The spec with its class's values; `mistakes` gets those that it makes only with them."""
    whole = merged(given, model_class.given)
    found: list[Mistake] = []
    spec = read(Spec, whole, "spec", found)
    if spec is not None:
        if rule := too_large(whole):
            found.append(Mistake(field="spec", rule=rule))
        found.extend(_together(spec))
    where = f"{CLASS_KIND} {model_class.name}"
    for mistake in found:
        of_class = comes_from(mistake.field, given, model_class.given)
        said = f"from {where}" if of_class else f"with what {where} says"
        mistakes.append(dataclasses.replace(mistake, rule=f"{mistake.rule} ({said})"))
    return spec


def _named_as_an_adapter(manifest: Mapping[str, object], spec: Spec) -> Iterator[Mistake]:
    name = metadata_of(manifest).get("name")
    items = () if spec.adapters is None else spec.adapters.items
    if any(item.name == name for item in items):
        yield Mistake(field="spec.adapters.items", rule=SAME_NAME_RULE)


def too_large(spec: object) -> str:
    """The end of the sentence about a spec that is too large; empty when it is not."""
    size = 0
    # Part by part: a spec that holds one part many times is far larger as JSON than in memory.
    for part in _ENCODER.iterencode(spec):
        size += len(part.encode(errors="replace"))
        if size > LARGEST_SPEC:
            return SIZE_RULE
    return ""
