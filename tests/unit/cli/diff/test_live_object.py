"""What is taken for the live object's status, and what is refused by its name."""

import json
from typing import Any

import pytest

from batchedmodel_cli.diff.live import read_live
from batchedmodel_cli.simulate.inputs import Refused
from batchedmodel_kube.names import API_VERSION, KIND

READY = {"type": "Ready", "status": "True"}


def live(status: object) -> str:
    body: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "m"},
        "spec": {"model": {"handler": "simulated"}},
        "status": status,
    }
    return json.dumps(body)


@pytest.mark.parametrize("status", [{}, {"conditions": []}, {"conditions": [READY]}])
def test_a_status_is_taken_as_the_operator_writes_it(status: dict[str, Any]) -> None:
    assert read_live(live(status), "m").status == status


@pytest.mark.parametrize(
    "conditions", [None, "Ready", [None], [[]], [{}], [{**READY, "status": 1}], {"Ready": READY}]
)
def test_what_are_no_conditions_is_refused(conditions: object) -> None:
    with pytest.raises(Refused, match=r"the live object: status\.conditions: "):
        read_live(live({"conditions": conditions}), "m")
