"""The definitions of `BatchedModel` and `BatchedModelClass`, as this folder holds them.

Pure. `generate.py` writes them to files, and a test holds the files to them. The schema of
`spec` follows from its declarations: names, rules and descriptions come from the records, rules
over several fields from `cross_field_rules`.
"""

import json
import re
from typing import Any, Final

from batchedmodel_contract.manifest.adapters import MOST_ITEMS
from batchedmodel_contract.schema.reading import Section, declarations
from batchedmodel_contract.schema.rules import LONGEST_OBJECT_NAME
from batchedmodel_kube.capacity import FIELD
from batchedmodel_kube.manifest.cross_field_rule import PLACEHOLDER, Check, read_in_cel
from batchedmodel_kube.manifest.cross_field_rules import CHECKS
from batchedmodel_kube.manifest.manifest import (
    LARGEST_SPEC,
    NAME_PATTERN,
    NAME_RULE,
    SAME_NAME_RULE,
    SIZE_RULE,
    TAKEN_NAME_RULE,
    TAKEN_NAMES,
)
from batchedmodel_kube.manifest.model_class import ClassSpec
from batchedmodel_kube.manifest.spec import Spec
from batchedmodel_kube.names import (
    ADAPTERS_STATUS_FIELD,
    CLASS_KIND,
    CLASS_PLURAL,
    GROUP,
    KIND,
    PLURAL,
    VERSION,
)
from descriptions import description
from structural_schema import Schema, anchored, record_schema, rule_schema

_WIDE: Final = 1
"""Priority of columns that only `kubectl get --output wide` shows."""
_READ: Final = re.compile(r"\bself\.([A-Za-z]+(?:\.[A-Za-z]+)*)(?![A-Za-z(])")
"""The path of a field that a rule in CEL reads."""
_KINDS: Final = ("type", "x-kubernetes-int-or-string")
"""The keywords of which a value's schema has one."""


def custom_resource() -> Schema:
    """The CustomResourceDefinition of BatchedModel."""
    names = {"shortNames": ["bm"], "categories": ["all", "inference"]}
    return _definition(PLURAL, KIND, "Namespaced", names, _version())


def class_resource() -> Schema:
    """The CustomResourceDefinition of BatchedModelClass."""
    names = {"shortNames": ["bmc"], "categories": ["inference"]}
    properties = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": {"description": "What holds where a manifest says nothing.", **class_schema()},
    }
    version = {
        "additionalPrinterColumns": [
            {"name": "Image", "type": "string", "jsonPath": ".spec.model.image"},
            {"name": "Batch", "type": "integer", "jsonPath": ".spec.batching.maxBatchSize"},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
        "schema": {
            "openAPIV3Schema": {
                "description": "Defaults for the BatchedModels that name it.",
                "type": "object",
                "required": ["spec"],
                "properties": properties,
            }
        },
    }
    return _definition(CLASS_PLURAL, CLASS_KIND, "Cluster", names, version)


def _definition(plural: str, kind: str, scope: str, names: Schema, version: Schema) -> Schema:
    singular = {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"}
    served = {"name": VERSION, "served": True, "storage": True, **version}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {**singular, **names},
            "versions": [served],
        },
    }


def class_schema() -> Schema:
    """The schema of a class's `spec`."""
    return record_schema(ClassSpec) | {"x-kubernetes-validations": [_size_validation()]}


def spec_schema() -> Schema:
    """The schema of `spec`."""
    validations = [_size_validation(), *(_validation(check) for check in CHECKS)]
    return record_schema(Spec) | {"x-kubernetes-validations": validations}


def _validation(check: Check) -> Schema:
    """The rule of a check, but for manifests whose class may say something of it.

    An API server does not know what: the operator judges these.
    """
    said = {"message": check.rule}
    fields = PLACEHOLDER.findall(check.rule)
    sentence = PLACEHOLDER.sub("%s", check.rule)
    if check.shows_its_value():
        fields, sentence = [check.field, *fields], f"%s {sentence}"
    if fields:
        # Joining texts by `+` would exceed the cost that an API server allows.
        values = ", ".join(read_in_cel(field)[1] for field in fields)
        said = {"messageExpression": f"{json.dumps(sentence)}.format([{values}])"}
    rule = (~check.fault).cel
    if any(map(_may_come_from_class, _READ.findall(rule))):
        rule = f"has(self.className) || {rule}"
    return {"rule": rule, **said, "fieldPath": f".{check.field}", "reason": check.reason.value}


