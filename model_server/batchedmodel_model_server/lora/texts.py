"""The adapters of texts that are generated: in their slots while the texts run. Compute thread."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.lora.state import NO_ADAPTER
from batchedmodel_model_server.errors import DeviceLost, ForwardFailed, translated
from batchedmodel_model_server.lora.device import NO_SLOT, DeviceAdapters
from batchedmodel_model_server.lora.store import Weights
from batchedmodel_scheduling.engine.step_planner import EngineSequence
from batchedmodel_scheduling.lora.text_turns import WaitingText, may_begin


@dataclass(slots=True, eq=False)
class _Use:
    """What one sequence needs; `slot`: where it is while the sequence runs."""

    number: int
    weights: Weights
    since: float
    slot: int = NO_SLOT


class TextAdapters:
    """Who needs which adapter. Sequences without one are not known here."""

    def __init__(self, device: DeviceAdapters | None) -> None:
        """`device`: None for a model without adapters."""
        self._device: Final = device
        self._uses: Final[dict[EngineSequence, _Use]] = {}

    def add(self, one: EngineSequence, number: int, weights: Weights, now: float) -> None:
        """A text came."""
        if number != NO_ADAPTER:
            self._uses[one] = _Use(number, weights, now)

    def fork(self, one: EngineSequence, other: EngineSequence) -> None:
        """Another text goes on from one that runs, and runs as well."""
        use = self._uses.get(one)
        if use is not None:
            self._uses[other] = _Use(use.number, use.weights, use.since)

    def forget(self, one: EngineSequence) -> None:
        """A text has ended."""
        self.leave(one)
        self._uses.pop(one, None)

    def may_run(self, waiting: Sequence[EngineSequence], now: float) -> Sequence[EngineSequence]:
        """Those of the waiting whose adapters have room."""
        if not self._uses or self._device is None:
            return waiting
        running = Counter([use.number for use in self._uses.values() if use.slot != NO_SLOT])
        texts = [self._waiting(one, now) for one in waiting]
        allowed = may_begin(texts, running, self._device.slots, now)
        return [one for one, may in zip(waiting, allowed, strict=True) if may]

    def enter(self, one: EngineSequence) -> str | None:
        """A text runs from now on; why not, where its adapter cannot be copied.

        Raises `DeviceLost`.
        """
        use = self._uses.get(one)
        if use is None or self._device is None or use.slot != NO_SLOT:
            return None
        failure: ForwardFailed
        try:
            use.slot = self._device.enter(use.number, use.weights)
            return None
        except ForwardFailed as error:
            failure = error
        except BaseException as error:
            failure = translated(error)
        if isinstance(failure, DeviceLost):
            raise failure
        return f"its adapter finds no room: {failure}"

    def leave(self, one: EngineSequence) -> None:
        """It does not run any more."""
        use = self._uses.get(one)
        if use is not None and self._device is not None and use.slot != NO_SLOT:
            self._device.leave(use.number)
            use.slot = NO_SLOT

    def slot(self, one: EngineSequence) -> int:
        """Where the adapter of a running text is; `NO_SLOT` for one without."""
        use = self._uses.get(one)
        return NO_SLOT if use is None else use.slot

    def _waiting(self, one: EngineSequence, now: float) -> WaitingText:
        use = self._uses.get(one)
        return WaitingText(NO_ADAPTER, now) if use is None else WaitingText(use.number, use.since)
