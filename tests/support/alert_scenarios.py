"""A healthy installation as Prometheus sees it, and what makes it ill, for the tests of the rules.

Values are in promtool's notation, one a minute for an hour. Illness begins after 20 minutes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

MODEL: Final = 'namespace="team",model="minilm"'
RESTING: Final = 'namespace="team",model="resting"'
PROCESS: Final = 'namespace="system",pod="{}-{}"'
ILL_FROM: Final = 20


def _of_a_pod(pod: str) -> dict[str, str]:
    labels = f'{MODEL},pod="{pod}"'
    rejected = {
        f'batchedmodel_requests_rejected_total{{{labels},reason="{reason}"}}': "0x60"
        for reason in ("queue_full", "over_share", "predicted_late", "expired", "not_ready")
    }
    # Callers that send nonsense are no illness of the model.
    invalid = {f'batchedmodel_requests_rejected_total{{{labels},reason="invalid"}}': "0+900x60"}
    settled = {
        f'batchedmodel_requests_settled_total{{{labels},outcome="{outcome}"}}': values
        for outcome, values in (
            *(("completed", "0+6000x60"), ("expired", "0+6x60"), ("failed", "0+60x60")),
            *(("shed", "0x60"), ("evicted", "0x60")),
        )
    }
    return {
        f"batchedmodel_requests_offered_total{{{labels}}}": "0+6000x60",
        f"batchedmodel_requests_late_total{{{labels}}}": "0+6x60",
        f"batchedmodel_target_feasible{{{labels}}}": "1x60",
        f"batchedmodel_circuit_open{{{labels}}}": "0x60",
        **rejected,
        **settled,
        **invalid,
    }


def _of_an_autoscaler(number: int) -> dict[str, str]:
    found = {
        f"batchedmodel_autoscaler_models{{{PROCESS.format('autoscaler', number)}}}": "2x60",
        "batchedmodel_autoscaler_certificate_end_timestamp_seconds"
        f"{{{PROCESS.format('autoscaler', number)}}}": "7776000x60",
    }
    model = f'pod="autoscaler-{number}",{MODEL}'
    resting = f'pod="autoscaler-{number}",{RESTING}'
    for name, values in (
        *(("batchedmodel_required_replicas", "2x60"), ("batchedmodel_model_max_replicas", "8x60")),
        *(("batchedmodel_model_replicas", "2x60"), ("batchedmodel_model_ready_replicas", "2x60")),
        ("batchedmodel_model_silent_replicas", "0x60"),
    ):
        found[f"{name}{{{model}}}"] = values
        # It is suspended, and so not ready.
        found[f"{name}{{{resting}}}"] = "0x60"
    found[f"batchedmodel_model_max_replicas{{{resting}}}"] = "4x60"
    for kind, values in (("Ready", "1x60"), ("Reconciled", "1x60"), ("Degraded", "0x60")):
        found[f'batchedmodel_model_condition{{{model},type="{kind}"}}'] = values
        found[f'batchedmodel_model_condition{{{resting},type="{kind}"}}'] = "0x60"
    return found


def _of_an_operator(number: int, *, leads: bool) -> dict[str, str]:
    labels = PROCESS.format("operator", number)
    total = "batchedmodel_operator_reconcile_total"
    return {
        f"batchedmodel_operator_leader{{{labels}}}": f"{int(leads)}x60",
        f"batchedmodel_operator_longest_reconcile_seconds{{{labels}}}": "0.2x60",
        f'{total}{{{labels},result="succeeded"}}': "0+20x60" if leads else "0x60",
        f'{total}{{{labels},result="failed"}}': "0+1x60" if leads else "0x60",
    }


HEALTHY: Final[Mapping[str, str]] = {
    **_of_a_pod("a"),
    **_of_a_pod("b"),
    **_of_an_autoscaler(0),
    **_of_an_autoscaler(1),
    **_of_an_operator(0, leads=True),
    **_of_an_operator(1, leads=False),
}
"""Series by name and labels."""

_MODEL_LABELS: Final = {"namespace": "team", "model": "minilm"}
_SYSTEM_LABELS: Final = {"namespace": "system"}
_BOTH: Final = ("autoscaler-0", "autoscaler-1")
_POD: Final = f'{MODEL},pod="a"'


def _told(name: str, values: str, *, more: str = "") -> dict[str, str]:
    """What both autoscalers tell of the model."""
    return {f'{name}{{pod="{pod}",{MODEL}{more}}}': values for pod in _BOTH}


def _condition(kind: str, values: str) -> dict[str, str]:
    return _told("batchedmodel_model_condition", values, more=f',type="{kind}"')


ILL: Final[Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]]] = {
    "BatchedModelDeadlineMisses": (
        {
            f'batchedmodel_requests_settled_total{{{_POD},outcome="shed"}}': "0x20 0+300x40",
            f'batchedmodel_requests_rejected_total{{{_POD},reason="predicted_late"}}': (
                "0x20 0+300x40"
            ),
        },
        _MODEL_LABELS,
    ),
    "BatchedModelRefusals": (
        {f'batchedmodel_requests_rejected_total{{{_POD},reason="queue_full"}}': "0x20 0+600x40"},
        _MODEL_LABELS,
    ),
    # Each batch fails for a reason of its own, or too few in a row: no circuit opens.
    "BatchedModelRequestsFail": (
        {
            f'batchedmodel_requests_settled_total{{{_POD},outcome="failed"}}': "0x20 0+5400x40",
            f'batchedmodel_requests_settled_total{{{_POD},outcome="completed"}}': (
                "0+6000x20 120000+600x39"
            ),
        },
        _MODEL_LABELS,
    ),
    "BatchedModelAtMaximum": (_told("batchedmodel_required_replicas", "2x20 9x40"), _MODEL_LABELS),
    "BatchedModelNotReady": (_condition("Ready", "1x20 0x40"), _MODEL_LABELS),
    "BatchedModelDegraded": (_condition("Degraded", "0x20 1x40"), _MODEL_LABELS),
    "BatchedModelTargetInfeasible": (
        {f"batchedmodel_target_feasible{{{_POD}}}": "1x20 0x40"},
        _MODEL_LABELS,
    ),
    "BatchedModelCircuitOpen": (
        {f"batchedmodel_circuit_open{{{_POD}}}": "0x20 1x40"},
        _MODEL_LABELS,
    ),
    # One of the two autoscalers cannot hear a pod: its answers to HPAs are as bad as if none could.
    "BatchedModelMetricsStale": (
        {f'batchedmodel_model_silent_replicas{{pod="autoscaler-1",{MODEL}}}': "0x20 1x40"},
        _MODEL_LABELS,
    ),
    "BatchedModelAutoscalerGone": (
        {
            f"batchedmodel_autoscaler_models{{{PROCESS.format('autoscaler', number)}}}": (
                "2x20 stale"
            )
            for number in (0, 1)
        },
        _SYSTEM_LABELS,
    ),
    "BatchedModelOperatorGone": (
        {
            f"batchedmodel_operator_leader{{{PROCESS.format('operator', 0)}}}": "1x20 stale",
            f"batchedmodel_operator_leader{{{PROCESS.format('operator', 1)}}}": "0x20 stale",
        },
        _SYSTEM_LABELS,
    ),
    "BatchedModelOperatorNotLeading": (
        {f"batchedmodel_operator_leader{{{PROCESS.format('operator', 0)}}}": "1x20 0x40"},
        _SYSTEM_LABELS,
    ),
    "BatchedModelReconcilesLate": (
        {
            "batchedmodel_operator_longest_reconcile_seconds"
            f"{{{PROCESS.format('operator', 0)}}}": "0.2x20 90x40"
        },
        _SYSTEM_LABELS,
    ),
    "BatchedModelReconcilesFail": (
        {
            f"batchedmodel_operator_reconcile_total{{{PROCESS.format('operator', 0)},"
            'result="failed"}': "0x20 0+10x40"
        },
        _SYSTEM_LABELS,
    ),
    "BatchedModelCertificateEnds": (
        # It was not renewed: promtool's time begins at 0, and 19 days are left.
        {
            "batchedmodel_autoscaler_certificate_end_timestamp_seconds"
            f"{{{PROCESS.format('autoscaler', 0)}}}": f"7776000x20 {19 * 86_400}x100"
        },
        _SYSTEM_LABELS,
    ),
}
"""By alert: the series that make it fire, and the labels that it then has."""

_EARLIER_PODS: Final = {
    f'batchedmodel_requests_late_total{{{MODEL},pod="{pod}"}}': "_x60" for pod in ("a", "b")
}
"""Nothing in place of what sidecars of an earlier release do not tell."""

ILL_OTHERWISE: Final[Mapping[str, Sequence[Mapping[str, str]]]] = {
    "BatchedModelDeadlineMisses": (
        # With `lateness: Serve` nobody is given up: all are answered, one in ten too late.
        {f"batchedmodel_requests_late_total{{{_POD}}}": "0x20 0+600x40"},
        {**ILL["BatchedModelDeadlineMisses"][0], **_EARLIER_PODS},
    ),
    # A replica that cannot be scraped besides: what is left waits.
    "BatchedModelOperatorNotLeading": (
        {f"batchedmodel_operator_leader{{{PROCESS.format('operator', 0)}}}": "1x20 stale"},
    ),
}
"""By alert: other series that make it fire, with the same labels."""

BLIPS: Final[Mapping[str, str]] = {
    # Two minutes of a full queue, a pod that restarts, a change of leaders, a slow reconcile.
    f'batchedmodel_requests_rejected_total{{{_POD},reason="queue_full"}}': "0x20 150+150x1 300x38",
    **_condition("Ready", "1x20 0x5 1x34"),
    # What a pod had when its server died.
    f'batchedmodel_requests_settled_total{{{_POD},outcome="failed"}}': "0x20 500x39",
    # A minute of late answers behind a burst.
    f"batchedmodel_requests_late_total{{{_POD}}}": "0x20 200x39",
    **_told("batchedmodel_model_silent_replicas", "0x20 1x2 0x37"),
    f"batchedmodel_operator_leader{{{PROCESS.format('operator', 0)}}}": "1x20 0 1x39",
    "batchedmodel_operator_longest_reconcile_seconds"
    f"{{{PROCESS.format('operator', 0)}}}": "0.2x20 70 0.2x38",
    **_told("batchedmodel_required_replicas", "2x20 9x3 8x36"),
}
"""What healthy installations see every day."""


def promtool_test(
    rules: str, series: Mapping[str, str], alerts: Mapping[str, list[Mapping[str, Any]]], at: int
) -> dict[str, Any]:
    """The case of one file of promtool: at that minute exactly these alerts fire, with labels."""
    return {
        "rule_files": [rules],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": name, "values": values} for name, values in series.items()
                ],
                "alert_rule_test": [
                    {
                        "eval_time": f"{at}m",
                        "alertname": alert,
                        "exp_alerts": [{"exp_labels": dict(labels)} for labels in found],
                    }
                    for alert, found in alerts.items()
                ],
            }
        ],
    }
