"""The tables of right, wrong and ordinary manifests in `tests/clustered/manifests`.

Read by the unit tests of the contract and by the tests on an API server: both judge each of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

_FOLDER: Final = Path(__file__).parents[1] / "clustered" / "manifests"


@dataclass(frozen=True, slots=True, kw_only=True)
class RightManifest:
    """One that must be accepted."""

    id: str
    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongManifest:
    """One that must be refused for one mistake."""

    id: str
    manifest: Mapping[str, Any]
    field: str
    rule: str
    """What the reader says about the field."""
    server: str
    """What an API server says about it."""


def right_manifests() -> list[RightManifest]:
    return [
        RightManifest(id=entry["id"], manifest=_manifest(entry)) for entry in _entries("right.yaml")
    ]


def wrong_manifests() -> list[WrongManifest]:
    return [
        WrongManifest(
            id=entry["id"],
            manifest=_manifest(entry),
            field=entry["field"],
            rule=entry["rule"],
            server=entry.get("server", entry["rule"]),
        )
        for entry in _entries("wrong.yaml")
    ]


def ordinary_pods() -> Mapping[str, Mapping[str, Any]]:
    """Specs with parts of pods as people have them, by a name."""
    found: Mapping[str, Mapping[str, Any]] = yaml.safe_load(
        (_FOLDER / "pods.yaml").read_text("utf-8")
    )
    return {name: {"model": {"handler": "simulated"}, **spec} for name, spec in found.items()}


def _entries(file: str) -> list[Mapping[str, Any]]:
    entries: list[Mapping[str, Any]] = yaml.safe_load((_FOLDER / file).read_text("utf-8"))
    return entries


def _manifest(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "apiVersion": "batchedmodel.dev/v1alpha1",
        "kind": "BatchedModel",
        "metadata": {"name": entry.get("name", "minilm")},
        "spec": entry["spec"],
        **entry.get("beside", {}),
    }
