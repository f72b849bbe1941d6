"""Where the API server has objects, by what one tells kubectl."""

from typing import Final
from urllib.parse import urlencode

_PLURALS: Final = {
    "v1": ("pods", "services", "configmaps", "events", "resourcequotas", "namespaces"),
    "apps/v1": ("deployments", "replicasets", "controllerrevisions"),
    "autoscaling/v2": ("horizontalpodautoscalers",),
    "policy/v1": ("poddisruptionbudgets",),
    "coordination.k8s.io/v1": ("leases",),
    "rbac.authorization.k8s.io/v1": ("roles", "rolebindings", "clusterroles"),
    "apiregistration.k8s.io/v1": ("apiservices",),
    "apiextensions.k8s.io/v1": ("customresourcedefinitions",),
    "batchedmodel.dev/v1alpha1": ("batchedmodels", "batchedmodelclasses"),
}
_SHORT: Final = {
    "bm": "batchedmodels",
    "bmc": "batchedmodelclasses",
    "crd": "customresourcedefinitions",
    "deploy": "deployments",
    "hpa": "horizontalpodautoscalers",
    "pdb": "poddisruptionbudgets",
    "quota": "resourcequotas",
}
_VERSIONS: Final = {plural: version for version, kinds in _PLURALS.items() for plural in kinds}
_OF_THE_CLUSTER: Final = frozenset(
    {
        "namespaces",
        "clusterroles",
        "apiservices",
        "customresourcedefinitions",
        "batchedmodelclasses",
    }
)


def path_of(namespace: str, what: str, **selectors: str) -> str:
    """The path of `pod/NAME`, or of all `pods`, in a namespace; selectors as kubectl has them.

    Raises:
        LookupError: a kind that is not listed here.
    """
    kind, _, name = what.partition("/")
    kind = kind.lower()
    names = (_SHORT.get(kind, ""), kind, f"{kind}s")
    plural = next((one for one in names if one in _VERSIONS), None)
    if plural is None:
        raise LookupError(f"it is not written down where the API server has {kind}")
    version = _VERSIONS[plural]
    parts = ["apis" if "/" in version else "api", version]
    if plural not in _OF_THE_CLUSTER:
        parts += ["namespaces", namespace]
    parts += [plural, name] if name else [plural]
    query = {f"{kind}Selector": value for kind, value in selectors.items()}
    return "/" + "/".join(parts) + (f"?{urlencode(query)}" if query else "")
