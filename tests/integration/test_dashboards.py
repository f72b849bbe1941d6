"""Each panel of the chart's dashboards shows something in a real Prometheus that recorded load."""

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

import dashboards
from batchedmodel_autoscaler import model_metrics
from batchedmodel_autoscaler import telemetry as autoscaler_metrics
from batchedmodel_contract.kubernetes import names
from batchedmodel_contract.processes import sidecar_metrics
from batchedmodel_operator.probes import Vitals, exposition
from cluster.commands import run
from cluster.errors import Unavailable
from support.alert_scenarios import MODEL
from support.chart import CHART
from support.ports import unused_port
from support.prometheus import programs
from support.repository import ROOT

_FILES: Final = CHART / "files"
_DASHBOARDS: Final = {name: json.loads(text) for name, text in dashboards.documents().items()}
_SECONDS: Final = 3600
_STEP: Final = 30
_CHOSEN: Final = {
    "$namespace": "team",
    "$model": "minilm",
    "$__rate_interval": "2m",
}
_PANELS: Final = {
    f"{file}: {panel['title']}, {target['refId']}": target["expr"]
    for file, board in _DASHBOARDS.items()
    for panel in board["panels"]
    for target in panel["targets"]
}
_EMPTY_IN_HEALTH: Final = frozenset({"Models that are not ready", "Models that are degraded"})


def _told_by_the_code() -> set[str]:
    """The name of every metric that a process of ours exports."""
    constants = (*vars(sidecar_metrics).items(), *vars(autoscaler_metrics).items())
    names = {value for name, value in constants if name.isupper() and isinstance(value, str)}
    vitals = Vitals(leads=True, longest_reconcile_seconds=0.0, keys=0, reconciles={})
    names |= set(re.findall(r"^# TYPE (\w+)", exposition(vitals), re.M))
    return names | set(model_metrics.FAMILIES)


_EXAMPLES: Final = ROOT / "examples" / "autoscaling"
_SCALED: Final = yaml.safe_load((_EXAMPLES / "keda.yaml").read_text())
_TRIGGER: Final = _SCALED["spec"]["triggers"][0]
_RULES: Final = yaml.safe_load((_EXAMPLES / "prometheus-adapter.yaml").read_text())["rules"][
    "custom"
]


def _queries() -> list[str]:
    groups = yaml.safe_load((_FILES / "rules.yaml").read_text())["groups"]
    rules = [rule["expr"] for group in groups for rule in group["rules"]]
    variables = [
        one["definition"]
        for board in _DASHBOARDS.values()
        for one in board["templating"]["list"]
        if one["type"] == "query"
    ]
    theirs = [_TRIGGER["metadata"]["query"], *(rule["seriesQuery"] for rule in _RULES)]
    return [*rules, *variables, *theirs, *_PANELS.values()]


@pytest.mark.parametrize("name", dashboards.documents())
def test_the_chart_carries_the_dashboards_as_they_are_drawn(name: str) -> None:
    text = (_FILES / "dashboards" / name).read_text()
    assert text == dashboards.documents()[name], "run `make chart`"


def test_every_metric_of_a_panel_and_of_a_rule_is_one_that_the_code_exports() -> None:
    known = _told_by_the_code()
    for query in _queries():
        used = re.findall(r"(?<![\w:])batchedmodel_\w+", query)
        assert used or ":batchedmodel_" in query, query
        for name in used:
            assert name in known or re.sub("_(bucket|sum|count)$", "", name) in known, name


def test_every_record_that_a_query_uses_is_one_of_the_rules() -> None:
    groups = yaml.safe_load((_FILES / "rules.yaml").read_text())["groups"]
    records = {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}
    used = {name for query in _queries() for name in re.findall(r"model:\w+:\w+", query)}
    assert used == records


