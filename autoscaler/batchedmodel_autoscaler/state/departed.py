"""The work of pods and of runs of sidecars that have ended: it still counts for a minute.

It is bounded, as a sidecar may say at every answer that it is another one. Times are those of the
windows, monotonic seconds.
"""

from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

from batchedmodel_scheduling.autoscaling.windows import WINDOW_SECONDS, Window

MOST_OF_A_POD: Final = 8
"""Windows within a minute. A container that fails starts six times in one at most."""
MOST_OF_A_MODEL: Final = 4096
"""Windows. The oldest ones of more are forgotten."""


class Departed:
    """What the pods of one model have left behind."""

    def __init__(self) -> None:
        self._left: deque[tuple[str, Window]] = deque()
        """With the pods' uids, in the order in which they came."""
        self._of_pods: Counter[str] = Counter()
        self._newest = float("-inf")

    @property
    def windows(self) -> Sequence[Window]:
        """Some may be over already."""
        return [window for _, window in self._left]

    def add(self, uid: str, window: Window) -> None:
        """A pod or a run of its sidecar has ended. What exceeds a pod's bound is dropped."""
        self._newest = max(self._newest, window.received)
        while self._left and self._newest - self._left[0][1].received >= WINDOW_SECONDS:
            self._forget_first()
        if self._of_pods[uid] < MOST_OF_A_POD:
            self._left.append((uid, window))
            self._of_pods[uid] += 1
        if len(self._left) > MOST_OF_A_MODEL:
            self._forget_first()

    def _forget_first(self) -> None:
        uid, _ = self._left.popleft()
        self._of_pods[uid] -= 1
        if not self._of_pods[uid]:
            del self._of_pods[uid]
