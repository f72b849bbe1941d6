"""The chart through Helm's eyes: what it renders, without a cluster."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from cluster.access import Access
from cluster.commands import run
from cluster.errors import CommandFailed

CHART: Final = Path(__file__).parents[2] / "charts" / "batchedmodel"

Objects = dict[tuple[str, str], dict[str, Any]]
"""Rendered objects by kind and name; of those that many namespaces have, one."""


def setting(assignments: Sequence[str]) -> list[str]:
    """The words that set values, each `path=value`."""
    return [word for one in assignments for word in ("--set", one)]


class Helm:
    """The program, for what needs no cluster."""

    def __init__(self, program: Path) -> None:
        self._program = program

    def lint(self) -> str:
        return run([self._program, "lint", "--strict", CHART])

    def manifests(
        self,
        *words: str | Path,
        release: str = "bm",
        namespace: str = "models",
        chart: Path = CHART,
    ) -> list[dict[str, Any]]:
        """All objects of a release, those of `helm test` too.

        Raises:
            CommandFailed: the values or the Kubernetes version are not good; the message says why.
        """
        command: list[str | Path] = [self._program, "template", release, chart]
        text = run([*command, "--namespace", namespace, *words])
        return [one for one in yaml.safe_load_all(text) if one]

    def render(self, *assignments: str, release: str = "bm", namespace: str = "models") -> Objects:
        """The objects by kind and name."""
        found = self.manifests(*setting(assignments), release=release, namespace=namespace)
        return {(one["kind"], one["metadata"]["name"]): one for one in found}

    def complaint(self, assignment: str) -> str:
        """Where the schema of the values refuses one, and why; empty where it does not.

        Names of values are joined by dots.
        """
        try:
            self.manifests(*setting([assignment]))
        except CommandFailed as refusal:
            return str(refusal).partition("schema(s)")[2].replace("/", ".")
        return ""


def chart_objects(plane: Access, namespace: str, *templates: str) -> list[dict[str, Any]]:
    """The objects of some templates, of a release whose names begin with `batchedmodel`."""
    only = [word for one in templates for word in ("--show-only", f"templates/{one}")]
    text = plane.helm("template", "batchedmodel", CHART, "--namespace", namespace, *only)
    return [one for one in yaml.safe_load_all(text) if one]


def container(objects: Objects, deployment: str) -> dict[str, Any]:
    """The only container of a Deployment."""
    (found,) = objects["Deployment", deployment]["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def environment(container: dict[str, Any], namespace: str = "models") -> dict[str, str]:
    """Its variables, with what a pod in the namespace is told of itself."""
    told = {"metadata.namespace": namespace}
    return {
        one["name"]: one["value"]
        if "value" in one
        else told[one["valueFrom"]["fieldRef"]["fieldPath"]]
        for one in container["env"]
    }
