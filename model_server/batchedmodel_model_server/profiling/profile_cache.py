"""Keeps what self-test and warm-up found, so that a restart need not find it again.

One file for each combination of all that the findings depend on: the model's files, the handler
and its parameters, the device, the arithmetic, the threads, the libraries. Whatever is wrong with a
file or the folder costs a warm-up and a line in the log, never the start.
"""

import hashlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from batchedmodel_contract.inference.profile import Profile, profile_from_mapping
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.processes.environment import ModelServerSettings
from batchedmodel_model_server.batching.declaration import Sharing
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.execution.forward import LoadedModel
from batchedmodel_model_server.machine import (
    computing_threads,
    device_name,
    limits,
    read_processor,
)
from batchedmodel_model_server.profiling.self_test import Verdict
from batchedmodel_model_server.sources.folder import stamp
from batchedmodel_model_server.sources.untrusted_files import MOST_JSON_BYTES, read_bytes

FOLDER: Final = "profiles"
_FORM: Final = 2  # of the file; another number makes other keys
_KEPT: Final = 64  # files: one for each combination, of which a volume may see many
_LIBRARIES: Final = ("batchedmodel", "numpy", "torch", "transformers")
_USELESS: Final = (
    OSError, ValueError, KeyError, TypeError, RecursionError, InvalidInput, CannotLoad
)  # fmt: skip
"""What is raised over a file that holds no findings."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFindings:
    """What a start finds out about a model."""

    profile: Profile
    verdict: Verdict


class ProfileCache:
    """The findings for one key."""

    def __init__(self, folder: Path, key: Mapping[str, Any]) -> None:
        self._key = json.dumps({**key, "form": _FORM}, sort_keys=True)
        name = hashlib.sha256(self._key.encode()).hexdigest()[:32]
        self._file = folder / FOLDER / f"{name}.json"

    def read(self) -> TrialFindings | None:
        """What was kept under the key; None when there is nothing that could be used."""
        try:
            document = json.loads(read_bytes(self._file, MOST_JSON_BYTES))
            return _findings(document, self._key)
        except FileNotFoundError:
            return None
        except _USELESS as error:
            _log.warning("the kept profile is ignored: %s: %s", self._file, error)
            return None

    def write(self, findings: TrialFindings) -> None:
        """Keep the findings; a reader sees all of them or those before."""
        # How this process started is nothing that the next one could use.
        profile = replace(findings.profile, start_up=(), cached=False)
        document = {
            "key": self._key,
            "profile": profile.to_mapping(),
            "sharing": findings.verdict.sharing.value,
            "reason": findings.verdict.reason,
        }
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            _replace(self._file, json.dumps(document))
            _prune(self._file.parent)
        except OSError as error:
            _log.warning("the profile cannot be kept, the next start measures again: %s", error)


def key_of(model: LoadedModel, settings: ModelServerSettings) -> dict[str, Any]:
    """All that the findings about a loaded model depend on, as a JSON object."""
    handler = type(model.handler)
    code = getattr(sys.modules.get(handler.__module__), "__file__", None)
    return {
        "handler": f"{settings.handler} {handler.__qualname__}",
        "parameters": dict(settings.parameters),
        "source": settings.source,
        "code": _stamp(code),
        "files": model.content.digest,
        "device": device_name(model.device, read_processor()),
        "memory": limits("memory.max"),
        "precision": model.handler.precision,
        "threads": computing_threads(),
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "max_batch_size": settings.max_batch_size,
    }


def _findings(document: Mapping[str, Any], key: str) -> TrialFindings:
    if document["key"] != key:
        raise ValueError("it was kept for another model or machine")
    profile = profile_from_mapping(document["profile"])
    if not profile.points:
        raise ValueError("it holds no measurement")
    verdict = Verdict(sharing=Sharing(document["sharing"]), reason=str(document["reason"]))
    return TrialFindings(profile=profile, verdict=verdict)


def _stamp(file: str | Path | None) -> tuple[int, int]:
    """Zeros for what is no file, or none any more."""
    try:
        return (0, 0) if file is None else stamp(file)
    except OSError:
        return 0, 0


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _replace(file: Path, text: str) -> None:
    descriptor, part = tempfile.mkstemp(dir=file.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(text)
        os.replace(part, file)
    except OSError:
        os.unlink(part)
        raise


def _prune(folder: Path) -> None:
    files = sorted(folder.iterdir(), key=lambda file: _stamp(file)[1], reverse=True)
    for file in files[_KEPT:]:
        file.unlink(missing_ok=True)
