"""No secret shows up in what the processes log, even at debug, or in what they write."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import ControlPlane
from support.operator_team import SIMULATED, Team
from support.plane import apply, set_pod_status, until
from support.release import Release, remove_namespace
from support.rights import asked

_HOME, _TEAM = "secrets-home", "secrets-team"
_SECRET = "s3cr3tValue0123456789abcdef"
_LAST_WORDS = (
    f"Traceback: 401 for https://me:{_SECRET}@hub.example/\n"
    f"environ: {{'HF_TOKEN': 'hf_{_SECRET}', 'PASSWORD': '{_SECRET}'}}\n"
    f"Authorization: Bearer {_SECRET}"
)
_SPEC = {
    "model": {
        "handler": "hf",
        "source": {
            "huggingFace": {"repo": "team/model", "tokenSecretRef": {"name": "hub", "key": "token"}}
        },
        "envFrom": [{"secretRef": {"name": "hub"}}],
    }
}


@pytest.fixture(scope="module")
def release(control_plane: ControlPlane) -> Iterator[Release]:
    found = Release(control_plane, _HOME)
    found.install()
    yield found
    found.uninstall()
    for name in (_TEAM, _HOME):
        remove_namespace(control_plane, name)


def test_no_secret_is_told_anywhere(release: Release, tmp_path: Path) -> None:
    plane, team = release.plane, Team(release.plane, _TEAM)
    encoded = base64.b64encode(_SECRET.encode()).decode()
    apply(
        plane,
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _TEAM}},
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "hub", "namespace": _TEAM},
            "data": {"token": encoded},
        },
    )
    debug = {"BATCHEDMODEL_LOG_LEVEL": "debug"}
    with (
        release.autoscaler(tmp_path / "autoscaler") as autoscaler,
        release.operator(tmp_path / "operator", told=debug) as operator,
    ):
        team.write(_SPEC)
        until("it has a pod", lambda: bool((team.get("pods") or {"items": []})["items"]))
        (pod,) = team.get("pods")["items"]
        set_pod_status(plane, _TEAM, pod["metadata"]["name"], _crashing())
        team.until("Ready", "False", "CrashLooping")
        assert "401 for https://***@hub.example/" in team.message("Ready")
        assert operator.stop() == 0
        logs = operator.log() + autoscaler.log.read_text()
    kinds = "batchedmodels,deployments,configmaps,controllerrevisions,services,events"
    written = plane.kubectl("get", kinds, f"--namespace={_TEAM}", "--output=json")
    for text in (logs, written):
        # Nor the token of the account itself.
        assert all(secret not in text for secret in (_SECRET, encoded, "Bearer ey"))
    for part in ("operator", "autoscaler"):
        used = asked(plane.audit_log, release.user(part)).used
        assert "secrets" not in {right.resource for right in used}


def test_a_secret_that_is_missing_is_read_from_the_pods_own_state(
    release: Release, tmp_path: Path
) -> None:
    team = Team(release.plane, _TEAM)
    with release.operator(tmp_path / "operator"):
        team.write({"model": {**SIMULATED["model"], "envFrom": _SPEC["model"]["envFrom"]}})

        def told() -> bool:
            # Those of the test before are being replaced.
            for pod in team.get("pods")["items"]:
                set_pod_status(release.plane, _TEAM, pod["metadata"]["name"], _without_its_secret())
            return team.condition("Ready") == ("False", "MissingSecret")

        until("it is told", told)
        assert 'secret "hub" not found' in team.message("Ready")


def _crashing() -> dict[str, object]:
    terminated = {"exitCode": 1, "reason": "Error", "message": _LAST_WORDS}
    return _status({"reason": "CrashLoopBackOff"}, lastState={"terminated": terminated})


def _without_its_secret() -> dict[str, object]:
    return _status({"reason": "CreateContainerConfigError", "message": 'secret "hub" not found'})


def _status(waiting: dict[str, object], **more: object) -> dict[str, object]:
    container = {
        "name": "model",
        "image": "registry.example/model:1",
        "imageID": "",
        "ready": False,
        "restartCount": 4,
        "state": {"waiting": waiting},
        **more,
    }
    return {"phase": "Pending", "containerStatuses": [container]}
