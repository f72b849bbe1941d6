from pathlib import Path

import pytest
from kubernetes.aio.config import incluster_config

from batchedmodel_kube.credentials import configuration_from

_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


async def test_a_pods_token_is_read_again_each_minute_of_a_clock_that_nobody_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("first")
    authority.write_text("-")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    now = 50.0
    for name, value in _POD.items():
        monkeypatch.setenv(name, value)
    found = await configuration_from(_POD, clock=lambda: now)
    assert found.host == "https://10.0.0.1:443"
    token.write_text("second")
    now += 59
    assert await found.get_api_key_with_prefix("BearerToken") == "bearer first"
    now += 1
    assert await found.get_api_key_with_prefix("BearerToken") == "bearer second"
    token.write_text("third")
    now += 60
    assert await found.get_api_key_with_prefix("BearerToken") == "bearer third"
