"""What pages tell people to type: values that the chart takes, and manifests that render so."""

import re
import shlex
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from batchedmodel_operator.settings import OperatorSettings
from support.chart import Helm, container, environment
from support.rendered import pod_of
from support.repository import ROOT

_INSTALLING: Final = (ROOT / "docs/installing.md").read_text("utf-8")
_REGISTRY: Final = "registry.example.com/team/batchedmodel-"
_TEXTS: Final = {
    "installing": _INSTALLING,
    **{page.stem: page.read_text("utf-8") for page in (ROOT / "docs/clusters").glob("*.md")},
}


def _values(command: str) -> list[str]:
    words = shlex.split(command)
    return [word for at, word in enumerate(words) if words[at - 1] == "--set"]


_COMMANDS: Final = [
    pytest.param(values, id=page)
    for page, text in sorted(_TEXTS.items())
    for command in re.findall(
        r"^ *(helm (?:install|upgrade) .*)$", text.replace("\\\n", " "), flags=re.MULTILINE
    )
    if (values := _values(command))
]
_PODS: Final = [
    pytest.param(spec, id=page)
    for page, text in sorted(_TEXTS.items())
    for block in re.findall(r"^```yaml\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    if "pod" in (spec := yaml.safe_load(block).get("spec", {}))
]


@pytest.mark.parametrize("values", _COMMANDS)
def test_the_chart_takes_the_values_of_a_command(helm: Helm, values: list[str]) -> None:
    assert helm.render(*values)


@pytest.mark.parametrize("spec", _PODS)
def test_pods_get_what_a_manifest_on_a_page_says_of_them(spec: dict[str, Any]) -> None:
    rendered = pod_of({"model": {"handler": "simulated"}, **spec})
    for name, value in spec["pod"].items():
        found = rendered[name]
        if name == "tolerations":  # the operator adds some
            found = [one for one in found if one in value]
        assert found == value


def test_the_values_of_a_registry_name_every_image_and_who_pulls(
    helm: Helm, tmp_path: Path
) -> None:
    (values,) = re.findall(r"^```yaml\n(images:.*?)```", _INSTALLING, re.M | re.S)
    file = tmp_path / "values.yaml"
    file.write_text(values)
    found = helm.manifests("--values", file, release="batchedmodel")
    objects = {(one["kind"], one["metadata"]["name"]): one for one in found}
    operator, autoscaler = (
        container(objects, f"batchedmodel-{part}") for part in ("operator", "autoscaler")
    )
    told = environment(operator)
    assert [
        *(operator["image"], autoscaler["image"]),
        *(told["BATCHEDMODEL_SIDECAR_IMAGE"], told["BATCHEDMODEL_MODEL_SERVER_IMAGE"]),
    ] == [f"{_REGISTRY}{part}:0.1.0" for part in _parts_that_are_pushed()]
    pods = [one["spec"]["template"]["spec"] for one in found if one["kind"] == "Deployment"]
    assert [pod["imagePullSecrets"] for pod in pods] == [[{"name": "registry"}]] * 2
    # No setting of the operator carries them to models, as the page says.
    assert not [name for name in OperatorSettings.__dataclass_fields__ if "secret" in name]


def test_the_command_for_the_nodes_network_puts_the_autoscaler_there(helm: Helm) -> None:
    section = _INSTALLING.split("## API servers that reach no pod\n")[1].split("\n## ")[0]
    (command,) = re.findall(r"```\n(helm .*?)```", section, re.S)
    objects = helm.render(*_values(command.replace("\\\n", " ")))
    pod = objects["Deployment", "bm-batchedmodel-autoscaler"]["spec"]["template"]["spec"]
    assert pod["hostNetwork"]
    ports = container(objects, "bm-batchedmodel-autoscaler")["ports"]
    assert {one["containerPort"] for one in ports} == {10443, 18080}


def _parts_that_are_pushed() -> list[str]:
    (parts,) = re.findall(r"^for part in (.+); do$", _INSTALLING, re.M)
    return [*parts.split()]
