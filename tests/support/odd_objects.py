"""BatchedModels that Python's own parser, or its memory, does not take, and that may be stored.

Our definition refuses them. An API server whose definition is of an earlier version takes them, as
may one whose definition somebody has changed.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cluster import CommandFailed, ControlPlane
from support.plane import CRD_NAME, install_crd, until

NESTED = 4_000
"""Brackets in brackets; Python's parser takes less than a thousand."""
WIDE = 300_000
"""Empty lists, of two bytes with three for the comma; parsed they take 56 each."""

_SPEC: Final = "/spec/versions/0/schema/openAPIV3Schema/properties/spec"
_VOLUME: Final = f"{_SPEC}/properties/pod/properties/volumes/items"
_LOOSER: Final = (
    {"op": "add", "path": f"{_VOLUME}/x-kubernetes-preserve-unknown-fields", "value": True},
    {"op": "remove", "path": f"{_SPEC}/x-kubernetes-validations/0"},
)
"""Volumes may have any field, and a spec any size."""


def deep(namespace: str, name: str) -> str:
    """The manifest of a model with a field that is nested very deep."""
    return _manifest(namespace, name, "[" * NESTED + "]" * NESTED)


def wide(namespace: str, name: str) -> str:
    """The manifest of a model with a field of very many small values."""
    return _manifest(namespace, name, "[" + ",".join(["[]"] * WIDE) + "]")


def create(plane: ControlPlane, manifest: str) -> None:
    """A person creates it."""
    plane.kubectl("create", "--filename=-", stdin=manifest)


@contextmanager
def unbounded(plane: ControlPlane, namespace: str) -> Iterator[None]:
    """The API server takes odd models as long as this lasts; those of the namespace go with it."""
    plane.kubectl("patch", "crd", CRD_NAME, "--type=json", f"--patch={json.dumps(_LOOSER)}")
    until("odd models are taken", lambda: _takes_odd_models(plane))
    try:
        yield
    finally:
        plane.kubectl("delete", "bm", "--all", "--wait=false", f"--namespace={namespace}")
        install_crd(plane)
        until("no odd models are taken", lambda: not _takes_odd_models(plane))


def _takes_odd_models(plane: ControlPlane) -> bool:
    try:
        manifest = _manifest("default", "tried", "[]")
        plane.kubectl("create", "--dry-run=server", "--filename=-", stdin=manifest)
    except CommandFailed:
        return False
    return True


def _manifest(namespace: str, name: str, value: str) -> str:
    return (
        '{"apiVersion":"batchedmodel.dev/v1alpha1","kind":"BatchedModel",'
        f'"metadata":{{"name":"{name}","namespace":"{namespace}"}},'
        '"spec":{"model":{"handler":"simulated"},'
        f'"pod":{{"volumes":[{{"name":"odd","x":{value}}}]}}}}}}'
    )
