"""A loaded model's first passes: how items may share one, and how long they take.

What an earlier start has found out is taken over where it was kept and still holds. Used by the
service while the model is brought up, on the compute thread.
"""

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from batchedmodel_contract.inference.profile import Profile
from batchedmodel_contract.processes.environment import ModelServerSettings
from batchedmodel_model_server.batching.declaration import Sharing
from batchedmodel_model_server.execution.forward import LoadedModel
from batchedmodel_model_server.execution.memory import MemoryCap
from batchedmodel_model_server.profiling.profile_cache import ProfileCache, TrialFindings, key_of
from batchedmodel_model_server.profiling.self_test import verdict, with_sharing
from batchedmodel_model_server.profiling.warmup import BUDGET_SECONDS, Clock, still_holds, warm_up

BESIDE_PASS_SECONDS: Final = 0.1
"""A batch of the version that serves may wait behind a trial pass; longer ones are not tried."""
BESIDE_BUDGET_SECONDS: Final = 5.0
"""For so long every other pass may be a trial."""


class Trial:
    """First finds out how items share a pass, then how long passes take."""

    def __init__(
        self,
        loaded: LoadedModel,
        settings: ModelServerSettings,
        clock: Clock = time.monotonic,
        *,
        alone: bool = True,
    ) -> None:
        """Runs the self-test unless its outcome is known.

        Beside a version that serves, and so not `alone`, passes are short and few. What is found
        there is not kept: that one's memory and passes are in it.

        Raises `CannotLoad` for an unknown precision, and `DeviceLost`.
        """
        self._clock = clock
        self._alone = alone
        self._max_rows = settings.max_batch_size
        self._kept: ProfileCache | None = None
        self._known: TrialFindings | None = None
        # Times that are predicted need not be kept.
        if loaded.handler.predicted_seconds(1, 1) is None:
            self._kept = ProfileCache(Path(settings.cache_folder), key_of(loaded, settings))
            self._known = _usable(self._kept.read(), loaded)
        self._verdict = verdict(loaded) if self._known is None else self._known.verdict
        self.model = with_sharing(loaded, self._verdict)
        """The model as it is to be run."""

    def profile(self, cap: MemoryCap) -> Profile:
        """The model's times; teaches `cap` what does not fit.

        Raises `CannotLoad` when a batch of examples fails: real ones would, too; and `DeviceLost`.
        """
        known = None if self._known is None else self._known.profile
        if known is not None and still_holds(self.model, known, self._clock):
            if known.max_cost is not None:
                cap.begin_with(known.max_cost)
            profile = replace(known, cached=True)
        else:
            profile = warm_up(
                self.model,
                self._max_rows,
                cap,
                BUDGET_SECONDS if self._alone else BESIDE_BUDGET_SECONDS,
                self._clock,
                longest_pass=math.inf if self._alone else BESIDE_PASS_SECONDS,
            )
            if self._kept is not None and self._alone:
                self._kept.write(TrialFindings(profile=profile, verdict=self._verdict))
        found = self._verdict
        return replace(profile, sharing=found.sharing.value, sharing_reason=found.reason)


def _usable(known: TrialFindings | None, model: LoadedModel) -> TrialFindings | None:
    """Nothing, if the model now says that it cannot do what it did then."""
    packed = known is not None and known.verdict.sharing is Sharing.PACKED
    return None if packed and not model.declaration.packs else known
