"""The values and commands of `docs/installing.md` render what the page says."""

import re
import shlex
from pathlib import Path
from typing import Final

from batchedmodel_operator.settings import OperatorSettings
from support.chart import Helm, container, environment
from support.repository import ROOT

_PAGE: Final = (ROOT / "docs/installing.md").read_text("utf-8")
_REGISTRY: Final = "registry.example.com/team/batchedmodel-"


def test_the_values_of_a_registry_name_every_image_and_who_pulls(
    helm: Helm, tmp_path: Path
) -> None:
    (values,) = re.findall(r"^```yaml\n(images:.*?)```", _PAGE, re.M | re.S)
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


def test_the_command_for_the_nodes_network_is_taken(helm: Helm) -> None:
    section = _PAGE.split("## API servers that reach no pod\n")[1].split("\n## ")[0]
    (command,) = re.findall(r"```\n(helm .*?)```", section, re.S)
    words = shlex.split(command.replace("\\\n", " "))
    values = [word for at, word in enumerate(words) if words[at - 1] == "--set"]
    objects = helm.render(*values)
    pod = objects["Deployment", "bm-batchedmodel-autoscaler"]["spec"]["template"]["spec"]
    assert pod["hostNetwork"]
    ports = container(objects, "bm-batchedmodel-autoscaler")["ports"]
    assert {one["containerPort"] for one in ports} == {10443, 18080}


def _parts_that_are_pushed() -> list[str]:
    (parts,) = re.findall(r"^for part in (.+); do$", _PAGE, re.M)
    return [*parts.split()]
