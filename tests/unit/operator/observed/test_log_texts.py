"""The end of a log of a container, as a condition tells it."""

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.processes.logs import JsonFormatter, Process
from batchedmodel_operator.observed.log_texts import as_text
from support.examples import examples


def record(message: str, error: BaseException | None = None) -> logging.LogRecord:
    found = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("a.logger", logging.WARNING, "file.py", 1, message, (), found)


def test_the_end_of_a_log_as_json_is_told_to_people_as_text() -> None:
    first, second = record("one"), record("two", error=ValueError("three"))
    form = JsonFormatter(Process.MODEL_SERVER)
    log = f'cut\\n\\"off\\""}}\n{form.format(first)}\n{form.format(second)}\n'
    assert as_text(log) == 'cut\n"off""}\none\ntwo\nValueError: three'


@pytest.mark.parametrize(
    "text", ["", "12:00:00 ERROR no", "{}", "[1]", "7", '{"message": 7}', "[" * 5000]
)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert as_text(text) == text


@settings(max_examples=examples(100))
@given(st.text())
def test_the_end_of_any_log_is_told(text: str) -> None:
    as_text(text)