def _may_come_from_class(path: str) -> bool:
    """Whether a class may say what stands under a path below `spec`, or a part of it."""
    of: type[Any] = ClassSpec
    for name in path.split("."):
        found = next((one for _, one in declarations(of) if one.name == name), None)
        if found is None:
            return False
        if not isinstance(found, Section):
            return True
        of = found.of
    return True


def _size_validation() -> Schema:
    # A formatted object is JSON but for some escapes. Two hexadecimal digits stand for each byte:
    # `bytes()` and `size()` of a text whose length nobody declared would exceed the cost that an
    # API server allows.
    text = "'%s'.format([dyn(self)])"
    return {
        "rule": f"size('%x'.format([{text}])) <= {2 * LARGEST_SPEC}",
        "message": SIZE_RULE,
        "reason": "FieldValueForbidden",
    }


def _same_name_validation() -> Schema:
    items = "self.spec.adapters.items"
    same = f"{items}.exists(item, item.name == self.metadata.name)"
    return {
        "rule": f"!(has(self.spec.adapters) && has({items}) && {same})",
        "message": SAME_NAME_RULE,
        "fieldPath": ".spec.adapters.items",
    }


def effective_schema(of: type[Any]) -> Schema:
    """The fields whose value depends on others when the author gives none, as a status shows them.

    Without bounds: what follows from two values may exceed the limits that hold for one.
    """
    properties: Schema = {}
    for field, declared in declarations(of):
        described = {"description": description(of, field.name)}
        if isinstance(declared, Section):
            below = effective_schema(declared.of)
            if below["properties"]:
                properties[declared.name] = described | below
        elif declared.effective:
            bounded = rule_schema(declared.rule)
            kind = {name: bounded[name] for name in _KINDS if name in bounded}
            properties[declared.name] = described | kind
    return {"type": "object", "properties": properties}


def _version() -> Schema:
    return {
        "subresources": {
            "status": {},
            # With autoscaling, `kubectl scale` is refused by the rule that the number of pods has
            # one owner, which says so: the autoscaler would only undo it.
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": _columns(),
        "schema": {"openAPIV3Schema": _object_schema()},
    }


def _columns() -> list[Schema]:
    return [
        {"name": "Ready", "type": "string", "jsonPath": ".status.ready"},
        {"name": "Model", "type": "string", "jsonPath": ".status.model"},
        {"name": "Max", "type": "integer", "jsonPath": ".spec.autoscaling.maxReplicas"},
        {"name": "URL", "type": "string", "jsonPath": ".status.url"},
        {
            "name": "Reason",
            "type": "string",
            "jsonPath": '.status.conditions[?(@.type=="Ready")].reason',
        },
        _wide("Class", "string", ".spec.className"),
        _wide("UpToDate", "string", '.status.conditions[?(@.type=="UpToDate")].reason'),
        _wide("Batch", "integer", ".status.effective.batching.maxBatchSize"),
        _wide("Image", "string", ".status.effective.model.image"),
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]


def _wide(name: str, kind: str, path: str) -> Schema:
    return {"name": name, "type": kind, "jsonPath": path, "priority": _WIDE}


def _object_schema() -> Schema:
    # One that is there already takes its status, which says what is wrong with it.
    free = f"oldSelf.hasValue() || !(self.metadata.name in {TAKEN_NAMES})"
    names = [
        _name_validation(f"self.metadata.name.matches('{anchored(NAME_PATTERN)}')", NAME_RULE),
        {**_name_validation(free, TAKEN_NAME_RULE), "optionalOldSelf": True},
    ]
    return {
        "description": "A model whose requests are batched on their way to it.",
        "type": "object",
        "required": ["spec"],
        "x-kubernetes-validations": [*names, _same_name_validation()],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {
                "type": "object",
                # Any other bound than Kubernetes' own would only replace our message by its own.
                "properties": {"name": {"type": "string", "maxLength": LONGEST_OBJECT_NAME}},
            },
            "spec": {"description": "What is wanted.", **spec_schema()},
            "status": _status_schema(),
        },
    }


def _name_validation(rule: str, sentence: str) -> Schema:
    said = json.dumps(f'"%s" {sentence}')
    return {
        "rule": rule,
        "messageExpression": f"{said}.format([self.metadata.name])",
        "fieldPath": ".metadata.name",
    }


