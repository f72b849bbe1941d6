"""Blocks that nobody uses are found until they are needed, the ends of texts first."""

from __future__ import annotations  # array.array takes no type argument at run time

from array import array
from collections.abc import Sequence

from batchedmodel_model_server.generation.block_pool import BlockPool, PrefixHashes

BLOCK_TOKENS = 2


def hashes(ids: Sequence[int], salt: str = "") -> PrefixHashes:
    return PrefixHashes.of_text(array("i", ids), BLOCK_TOKENS, salt)


def kept(pool: BlockPool, ids: Sequence[int]) -> list[int]:
    """The blocks of a text that has been computed and has ended."""
    text, blocks = hashes(ids), []
    for at in range(len(ids) // BLOCK_TOKENS):
        blocks.append(pool.take())
        pool.keep(blocks[-1], text.of(at))
    pool.give_back(blocks)
    return blocks


def found(pool: BlockPool, ids: Sequence[int]) -> list[int]:
    return pool.find(hashes(ids).first(len(ids) // BLOCK_TOKENS))


def test_what_nobody_uses_is_free_and_found() -> None:
    pool = BlockPool(4)
    blocks = kept(pool, [1, 2, 3, 4])
    assert pool.free == 4
    assert found(pool, [1, 2, 3, 4, 5, 6]) == blocks
    assert found(pool, [1, 2, 9, 9]) == blocks[:1]
    assert found(pool, [3, 4]) == []


def test_texts_of_other_adapters_or_salts_find_nothing_whatever_their_tokens() -> None:
    ids = array("i", [1, 2, 3, 4])
    roots = {
        PrefixHashes.of_text(ids, 1, salt, adapter).of(at)
        for salt in ("", "a")
        for adapter in (0, 1, 2)
        for at in range(4)
    }
    assert len(roots) == 2 * 3 * 4


def test_what_is_found_and_used_is_not_free() -> None:
    pool = BlockPool(4)
    blocks = kept(pool, [1, 2, 3, 4])
    assert pool.unused(blocks) == 2
    pool.share(blocks)
    assert (pool.free, pool.unused(blocks), pool.shared(blocks)) == (2, 0, 0)
    pool.share(blocks)
    assert (pool.free, pool.shared(blocks)) == (2, 2)
    pool.give_back(blocks)
    pool.give_back(blocks)
    assert pool.free == 4
    assert found(pool, [1, 2, 3, 4]) == blocks


def test_blocks_in_which_nothing_is_kept_are_taken_first() -> None:
    pool = BlockPool(4)
    blocks = kept(pool, [1, 2, 3, 4])
    assert not {pool.take(), pool.take()} & set(blocks)
    assert found(pool, [1, 2, 3, 4]) == blocks


def test_what_was_used_least_recently_goes_first_and_its_end_before_its_beginning() -> None:
    pool = BlockPool(4)
    old = kept(pool, [1, 2, 3, 4])
    new = kept(pool, [5, 6, 7, 8])
    pool.share(old)
    pool.give_back(old)
    assert [pool.take() for _ in range(4)] == [new[1], new[0], old[1], old[0]]
    assert found(pool, [1, 2]) == found(pool, [5, 6]) == []


def test_a_block_like_one_that_is_kept_is_not_kept_again() -> None:
    pool = BlockPool(4)
    first, second = pool.take(), pool.take()
    text = hashes([1, 2])
    pool.keep(first, text.of(0))
    pool.keep(second, text.of(0))
    pool.give_back([second])
    assert found(pool, [1, 2]) == [first]
    assert (pool.free, pool.unused([first])) == (3, 0)


def test_a_hash_is_of_all_tokens_before_and_of_the_salt() -> None:
    here = hashes([1, 2, 3, 4])
    assert here.of(1) == hashes([1, 2, 3, 4, 5, 6]).of(1)
    others = [
        hashes([3, 4]).of(0),
        hashes([2, 1, 3, 4]).of(1),
        hashes([1, 2, 4, 3]).of(1),
        hashes([1, 2, 3, 4], "somebody").of(1),
        here.of(0),
    ]
    assert len({here.of(1), *others}) == 6


def test_a_fork_has_the_hashes_of_its_own_text() -> None:
    ids = array("i", [1, 2, 3])
    text = PrefixHashes.of_text(ids, BLOCK_TOKENS, "")
    text.of(0)
    other = array("i", [1, 2, 3, 9])
    fork = text.of_fork(other)
    ids.append(4)
    assert list(text.first(2)) == list(hashes([1, 2, 3, 4]).first(2))
    assert list(fork.first(2)) == list(hashes([1, 2, 3, 9]).first(2))
