"""What a real HPA writes of its own makes the operator read nothing."""

import json
from typing import Any

from support.operator_process import ACCOUNT, HOME, OperatorProcess
from support.operator_team import SIMULATED, Team
from support.plane import until

_USER = f"system:serviceaccount:{HOME}:{ACCOUNT}"
_SCALED: dict[str, Any] = {**SIMULATED, "autoscaling": {"minReplicas": 1, "maxReplicas": 3}}
_NOT_YET = ("", "NotLookedYet")
_CHANGES = 12


def test_neither_an_hpa_that_counts_nor_an_edit_of_it_that_is_undone_costs_a_read(
    running: OperatorProcess, team: Team
) -> None:
    team.write(_SCALED)
    until("the autoscaler is there", lambda: team.has_all("hpa/minilm"))
    until("the HPA has looked", lambda: team.condition("AutoscalingActive")[1] not in _NOT_YET)
    team.quiet()
    before, versions = _reads(team), set()
    for number in range(_CHANGES):
        status = {"status": {"currentReplicas": 10 + number}}
        team.patch("hpa/minilm", status, "--subresource=status")
        versions.add(team.get("hpa/minilm")["metadata"]["resourceVersion"])
    assert len(versions) == _CHANGES
    team.patch("hpa/minilm", {"spec": {"maxReplicas": 99}})
    until("it is put right", lambda: team.get("hpa/minilm")["spec"]["maxReplicas"] == 3, 20)
    team.quiet()
    assert _reads(team) == before


def _reads(team: Team) -> int:
    """What the operator has read of the team's objects."""
    entries = map(json.loads, team.plane.audit_log.read_text().splitlines())
    return sum(
        entry["user"]["username"] == _USER
        and entry["verb"] in ("get", "list")
        and (entry.get("objectRef") or {}).get("namespace") == team.namespace
        for entry in entries
    )
