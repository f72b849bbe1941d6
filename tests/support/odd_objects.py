"""BatchedModels that an API server takes and that Python's own parser, or its memory, does not."""

from cluster import ControlPlane

NESTED = 4_000
"""Brackets in brackets; Python's parser takes less than a thousand."""
WIDE = 300_000
"""Empty lists, of two bytes with three for the comma; parsed they take 56 each."""


def deep(namespace: str, name: str) -> str:
    """The manifest of a model with a field that is nested very deep."""
    return _manifest(namespace, name, "[" * NESTED + "]" * NESTED)


def wide(namespace: str, name: str) -> str:
    """The manifest of a model with a field of very many small values."""
    return _manifest(namespace, name, "[" + ",".join(["[]"] * WIDE) + "]")


def create(plane: ControlPlane, manifest: str) -> None:
    """A person creates it."""
    plane.kubectl("create", "--filename=-", stdin=manifest)


def _manifest(namespace: str, name: str, value: str) -> str:
    return (
        '{"apiVersion":"batchedmodel.dev/v1alpha1","kind":"BatchedModel",'
        f'"metadata":{{"name":"{name}","namespace":"{namespace}"}},'
        '"spec":{"model":{"handler":"simulated"},'
        f'"pod":{{"volumes":[{{"name":"odd","x":{value}}}]}}}}}}'
    )
