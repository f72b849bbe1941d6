"""How far a download is, and when it is time to say so again. Pure; called by `fetching`."""

from typing import Final

_EVERY_SECONDS: Final = 5.0
_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB")


class Progress:
    """Counts bytes. What was there before counts as done, and not towards the speed."""

    def __init__(self, *, total: int, present: int, now: float) -> None:
        self._total = total
        self._present = present
        self._received = 0
        self._began = now
        self._said = now

    def add(self, count: int, now: float) -> bool:
        """Take note of bytes; whether the last word about it is old enough for another one."""
        self._received += count
        if now - self._said < _EVERY_SECONDS:
            return False
        self._said = now
        return True

    def line(self, now: float) -> str:
        """How far it is, for a log."""
        # What had to be fetched twice must not make it more than all.
        done = min(self._present + self._received, self._total)
        percent = 100 * done // self._total if self._total else 100
        text = f"{shown_bytes(done)} of {shown_bytes(self._total)} ({percent} %)"
        seconds = now - self._began
        if self._received and seconds > 0:
            text += f", {shown_bytes(int(self._received / seconds))}/s"
        return text


def shown_bytes(count: int) -> str:
    """A number of bytes for people."""
    amount, unit = float(count), 0
    while amount >= 1000 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{count} bytes" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"
