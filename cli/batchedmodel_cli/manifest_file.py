"""Reads a manifest's file, and checks what `run` needs of this machine.

The contract checks what a field may hold; here it is files, folders and installed packages.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from batchedmodel_cli.yaml_text import NotOneDocument, read_documents, read_text
from batchedmodel_contract.invalid_input import InvalidManifest, Mistake, shown
from batchedmodel_contract.manifest.source import GGUF_SUFFIX
from batchedmodel_kube.manifest.adapters import Adapters
from batchedmodel_kube.manifest.manifest import BatchedModel, read_manifest
from batchedmodel_kube.manifest.model_class import ModelClass, class_name_of, read_class
from batchedmodel_kube.manifest.source import Source
from batchedmodel_kube.manifest.spec import Model, Spec
from batchedmodel_kube.names import CLASS_KIND, KIND
from batchedmodel_kube.schema.paths import value_at

_CLUSTER_ONLY: Final = (
    *("model.image", "model.imagePullPolicy", "model.command", "model.args", "model.envFrom"),
    *("model.resources", "model.volumeMounts", "model.source.huggingFace.tokenSecretRef"),
    *("model.source.huggingFace.cacheClaimName", "adapters.tokenSecretRef"),
    *("suspend", "replicas", "autoscaling", "sidecar", "startup", "drain", "rollout"),
    *("service", "disruption", "security", "pod"),
)
_INSTEAD: Final = {"tokenSecretRef": " (the token is read from HF_TOKEN)"}


class UnusableManifest(ValueError):
    """The manifest cannot be used; one message per mistake, without the file's name."""

    def __init__(self, *messages: str) -> None:
        self.messages = messages
        super().__init__("\n".join(messages))


def read_manifest_file(
    file: Path, class_of: Callable[[str], ModelClass | None] = lambda _: None
) -> BatchedModel:
    """The manifest in a YAML (or JSON) file, with the class that it names.

    The class is a document of the same file, or what `class_of` its name gives. Raises
    `UnusableManifest`.
    """
    documents = documents_in(file)
    classes = {known.name: known for known in classes_among(documents)}
    return manifest_among(documents, classes, class_of)


def documents_in(file: Path) -> list[object]:
    """The documents of a YAML (or JSON) file; raises `UnusableManifest`."""
    try:
        return read_documents(read_text(file))
    except NotOneDocument as error:
        raise UnusableManifest(str(error)) from error


def classes_among(documents: Iterable[object]) -> list[ModelClass]:
    """The classes among a file's documents; raises `UnusableManifest`."""
    try:
        return [read_class(document) for document in documents if _is_class(document)]
    except InvalidManifest as error:
        raise UnusableManifest(*map(str, error.mistakes)) from error


def manifest_among(
    documents: Iterable[object],
    classes: Mapping[str, ModelClass],
    class_of: Callable[[str], ModelClass | None] = lambda _: None,
) -> BatchedModel:
    """The one manifest among a file's documents, with its class; raises `UnusableManifest`."""
    manifests = [document for document in documents if not _is_class(document)]
    if len(manifests) != 1:
        rule = f"one {KIND} per file, and {CLASS_KIND}es beside it"
        raise UnusableManifest(f"holds {len(manifests)} manifests; {rule}")
    name = class_name_of(manifests[0])
    model_class = None if name is None else classes.get(name) or class_of(name)
    try:
        return read_manifest(manifests[0], model_class)
    except InvalidManifest as error:
        raise UnusableManifest(*map(str, error.mistakes)) from error


def _is_class(document: object) -> bool:
    return isinstance(document, Mapping) and document.get("kind") == CLASS_KIND


def on_this_machine(manifest: BatchedModel, folder: Path) -> BatchedModel:
    """The manifest for `run`, its paths made absolute (relative ones start in `folder`).

    Raises `UnusableManifest` when it needs what this machine does not have.
    """
    model = manifest.spec.model
    if model.protocol is not None:
        rule = (
            "is a container of one's own, which this command does not start; "
            "start it and name its address: --upstream http://127.0.0.1:PORT"
        )
        raise _unusable("spec.model.protocol", rule, model.protocol)
    source = model.source and _here(model.source, folder, "spec.model.source")
    spec = dataclasses.replace(
        manifest.spec,
        model=dataclasses.replace(model, source=source),
        adapters=manifest.spec.adapters and _adapters_here(manifest.spec.adapters, folder),
    )
    return dataclasses.replace(manifest, spec=spec)


