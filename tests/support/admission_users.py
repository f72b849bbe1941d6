"""People with different rights in one namespace of a release, and what admission answers them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cluster import CommandFailed, ControlPlane
from support.admission_specs import with_pod
from support.plane import apply, until
from support.release import Release, remove_namespace

HOME, TEAM = "admission-home", "admission-team"
AUTHOR, PUBLISHER, DEVELOPER, ADMIN = "author", "publisher", "developer", ""
"""Who may write BatchedModels (and, oddly, ControllerRevisions) only; who may make Services, too;
who may make Services and pods, too; who may do everything."""


@contextmanager
def a_release_with_users(plane: ControlPlane) -> Iterator[Release]:
    """The chart installed, once its policies hold, with a namespace in which these people work."""
    release = Release(plane, HOME)
    release.install()
    apply(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}})
    models = {
        "apiGroups": ["batchedmodel.dev"],
        "resources": ["batchedmodels"],
        "verbs": ["get", "create", "update", "patch"],
    }
    services = {"apiGroups": [""], "resources": ["services"], "verbs": ["create"]}
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}
    revisions = {
        "apiGroups": ["apps"],
        "resources": ["controllerrevisions"],
        "verbs": ["get", "create", "update", "patch"],
    }
    for user, rules in (
        (AUTHOR, [models, revisions]),
        (PUBLISHER, [models, services]),
        (DEVELOPER, [models, services, pods]),
    ):
        apply(plane, *_role(user, rules))
    refused = with_pod(serviceAccountName="strong")
    # The API server takes a policy up some time after it was made.
    until("the policy holds", lambda: "may not create pods" in complaint(release, AUTHOR, refused))
    yield release
    release.uninstall()
    for name in (HOME, TEAM):
        remove_namespace(plane, name)


def _role(user: str, rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    group, metadata = "rbac.authorization.k8s.io", {"name": user, "namespace": TEAM}
    head = {"apiVersion": f"{group}/v1", "metadata": metadata}
    return [
        {**head, "kind": "Role", "rules": rules},
        {
            **head,
            "kind": "RoleBinding",
            "roleRef": {"apiGroup": group, "kind": "Role", "name": user},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        },
    ]


def complaint(
    release: Release,
    user: str,
    spec: dict[str, Any],
    *,
    name: str = "tried",
    namespace: str = TEAM,
    keep: bool = False,
    beside: dict[str, Any] | None = None,
) -> str:
    """What the API server complains of when a person applies a BatchedModel; empty: nothing."""
    metadata = {"name": name, "namespace": namespace, **(beside or {})}
    body = {
        "apiVersion": "batchedmodel.dev/v1alpha1",
        "kind": "BatchedModel",
        "metadata": metadata,
        "spec": spec,
    }
    words = ["apply", "--server-side", "--force-conflicts", "--filename=-"]
    words += [] if keep else ["--dry-run=server"]
    words += [f"--as={user}"] if user else []
    try:
        release.plane.kubectl(*words, stdin=json.dumps(body))
    except CommandFailed as error:
        return str(error)
    return ""


def revision(*owners: dict[str, Any], **labels: str) -> dict[str, Any]:
    """A pod template as the operator keeps one, if it has a model's label and a model for owner."""
    references = [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": owner["kind"] == "BatchedModel",
        }
        for owner in owners
    ]
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": "kept",
            "namespace": TEAM,
            "labels": labels,
            "ownerReferences": references,
        },
        "revision": 1,
        "data": {"template": {"spec": {"hostPID": True}}},
    }