def _rollout_schema() -> Schema:
    return {
        "description": "What was decided of the rollout; it stays until another one is asked for.",
        "type": "object",
        "properties": {
            "targetRevision": _text("Revision that the manifest asks for: a ControllerRevision."),
            "goodRevision": _text("Revision of which all pods were available last."),
            "strategy": _text("Surge or InPlace, as it is in force."),
            "strategyReason": _text("Why."),
            "strategyLatched": _text("InPlace, when Surge found no accelerator."),
            "failedRevision": _text("Revision that was taken back: the target, or absent."),
            "failedReason": _text("Why its containers failed."),
            "failedMessage": _text("The same, for people."),
            "manifest": _text("Digest of what the manifest itself says of pods, beside its class."),
            "cause": _text("Upgrade or Class, where no edit of the manifest asked for the target."),
        },
    }


def _status_schema() -> Schema:
    return {
        "description": "What the operator found when it looked last, and what was learnt.",
        "type": "object",
        "properties": {
            "observedGeneration": _count("Generation of the spec that this status is about."),
            "observedSpec": _text("Digest of that spec, to tell when it is altered unseen."),
            "observedClass": _text("Uid, generation and number of fields of its class, likewise."),
            "conditions": {
                "description": "Ready is the summary; each of the others has its reason.",
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": _condition_schema(),
            },
            "ready": _text("Pods that serve and pods that are wanted, such as 2/3."),
            "model": _text("What serves: the repository, the handler, or an image of one's own."),
            "replicas": _count("Pods that exist."),
            "readyReplicas": _count("Pods that serve."),
            "updatedReplicas": _count("Pods of the newest revision."),
            "desiredReplicas": _count("Pods that are wanted, by replicas or by the autoscaler."),
            "selector": _text("Label selector of the pods."),
            "rollout": _rollout_schema(),
            "url": _text("Where callers inside the cluster reach the model."),
            "effective": {
                "description": "Values in force of fields that depend on others.",
                **effective_schema(Spec),
            },
            ADAPTERS_STATUS_FIELD: _adapters_schema(),
            FIELD: capacity_schema(),
        },
    }


def _adapters_schema() -> Schema:
    return {
        "description": "The adapters that pods told of, by name; at most 256.",
        "type": "array",
        "maxItems": MOST_ITEMS,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "items": {
            "description": "One adapter.",
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": _text("Its name.", maxLength=63),
                "readyReplicas": _count("Pods that serve it."),
                "replicas": _count("Pods that told of their adapters."),
                "reason": _text("Why another pod does not, as one of them told.", maxLength=256),
            },
        },
    }


def capacity_schema() -> Schema:
    """The schema of the status's field `capacity`."""
    return {
        "description": "What the autoscaler learnt of the pods, and remembers.",
        "type": "object",
        "properties": {
            "revision": _text("Of which pods it was learnt."),
            "rowsPerSecond": _number("Rows a second that a pod can answer within the target."),
            "startupSeconds": _number("Time from a pod's creation to its readiness."),
            "shortestLatencyMilliseconds": _number("Time that a row takes on an idle pod."),
            "learntAt": _text("When it was written; small changes are not.", format="date-time"),
        },
    }


def _condition_schema() -> Schema:
    why_pattern = "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
    return {
        "description": "One observation, in the form of meta/v1 Condition.",
        "type": "object",
        "required": ["type", "status", "reason", "message", "lastTransitionTime"],
        "properties": {
            "type": _text("What is observed.", maxLength=316),
            "status": _text("Whether it is so.", enum=["True", "False", "Unknown"]),
            "reason": _text("Why, for programs.", minLength=1, maxLength=1024, pattern=why_pattern),
            "message": _text("Why, for people.", maxLength=32_768),
            "lastTransitionTime": _text("When the status changed last.", format="date-time"),
            "observedGeneration": _count("Generation of the spec that was observed.", minimum=0),
        },
    }


def _text(description: str, **rules: object) -> Schema:
    return {"description": description, "type": "string", **rules}


def _count(description: str, **rules: object) -> Schema:
    return {"description": description, "type": "integer", **rules}


def _number(description: str) -> Schema:
    return {"description": description, "type": "number", "minimum": 0}
