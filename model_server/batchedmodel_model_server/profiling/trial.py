"""What is found out about a loaded model: how items may share a pass, and how long passes take.

What they show is kept, so that a restart need not find it again: one file for each combination of
all that it depends on (the model's files, the handler and its parameters, the device, the
arithmetic, the threads, the libraries). Whatever is wrong with a file or the folder costs a warm-up
and a line in the log, never the start.

What is left of a profile is measured while nobody asks for anything, one pass at a time. A batch
that comes waits for the end of the pass that runs, so passes are short unless nobody has come for
long. What was measured is kept after each shape, so that a restart goes on with it.
"""

import asyncio
import hashlib
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Protocol

from batchedmodel_contract.inference.profile import Profile, profile_from_mapping
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.processes.environment import ModelServerSettings
from batchedmodel_model_server.batching.declaration import Sharing
from batchedmodel_model_server.errors import CannotLoad, DeviceLost, ForwardFailed
from batchedmodel_model_server.execution.device_thread import TrialScheduling
from batchedmodel_model_server.execution.forward import LoadedModel
from batchedmodel_model_server.execution.memory import MemoryCap
from batchedmodel_model_server.machine import computing_threads, device_name, limits, read_processor
from batchedmodel_model_server.profiling.self_test import Verdict, verdict, with_sharing
from batchedmodel_model_server.profiling.shapes import (
    LONG_IDLE_SECONDS,
    LONGEST_PASS_SECONDS,
    SHORT_PASS_SECONDS,
)
from batchedmodel_model_server.profiling.warmup import DRIFT, Clock, WarmUp, enough, slowness
from batchedmodel_model_server.sources.folder import stamp, write_at_once
from batchedmodel_model_server.sources.untrusted_files import MOST_JSON_BYTES, read_bytes

FOLDER: Final = "profiles"
_FORM: Final = 3  # of the file; another number makes other keys
_KEPT: Final = 64  # files: one for each combination, of which a volume may see many
_LIBRARIES: Final = ("batchedmodel", "numpy", "torch", "transformers")
_USELESS: Final = (
    OSError, ValueError, KeyError, TypeError, RecursionError, InvalidInput, CannotLoad
)  # fmt: skip
"""What is raised over a file that holds no profile."""
_log = logging.getLogger(__name__)


