"""What a token costs the device, and when first tokens come: what both kinds of engines share."""

from abc import abstractmethod
from typing import Final

_NEWEST: Final = 0.05
_OFTEN: Final = 0.95
"""So many of all first tokens come within the cautious time."""
_SLOWEST: Final = 0.25
_FASTEST: Final = 4.0


class TokenCosts:
    """Seconds of the device by tokens, and seconds until a first token."""

    def __init__(self) -> None:
        self._excess = 0.0
        """Nearly all first tokens take at most so much longer than usual, lately: in seconds, or as
        a part of the usual time."""
        self._pace = 1.0
        """Seconds of work that are done in a second while requests wait."""

    @property
    @abstractmethod
    def learnt(self) -> bool:
        """Whether anything is known of what tokens cost."""

    @property
    @abstractmethod
    def knows_first_tokens(self) -> bool:
        """Whether it is known how long first tokens usually take."""

    @property
    @abstractmethod
    def usual_between_tokens(self) -> float:
        """Seconds between two tokens of a stream."""

    @property
    def least_between_tokens(self) -> float:
        """The same at best."""
        return self.usual_between_tokens

    @abstractmethod
    def output_token(self, limit: int) -> float:
        """Device seconds of a token of output, on a server that runs so many at once."""

    @abstractmethod
    def prompt_token(self, limit: int) -> float:
        """Device seconds of a token of a prompt."""

    @abstractmethod
    def base(self, limit: int) -> float:
        """Seconds until a first token beside those for its prompt, on a server with room."""

    @abstractmethod
    def saw_first_token(
        self, prompt_tokens: int, seconds: float, limit: int, *, room: bool
    ) -> None:
        """A first token took so long. Without room on the server it only shows how fast it is."""

    def work(self, prompt_tokens: int, output_tokens: float, limit: int) -> float:
        """Device seconds of a request."""
        return self.prompt_token(limit) * prompt_tokens + self.output_token(limit) * output_tokens

    def first_token(self, prompt_tokens: int, limit: int) -> float:
        """Seconds until a first token on a server with room."""
        return self.base(limit) + self.prompt_token(limit) * prompt_tokens

    def cautious_first_token(self, prompt_tokens: int, limit: int) -> float:
        """Seconds within which nearly all such first tokens come, as the server is at present."""
        return self.first_token(prompt_tokens, limit) + self._excess

    def wait(self, work: float) -> float:
        """Seconds until so much work is done."""
        return work / self._pace

    def saw_pace(self, work: float, seconds: float) -> None:
        """So much work was done in a span in which requests waited throughout."""
        if work > 0:
            pace = min(_FASTEST, max(_SLOWEST, work / seconds))
            self._pace += _NEWEST * (pace - self._pace)

    def _saw_excess(self, over: float, usual: float) -> None:
        """A first token took so much longer than the usual time."""
        self._excess = quantile_after(self._excess, over, max(self._excess, usual, 0.001))


def quantile_after(before: float, value: float, scale: float) -> float:
    """What nearly all values are below, after one more; it is 0 at least.

    It goes up by much where it is passed, and down by little where not, in parts of `scale`.
    """
    passed = value > before
    return max(0.0, before + _NEWEST * scale * (_OFTEN if passed else _OFTEN - 1.0))
