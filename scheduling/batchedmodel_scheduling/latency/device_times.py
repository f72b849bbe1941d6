"""What is asked of learnt device time: of batches (`BatchTimes`) as of steps (`StepTimes`)."""

from typing import Protocol, TypeVar

Work = TypeVar("Work", contravariant=True)


class DeviceTimes(Protocol[Work]):
    """Seconds that the device takes for work of one kind.

    The shape is measured when a server starts. How far the device is from it is learnt.
    """

    def predict(self, work: Work, /) -> float | None:
        """Seconds that it will take; None while nothing is known."""
        ...

    def observe(self, work: Work, seconds: float, /) -> None:
        """Learn from work that took so long."""
        ...
