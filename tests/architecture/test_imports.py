"""Each package imports with its own libraries alone; import contracts hold.

Images hold one process and its libraries: what works on a developer's machine by accident would
fail there. So each package is imported in a fresh interpreter that refuses everybody else's.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.repository import FOLDERS, ROOT

SHARED = {"batchedmodel_contract", "batchedmodel_scheduling"}
SERVERS = {"batchedmodel_contract", "batchedmodel_http"}
CLIENTS = {"batchedmodel_contract", "batchedmodel_kube"}
PACKAGES = {f"batchedmodel_{folder}" for folder in FOLDERS}
TORCH = {"torch", "transformers", "safetensors", "sentence_transformers", "huggingface_hub"}
CLUSTER = {"kopf", "kubernetes", "kubernetes_asyncio"}
SERVING = {
    *("aiohttp", "asyncinotify", "jinja2", "orjson", "prometheus_client", "tokenizers", "uvloop"),
}

# What each package must do without. The model server does without torch as well: handlers import
# it when they load, so that `simulated` runs in an image that has none.
BLOCKED: dict[str, set[str]] = {
    "contract": PACKAGES | TORCH | CLUSTER | SERVING | {"numpy", "yaml"},
    "scheduling": PACKAGES - {"batchedmodel_contract"} | TORCH | CLUSTER | SERVING | {"yaml"},
    "http": PACKAGES - {"batchedmodel_contract"}
    | TORCH
    | CLUSTER
    | SERVING - {"aiohttp"}
    | {"numpy", "yaml"},
    # The Kubernetes client itself needs aiohttp and yaml.
    "kube": PACKAGES - {"batchedmodel_contract"}
    | TORCH
    | {"kopf"}
    | SERVING - {"aiohttp"}
    | {"numpy"},
    "sidecar": PACKAGES - SHARED - SERVERS | TORCH | CLUSTER | {"yaml"},
    "model_server": PACKAGES - SERVERS - SHARED
    | TORCH
    | CLUSTER
    | {"asyncinotify", "jinja2", "prometheus_client", "tokenizers", "yaml"},
    # Kopf itself needs aiohttp, so only what it does without is refused; an import contract
    # says the rest.
    "operator": PACKAGES - CLIENTS - SERVERS
    | TORCH
    | {"asyncinotify", "jinja2", "numpy", "prometheus_client", "tokenizers", "uvloop"},
    "autoscaler": PACKAGES - CLIENTS - SERVERS
    | TORCH
    | {"asyncinotify", "jinja2", "kopf", "numpy", "orjson", "tokenizers", "uvloop"},
    # It uses the pure parts of operator and autoscaler, so it needs none of their libraries. Only
    # what runs the simulator needs numpy; a test of `simulate` holds that other commands do not.
    "cli": PACKAGES
    - SHARED
    - CLIENTS
    - SERVERS
    - {"batchedmodel_operator", "batchedmodel_autoscaler"}
    | TORCH
    | CLUSTER
    | SERVING,
}
STANDARD_LIBRARY_ONLY = "contract"

# Runs under -I, told by its first argument; prints the modules that failed, with the reason.
CHILD = """
import importlib, importlib.abc, json, pkgutil, sys

told = json.loads(sys.argv[1])
sys.path[:0] = told["folders"]
blocked = set(told["blocked"]) - {told["package"]}
attempts = []


class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        root = name.partition(".")[0]
        upstream = root not in sys.stdlib_module_names and root != told["package"]
        if root in blocked or (told["standard_library_only"] and upstream):
            raise ModuleNotFoundError(f"{name} is blocked", name=name)
        return None


sys.meta_path.insert(0, Refuse())
failures, names = {}, [told["package"]]
try:
    package = importlib.import_module(told["package"])
except Exception as error:
    failures[told["package"]] = repr(error)
else:
    found = pkgutil.walk_packages(package.__path__, package.__name__ + ".", names.append)
    names += [module.name for module in found]
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            failures[name] = repr(error)
loaded = sorted(blocked & {name.partition(".")[0] for name in sys.modules})
print(json.dumps({"modules": names, "failures": failures, "loaded": loaded}))
"""


def imported(
    package: str,
    blocked: Iterable[str],
    *,
    standard_library_only: bool = False,
    folders: Iterable[Path] = (),
) -> Mapping[str, Any]:
    """What a fresh interpreter says of importing every module of the package."""
    told = {
        "package": package,
        "blocked": sorted(blocked),
        "standard_library_only": standard_library_only,
        "folders": [*map(str, folders), *(str(ROOT / folder) for folder in FOLDERS)],
    }
    ran = subprocess.run(
        [sys.executable, "-I", "-c", CHILD, json.dumps(told)],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    said: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return said


@pytest.mark.slow
@pytest.mark.parametrize("folder", BLOCKED)
def test_a_package_imports_without_the_libraries_of_the_others(folder: str) -> None:
    package = f"batchedmodel_{folder}"
    said = imported(package, BLOCKED[folder], standard_library_only=folder == STANDARD_LIBRARY_ONLY)
    assert said["failures"] == {}
    assert said["loaded"] == []
    # The walk saw every file: a module that is not walked is not checked.
    sources = {
        path.relative_to(ROOT / folder).with_suffix("").as_posix().replace("/", ".")
        for path in (ROOT / folder / package).rglob("*.py")
    }
    assert set(said["modules"]) == {name.removesuffix(".__init__") for name in sources}


PLANTED = {
    "at the top": "import torch",
    "of a submodule": "from torch.nn import functional",
    "of another package of ours": "import batchedmodel_cli",
}


@pytest.mark.parametrize("line", PLANTED.values(), ids=PLANTED)
def test_the_guard_sees_a_planted_import(line: str, tmp_path: Path) -> None:
    package = tmp_path / "batchedmodel_planted"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "inner/__init__.py").touch()
    (package / "inner/lazy.py").write_text(f"def load():\n    {line}\n")
    (package / "inner/eager.py").write_text(f"{line}\n")
    said = imported("batchedmodel_planted", TORCH | PACKAGES, folders=[tmp_path])
    assert list(said["failures"]) == ["batchedmodel_planted.inner.eager"]
    assert "is blocked" in said["failures"]["batchedmodel_planted.inner.eager"]


def test_the_guard_of_the_contract_sees_any_third_party_library(tmp_path: Path) -> None:
    package = tmp_path / "batchedmodel_planted"
    package.mkdir()
    (package / "__init__.py").write_text("import json\nimport hypothesis\n")
    said = imported("batchedmodel_planted", (), standard_library_only=True, folders=[tmp_path])
    assert "hypothesis is blocked" in said["failures"]["batchedmodel_planted"]


def lint_imports(root: Path, *paths: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the project file in `root`, with packages from `paths`."""
    command = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    assert command is not None, "import-linter is not installed"
    return subprocess.run(
        [command, "--no-cache"],
        cwd=root,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_import_contracts_hold() -> None:
    ran = lint_imports(ROOT, *(ROOT / folder for folder in FOLDERS))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "No matches for ignored import" not in ran.stdout


@pytest.mark.slow
def test_import_contracts_can_be_broken(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for folder in FOLDERS:
        package = f"batchedmodel_{folder}"
        shutil.copytree(ROOT / folder / package, tmp_path / package)
    (tmp_path / "batchedmodel_scheduling/planted.py").write_text("import asyncio\n")
    ran = lint_imports(tmp_path, tmp_path)
    assert ran.returncode == 1
    assert "batchedmodel_scheduling.planted -> asyncio" in ran.stdout
