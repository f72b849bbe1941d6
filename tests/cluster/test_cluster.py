"""A cluster of one node: pods from our images, their logs, Services, pretended accelerators."""

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.errors import Unavailable
from cluster.export import archive_command
from cluster.images import Image, build_image
from cluster.kubernetes import Cluster, existing_cluster
from cluster.settings import Settings

# The harness of other tests.
pytestmark = pytest.mark.nightly

_SERVER = """\
import http.server
import signal
import sys
class Greeter(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"good morning")
# The first process of a container is not ended by a signal that it does not handle.
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
print("ready to greet", flush=True)
http.server.HTTPServer(("", 8000), Greeter).serve_forever()
"""
# Without a probe it is ready before it has said or served anything.
_PROBED = {
    "spec": {
        "containers": [
            {
                "name": "greeter",
                "readinessProbe": {"httpGet": {"path": "/", "port": 8000}, "periodSeconds": 1},
            }
        ]
    }
}
_DOCKERFILE = """\
ARG BASE=debian:trixie-slim
FROM ${BASE}
COPY greeter.py /greeter.py
USER 1000:1000
CMD ["python3", "/greeter.py"]
"""


@pytest.fixture(scope="module")
def image(
    cluster: Cluster, cluster_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Image:
    context = tmp_path_factory.mktemp("greeter")
    (context / "greeter.py").write_text(_SERVER)
    (context / "Dockerfile").write_text(_DOCKERFILE)
    return build_image(
        cluster_settings,
        dockerfile=context / "Dockerfile",
        context=context,
        tag="localhost/batchedmodel-test-greeter:1",
    )


@pytest.fixture(scope="module")
def greeter(cluster: Cluster, image: Image) -> Iterator[str]:
    """A pod and a Service, both called `greeter`, in a namespace of their own: its name."""
    cluster.import_image(image)
    namespace = "greeting"
    cluster.kubectl("create", "namespace", namespace)
    cluster.kubectl(
        *("run", "greeter", f"--namespace={namespace}", f"--image={image.tag}", "--port=8000"),
        *("--image-pull-policy=Never", "--expose", f"--overrides={json.dumps(_PROBED)}"),
        *("--override-type=strategic",),
    )
    cluster.kubectl(
        *("wait", "pod/greeter", f"--namespace={namespace}", "--timeout=60s"),
        "--for=condition=Ready",
    )
    yield namespace
    # The cluster is the whole session's, and what its pods hold nobody else can have.
    cluster.kubectl("delete", "namespace", namespace, "--timeout=60s", timeout_s=70)


def test_a_pods_log_can_be_read(cluster: Cluster, greeter: str) -> None:
    log = cluster.kubectl("logs", "greeter", f"--namespace={greeter}")
    assert log.startswith("ready to greet\n")


def test_a_service_is_reached_from_this_machine(cluster: Cluster, greeter: str) -> None:
    address = cluster.kubectl(
        *("get", "service/greeter", f"--namespace={greeter}"),
        "--output=jsonpath={.spec.clusterIP}",
    )
    # kube-proxy writes its rules in its own time.
    deadline = time.monotonic() + 20
    while True:
        try:
            with urllib.request.urlopen(f"http://{address}:8000/", timeout=2) as answer:
                assert answer.read() == b"good morning"
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_a_service_is_reached_by_its_name_from_a_pod(cluster: Cluster, greeter: str) -> None:
    ask = (
        "import urllib.request as r;"
        f"print(r.urlopen('http://greeter.{greeter}.svc.cluster.local:8000/').read().decode())"
    )
    answer = cluster.kubectl(
        *("exec", "greeter", f"--namespace={greeter}", "--", "python3", "-c", ask)
    )
    assert answer == "good morning\n"


def test_a_pretended_accelerator_is_counted(cluster: Cluster, image: Image, greeter: str) -> None:
    resource = "example.com/accelerator"
    cluster.pretend_accelerator(resource, 1)
    wants = {"spec": {"containers": [{"name": "pod", "resources": {"limits": {resource: "1"}}}]}}
    for name in ("first", "second"):
        cluster.kubectl(
            *("run", name, f"--namespace={greeter}", f"--image={image.tag}"),
            *("--image-pull-policy=Never", "--override-type=strategic"),
            f"--overrides={json.dumps(wants).replace('pod', name)}",
        )
        condition = "Ready" if name == "first" else "PodScheduled=false"
        cluster.kubectl(
            *("wait", f"pod/{name}", f"--namespace={greeter}", "--timeout=60s"),
            f"--for=condition={condition}",
        )


def test_an_archive_of_another_tool_can_be_imported(
    cluster: Cluster, cluster_settings: Settings, image: Image, tmp_path: Path
) -> None:
    with (tmp_path / "image.tar").open("wb") as archive:
        subprocess.run(archive_command(cluster_settings, image), stdout=archive, check=True)
    cluster.import_archive(tmp_path / "image.tar", image.tag)


def test_somebodys_cluster_must_have_its_images_already(
    cluster: Cluster, cluster_settings: Settings, image: Image, greeter: str
) -> None:
    theirs = existing_cluster(cluster_settings, cluster.kubeconfig)
    deadline = time.monotonic() + 30
    while image.tag not in theirs.kubectl("get", "nodes", "--output=yaml"):
        assert time.monotonic() < deadline  # the node lists its images every few seconds
        time.sleep(0.2)
    theirs.import_image(image)
    with pytest.raises(Unavailable, match=r"nowhere:1 is on no node"):
        theirs.import_image(Image(tag="localhost/nowhere:1", id="0"))


def test_an_image_is_built_again_only_when_its_content_changes(
    cluster_settings: Settings, image: Image, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text(_DOCKERFILE)
    (tmp_path / "greeter.py").write_text(_SERVER)
    (tmp_path / "unrelated.py").write_text("1")

    def build() -> Image:
        return build_image(
            cluster_settings,
            dockerfile=tmp_path / "Dockerfile",
            context=tmp_path,
            tag="localhost/batchedmodel-test-greeter:1",
        )

    assert build() == image
    (tmp_path / "greeter.py").write_text(_SERVER.replace("morning", "evening"))
    changed = build()
    assert changed.id != image.id
    (tmp_path / "greeter.py").write_text(_SERVER)
    build()
