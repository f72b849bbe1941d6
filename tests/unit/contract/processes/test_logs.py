"""How processes log."""

import json
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.processes.logs import (
    JsonFormatter,
    LogFormat,
    Process,
    about,
    inherited_format,
)
from support.examples import examples


class Unprintable(Exception):
    """What no text can be made of."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


def record(
    message: object,
    *args: object,
    error: BaseException | None = None,
    extra: Mapping[str, object] = {},
) -> logging.LogRecord:
    found = None if error is None else (type(error), error, error.__traceback__)
    made = logging.LogRecord("a.logger", logging.WARNING, "file.py", 1, message, args, found)
    made.__dict__.update(extra)
    return made


def line(made: logging.LogRecord, model: str = "") -> dict[str, Any]:
    """The fields of the one line that a record becomes."""
    text = JsonFormatter(Process.OPERATOR, model).format(made)
    assert text.isascii()
    assert len(text.splitlines()) == 1
    fields = json.loads(text)
    assert isinstance(fields, dict)
    assert all(isinstance(value, str) for value in fields.values())
    return fields


anything = st.one_of(
    st.text(), st.integers(), st.floats(), st.none(), st.binary(), st.just(Unprintable())
)


@settings(max_examples=examples(300))
@given(
    anything,
    st.lists(anything, max_size=3),
    st.sampled_from([0, 5, 10, 35, 50, 99]),
    st.floats(0, 4e9),
    st.none() | st.text().map(ValueError) | st.just(Unprintable()),
    st.none() | st.text(),
    st.text(),
)
def test_any_record_becomes_exactly_one_line_that_can_be_read(
    message: object,
    args: list[object],
    level: int,
    created: float,
    error: BaseException | None,
    stack: str | None,
    name: str,
) -> None:
    extra = {"stack_info": stack, "created": created, "levelno": level}
    made = record(message, *args, error=error, extra=extra)
    made.levelname = logging.getLevelName(level)
    made.name = name
    fields = line(made, model=name)
    at = datetime.fromisoformat(fields["time"])
    assert abs(at.timestamp() - created) < 0.002
    assert fields["time"].endswith("Z")
    assert ("exception" in fields) == (error is not None)


def test_a_line_has_the_fields_that_all_processes_share() -> None:
    made = record("%s: applied %s", "team/m", "Service", extra={"created": 1_800_000_000.25})
    assert line(made) == {
        "time": "2027-01-15T08:00:00.250Z",
        "level": "warning",
        "process": "operator",
        "logger": "a.logger",
        "message": "team/m: applied Service",
    }


def test_what_a_line_is_about_stands_in_fields_of_its_own_where_it_is_known() -> None:
    fields = about(namespace="team", model="m", pod="m-1", pod_uid="u", reason="Full", trace="t")
    found = line(record("x", extra=fields))
    assert {name: found[name] for name in ("namespace", "model", "pod", "podUid")} == {
        "namespace": "team",
        "model": "m",
        "pod": "m-1",
        "podUid": "u",
    }
    assert (found["reason"], found["trace"]) == ("Full", "t")
    assert "pod" not in line(record("x", extra=about(model="m")))


def test_a_process_of_one_model_names_it_in_each_line() -> None:
    assert line(record("x"), model="minilm")["model"] == "minilm"


def test_only_fields_that_all_share_are_told_of_what_libraries_hang_on_records() -> None:
    assert "k8s_ref" not in line(
        record("x", extra={"k8s_ref": {"name": "m"}, "settings": object()})
    )


def test_an_exception_is_within_the_line_with_its_traceback() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError as error:
        found = line(record("failed", error=error))
    assert found["exception"].startswith("Traceback (most recent call last):\n")
    assert found["exception"].endswith("ValueError: first\nsecond")


def test_a_message_that_does_not_fit_its_arguments_is_told_without_them() -> None:
    found = line(record("%d rows", "secret"))
    assert found["message"] == "%d rows (cannot be formatted: TypeError)"


def test_a_helper_logs_as_the_process_that_started_it() -> None:
    assert inherited_format({}) is LogFormat.TEXT
    assert inherited_format({"BATCHEDMODEL_LOG_FORMAT": ""}) is LogFormat.TEXT
    assert inherited_format({"BATCHEDMODEL_LOG_FORMAT": "json"}) is LogFormat.JSON
