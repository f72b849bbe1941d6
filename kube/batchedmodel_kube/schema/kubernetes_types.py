"""Kubernetes' types for containers, volumes, placement and scaling that a manifest may hold.

`kubernetes_types.json` has their fields as they are in 1.34, each with its kind;
`crds/kubernetes_types.py` writes it from an API server's own description, and a test holds it to
that. Here is what a manifest must keep besides.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from batchedmodel_contract.schema.rules import ANY_TEXT, Rule, Text, Truth, Whole
from batchedmodel_contract.schema.shapes import TEXT_MAP, ListOf
from batchedmodel_kube.schema.quantities import Amount, amount_of
from batchedmodel_kube.schema.shapes import QUANTITIES, Law, NamedEntries, Shape

TABLE: Final = Path(__file__).with_suffix(".json")
_TYPES: Final[Mapping[str, Mapping[str, str]]] = json.loads(TABLE.read_text("utf-8"))
_KINDS: Final[Mapping[str, Rule]] = {
    "string": ANY_TEXT,
    "integer": Whole(),
    "boolean": Truth(),
    "Quantity": Amount(),
    "IntOrString": Amount(),
    "[]string": ListOf(each=ANY_TEXT, at_most=256),
    "[]integer": ListOf(each=Whole(), at_most=256),
    "map[string]string": TEXT_MAP,
    "map[string]Quantity": QUANTITIES,
}


def kubernetes_type(
    name: str, form: str = "a mapping", *, needs: str = "", law: Law | None = None, **rules: Rule
) -> Shape:
    """The shape of a type such as ``Volume``; `rules` are for fields that have narrower ones.

    `needs` names the fields that have to be there.
    """
    assert rules.keys() <= _TYPES[name].keys(), f"no fields of {name}: {rules}"
    fields = {
        field: rules[field] if field in rules else _rule(kind)
        for field, kind in _TYPES[name].items()
    }
    return Shape(form=form, fields=fields, required=tuple(needs.split()), law=law)


def _rule(kind: str) -> Rule:
    if kind in _KINDS:
        return _KINDS[kind]
    if kind.startswith("[]"):
        return ListOf(each=_rule(kind.removeprefix("[]")))
    return kubernetes_type(kind)


ABOVE_LIMITS: Final = "asks for more of a resource than limits allow"
CEL_ABOVE_LIMITS: Final = (
    "{0}.exists(name, name in {1} && "
    "quantity(string({0}[name])).compareTo(quantity(string({1}[name]))) > 0)"
)
"""Of requests ``{0}`` and limits ``{1}``."""


def above_limits(requests: Mapping[str, Any], limits: Mapping[str, Any]) -> bool:
    """Whether more of a resource is asked for than is allowed, in quantities by resource."""
    return any(
        amount_of(str(amount)) > amount_of(str(limits[name]))
        for name, amount in requests.items()
        if amount is not None and limits.get(name) is not None
    )


_WITHIN_LIMITS: Final = Law(
    holds=lambda given: not above_limits(given.get("requests", {}), given.get("limits", {})),
    cel="!has(self.requests) || !has(self.limits) || !"
    + CEL_ABOVE_LIMITS.format("self.requests", "self.limits"),
    fault=ABOVE_LIMITS,
)
VOLUME: Final = kubernetes_type("Volume")
ENV_FROM: Final = kubernetes_type("EnvFromSource")
VOLUME_MOUNT: Final = kubernetes_type(
    "VolumeMount", needs="mountPath", mountPath=Text(form="a path", at_most=4096)
)
_ID: Final = Whole(minimum=0, maximum=2**31 - 1)
SECURITY_CONTEXT: Final = kubernetes_type(
    "SecurityContext",
    "a container's core/v1 security context",
    runAsGroup=_ID,
    runAsUser=_ID,
)
CONTAINER: Final = kubernetes_type(
    "Container",
    needs="image",
    image=Text(pattern=r"\S+", form="an image reference"),
    env=ListOf(each=kubernetes_type("EnvVar"), at_most=256),
    resources=kubernetes_type("ResourceRequirements", law=_WITHIN_LIMITS),
    securityContext=SECURITY_CONTEXT,
    volumeMounts=NamedEntries(
        each=VOLUME_MOUNT, form="a list of core/v1 volume mounts", key="mountPath"
    ),
)
AFFINITY: Final = kubernetes_type("Affinity", "a core/v1 affinity")
BEHAVIOR: Final = kubernetes_type("HorizontalPodAutoscalerBehavior", "an autoscaling/v2 behavior")
TOPOLOGY_SPREAD_CONSTRAINT: Final = kubernetes_type(
    "TopologySpreadConstraint",
    needs="maxSkew topologyKey whenUnsatisfiable",
    maxSkew=Whole(minimum=1),
    whenUnsatisfiable=Text(
        pattern="DoNotSchedule|ScheduleAnyway", form="DoNotSchedule or ScheduleAnyway"
    ),
)

_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def _tolerates(given: Mapping[str, Any]) -> bool:
    operator, effect = given.get("operator") or "Equal", given.get("effect")
    if operator == "Exists":
        right = not given.get("value")
    else:
        right = operator in ("Equal", "Lt", "Gt") and bool(given.get("key"))
    lasting = "tolerationSeconds" not in given or effect == "NoExecute"
    return right and lasting and (not effect or effect in _EFFECTS)


TOLERATION: Final = kubernetes_type(
    "Toleration",
    law=Law(
        holds=_tolerates,
        cel="(has(self.operator) && self.operator == 'Exists' "
        "? !has(self.value) || self.value == '' : has(self.key) && self.key != '' "
        "&& (!has(self.operator) || self.operator in ['', 'Equal', 'Lt', 'Gt'])) "
        f"&& (!has(self.effect) || self.effect in {['', *_EFFECTS]}) && "
        "(!has(self.tolerationSeconds) || has(self.effect) && self.effect == 'NoExecute')",
        fault="is no toleration: operator is Exists, without a value, or Equal, Lt or Gt, with a "
        "key; effect is NoSchedule, PreferNoSchedule or NoExecute; tolerationSeconds goes with "
        "NoExecute",
    ),
)
