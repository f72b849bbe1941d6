import ssl
from pathlib import Path

import pytest
from kubernetes.aio.config import incluster_config

from batchedmodel_kube.credentials import configuration_from
from cluster.certificates import Authority

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


async def test_behind_a_proxy_its_authority_is_trusted_beside_the_clusters_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And elsewhere the cluster's alone, whatever the variable names."""
    token = tmp_path / "token"
    token.write_text("-")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    own, others = (Authority(tmp_path, name).certificate for name in ("own", "others"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(own))
    for name, value in _POD.items():
        monkeypatch.setenv(name, value)
    proxied = {**_POD, "HTTPS_PROXY": "http://proxy:3128", "SSL_CERT_FILE": str(others)}
    for environ, proxy, known in (
        (proxied, "http://proxy:3128", 2),
        ({**proxied, "NO_PROXY": "10.0.0.0/8"}, None, 1),
    ):
        found = await configuration_from(environ)
        trust = ssl.create_default_context(cafile=found.ssl_ca_cert, cadata=found.ca_cert_data)
        assert (found.proxy, len(trust.get_ca_certs())) == (proxy, known)
