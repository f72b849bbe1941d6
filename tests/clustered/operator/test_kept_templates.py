"""Pod templates that are kept: only those of the operator are ever applied again."""

import copy
import json

from support.operator_process import OperatorProcess
from support.operator_team import SIMULATED, Team
from support.plane import until


def test_a_template_whose_owner_is_no_batched_model_makes_no_pods(
    running: OperatorProcess, team: Team
) -> None:
    def applied(value: str) -> None:
        spec = {**SIMULATED, "model": {**SIMULATED["model"], "env": {"EDIT": value}}}
        team.write(spec)
        until("it is applied", lambda: f'"{value}"' in json.dumps(_pod(team)))
        team.until("Reconciled", "True", "Applied")

    applied("first")
    good = _pod(team)
    [kept] = team.get("controllerrevisions")["items"]
    applied("second")
    forged = {**copy.deepcopy(kept), "apiVersion": "apps/v1", "kind": "ControllerRevision"}
    [owner] = kept["metadata"]["ownerReferences"]
    forged["metadata"] = {
        "name": f"{kept['metadata']['name']}-zz",
        "namespace": team.namespace,
        "labels": kept["metadata"]["labels"],
        # Of a kind that nobody knows, so that the garbage collector does not look for it.
        "ownerReferences": [
            {"apiVersion": "no.such/v1", "kind": "Thing", "name": "x", "uid": owner["uid"]}
        ],
    }
    forged["revision"] = 1_000_000
    forged["data"]["template"]["spec"]["serviceAccountName"] = "strong"
    team.plane.kubectl("create", "--filename=-", stdin=json.dumps(forged))
    applied("first")
    assert _pod(team) == good


def _pod(team: Team) -> object:
    deployment = team.get("deployment/minilm")
    return deployment and deployment["spec"]["template"]["spec"]
