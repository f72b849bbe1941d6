"""Follows the manifest's file while its processes run, and hands them what applies at once.

That is what edits of it do in a cluster without another revision of pods: batch settings, and the
items of adapters. Edits show as events of the file's folder, so nothing is read periodically.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from batchedmodel_cli.manifest_file import UnusableManifest
from batchedmodel_cli.run.pod import write_settings
from batchedmodel_contract.schema.reading import declarations
from batchedmodel_kube.manifest.adapters import Adapters
from batchedmodel_kube.manifest.generation import Generation
from batchedmodel_kube.manifest.manifest import BatchedModel
from batchedmodel_kube.manifest.spec import Spec

_LIVE_GENERATION: Final[Mapping[str, Any]] = dict.fromkeys(
    field.name for field, declared in declarations(Generation) if not declared.edit
)
"""Fields without a mark of their own: an edit of these reaches running pods."""


async def follow(
    file: Path,
    running: BatchedModel,
    settings: Path,
    *,
    read: Callable[[], BatchedModel],
    tell: Callable[[str], None],
) -> None:
    """Do so for ever. `read` gives the manifest in the file as it is run here.

    `running`: the one that the processes were started with; `settings`: the folder that they watch.
    """
    # The command says what is not installed before it comes here.
    from asyncinotify import Inotify, Mask

    try:
        with Inotify() as events:
            # Editors write a file anew, or put another in its place.
            events.add_watch(file.parent, Mask.CLOSE_WRITE | Mask.MOVED_TO)
            async for event in events:
                if event.name is not None and event.name.name == file.name:
                    take(running, settings, read=read, tell=tell)
    except OSError as error:
        tell(f"edits of {file} go unseen: {error}")


def take(
    running: BatchedModel,
    settings: Path,
    *,
    read: Callable[[], BatchedModel],
    tell: Callable[[str], None],
) -> None:
    """Take up an edit, and tell what became of it."""
    try:
        edited = read()
        if edited.name != running.name:
            raise UnusableManifest(f"metadata.name: the service is called {running.name}")
        changed = write_settings(_followed(edited, running), settings)
    except UnusableManifest as unusable:
        for message in unusable.messages:
            tell(f"the edit is not used: {message}")
        return
    except OSError as error:
        tell(f"the edit is not used: {error}")
        return
    if changed:
        tell("the edit is in force")
    if others := waiting(running.spec, edited.spec):
        tell(f"used from the next run on: {', '.join(others)}")


def waiting(running: Spec, edited: Spec) -> tuple[str, ...]:
    """The fields whose edits need another start."""
    before, after = (dataclasses.replace(one, **_fixed(one)) for one in (running, edited))
    return tuple(
        f"spec.{declared.name}"
        for field, declared in declarations(Spec)
        if field.name != "batching" and getattr(before, field.name) != getattr(after, field.name)
    )


def _fixed(spec: Spec) -> dict[str, Any]:
    generation = dataclasses.replace(spec.generation or Generation(), **_LIVE_GENERATION)
    adapters = spec.adapters and dataclasses.replace(spec.adapters, items=())
    return {"generation": generation, "adapters": adapters}


def _followed(edited: BatchedModel, running: BatchedModel) -> BatchedModel:
    """The edited manifest with those adapters that a running process can have."""
    before, after = running.spec.adapters, edited.spec.adapters
    adapters: Adapters | None = None
    if before is not None:
        adapters = dataclasses.replace(before, items=() if after is None else after.items)
    return dataclasses.replace(edited, spec=dataclasses.replace(edited.spec, adapters=adapters))
