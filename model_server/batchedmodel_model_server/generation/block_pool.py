"""Which blocks of the cache are free, and how many sequences share each of the others."""

from collections.abc import Iterable
from typing import Final


class BlockPool:
    """Blocks by their numbers."""

    def __init__(self, blocks: int) -> None:
        self.blocks: Final = blocks
        # The one that was given back last is the next: its memory is the warmest.
        self._free: Final = list(range(blocks - 1, -1, -1))
        self._users: Final = [0] * blocks

    @property
    def free(self) -> int:
        """How many nobody uses."""
        return len(self._free)

    def take(self) -> int:
        """A block for one sequence; `free` says whether there is any."""
        block = self._free.pop()
        self._users[block] = 1
        return block

    def share(self, blocks: Iterable[int]) -> None:
        """One sequence more uses these."""
        for block in blocks:
            self._users[block] += 1

    def shared(self, blocks: Iterable[int]) -> int:
        """How many of these several sequences use."""
        return sum([self._users[block] > 1 for block in blocks])

    def give_back(self, blocks: Iterable[int]) -> None:
        """A sequence uses these no longer."""
        for block in blocks:
            self._users[block] -= 1
            if not self._users[block]:
                self._free.append(block)
