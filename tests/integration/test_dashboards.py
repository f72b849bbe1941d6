"""Each panel of the chart's dashboards shows something in a real Prometheus that recorded load."""

import asyncio
import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

import dashboards
from batchedmodel_kube import names
from cluster.commands import run
from cluster.errors import Unavailable
from support.alert_scenarios import BLIPS, HEALTHY, ILL, ILL_OTHERWISE
from support.chart import CHART
from support.exposition import NAME, NAMESPACE, Series, scraped, unseen
from support.ports import unused_port
from support.prometheus import programs
from support.repository import ROOT

_FILES: Final = CHART / "files"
_DASHBOARDS: Final = {name: json.loads(text) for name, text in dashboards.documents().items()}
_SECONDS: Final = 3600
_STEP: Final = 30
_CHOSEN: Final = {
    "$namespace": NAMESPACE,
    "$model": NAME,
    "$__rate_interval": "2m",
}
_PANELS: Final = {
    f"{file}: {panel['title']}, {target['refId']}": (target["expr"], target["legendFormat"])
    for file, board in _DASHBOARDS.items()
    for panel in board["panels"]
    for target in panel["targets"]
}
_EMPTY_IN_HEALTH: Final = frozenset({"Models that are not ready", "Models that are degraded"})


_EXAMPLES: Final = ROOT / "examples" / "autoscaling"
_SCALED: Final = yaml.safe_load((_EXAMPLES / "keda.yaml").read_text())
_TRIGGER: Final = _SCALED["spec"]["triggers"][0]
_RULES: Final = yaml.safe_load((_EXAMPLES / "prometheus-adapter.yaml").read_text())["rules"][
    "custom"
]


_METRIC: Final = re.compile(r"(?<![\w])(?:model:)?batchedmodel_\w+")
_VARIABLES: Final = [
    re.sub(r"label_values\((.*), (\w+)\)", r"max by (\2) (\1)", one["definition"])
    for board in _DASHBOARDS.values()
    for one in board["templating"]["list"]
    if one["type"] == "query"
]
"""As queries: a variable has the values of a label."""


def _filled_in(query: str) -> str:
    """As a dashboard asks it, or KEDA, of the model that is scraped."""
    for name, value in _CHOSEN.items():
        query = query.replace(name, value)
    assert "$" not in query, query
    return query.replace('namespace="default"', f'namespace="{NAMESPACE}"')


def _queries() -> list[str]:
    groups = yaml.safe_load((_FILES / "rules.yaml").read_text())["groups"]
    rules = [rule["expr"] for group in groups for rule in group["rules"]]
    theirs = [_TRIGGER["metadata"]["query"], *(rule["seriesQuery"] for rule in _RULES)]
    return [
        _filled_in(query)
        for query in (*rules, *_VARIABLES, *theirs, *(query for query, _ in _PANELS.values()))
    ]


@pytest.mark.parametrize("name", dashboards.documents())
def test_the_chart_carries_the_dashboards_as_they_are_drawn(name: str) -> None:
    text = (_FILES / "dashboards" / name).read_text()
    assert text == dashboards.documents()[name], "run `make chart`"


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> list[Series]:
    """What is scraped of the processes."""
    return asyncio.run(scraped(tmp_path_factory.mktemp("scraped")))


@pytest.mark.slow
def test_every_panel_rule_and_example_asks_for_what_a_process_tells(series: list[Series]) -> None:
    for query in _queries():
        assert _METRIC.search(query), query
        assert not unseen(query, series), query


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "missing"),
    [
        ("batchedmodel_request_late_total", "batchedmodel_request_late_total"),
        ("batchedmodel_queue_length_bucket", "batchedmodel_queue_length_bucket"),
        ("batchedmodel_batch_size", "batchedmodel_batch_size"),
        (
            'batchedmodel_requests_settled_total{outcome=~"failed|late"}',
            'batchedmodel_requests_settled_total{outcome=~"late"}',
        ),
        (
            'batchedmodel_queue_length{exported_model="minilm"}',
            'batchedmodel_queue_length{exported_model="minilm"}',
        ),
        (
            "sum by (model) (batchedmodel_operator_leader)",
            "batchedmodel_operator_leader by model",
        ),
    ],
)
def test_what_no_process_tells_is_seen_to_be_missing(
    series: list[Series], query: str, missing: str
) -> None:
    assert unseen(query, series) == [missing]


@pytest.mark.slow
def test_every_series_of_the_alerts_scenarios_is_one_that_a_process_tells(
    series: list[Series],
) -> None:
    others = [one for more in ILL_OTHERWISE.values() for one in more]
    for scenario in (HEALTHY, BLIPS, *(one for one, _ in ILL.values()), *others):
        for selector in scenario:
            # Which model or pod it is of is the scenario's own business; that it is said is not.
            named = re.sub(r'\b(namespace|model|pod)="[^"]+"', r'\1!=""', selector)
            assert not unseen(named, series), selector


def test_every_record_that_a_query_uses_is_one_of_the_rules() -> None:
    groups = yaml.safe_load((_FILES / "rules.yaml").read_text())["groups"]
    records = {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}
    used = {name for query in _queries() for name in re.findall(r"model:\w+:\w+", query)}
    assert used == records


def _recorded(series: list[Series]) -> str:
    """An hour in OpenMetrics' text: each scrape counts as much as was counted, gauges stay."""
    end = int(time.time())
    moments = range(end - _SECONDS, end + 1, _STEP)
    lines = []
    for one in sorted(series, key=lambda found: found.name):
        labels = ",".join(f'{name}="{value}"' for name, value in one.labels.items())
        lines += [
            f"{one.name}{{{labels}}} {one.value * (count if one.grows else 1)} {moment}"
            for count, moment in enumerate(moments, 1)
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
def prometheus(
    series: list[Series], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[_Prometheus]:
    """One that has recorded the hour and what the chart's rules make of it, on loopback."""
    try:
        found = programs()
    except Unavailable as reason:
        pytest.skip(str(reason))
    folder = tmp_path_factory.mktemp("prometheus")
    recorded, data = folder / "recorded.txt", folder / "data"
    recorded.write_text(_recorded(series))
    (folder / "prometheus.yml").write_text("{}\n")
    blocks = (found.promtool, "tsdb", "create-blocks-from")
    run([*blocks, "openmetrics", "--quiet", recorded, data])
    end = int(time.time())
    with _running(found.prometheus, folder) as one:
        words = [f"--start={end - _SECONDS}", f"--end={end}", f"--url={one.address}"]
        interval = f"--eval-interval={_STEP}s"
        run([*blocks, "rules", *words, interval, f"--output-dir={data}", _FILES / "rules.yaml"])
    # It reads these blocks when it starts.
    with _running(found.prometheus, folder) as one:
        yield one


@contextmanager
def _running(program: Path, folder: Path) -> Iterator[_Prometheus]:
    port = unused_port()
    words = [
        *(str(program), f"--config.file={folder / 'prometheus.yml'}"),
        *(f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"),
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
    for panel, (query, legend) in _PANELS.items():
        found = prometheus.ask(_filled_in(query))
        if any(title in panel for title in _EMPTY_IN_HEALTH):
            assert not found, panel
        else:
            assert found, panel
            assert all(value != "NaN" for one in found for _, value in one["values"]), panel
            labels = set(re.findall(r"{{(\w+)}}", legend))
            assert all(labels <= set(one["metric"]) for one in found), panel


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
