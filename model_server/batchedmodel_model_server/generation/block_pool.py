"""Which blocks of the cache are free, who shares the others, and what is kept in those free.

A full block is kept under a hash of its tokens, of all tokens before them, and of whose they are
and which adapter computed them. So a text that begins like another finds blocks with its beginning,
and computes the rest only. What nobody uses counts as free, whatever is kept in it: it is found
until its block is needed.
"""

from __future__ import annotations  # array.array takes no type argument at run time

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Final

_HASH_BYTES: Final = 32


class PrefixHashes:
    """The hashes of one text's full blocks, each over all tokens up to the block's end.

    They decide alone whether two blocks are the same, so they must not collide, not even for a
    caller who tries: BLAKE2b, of 256 bits. To keep all tokens and compare them would cost more
    memory, and as much time.
    """

    __slots__ = ("_block_tokens", "_chain", "_ids")

    def __init__(self, ids: array[int], block_tokens: int, chain: list[bytes]) -> None:
        """`ids` may grow; `chain`: the hash in front of the first block, and those known."""
        self._ids: Final = ids
        self._block_tokens: Final = block_tokens
        self._chain: Final = chain

    @classmethod
    def of_text(
        cls, ids: array[int], block_tokens: int, salt: str, adapter: int = 0
    ) -> PrefixHashes:
        """Those of a text that shares blocks with texts of the same salt and adapter only."""
        # Not as a part of what is hashed, which might be tokens of another text.
        number = adapter.to_bytes(blake2b.SALT_SIZE, "little")
        told = salt.encode("utf-8", "surrogatepass")
        root = blake2b(told, digest_size=_HASH_BYTES, salt=number)
        return cls(ids, block_tokens, [root.digest()])

    def of_fork(self, ids: array[int]) -> PrefixHashes:
        """Those of another text, which is the same so far."""
        return PrefixHashes(ids, self._block_tokens, list(self._chain))

    def first(self, blocks: int) -> Iterator[bytes]:
        """Of the first so many blocks; each is computed when it is asked for."""
        for at in range(blocks):
            yield self.of(at)

    def of(self, block: int) -> bytes:
        """Of one block, all tokens of which are known; blocks are counted from 0."""
        chain, size = self._chain, self._block_tokens
        for at in range(len(chain) - 1, block + 1):
            tokens = self._ids[at * size : (at + 1) * size].tobytes()
            chain.append(blake2b(chain[at] + tokens, digest_size=_HASH_BYTES).digest())
        return chain[block + 1]


class BlockPool:
    """Blocks by their numbers."""

    def __init__(self, blocks: int) -> None:
        self.blocks: Final = blocks
        # The one that was given back last is the next: its memory is the warmest.
        self._empty: Final = list(range(blocks - 1, -1, -1))
        """Nobody uses these, and nothing is kept in them."""
        self._unused: Final[OrderedDict[int, None]] = OrderedDict()
        """Nobody uses these, and something is kept in them; the first of them goes first."""
        self._users: Final = [0] * blocks
        self._hashes: Final[dict[int, bytes]] = {}
        """Of what is kept, by block."""
        self._kept: Final[dict[bytes, int]] = {}
        """The blocks by these."""

    @property
    def free(self) -> int:
        """How many nobody uses."""
        return len(self._empty) + len(self._unused)

    def take(self) -> int:
        """A block for one sequence; `free` says whether there is any."""
        if self._empty:
            block = self._empty.pop()
        else:
            block, _ = self._unused.popitem(last=False)
            del self._kept[self._hashes.pop(block)]
        self._users[block] = 1
        return block

    def keep(self, block: int, found_by: bytes) -> None:
        """A block that is in use is full; from now on it is found, if none with the same is."""
        if found_by not in self._kept:
            self._kept[found_by] = block
            self._hashes[block] = found_by

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """The blocks that are kept under the first of these, up to one that is not."""
        found = []
        for one in hashes:
            block = self._kept.get(one)
            if block is None:
                break
            found.append(block)
        return found

    def share(self, blocks: Iterable[int]) -> None:
        """One sequence more uses these, which are in use or were found."""
        for block in blocks:
            if not self._users[block]:
                del self._unused[block]
            self._users[block] += 1

    def shared(self, blocks: Iterable[int]) -> int:
        """How many of these several sequences use."""
        return sum([self._users[block] > 1 for block in blocks])

    def unused(self, blocks: Iterable[int]) -> int:
        """How many of these nobody uses."""
        return sum([not self._users[block] for block in blocks])

    def give_back(self, blocks: Sequence[int]) -> None:
        """A sequence uses these no longer, which lie in its order."""
        # The last one first: without its beginning nothing of a text is found.
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block]:
                continue
            if block in self._hashes:
                self._unused[block] = None
            else:
                self._empty.append(block)
