"""Quantities of Kubernetes', as people write them and as they must not be."""

import pytest

from batchedmodel_contract.schema.rules import Broken
from batchedmodel_kube.schema.quantities import Quantity


class NoText:
    """Would take for ever to be written out."""

    def __str__(self) -> str:
        raise AssertionError("somebody wants it as a text")


@pytest.mark.parametrize(("given", "read"), [("500m", "500m"), (1, "1"), ("2Gi", "2Gi")])
def test_a_quantity_is_read_as_a_text(given: object, read: str) -> None:
    assert Quantity().read(given) == read


@pytest.mark.parametrize("given", [NoText(), [NoText()], True, None, 0.5, "", "1" * 33, "1x"])
def test_what_is_no_quantity_is_not_written_out(given: object) -> None:
    with pytest.raises(Broken, match="is not a quantity"):
        Quantity().read(given)
