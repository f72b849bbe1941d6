"""From a manifest's file to its record, with everything that only this machine can judge.

Called by the subcommands that take a manifest. It reads files and asks what is installed, but
starts nothing; what a field may hold is the contract's business.
"""

import dataclasses
from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from batchedmodel_cli import yaml_text
from batchedmodel_contract.invalid_input import InvalidManifest, Mistake, shown
from batchedmodel_contract.manifest.manifest import BatchedModel, read_manifest
from batchedmodel_contract.manifest.spec import Model, Spec
from batchedmodel_contract.schema.reading import value_at


class UnusableManifest(ValueError):
    """The file cannot be served from here; one message per mistake, without the file's name."""

    def __init__(self, *messages: str) -> None:
        self.messages = messages
        super().__init__("\n".join(messages))


def read_manifest_file(file: Path) -> BatchedModel:
    """The manifest in a YAML (or JSON) file; raises `UnusableManifest`."""
    try:
        return read_manifest(read_document(read_text(file)))
    except InvalidManifest as error:
        raise UnusableManifest(*map(str, error.mistakes)) from error


def read_text(file: Path) -> str:
    """A file's text, of one that is too long its beginning; raises `UnusableManifest`."""
    try:
        with file.open(encoding="utf-8") as text:
            # One more than is taken, so that it is seen to be too long.
            return text.read(yaml_text.MOST_CHARACTERS + 1)
    except FileNotFoundError:
        raise UnusableManifest("no such file") from None
    except IsADirectoryError:
        raise UnusableManifest("is a folder; name the manifest in it") from None
    except UnicodeDecodeError as error:
        raise UnusableManifest(f"is not UTF-8 text: {error.reason}") from error
    except OSError as error:
        raise UnusableManifest(f"cannot be read: {error.strerror}") from error


def read_document(text: str) -> object:
    """The one document that a YAML (or JSON) text holds; raises `UnusableManifest`."""
    try:
        return yaml_text.read_document(text)
    except yaml_text.NotOneDocument as error:
        raise UnusableManifest(str(error)) from error


def on_this_machine(manifest: BatchedModel, folder: Path) -> BatchedModel:
    """The manifest as `run` can serve it, a relative `source.path` being looked up in `folder`.

    Raises `UnusableManifest` when it needs what this machine does not have.
    """
    model = manifest.spec.model
    if model.protocol is not None:
        rule = (
            "is a container of one's own, which this command does not start; "
            "start it and name its address: --upstream http://127.0.0.1:PORT"
        )
        raise _unusable("spec.model.protocol", rule, model.protocol)
    source = model.source
    if source is None:
        return manifest
    if source.volume is not None:
        rule = "is a volume of a cluster; here, name its folder: source.path"
        raise _unusable("spec.model.source.volume", rule, source.volume.claim_name)
    if source.python_package is not None:
        _require_installed(source.python_package)
    if source.path is None:
        return manifest
    path = (folder / Path(source.path).expanduser()).resolve()
    if not path.is_dir():
        raise _unusable(
            "spec.model.source.path", f"is not a folder (sought at {path})", source.path
        )
    found = dataclasses.replace(source, path=str(path))
    spec = dataclasses.replace(manifest.spec, model=dataclasses.replace(model, source=found))
    return dataclasses.replace(manifest, spec=spec)


def in_front_of_a_server(manifest: BatchedModel) -> BatchedModel:
    """The manifest as `run --upstream` can serve it; raises `UnusableManifest`."""
    if manifest.spec.model.handler is not None:
        rule = (
            "is run by our own model server; --upstream is for a server that runs already, "
            "and spec.model.protocol says what it speaks"
        )
        raise _unusable("spec.model.handler", rule, manifest.spec.model.handler)
    return manifest


def without_effect(manifest: BatchedModel) -> tuple[str, ...]:
    """Warnings about fields that are given and that `run` does not use."""
    spec = manifest.spec
    given = [
        *(f"spec.model.{name}" for name in _of_containers(spec.model)),
        *(f"spec.{name}" for name in _CLUSTER_ONLY if getattr(spec, name) != getattr(_PLAIN, name)),
    ]
    if not given:
        return ()
    return (f"used on Kubernetes only, not by this run: {', '.join(given)}",)


_PLAIN: Final = Spec(model=Model())
_CLUSTER_ONLY: Final = (
    "suspend",
    "replicas",
    "autoscaling",
    "sidecar",
    "startup",
    "drain",
    "rollout",
    "service",
    "disruption",
    "security",
    "pod",
)

_CONTAINER_ONLY: Final = (
    *("image", "imagePullPolicy", "command", "args"),
    *("envFrom", "resources", "volumeMounts"),
)


def _of_containers(model: Model) -> list[str]:
    plain = _PLAIN.model
    given = [name for name in _CONTAINER_ONLY if value_at(model, name) != value_at(plain, name)]
    repository = None if model.source is None else model.source.hugging_face
    if repository is not None and repository.token_secret_ref is not None:
        given.append("source.huggingFace.tokenSecretRef (the token is read from HF_TOKEN)")
    if repository is not None and repository.cache_claim_name is not None:
        given.append("source.huggingFace.cacheClaimName")
    return given


def _require_installed(package: str) -> None:
    # Only the outermost package is sought: looking inside would import it, and with it torch.
    outermost = package.partition(".")[0]
    finders: tuple[Callable[[str], object], ...] = (
        find_spec,
        # The model server also sees the working folder.
        lambda name: PathFinder.find_spec(name, [str(Path.cwd())]),
    )
    if any(find(outermost) is not None for find in finders):
        return
    distribution = outermost.replace("_", "-")
    rule = f"is not installed; try: pip install {distribution}"
    raise _unusable("spec.model.source.pythonPackage", rule, package)


def _unusable(field: str, rule: str, value: str) -> UnusableManifest:
    return UnusableManifest(str(Mistake(field=field, rule=rule, value=shown(value))))
