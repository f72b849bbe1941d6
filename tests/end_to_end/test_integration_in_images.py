"""The integration tests, within the images: with their Python, their libraries, their modules.

A developer's environment has another Python, and the sidecar's modules uncompiled.
"""

import subprocess
from collections.abc import Iterator
from typing import Final

import pytest

from build_images import MODEL_SERVER, ROOT, SIDECAR
from cluster.commands import run
from cluster.errors import Unavailable
from cluster.images import build_image, buildah
from cluster.settings import Settings
from support.installed import built_image

_SECONDS: Final = 2700  # beside other lanes of a nightly run
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(_SECONDS + 1800),  # a first build downloads libraries
]
_IMAGE: Final = "localhost/batchedmodel-test-integration:1"
_SOURCE: Final = "/src"
_FROM_THE_CHECKOUT: Final = ("cli", "operator", "kube", "autoscaler", "tests", "images")
"""What neither image has. Sidecar and model server are those of the images."""
_LEFT_OUT: Final = (
    # They compile what the image has compiled.
    "--ignore=tests/integration/test_compiled_modules.py",
    # They test a tool of the benchmarks.
    "--ignore-glob=tests/integration/test_load_generator*",
    # They install the clients of others, from outside the container.
    "--ignore=tests/integration/test_stock_clients.py",
)


@pytest.fixture
def container(cluster_settings: Settings) -> Iterator[str]:
    """A container with all that the tests need."""
    try:
        ours = {
            "SIDECAR": built_image(cluster_settings, SIDECAR).id,
            "MODEL_SERVER": built_image(cluster_settings, MODEL_SERVER).id,
        }
        image = build_image(
            cluster_settings,
            dockerfile=ROOT / "tests/end_to_end/integration/Dockerfile",
            context=ROOT,
            tag=_IMAGE,
            build_args=ours,
        )
    except Unavailable as reason:
        pytest.skip(str(reason))
    # Some tests hold ten thousand connections.
    words = ("from", "--ulimit=nofile=20000:20000", "--pull-never", image.tag)
    name = run(buildah(cluster_settings, *words)).strip()
    yield name
    run(buildah(cluster_settings, "rm", name))


def test_the_integration_tests_pass_in_the_images(
    cluster_settings: Settings, container: str
) -> None:
    ours = (f"{_SOURCE}/{folder}" for folder in _FROM_THE_CHECKOUT)
    environment = {
        "PYTHONPATH": ":".join(("/opt/batchedmodel", *ours)),
        "PYTHONSAFEPATH": "",  # stand-ins lie in the folder in which a command starts
        "HYPOTHESIS_STORAGE_DIRECTORY": "/tmp/hypothesis",
    }
    done = subprocess.run(
        buildah(
            cluster_settings,
            *("run", "--isolation=chroot", "--user=0:0", f"--volume={ROOT}:{_SOURCE}:ro"),
            *(f"--env={name}={value}" for name, value in environment.items()),
            *(f"--workingdir={_SOURCE}", container, "--"),
            *("python", "-m", "pytest", "--quiet", "-p", "no:cacheprovider"),
            *("--numprocesses=2", "--dist=loadfile", "-m", "not nightly and not alone"),
            *("tests/integration", *_LEFT_OUT),
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
