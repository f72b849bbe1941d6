"""A cluster that gives each namespace its range of users, as OpenShift's restricted-v2 does.

Two policies do what its admission does: one gives pods that name no user the first of the range,
the other refuses pods that name one outside of it.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from cluster.errors import CommandFailed
from cluster.kubernetes import Cluster
from support.kube import Kube

FIRST: Final = 1_000_650_000
LABEL: Final = "users-from-range"
_PODS: Final = {
    "resourceRules": [
        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    ]
}
_GIVEN: Final = "has(object.spec.securityContext) && has(object.spec.securityContext.{0})"
_RANGE: Final = f"{{0}} >= {FIRST} && {{0}} < {FIRST + 10_000}"


def policies() -> list[dict[str, Any]]:
    """What makes such a cluster, for namespaces with the label."""
    head = {"metadata": {"name": LABEL}}
    group = "admissionregistration.k8s.io"
    selected = {"namespaceSelector": {"matchLabels": {LABEL: "yes"}}}
    fields = ", ".join(
        f"{name}: {_GIVEN.format(name)} ? object.spec.securityContext.{name} : {FIRST}"
        for name in ("runAsUser", "fsGroup")
    )
    context = f"Object.spec.securityContext{{{fields}}}"
    change = f"Object{{spec: Object.spec{{securityContext: {context}}}}}"
    user = "c.securityContext.runAsUser"
    own = f"!has(c.securityContext) || !has({user}) || ({_RANGE.format(user)})"
    every = f"object.spec.containers.all(c, {own})"
    first = f"!has(object.spec.initContainers) || object.spec.initContainers.all(c, {own})"
    of_pod = [
        f"!({_GIVEN.format(name)}) || ({_RANGE.format(f'object.spec.securityContext.{name}')})"
        for name in ("runAsUser", "fsGroup")
    ]
    rules = [{"expression": one} for one in (every, first, *of_pod)]
    mutating = {
        "matchConstraints": _PODS,
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": change}}
        ],
    }
    validating = {"matchConstraints": _PODS, "failurePolicy": "Fail", "validations": rules}
    bound = {"policyName": LABEL, "matchResources": selected}
    return [
        {"apiVersion": f"{group}/v1beta1", "kind": "MutatingAdmissionPolicy", "spec": mutating}
        | head,
        {"apiVersion": f"{group}/v1beta1", "kind": "MutatingAdmissionPolicyBinding", "spec": bound}
        | head,
        {"apiVersion": f"{group}/v1", "kind": "ValidatingAdmissionPolicy", "spec": validating}
        | head,
        {
            "apiVersion": f"{group}/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "spec": {**bound, "validationActions": ["Deny"]},
        }
        | head,
    ]


@contextmanager
def users_from_ranges(cluster: Cluster) -> Iterator[None]:
    """In namespaces that have the label, pods run as users of a range that no manifest knows."""
    made = policies()
    everywhere = Kube(cluster, "default")
    for one in made:
        everywhere.apply(one)
    try:
        yield
    finally:
        for one in made:
            cluster.kubectl("delete", one["kind"], LABEL)


def runs_as(kube: Kube, pod: str, container: str) -> int:
    """The user of a container's processes."""
    words = ("exec", pod, f"--container={container}", "--", "id", "-u")
    return int(kube.kubectl(*words))


def refuses_own_users(kube: Kube) -> bool:
    """Whether a pod with a user of its own is refused; policies hold a moment after they came."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "own", "namespace": kube.namespace},
        "spec": {
            "securityContext": {"runAsUser": 65532},
            "containers": [{"name": "own", "image": "localhost/none:1"}],
        },
    }
    try:
        kube.kubectl("create", "--dry-run=server", "--filename=-", stdin=json.dumps(pod))
    except CommandFailed as error:
        return "denied" in str(error)
    return False
