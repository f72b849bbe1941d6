"""The chart's alerts, judged by Prometheus' own tool: they fire when they should, and only then."""

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from cluster.commands import run
from cluster.errors import Unavailable
from support.alert_scenarios import BLIPS, HEALTHY, ILL, ILL_FROM, ILL_OTHERWISE, promtool_test
from support.chart import CHART
from support.prometheus import programs

pytestmark = pytest.mark.slow

RULES: Final = CHART / "files" / "rules.yaml"
GROUPS: Final[list[dict[str, Any]]] = yaml.safe_load(RULES.read_text())["groups"]
ALERTS: Final = {
    rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule
}
_LAST: Final = 59


@pytest.fixture(scope="module")
def promtool() -> Path:
    try:
        return programs().promtool
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def bare_rules(tmp_path: Path) -> Path:
    """The rules without sentences for people, which promtool would compare as well."""
    path = tmp_path / "rules.yaml"
    bare = [
        {**group, "rules": [{**rule, "annotations": {}} for rule in group["rules"]]}
        for group in GROUPS
    ]
    for group in bare:
        for rule in group["rules"]:
            del rule["annotations"]
    path.write_text(yaml.safe_dump({"groups": bare}))
    return path


def _judge(promtool: Path, rules: Path, cases: list[dict[str, Any]]) -> None:
    """Raises `CommandFailed` with what promtool found instead."""
    whole = {**cases[0], "tests": [test for case in cases for test in case["tests"]]}
    path = rules.with_name("cases.yaml")
    path.write_text(yaml.safe_dump(whole, width=1000))
    run([promtool, "test", "rules", path])


def test_prometheus_reads_the_rules_with_their_sentences(promtool: Path) -> None:
    assert "SUCCESS" in run([promtool, "check", "rules", RULES])


def test_healthy_load_is_silent_and_so_is_what_passes_by_itself(
    promtool: Path, bare_rules: Path
) -> None:
    silent: dict[str, list[Any]] = {alert: [] for alert in ALERTS}
    _judge(
        promtool,
        bare_rules,
        [
            promtool_test(str(bare_rules), {**HEALTHY, **more}, silent, at)
            for more in ({}, BLIPS)
            for at in (ILL_FROM + 3, ILL_FROM + 7, _LAST)
        ],
    )


def test_every_alert_fires_in_its_scenario_and_no_other_does(
    promtool: Path, bare_rules: Path
) -> None:
    assert set(ILL) == set(ALERTS), "each alert has its scenario"
    cases = []
    others = [(ill, one, ILL[ill][1]) for ill, more in ILL_OTHERWISE.items() for one in more]
    for ill, series, labels in [*((ill, *found) for ill, found in ILL.items()), *others]:
        assert set(series) <= set(HEALTHY), "what falls ill was healthy before"
        severity = ALERTS[ill]["labels"]["severity"]
        silent: dict[str, list[Any]] = {alert: [] for alert in ALERTS}
        expected = {**silent, ill: [{**labels, "severity": severity}]}
        # The rule needs what it waits for, and a minute of the series.
        patience = {"1m": 1, "2m": 2, "5m": 5, "10m": 10, "15m": 15, "1h": 60}[ALERTS[ill]["for"]]
        whole = {**HEALTHY, **series}
        fires = ILL_FROM + patience + 7
        if ill == "BatchedModelCertificateEnds":
            whole = {name: values.replace("x60", "x120") for name, values in whole.items()}
            whole |= series
        cases.append(promtool_test(str(bare_rules), whole, silent, ILL_FROM - 1))
        cases.append(promtool_test(str(bare_rules), whole, expected, fires))
    _judge(promtool, bare_rules, cases)


@pytest.mark.parametrize("alert", ALERTS)
def test_the_sentences_of_an_alert_name_only_labels_that_it_has(alert: str) -> None:
    _, labels = ILL[alert]
    sentences = ALERTS[alert]["annotations"]
    assert set(sentences) == {"summary", "description"}
    named = set(re.findall(r"\$labels\.(\w+)", " ".join(sentences.values())))
    assert named == set(labels)