def _recorded() -> str:
    """An hour of a busy model, in OpenMetrics' text: counters grow, gauges stay."""
    end = int(time.time())
    moments = range(end - _SECONDS, end + 1, _STEP)
    series: dict[str, list[tuple[str, float, float]]] = {}
    """By family: labels, the first value, and its growth a second."""

    def add(name: str, labels: str, value: float, growth: float = 0.0) -> None:
        series.setdefault(name, []).append((labels, value, growth))

    pod = f'{MODEL},pod="a"'
    labelled = {"reason": "queue_full", "outcome": "completed"}
    values = {
        sidecar_metrics.REQUESTS_REJECTED: "reason",
        sidecar_metrics.REQUESTS_SETTLED: "outcome",
        sidecar_metrics.BATCHES: "reason",
    }
    for name in {value for key, value in vars(sidecar_metrics).items() if key.isupper()}:
        more = f',{values[name]}="{labelled[values[name]]}"' if name in values else ""
        add(name, f"{pod}{more}", 1.0, 10.0 if name.endswith("_total") else 0.0)
        for bucket in ("0.01", "0.1", "+Inf"):
            add(f"{name}_bucket", f'{pod},le="{bucket}"', 0.0, 10.0)
        add(f"{name}_sum", pod, 0.0, 0.5)
        add(f"{name}_count", pod, 0.0, 10.0)
    outcome = f'{pod},outcome="shed"'
    add(sidecar_metrics.REQUESTS_SETTLED, outcome, 0.0, 0.1)
    add(sidecar_metrics.REQUESTS_REJECTED, f'{pod},reason="expired"', 0.0, 0.1)
    for name in model_metrics.FAMILIES:
        kinds = ("Ready", "Degraded") if name == model_metrics.CONDITION else ("",)
        for kind in kinds:
            add(name, MODEL + (f',type="{kind}"' if kind else ""), float(kind != "Degraded"))
    add(autoscaler_metrics.CERTIFICATE_ENDS, 'namespace="system"', end + 5e6)
    add("batchedmodel_operator_longest_reconcile_seconds", 'namespace="system"', 0.1)
    add("batchedmodel_operator_reconcile_total", 'namespace="system",result="failed"', 0.0, 0.1)
    # What the rules would have recorded.
    for what, rate in (("offered", 10.0), ("refused", 0.1), ("late", 0.2)):
        add(f"model:batchedmodel_requests_{what}:rate5m", MODEL, rate)
    lines = [
        f"{name}{{{labels}}} {value + growth * (moment - moments[0])} {moment}"
        for name, found in series.items()
        for labels, value, growth in found
        for moment in moments
    ]
    return "\n".join(lines) + "\n# EOF\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prometheus:
    address: str

    def ask(self, query: str) -> list[Any]:
        now = int(time.time())
        words = {"query": query, "start": now - 600, "end": now - 60, "step": 30}
        url = f"{self.address}/api/v1/query_range?{urllib.parse.urlencode(words)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            found = json.load(answer)
        assert found["status"] == "success"
        result = found["data"]["result"]
        assert isinstance(result, list)
        return result


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Prometheus]:
    """One that has recorded the hour, on loopback."""
    try:
        found = programs()
    except Unavailable as reason:
        pytest.skip(str(reason))
    folder = tmp_path_factory.mktemp("prometheus")
    recorded, data = folder / "recorded.txt", folder / "data"
    recorded.write_text(_recorded())
    command: list[str | Path] = [
        "tsdb",
        "create-blocks-from",
        "openmetrics",
        "--quiet",
        recorded,
        data,
    ]
    run([found.promtool, *command])
    (folder / "prometheus.yml").write_text("{}\n")
    port = unused_port()
    words = [
        *(str(found.prometheus), f"--config.file={folder / 'prometheus.yml'}"),
        *(f"--storage.tsdb.path={data}", f"--web.listen-address=127.0.0.1:{port}"),
    ]
    with (folder / "log").open("wb") as log, subprocess.Popen(words, stderr=log) as process:
        try:
            _wait_until_ready(process, f"http://127.0.0.1:{port}/-/ready", folder / "log")
            yield _Prometheus(address=f"http://127.0.0.1:{port}")
        finally:
            process.terminate()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    pytest.fail(f"Prometheus does not start:\n{log.read_text()}")


@pytest.mark.slow
def test_every_panel_shows_something_over_recorded_load(prometheus: _Prometheus) -> None:
    for panel, query in _PANELS.items():
        for name, value in _CHOSEN.items():
            query = query.replace(name, value)
        assert "$" not in query, panel
        found = prometheus.ask(query)
        if any(title in panel for title in _EMPTY_IN_HEALTH):
            assert not found, panel
        else:
            assert found, panel
            assert all(value != "NaN" for one in found for _, value in one["values"]), panel


def test_keda_scales_the_model_itself_by_a_number_of_replicas() -> None:
    target = _SCALED["spec"]["scaleTargetRef"]
    assert target["apiVersion"] == f"{names.GROUP}/{names.VERSION}"
    assert target["kind"] == "BatchedModel"
    assert (_TRIGGER["metricType"], _TRIGGER["metadata"]["threshold"]) == ("AverageValue", "1")
    assert _TRIGGER["metadata"]["ignoreNullValues"] == "false"
    assert _SCALED["spec"]["minReplicaCount"] >= 1


def test_the_adapters_rules_serve_what_the_hpas_of_models_ask_for() -> None:
    served = {rule["name"]["as"] for rule in _RULES}
    asked = {
        names.REQUIRED_REPLICAS_METRIC,
        names.QUEUE_LENGTH_METRIC,
        names.CONCURRENCY_METRIC,
    }
    assert served == asked
    for rule in _RULES:
        assert rule["resources"]["overrides"] == {
            "namespace": {"resource": "namespace"},
            "model": {"group": names.GROUP, "resource": names.PLURAL.removesuffix("s")},
        }


@pytest.mark.slow
def test_keda_and_prometheus_adapter_get_one_number(prometheus: _Prometheus) -> None:
    (found,) = prometheus.ask(_TRIGGER["metadata"]["query"].replace("default", "team"))
    assert {value for _, value in found["values"]} == {"1"}
    for rule in _RULES:
        # As the adapter fills it in when an HPA asks for one object.
        series = rule["seriesQuery"].partition("{")[0]
        query = rule["metricsQuery"].replace("<<.Series>>", series)
        query = query.replace("<<.LabelMatchers>>", 'namespace="team",model="minilm"')
        (found,) = prometheus.ask(query.replace("<<.GroupBy>>", "model"))
        assert found["metric"] == {"model": "minilm"}
