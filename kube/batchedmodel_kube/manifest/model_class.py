"""A BatchedModelClass: defaults for the manifests that name it. Pure.

What a manifest says itself wins, field by field: sections are joined, and so are mappings of names
to values, such as labels and quantities. Lists and Kubernetes' own types are taken as a whole.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from batchedmodel_contract.invalid_input import InvalidManifest, Mistake, shown
from batchedmodel_contract.schema.reading import (
    RecordOf,
    as_in,
    declarations,
    read,
    section,
    setting,
    unknown_field,
)
from batchedmodel_contract.schema.rules import Text
from batchedmodel_contract.schema.shapes import MapOf, Names
from batchedmodel_kube.manifest.batching import Batching
from batchedmodel_kube.manifest.spec import CLASS_NAME, Model, PullPolicy, Resources, Sidecar, Spec
from batchedmodel_kube.manifest.workload import Accelerator, Pod, Security
from batchedmodel_kube.names import API_VERSION, CLASS_KIND

_TOP: Final = ("apiVersion", "kind", "metadata", "spec", "status")
_ALL_NAMESPACES: Final = "*"
_NAMESPACE: Final = Text(
    pattern=r"\*|[a-z0-9]([a-z0-9-]*[a-z0-9])?", form="a namespace, or * for all", at_most=63
)
_OF_A_NAMESPACE: Final = re.compile(
    "secret|serviceaccount|podcertificate|persistentvolumeclaim|datasource", re.IGNORECASE
)
"""In the names of fields by which Kubernetes' types name what belongs to the pod's namespace."""
_LENDING: Final = (
    *("serviceAccountName", "automountServiceAccountToken", "imagePullSecrets"),
    *("volumes", "initContainers"),
)
"""Fields of `pod` that may have such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassModel:
    """The container that runs a batch, as far as a class says."""

    image: str | None = as_in(Model, "image")
    image_pull_policy: PullPolicy | None = as_in(Model, "image_pull_policy")
    resources: Resources = as_in(Model, "resources")
    security_context: dict[str, object] | None = as_in(Model, "security_context")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSpec:
    """The `spec` of a class."""

    model: ClassModel = section(ClassModel, default=ClassModel())
    """What runs a batch."""
    batching: Batching = as_in(Spec, "batching")
    accelerator: Accelerator | None = as_in(Spec, "accelerator")
    sidecar: Sidecar = as_in(Spec, "sidecar")
    security: Security = as_in(Spec, "security")
    pod: Pod = as_in(Spec, "pod")
    allowed_namespaces: tuple[str, ...] | None = setting(
        Names(each=_NAMESPACE, called="namespace", at_most=256)
    )
    """Namespaces whose models may name the class; `*`: all. Absent: all, or none where `pod` names
    a service account, a token, a Secret or a claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelClass:
    """A class that was read and found right."""

    name: str
    given: Mapping[str, Any]
    """Its spec, as its author wrote it."""

    def allows(self, namespace: object) -> bool:
        """Whether models of a namespace may name it."""
        allowed = self.given.get("allowedNamespaces")
        if allowed is None:
            pod = self.given.get("pod") or {}
            return not _names_credentials({name: pod.get(name) for name in _LENDING})
        return _ALL_NAMESPACES in allowed or namespace in allowed


def read_class(manifest: object) -> ModelClass:
    """The record of a class's manifest.

    Raises `InvalidManifest` with every mistake. Rules over several fields are judged where a
    BatchedModel names the class, for either may give one of the fields.
    """
    manifest = mapping_of(manifest)
    name = metadata_of(manifest).get("name")
    mistakes = [*wrong_head(manifest, CLASS_KIND, CLASS_NAME)]
    given = manifest.get("spec")
    if given is None:
        mistakes.append(Mistake(field="spec", rule="is required"))
    else:
        read(ClassSpec, given, "spec", mistakes)
    if mistakes:
        where = f"{CLASS_KIND} {name}" if isinstance(name, str) else CLASS_KIND
        raise InvalidManifest(
            tuple(replace(one, field=f"{where}: {one.field}") for one in mistakes)
        )
    assert isinstance(name, str)
    assert isinstance(given, Mapping)
    return ModelClass(name=name, given=given)


def mapping_of(manifest: object) -> Mapping[str, Any]:
    """A manifest as a mapping; raises `InvalidManifest` for anything else."""
    if isinstance(manifest, Mapping):
        return manifest
    mistake = Mistake(field="manifest", rule="is not a mapping", value=shown(manifest))
    raise InvalidManifest((mistake,))


def metadata_of(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metadata of a manifest; empty where it is no mapping."""
    metadata = manifest.get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}


def wrong_head(manifest: Mapping[str, Any], kind: str, name_rule: Text) -> Iterator[Mistake]:
    """What is wrong with a manifest of a kind beside its spec."""
    for field, expected in (("apiVersion", API_VERSION), ("kind", kind)):
        value = manifest.get(field)
        if value is None:
            yield Mistake(field=field, rule=f"is required and must be {expected}")
        elif value != expected:
            yield Mistake(field=field, rule=f"is not {expected}", value=shown(value))
    name = metadata_of(manifest).get("name")
    if name is None:
        yield Mistake(field="metadata.name", rule="is required")
    elif not _fits(name_rule, name):
        yield Mistake(field="metadata.name", rule=f"is not {name_rule.form}", value=shown(name))
    yield from (unknown_field(one, _TOP, str(one)) for one in manifest if one not in _TOP)


def _fits(rule: Text, value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(str(rule.pattern), value) is not None


def class_name_of(manifest: object) -> str | None:
    """The class that a BatchedModel's manifest names; None where it names none that can be."""
    spec = manifest.get("spec") if isinstance(manifest, Mapping) else None
    name = spec.get("className") if isinstance(spec, Mapping) else None
    return name if isinstance(name, str) and _fits(CLASS_NAME, name) else None


def merged(spec: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A spec with a class's values where it says nothing itself, as a manifest has it."""
    return _joined(Spec, spec, defaults)


def comes_from(field: str, spec: Mapping[str, Any], defaults: Mapping[str, Any]) -> bool:
    """Whether a merged spec has a field, such as ``spec.batching.policy``, from the class."""
    names = field.split(".")[1:]
    return not _has(spec, names) and _has(defaults, names)


def _joined(of: type[Any], own: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    known = {declared.name: declared for _, declared in declarations(of)}
    found = dict(own)
    for name, given in defaults.items():
        said, declared = own.get(name), known.get(name)
        if given is None or declared is None:
            continue
        if said is None:
            found[name] = given
        elif isinstance(said, Mapping) and isinstance(given, Mapping):
            if isinstance(declared.rule, RecordOf):
                found[name] = _joined(declared.rule.of, said, given)
            elif isinstance(declared.rule, MapOf):
                kept = {key: one for key, one in said.items() if one is not None}
                found[name] = {**given, **kept}
    return found


def _names_credentials(part: object) -> bool:
    """Whether a part of a pod names a service account, a token, a Secret or a claim."""
    if isinstance(part, list):
        return any(map(_names_credentials, part))
    if not isinstance(part, Mapping):
        return False
    return any(
        (value not in (None, False, []) and _OF_A_NAMESPACE.search(name) is not None)
        or _names_credentials(value)
        for name, value in part.items()
    )


def _has(value: Any, names: list[str]) -> bool:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value is not None
