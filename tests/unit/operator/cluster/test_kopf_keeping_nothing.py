"""Kopf is an informer here: it is told to keep no record of objects and to compare none."""

from typing import Any

import kopf
from kopf._core.intents.causes import Activity

from batchedmodel_operator.cluster.handlers import registry

_ESSENCE: Any = {"spec": {}}


async def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    found: Any = registry(lambda key, **_: None, lambda established: None)
    for handler in found._activities.get_handlers(activity=Activity.STARTUP):
        await handler.fn(settings=settings)
    return settings


async def test_no_object_is_copied_to_tell_what_changed() -> None:
    persistence = (await _settings()).persistence
    body: Any = {"metadata": {"name": "a"}, "spec": {"large": "x" * 1000}}
    essence = persistence.diffbase_storage.build(body=body)
    assert essence == {}
    assert persistence.progress_storage.clear(essence=essence) is essence
    assert persistence.diffbase_storage.fetch(body=body) is None


async def test_of_ten_thousand_objects_few_are_held_at_a_time() -> None:
    settings = await _settings()
    assert settings.watching.chunk_size is not None
    assert settings.watching.chunk_size <= 100, "of each kind a page is in memory as JSON"
    assert 0 < settings.queueing.idle_timeout <= 0.1, "for as long the last event is"


async def test_nothing_is_written_to_an_object() -> None:
    persistence = (await _settings()).persistence
    body: Any = {"metadata": {"name": "a"}}
    patch = kopf.Patch()
    persistence.diffbase_storage.store(body=body, patch=patch, essence=_ESSENCE)
    persistence.progress_storage.touch(body=body, patch=patch, value="now")
    assert not patch
