"""What pages of clusters tell people to type: values that the chart takes, manifests it reads."""

import re
import shlex
from typing import Any

import pytest
import yaml

from build_images import ROOT
from support.chart import Helm
from support.rendered import pod_of

_PAGES = sorted((ROOT / "docs/clusters").glob("*.md"))


def _named(page: Any) -> str:
    return str(page.stem)


@pytest.mark.parametrize("page", _PAGES, ids=_named)
def test_the_chart_takes_the_values_of_a_page(helm: Helm, page: Any) -> None:
    text = page.read_text().replace("\\\n", " ")
    for command in re.findall(r"^    helm install .*$", text, flags=re.MULTILINE):
        words = shlex.split(command)
        given = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
        assert given
        assert helm.render(*given), command


@pytest.mark.parametrize("page", _PAGES, ids=_named)
def test_a_model_may_say_what_a_page_shows(page: Any) -> None:
    for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.S):
        spec = yaml.safe_load(block)["spec"]
        pod = pod_of({"model": {"handler": "simulated"}, **spec})
        for name, value in spec.get("pod", {}).items():
            kept = pod[name]
            assert kept == value or all(one in kept for one in value), name