class Trial:
    """First finds out how items share a pass, then how long passes take. On the compute thread.

    What is left to measure once the model is ready is the `warm_up`'s.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        settings: ModelServerSettings,
        clock: Clock = time.monotonic,
        *,
        alone: bool = True,
    ) -> None:
        """Runs the self-test unless its outcome is known.

        Where another version serves, so that this one is not `alone`, the profile is not kept: the
        other one's memory and passes are in it.

        Raises `CannotLoad` for an unknown precision, and `DeviceLost`.
        """
        self._clock = clock
        self._alone = alone
        self._max_rows = settings.max_batch_size
        self._cache: ProfileCache | None = None
        self._known: Profile | None = None
        # Times that are predicted need not be kept.
        if loaded.handler.predicted_seconds(1, 1) is None:
            self._cache = ProfileCache(Path(settings.cache_folder), key_of(loaded, settings))
            self._known = self._cache.read()
        if self._known is None:
            self._verdict = verdict(loaded)
        else:
            sharing = Sharing(self._known.sharing)
            self._verdict = Verdict(sharing=sharing, reason=self._known.sharing_reason)
        self.model = with_sharing(loaded, self._verdict)
        """The model as it is to be run."""
        self.warm_up: WarmUp | None = None
        """Goes on in idle moments; None where nothing is left to measure."""

    def profile(self, cap: MemoryCap) -> Profile:
        """The model's times, of which some may come later; teaches `cap` what does not fit.

        A kept profile serves in any case. On a machine that is slower now it stays: others use
        that, and schedulers follow it. On one that is much faster others used it while the times
        were measured, so they are measured anew in idle moments; as are those of a partial one on
        any machine of another pace, where old points and new ones would make no curve.

        Raises `CannotLoad` when a batch of examples fails: real ones would, too; and `DeviceLost`.
        """
        known = self._known
        if known is not None and self._cache is not None and self._cache.pass_mark.exists():
            _log.warning("a process has ended within an idle pass: the profile stays as it is")
            known = replace(known, partial=False)
        ratio = None if known is None else slowness(self.model, known, self._clock)
        if known is None or ratio is None:
            warm_up = self._warm_up(cap)
            warm_up.begin()
            return self.kept(warm_up.profile())
        if known.max_cost is not None:
            cap.begin_with(known.max_cost)
        if known.partial or (ratio < 1 / DRIFT and known is self._known):
            self._warm_up(cap, known if 1 / DRIFT <= ratio <= DRIFT else None)
        return replace(known, cached=True)

    def kept(self, profile: Profile) -> Profile:
        """What the warm-up knows by now: kept, unless more is, by whichever process."""
        if not profile.partial:
            self.warm_up = None
        found = self._verdict
        profile = replace(profile, sharing=found.sharing.value, sharing_reason=found.reason)
        if self._cache is not None and self._alone:
            there = self._cache.read() if profile.partial else None
            if there is None or (there.partial and len(there.points) <= len(profile.points)):
                self._cache.write(profile)
        return profile

    def idle_pass(self, work: Callable[[], float]) -> float:
        """A pass for which no caller asked, on the compute thread.

        A process that it ends or that it keeps for ever leaves a mark, by which the next one runs
        no such passes: it would end as well, again and again.
        """
        assert self._cache is not None, "times that are predicted need no passes"
        mark = self._cache.pass_mark
        with suppress(OSError):  # then no profile can be kept either
            mark.touch()
        try:
            return work()
        finally:
            with suppress(OSError):
                mark.unlink()

    def _warm_up(self, cap: MemoryCap, known: Profile | None = None) -> WarmUp:
        warm_up = WarmUp(self.model, self._max_rows, cap, self._clock, known=known)
        self.warm_up = warm_up
        return warm_up


class ProfileCache:
    """The profile for one key."""

    def __init__(self, folder: Path, key: Mapping[str, Any]) -> None:
        self._key = json.dumps({**key, "form": _FORM}, sort_keys=True)
        name = hashlib.sha256(self._key.encode()).hexdigest()[:32]
        self._file = folder / FOLDER / f"{name}.json"
        self.pass_mark: Final = self._file.with_suffix(".pass")

    def read(self) -> Profile | None:
        """What was kept under the key; None when there is nothing that could be used."""
        try:
            document = json.loads(read_bytes(self._file, MOST_JSON_BYTES))
            if document["key"] != self._key:
                raise ValueError("it was kept for another model or machine")
            profile = profile_from_mapping(document["profile"])
            if not profile.points:
                raise ValueError("it holds no measurement")
            Sharing(profile.sharing)
        except FileNotFoundError:
            return None
        except _USELESS as error:
            _log.warning("the kept profile is ignored: %s: %s", self._file, error)
            return None
        return profile

    def write(self, profile: Profile) -> None:
        """Keep it; a reader sees all of it or the one before."""
        # The start of this process says nothing of the next one.
        profile = replace(profile, start_up=(), cached=False)
        document = json.dumps({"key": self._key, "profile": profile.to_mapping()})
        try:
            write_at_once(self._file, document)
            folder = self._file.parent
            latest = sorted(folder.iterdir(), key=lambda file: _stamp(file)[1], reverse=True)
            for file in latest[_KEPT:]:
                file.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("the profile cannot be kept, the next start measures again: %s", error)


def key_of(model: LoadedModel, settings: ModelServerSettings) -> dict[str, Any]:
    """All that the findings about a loaded model depend on, as a JSON object."""
    handler = type(model.handler)
    code = getattr(sys.modules.get(handler.__module__), "__file__", None)
    return {
        "handler": f"{settings.handler} {handler.__qualname__}",
        "packs": model.declaration.packs,
        "parameters": dict(settings.parameters),
        "source": settings.source,
        "code": (0, 0) if code is None else _stamp(code),
        "files": model.content.digest,
        "device": device_name(model.device, read_processor()),
        "memory": limits("memory.max"),
        "precision": model.handler.precision,
        "threads": computing_threads(),
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "max_batch_size": settings.max_batch_size,
    }


def _stamp(file: str | Path) -> tuple[int, int]:
    """Zeros for what is no file any more."""
    try:
        return stamp(file)
    except OSError:
        return 0, 0


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


class Idleness(Protocol):
    """Whether anybody asks for anything."""

    def idle_seconds(self) -> float:
        """How long nothing has been in work; 0 while something is."""
        ...

    async def quiet(self, seconds: float) -> None:
        """Return once nothing has been in work for so long."""
        ...


async def measure_when_idle(
    trial: Trial,
    turns: TrialScheduling,
    idleness: Idleness,
    tell: Callable[[Profile], None],
    lost: Callable[[DeviceLost], None],
) -> None:
    """Measure what a trial has left, and `tell` the whole profile. No failure harms who serves."""
    try:
        tell(await _whole(trial, turns, idleness))
    except DeviceLost as error:
        lost(error)
    except Exception:
        _log.exception("the profile stays as it is")


async def _whole(trial: Trial, turns: TrialScheduling, idleness: Idleness) -> Profile:
    warm_up = trial.warm_up
    assert warm_up is not None, "something is left to measure"
    while not warm_up.is_whole:
        await idleness.quiet(SHORT_PASS_SECONDS)
        is_long = idleness.idle_seconds() >= LONG_IDLE_SECONDS
        # Whoever comes next waits for its end, so it is short unless nobody seems to come.
        shape = warm_up.next(LONGEST_PASS_SECONDS if is_long else SHORT_PASS_SECONDS)
        if shape is None:
            await idleness.quiet(LONG_IDLE_SECONDS)
            continue
        needed = LONG_IDLE_SECONDS if is_long else SHORT_PASS_SECONDS
        batch, passes = await asyncio.to_thread(warm_up.batch, shape), list[float]()
        run = partial(trial.idle_pass, partial(warm_up.run, batch))
        try:
            while not enough(passes):
                await idleness.quiet(needed)
                passes.append(await turns.turn(run))
        except DeviceLost:
            raise
        except ForwardFailed as error:
            warm_up.failed(shape, error)
        else:
            warm_up.measured(shape, passes)
        # A file may be on a volume that is slow.
        await asyncio.to_thread(trial.kept, warm_up.profile())
    return await asyncio.to_thread(trial.kept, warm_up.profile())
