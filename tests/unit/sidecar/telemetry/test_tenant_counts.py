"""Metrics by tenant: bounded labels, and no number that falls."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_sidecar.telemetry.ledger import OTHER, TenantCount, TenantCounts


def found(books: TenantCounts) -> dict[str, TenantCount]:
    rows = list(books.rows())
    assert len({each.tenant for each in rows}) == len(rows) <= 11
    return {each.tenant: each for each in rows}


def test_ten_tenants_are_named_and_the_rest_is_one() -> None:
    books = TenantCounts()
    for number in range(15):
        books.served(f"t{number}", 2)
        books.refused(f"t{number}", 1)
        books.room.take(Share(f"t{number}"), 3)
    assert found(books)["t0"] == TenantCount("t0", served=2, refused=1, waiting=3)
    assert found(books)[OTHER] == TenantCount(OTHER, served=10, refused=5, waiting=15)


def test_whoever_sends_most_is_named_after_some_time() -> None:
    books = TenantCounts()
    for number in range(10):
        books.served(f"small {number}", 1)
    for _ in range(10_000):
        books.served("large", 3)
    assert OTHER in found(books)
    before = found(books)[OTHER].served
    books.served("large", 3)
    assert found(books)["large"].served >= 3
    assert found(books)[OTHER].served == before


def test_a_tenant_that_is_called_other_takes_no_label() -> None:
    books = TenantCounts()
    books.served(OTHER, 2)
    assert list(found(books)) == [OTHER]
    assert found(books)[OTHER].served == 2


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 5000)), max_size=60))
def test_no_number_falls_and_every_row_counts_once_while_names_stay(
    steps: list[tuple[int, int]],
) -> None:
    books, total = TenantCounts(), 0
    for tenant, rows in steps:
        before = found(books)
        books.served(str(tenant), rows)
        total += rows
        after = found(books)
        assert all(after[name].served >= before[name].served for name in before)
        assert sum(each.served for each in after.values()) == total


def test_any_number_of_callers_takes_little_memory() -> None:
    books = TenantCounts()
    tracemalloc.start()
    for number in range(50_000):
        books.served(str(number), 1)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found(books)) == 11
    assert held < 500_000
