"""Writes the Grafana dashboards of the chart: one of all models, one of one model.

    python charts/dashboards.py

A panel is a title, a unit and its queries with their legends. A test holds the files against this.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent / "batchedmodel" / "files" / "dashboards"
_WIDTH: Final = 8
_HEIGHT: Final = 7
_ROW: Final = 24
_EACH: Final = "{{namespace}}/{{model}}"
_BY: Final = "by (namespace, model)"
_IN: Final = 'namespace=~"$namespace"'
_OF: Final = 'namespace="$namespace",model="$model"'
_WINDOW: Final = "[$__rate_interval]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One graph."""

    title: str
    unit: str
    queries: Sequence[tuple[str, str]]
    """Each with its legend."""


def _every(metric: str, more: str = "") -> str:
    """What both autoscalers tell of each model of the chosen namespaces."""
    return f"max {_BY} (batchedmodel_{metric}{{{_IN}{more}}})"


def _condition(kind: str) -> str:
    return _every("model_condition", f',type="{kind}"')


def _one(metric: str) -> str:
    """What both autoscalers tell of the chosen model."""
    return f"max(batchedmodel_{metric}{{{_OF}}})"


def _rate(metric: str, more: str = "", *, by: str = "") -> str:
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate(batchedmodel_{metric}{{{_OF}{more}}}{_WINDOW}))"


def _quantiles(metric: str) -> list[tuple[str, str]]:
    buckets = _rate(f"{metric}_bucket", by="le")
    return [
        (f"histogram_quantile({share}, {buckets})", f"p{round(share * 100)}")
        for share in (0.5, 0.95, 0.99)
    ]


def _share(record: str) -> str:
    """Of the requests offered, by the records of the chart's rules."""
    offered = f"model:batchedmodel_requests_offered:rate5m{{{_IN}}} > 0"
    return f"model:batchedmodel_requests_{record}:rate5m{{{_IN}}} / ({offered})"


MODELS: Final = (
    Panel(
        title="Models that are ready, and all",
        unit="short",
        queries=[
            (f"sum({_condition('Ready')})", "ready"),
            (f"count({_condition('Ready')})", "all"),
        ],
    ),
    Panel(
        title="Models that are not ready",
        unit="short",
        queries=[(f"{_condition('Ready')} == 0", _EACH)],
    ),
    Panel(
        title="Models that are degraded",
        unit="short",
        queries=[(f"{_condition('Degraded')} == 1", _EACH)],
    ),
    Panel(
        title="Requests a second",
        unit="reqps",
        queries=[
            (f"sum {_BY} (rate(batchedmodel_requests_offered_total{{{_IN}}}{_WINDOW}))", _EACH)
        ],
    ),
    Panel(
        title="Refused for want of room",
        unit="percentunit",
        queries=[(_share("refused"), _EACH)],
    ),
    Panel(
        title="Late, or refused for want of time",
        unit="percentunit",
        queries=[(_share("late"), _EACH)],
    ),
    Panel(
        title="Share of capacity that the load takes",
        unit="percentunit",
        queries=[(_every("model_utilization_ratio"), _EACH)],
    ),
    Panel(title="Rows that wait", unit="short", queries=[(_every("model_queue_length"), _EACH)]),
    Panel(
        title="Replicas that are ready",
        unit="short",
        queries=[(_every("model_ready_replicas"), _EACH)],
    ),
    Panel(
        title="Replicas needed, of those allowed",
        unit="percentunit",
        queries=[(f"{_every('required_replicas')} / {_every('model_max_replicas')}", _EACH)],
    ),
    Panel(
        title="Pods that the autoscaler does not hear",
        unit="short",
        queries=[(_every("model_silent_replicas"), _EACH)],
    ),
    Panel(
        title="Model servers that fail whole batches",
        unit="short",
        queries=[(f"sum {_BY} (batchedmodel_circuit_open{{{_IN}}})", _EACH)],
    ),
    Panel(
        title="Reconciles a second, by result",
        unit="ops",
        queries=[
            (
                f"sum by (result) (rate(batchedmodel_operator_reconcile_total{_WINDOW}))",
                "{{result}}",
            )
        ],
    ),
    Panel(
        title="Longest reconcile that runs",
        unit="s",
        queries=[("max(batchedmodel_operator_longest_reconcile_seconds)", "seconds")],
    ),
    Panel(
        title="Until the first certificate ends",
        unit="s",
        queries=[
            (
                "min(batchedmodel_autoscaler_certificate_end_timestamp_seconds) - time()",
                "autoscaler",
            )
        ],
    ),
)

