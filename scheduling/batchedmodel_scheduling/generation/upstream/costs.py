"""What a token costs the device, learnt from streams and from answers that ended.

A token of output costs the time between two tokens of a stream, shared by all streams that run at
once when the server is full. A token of a prompt costs what it adds to the time of a first token.
"""

import math
from typing import Final

from batchedmodel_scheduling.generation.at_server import Load
from batchedmodel_scheduling.generation.token_costs import TokenCosts

_TOKEN: Final = 0.02
"""Seconds between tokens before any were seen."""
_PROMPT_PART: Final = 1 / 20
"""Of the cost of a token of output, before prompts of unlike lengths were seen."""
_PRIOR_SPREAD: Final = 64.0**2
"""So much must the lengths of prompts vary to outweigh that."""
_PRIOR_STEP_SPREAD: Final = 48.0**2
_KEEP: Final = 1.0 - 1.0 / 200
_NEWEST: Final = 0.2
_FEW: Final = 8
_WRONG: Final = 4
"""A first token in less than a part of the usual time shows that this was a wrong guess."""
_ENOUGH_TOKENS: Final = 8
_WHILE: Final = 20.0
"""Seconds over which the cost of a token of output is averaged."""


class Costs(TokenCosts):
    """Seconds of the device by tokens, and seconds until a first token."""

    def __init__(self) -> None:
        super().__init__()
        self.token_seconds: float | None = None
        """Between two tokens of a stream, lately."""
        self._output: float | None = None
        self._decode_seconds = self._decode_tokens = self._at_once = self._seconds = 0.0
        """Of streams lately: their seconds between tokens, without those for prompts that were
        read meanwhile; their tokens; how many ran at once, times seconds, and these."""
        self._full = 0.0
        """Sequences that run at once when the server is full, if it was seen so."""
        self._times: Final = _Line(_PRIOR_SPREAD)
        """Seconds until first tokens by tokens of their prompts, on a server with room."""
        self._steps: Final = _Line(_PRIOR_STEP_SPREAD)
        """Seconds between tokens by tokens of prompts that were read meanwhile."""

    @property
    def learnt(self) -> bool:
        """Whether anything was seen of what tokens cost."""
        return self._output is not None

    @property
    def usual_between_tokens(self) -> float:
        """Seconds between two tokens of a stream."""
        return _TOKEN if self.token_seconds is None else self.token_seconds

    def output_token(self, limit: int) -> float:
        """Device seconds of a token of output, on a server that runs so many at once."""
        return _TOKEN / limit if self._output is None else self._output

    def prompt_token(self, limit: int) -> float:
        """Device seconds of a token of a prompt."""
        return self._prompt_token(self.output_token(limit))

    @property
    def knows_first_tokens(self) -> bool:
        """Whether it is known how long first tokens usually take."""
        return self._times.seen > 0

    def base(self, limit: int) -> float:
        """Seconds until a first token beside those for its prompt, on a server with room."""
        if not self._times.seen:
            return 2 * self.usual_between_tokens
        return self._times.at_zero(self.prompt_token(limit))

    def saw_first_token(
        self, prompt_tokens: int, seconds: float, limit: int, *, room: bool
    ) -> None:
        """A first token took so long. Without room on the server it only shows how fast it is."""
        usual = self.first_token(prompt_tokens, limit)
        if seconds < usual / _WRONG:
            self._times.forget()  # the first ones of a server that has just begun
        if room or not self._times.seen or seconds < usual:
            self._times.observe(prompt_tokens, seconds, self.prompt_token(limit))
        self._saw_excess(seconds - self.first_token(prompt_tokens, limit), usual)

    def saw(self, load: Load, limit: int, *, full: bool) -> None:
        """Learn from a span of time; `full`: the server had as many as it should throughout."""
        at_once = load.generating
        if load.tokens >= _ENOUGH_TOKENS and at_once > 0:
            token = at_once * load.seconds / load.tokens
        elif load.whole_tokens >= _ENOUGH_TOKENS and load.whole_seconds > 0:
            token, at_once = load.whole_seconds / load.whole_tokens, load.taken
        else:
            return
        if at_once < load.taken and load.streams > 0 and load.tokens:
            at_once *= load.taken / load.streams
        reading = 0.0
        if load.tokens >= _ENOUGH_TOKENS:
            read = load.prompt_tokens / load.seconds * token
            self._steps.observe(read, token, self.prompt_token(limit))
            reading = min(token / 2, read * self.prompt_token(limit))
        if self.token_seconds is not None:
            token = min(token, 4 * self.token_seconds)
        self.token_seconds = _nearer(self.token_seconds, token)
        if full:
            self._full = _nearer(self._full or None, at_once)
        # Sums over a while, as a span of few tokens says little and its quotient too much.
        keep = math.exp(-load.seconds / _WHILE)
        tokens = load.tokens if load.tokens >= _ENOUGH_TOKENS else load.whole_tokens
        self._decode_seconds = keep * self._decode_seconds + (token - reading) * tokens
        self._decode_tokens = keep * self._decode_tokens + tokens
        self._at_once = keep * self._at_once + at_once * load.seconds
        self._seconds = keep * self._seconds + load.seconds
        mean = self._at_once / self._seconds
        between = self._decode_seconds / self._decode_tokens
        self._output = between / max(1.0, mean, self._full or limit)

    def _prompt_token(self, output: float) -> float:
        slope = self._times.slope(output * _PROMPT_PART)
        if self._times.seen and self._times.mean_x > 0:
            # A first token comes with a step at least.
            reading = self._times.mean_y - self.usual_between_tokens
            slope = min(slope, max(0.0, reading) / self._times.mean_x)
        return self._steps.slope(slope)


class _Line:
    """A line through points, newer ones counting more."""

    def __init__(self, prior_spread: float) -> None:
        """`prior_spread`: the square of the distance of points that outweighs a guess."""
        self._prior_spread: Final = prior_spread
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.seen = 0
        self.mean_x = self.mean_y = 0.0
        self._weight = self._spread = self._together = self._deviation = 0.0

    def slope(self, prior: float) -> float:
        """What one more to the right adds, at least 0; `prior` is the guess before any."""
        over = self._together + self._prior_spread * prior
        return max(0.0, over / (self._spread + self._prior_spread))

    def at_zero(self, slope: float) -> float:
        """Where a line of this slope through the points begins."""
        return max(0.0, self.mean_y - slope * self.mean_x)

    def observe(self, x: float, y: float, slope: float) -> None:
        """One point more, where a line of this slope was expected."""
        expected = self.at_zero(slope) + slope * x
        if self.seen >= _FEW:
            # One straggler says little; many raise the deviation.
            most = expected + 3 * self._deviation + 0.001
            self._deviation += _NEWEST / 2 * (abs(y - expected) - self._deviation)
            y = min(y, most)
        elif self.seen:
            self._deviation = max(self._deviation, abs(y - expected))
        self.seen += 1
        self._weight = self._weight * _KEEP + 1.0
        part = 1.0 / self._weight
        off_x, off_y = x - self.mean_x, y - self.mean_y
        self.mean_x += part * off_x
        self.mean_y += part * off_y
        # Of the deviations, not their sums: so the prior counts as much at any time.
        self._spread += part * ((1 - part) * off_x * off_x - self._spread)
        self._together += part * ((1 - part) * off_x * off_y - self._together)


def _nearer(old: float | None, new: float) -> float:
    return new if old is None else old + _NEWEST * (new - old)
