"""A control plane alone: what it can do, and what one hears when it does not start."""

import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from cluster.certificates import Authority
from cluster.errors import StartFailed
from cluster.kubernetes import ControlPlane, running_control_plane
from cluster.settings import Settings


def test_an_administrator_is_let_in_from_outside(control_plane: ControlPlane) -> None:
    assert control_plane.kubectl("auth", "can-i", "*", "*").strip() == "yes"


def test_the_version_is_the_pinned_one(control_plane: ControlPlane) -> None:
    answer = json.loads(control_plane.kubectl("get", "--raw", "/version"))
    assert answer["gitVersion"] == "v1.34.4"
    assert control_plane.helm("version", "--template", "{{.Version}}") == "v3.19.0"


def test_the_autoscaler_looks_at_a_new_object_within_seconds(control_plane: ControlPlane) -> None:
    control_plane.kubectl("create", "namespace", "autoscaled")
    control_plane.kubectl(
        *("create", "deployment", "web", "--image=none", "--namespace=autoscaled")
    )
    control_plane.kubectl("apply", "--filename=-", stdin=json.dumps(_AUTOSCALER))
    control_plane.kubectl(
        *("wait", "hpa/web", "--namespace=autoscaled", "--timeout=20s"),
        "--for=condition=ScalingActive=false",  # nobody serves the metric, and it says so
    )


def test_the_api_server_can_be_away_for_a_while(control_plane: ControlPlane) -> None:
    control_plane.stop_program("kube-apiserver")
    control_plane.start_program("kube-apiserver")
    assert "default" in control_plane.kubectl("get", "namespaces")


def test_a_process_of_the_test_can_be_an_aggregated_api(
    control_plane: ControlPlane, aggregated: "_Aggregated"
) -> None:
    control_plane.kubectl("apply", "--filename=-", stdin=json.dumps(aggregated.objects()))
    control_plane.kubectl(
        *("wait", "apiservice/v1.test.example", "--timeout=30s", "--for=condition=Available")
    )
    answer = json.loads(control_plane.kubectl("get", "--raw", "/apis/test.example/v1"))
    assert answer["groupVersion"] == "test.example/v1"
    assert aggregated.callers == {"CN=aggregator"}
    control_plane.kubectl("delete", "apiservice/v1.test.example")


def test_a_failed_start_shows_the_log_of_what_failed(
    cluster_settings: Settings, tmp_path: Path, control_plane: ControlPlane
) -> None:
    broken = tmp_path / "kube-apiserver"
    broken.write_text("#!/bin/sh\necho the disk is on fire\nexit 3\n")
    broken.chmod(0o755)
    settings = replace(cluster_settings, assets=tmp_path)
    with (
        pytest.raises(StartFailed, match=r"kube-apiserver ended with status 3[^$]*on fire"),
        running_control_plane(settings),
    ):
        pytest.fail("it started")


_AUTOSCALER = {
    "apiVersion": "autoscaling/v2",
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": "web", "namespace": "autoscaled"},
    "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "maxReplicas": 3,
        "metrics": [
            {
                "type": "Object",
                "object": {
                    "describedObject": {"apiVersion": "v1", "kind": "Service", "name": "web"},
                    "metric": {"name": "load"},
                    "target": {"type": "AverageValue", "averageValue": "1"},
                },
            }
        ],
    },
}


class _Aggregated:
    """A server with one API group, which remembers whose certificates it was shown."""

    def __init__(self, address: str, folder: Path, client_authority: Path) -> None:
        self._address = address
        pair = Authority(folder, "ca").issue(
            "server", common_name="aggregated", addresses=(address,)
        )
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(pair.certificate, pair.key)
        tls.load_verify_locations(client_authority)
        # Optional: the API server looks whether anybody is there without showing one.
        tls.verify_mode = ssl.CERT_OPTIONAL
        callers = self.callers = set[str]()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                assert isinstance(self.connection, ssl.SSLSocket)
                if shown := self.connection.getpeercert(binary_form=True):
                    name = x509.load_der_x509_certificate(shown).subject
                    callers.add(name.rfc4514_string())
                body = json.dumps(
                    {
                        "kind": "APIResourceList",
                        "apiVersion": "v1",
                        "groupVersion": "test.example/v1",
                        "resources": [],
                    }
                ).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *values: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer((address, 0), Handler)
        self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)

    def objects(self) -> object:
        port = self.server.server_address[1]
        name = {"name": "aggregated", "namespace": "default"}
        return {
            "apiVersion": "v1",
            "kind": "List",
            "items": [
                {
                    "apiVersion": "v1",
                    "kind": "Service",
                    "metadata": name,
                    "spec": {"ports": [{"name": "api", "port": 443, "targetPort": port}]},
                },
                {
                    "apiVersion": "discovery.k8s.io/v1",
                    "kind": "EndpointSlice",
                    "metadata": {
                        **name,
                        "labels": {"kubernetes.io/service-name": "aggregated"},
                    },
                    "addressType": "IPv4",
                    "ports": [{"name": "api", "port": port}],
                    "endpoints": [{"addresses": [self._address]}],
                },
                {
                    "apiVersion": "apiregistration.k8s.io/v1",
                    "kind": "APIService",
                    "metadata": {"name": "v1.test.example"},
                    "spec": {
                        "group": "test.example",
                        "version": "v1",
                        "groupPriorityMinimum": 100,
                        "versionPriority": 100,
                        "insecureSkipTLSVerify": True,
                        "service": {"name": "aggregated", "namespace": "default"},
                    },
                },
            ],
        }


@pytest.fixture
def aggregated(control_plane: ControlPlane, tmp_path: Path) -> Iterator[_Aggregated]:
    trusted = json.loads(
        control_plane.kubectl(
            *("get", "configmap", "extension-apiserver-authentication"),
            *("--namespace=kube-system", "--output=json"),
        )
    )["data"]["requestheader-client-ca-file"]
    authority = tmp_path / "client-ca.crt"
    authority.write_text(trusted)
    aggregated = _Aggregated(control_plane.host_address, tmp_path, authority)
    thread = threading.Thread(target=aggregated.server.serve_forever)
    thread.start()
    yield aggregated
    aggregated.server.shutdown()
    thread.join()
    aggregated.server.server_close()