MODEL: Final = (
    Panel(
        title="Replicas",
        unit="short",
        queries=[
            (_one("required_replicas"), "needed"),
            (_one("model_replicas"), "wanted"),
            (_one("model_ready_replicas"), "ready"),
            (_one("model_max_replicas"), "allowed"),
            (_one("model_silent_replicas"), "not heard"),
        ],
    ),
    Panel(
        title="Share of capacity that the load takes",
        unit="percentunit",
        queries=[
            (_one("model_utilization_ratio"), "load"),
            (_one("model_target_utilization_ratio"), "target"),
        ],
    ),
    Panel(
        title="Conditions",
        unit="short",
        queries=[(f"max by (type) (batchedmodel_model_condition{{{_OF}}})", "{{type}}")],
    ),
    Panel(
        title="Requests a second, by how they ended",
        unit="reqps",
        queries=[(_rate("requests_settled_total", by="outcome"), "{{outcome}}")],
    ),
    Panel(
        title="Refused a second, by reason",
        unit="reqps",
        queries=[(_rate("requests_rejected_total", by="reason"), "{{reason}}")],
    ),
    Panel(
        title="Answered after the target, a second",
        unit="reqps",
        queries=[(_rate("requests_late_total"), "late")],
    ),
    Panel(
        title="Time of a request",
        unit="s",
        queries=_quantiles("request_duration_seconds"),
    ),
    Panel(title="Time in the queue", unit="s", queries=_quantiles("queue_duration_seconds")),
    Panel(title="Time at the model", unit="s", queries=_quantiles("model_duration_seconds")),
    Panel(
        title="Expected lateness, and least target that could be met",
        unit="s",
        queries=[
            (f"max(batchedmodel_predicted_lateness_seconds{{{_OF}}})", "lateness"),
            (f"max(batchedmodel_smallest_feasible_target_seconds{{{_OF}}})", "least target"),
        ],
    ),
    Panel(
        title="Rows that wait, by pod",
        unit="short",
        queries=[(f"batchedmodel_queue_length{{{_OF}}}", "{{pod}}")],
    ),
    Panel(
        title="Rows in a batch",
        unit="short",
        queries=[(f"{_rate('batch_size_sum')} / {_rate('batch_size_count')}", "mean")],
    ),
    Panel(
        title="Batches a second, by why they left",
        unit="ops",
        queries=[(_rate("batches_total", by="reason"), "{{reason}}")],
    ),
    Panel(
        title="Waste by padding",
        unit="percentunit",
        queries=[(f"1 - {_rate('tokens_total')} / {_rate('padded_tokens_total')}", "waste")],
    ),
    Panel(
        title="Generated text: tokens a second",
        unit="short",
        queries=[
            (_rate("prompt_tokens_total"), "prompts"),
            (_rate("output_tokens_total"), "answers"),
        ],
    ),
    Panel(
        title="Generated text: time to the first token",
        unit="s",
        queries=_quantiles("time_to_first_token_seconds"),
    ),
    Panel(
        title="Generated text: the server's cache that is used",
        unit="percentunit",
        queries=[(f"batchedmodel_kv_cache_usage_perc{{{_OF}}}", "{{pod}}")],
    ),
    Panel(
        title="Sidecars that wake late: too little CPU",
        unit="s",
        queries=_quantiles("loop_lag_seconds"),
    ),
    Panel(
        title="Model servers that fail whole batches",
        unit="short",
        queries=[(f"batchedmodel_circuit_open{{{_OF}}}", "{{pod}}")],
    ),
)


def _variable(name: str, query: str, *, several: bool) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": several,
        "includeAll": several,
        **({"allValue": ".*", "current": {"text": "All", "value": "$__all"}} if several else {}),
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    per_row = _ROW // _WIDTH
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {
            "x": number % per_row * _WIDTH,
            "y": number // per_row * _HEIGHT,
            "w": _WIDTH,
            "h": _HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "expr": query, "legendFormat": legend}
            for place, (query, legend) in enumerate(panel.queries)
        ],
    }


def dashboard(title: str, panels: Sequence[Panel], *, of_one: bool) -> dict[str, Any]:
    """The document that Grafana reads."""
    known = "batchedmodel_model_condition"
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus"},
        _variable("namespace", f"label_values({known}, namespace)", several=not of_one),
    ]
    if of_one:
        chosen = f'label_values({known}{{namespace="$namespace"}}, model)'
        variables.append(_variable("model", chosen, several=False))
    return {
        "uid": f"batchedmodel-{'model' if of_one else 'models'}",
        "title": title,
        "tags": ["batchedmodel"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }


def documents() -> dict[str, str]:
    """The files' texts by name."""
    made = {
        "models": dashboard("BatchedModel: all models", MODELS, of_one=False),
        "model": dashboard("BatchedModel: one model", MODEL, of_one=True),
    }
    return {f"{name}.json": json.dumps(one, indent=2) + "\n" for name, one in made.items()}


def main() -> None:
    """Write them."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in documents().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