def _adapters_here(adapters: Adapters, folder: Path) -> Adapters:
    items = [
        dataclasses.replace(
            item, source=_here(item.source, folder, f"spec.adapters.items[{at}].source")
        )
        for at, item in enumerate(adapters.items)
    ]
    watched = adapters.folder
    if watched is not None:
        watched = _folder(watched, folder, "spec.adapters.folder")
    return dataclasses.replace(adapters, items=tuple(items), folder=watched)


def _here(source: Source, folder: Path, field: str) -> Source:
    """The source with an absolute path; raises `UnusableManifest`."""
    if source.volume is not None:
        rule = "is a volume of a cluster; here, name its folder: source.path"
        raise _unusable(f"{field}.volume", rule, source.volume.claim_name)
    if source.python_package is not None:
        _require_installed(source.python_package, f"{field}.pythonPackage")
    if source.path is None:
        return source
    path = _folder(source.path, folder, f"{field}.path", or_file=GGUF_SUFFIX)
    return dataclasses.replace(source, path=path)


def _folder(name: str, folder: Path, field: str, or_file: str | None = None) -> str:
    """The absolute path of a folder that is there; relative paths start in `folder`.

    `or_file`: how a file's name ends that may be named as well.
    """
    try:
        path = (folder / Path(name).expanduser()).resolve()
        is_folder = path.is_dir() or (path.suffix == or_file and path.is_file())
    except (OSError, ValueError, RuntimeError) as error:
        # Such as a NUL, a home of no user, links in a circle, or a name of too many characters.
        raise _unusable(field, f"cannot be a path: {error}", name) from error
    if not is_folder:
        rule = "is not a folder" if or_file is None else f"is neither a folder nor a {or_file} file"
        raise _unusable(field, f"{rule} (sought at {path})", name)
    return str(path)


def in_front_of_a_server(manifest: BatchedModel) -> BatchedModel:
    """The manifest for `run --upstream`, unchanged; raises `UnusableManifest`."""
    if manifest.spec.model.handler is not None:
        rule = (
            "is run by our own model server; --upstream is for a server that runs already, "
            "and spec.model.protocol says what it speaks"
        )
        raise _unusable("spec.model.handler", rule, manifest.spec.model.handler)
    return manifest


def without_effect(manifest: BatchedModel) -> tuple[str, ...]:
    """A warning if the manifest gives fields that `run` does not use."""
    plain = Spec(model=Model())
    fields = [
        f"spec.{path}{_INSTEAD.get(path.rpartition('.')[2], '')}"
        for path in _CLUSTER_ONLY
        if value_at(manifest.spec, path) != value_at(plain, path)
    ]
    return (f"used on Kubernetes only, not by this run: {', '.join(fields)}",) if fields else ()


def package_spec(name: str) -> ModuleSpec | None:
    """Where a package lies; no code of it is run. None where it is not installed."""
    outermost, *parts = name.split(".")
    if not all(part.isidentifier() for part in (outermost, *parts)) or outermost == "__main__":
        return None
    # The model server imports from the working folder too.
    spec = find_spec(outermost) or PathFinder.find_spec(outermost, [str(Path.cwd())])
    for part in parts:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(part, list(spec.submodule_search_locations))
    return spec


def _require_installed(package: str, field: str) -> None:
    # Only the outermost package: its own code may say where those inside it lie.
    outermost = package.partition(".")[0]
    if package_spec(outermost) is None:
        distribution = outermost.replace("_", "-")
        rule = f"is not installed; try: pip install {distribution}"
        raise _unusable(field, rule, package)


def _unusable(field: str, rule: str, value: str) -> UnusableManifest:
    return UnusableManifest(str(Mistake(field=field, rule=rule, value=shown(value))))
