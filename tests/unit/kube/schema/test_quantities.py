"""What quantities amount to, as Kubernetes counts them."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedmodel_kube.schema.quantities import Quantity, amount_of


@pytest.mark.parametrize(
    ("quantity", "amount"),
    [
        *[
            ("0", "0"),
            ("128974848", "128974848"),
            ("0.5", "0.5"),
            ("1e3", "1000"),
            ("1E-3", "0.001"),
        ],
        *[
            ("1k", "1000"),
            ("2M", "2000000"),
            ("1.5G", "1500000000"),
            ("1T", "1e12"),
            ("1P", "1e15"),
        ],
        *[("1E", "1e18"), ("500m", "0.5"), ("2u", "2e-6"), ("7n", "7e-9")],
        *[("1Ki", "1024"), ("1.5Mi", "1572864"), ("2Gi", "2147483648"), ("1Ei", 2**60)],
    ],
    ids=str,
)
def test_a_quantity_is_its_number_times_its_unit(quantity: str, amount: str) -> None:
    assert amount_of(quantity) == Decimal(amount)


@given(st.from_regex(r"[0-9]{1,9}(\.[0-9]{1,3})?(e[0-9]|[KMGTPE]i|[numkMGTPE])?", fullmatch=True))
def test_whatever_is_a_quantity_has_an_amount(quantity: str) -> None:
    assert amount_of(Quantity().read(quantity)) >= 0
