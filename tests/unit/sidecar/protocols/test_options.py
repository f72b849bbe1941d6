"""What callers may ask for, in which form, and what they get under which settings."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.manifest.batching import BatchSettings, Lateness
from batchedmodel_scheduling.queue.items import Priority, RequestGroup
from batchedmodel_sidecar.protocols.headers import (
    NO_OPTIONS,
    AgreedTerms,
    RequestOptions,
    agreed,
    combined,
    options_of_headers,
    options_of_parameters,
    request_id,
    trace_of,
    unmet_expectation,
)

HIGH, NORMAL, LOW = Priority
TARGET = BatchSettings(target_seconds=0.1, request_timeout_seconds=30.0)
REFUSE = BatchSettings(
    target_seconds=0.1, lateness=Lateness.REFUSE, request_timeout_seconds=30.0, trust_priority=True
)


def times(options: RequestOptions, settings: BatchSettings) -> tuple[float, float]:
    terms = agreed(options, settings)
    return terms.due, terms.limit


class TestAgreed:
    def test_who_asks_for_nothing_has_the_request_timeout_and_normal_priority(self) -> None:
        assert agreed(NO_OPTIONS, BatchSettings(request_timeout_seconds=30.0)) == AgreedTerms(
            due=30.0, limit=30.0, priority=NORMAL, request_group=None
        )

    def test_the_target_says_when_the_answer_is_due_and_not_when_the_caller_leaves(self) -> None:
        assert times(NO_OPTIONS, TARGET) == (0.1, 30.0)

    def test_where_lateness_is_refused_the_target_is_the_end(self) -> None:
        assert times(NO_OPTIONS, REFUSE) == (0.1, 0.1)

    @pytest.mark.parametrize(
        ("timeout", "served", "refused"),
        [
            (0.05, (0.05, 0.05), (0.05, 0.05)),
            (5.0, (0.1, 5.0), (0.1, 0.1)),
            (500.0, (0.1, 30.0), (0.1, 0.1)),
        ],
    )
    def test_a_callers_time_can_only_be_tighter(
        self, timeout: float, served: tuple[float, float], refused: tuple[float, float]
    ) -> None:
        assert times(RequestOptions(timeout=timeout), TARGET) == served
        assert times(RequestOptions(timeout=timeout), REFUSE) == refused

    def test_a_caller_may_lower_its_priority_and_raise_it_only_when_trusted(self) -> None:
        wished = {
            priority: (
                agreed(RequestOptions(priority=priority), TARGET).priority,
                agreed(RequestOptions(priority=priority), REFUSE).priority,
            )
            for priority in Priority
        }
        assert wished == {HIGH: (NORMAL, HIGH), NORMAL: (NORMAL, NORMAL), LOW: (LOW, LOW)}


class TestCombined:
    def test_the_tighter_time_holds_wherever_it_was_said(self) -> None:
        tight, loose = RequestOptions(timeout=0.1), RequestOptions(timeout=2.0)
        assert combined(tight, loose).timeout == combined(loose, tight).timeout == 0.1
        assert combined(tight, NO_OPTIONS).timeout == combined(NO_OPTIONS, tight).timeout == 0.1

    def test_the_priority_in_the_body_holds_where_both_are_given(self) -> None:
        assert (
            combined(RequestOptions(priority=LOW), RequestOptions(priority=HIGH)).priority is HIGH
        )
        assert combined(RequestOptions(priority=LOW), RequestOptions(timeout=1.0)).priority is LOW

    def test_a_group_from_a_header_stays_beside_the_bodys_wishes(self) -> None:
        group = RequestGroup(id="a", size=8)
        assert (
            combined(RequestOptions(request_group=group), RequestOptions(timeout=1.0)).request_group
            == group
        )


class TestHeaders:
    def test_no_header_is_no_wish(self) -> None:
        assert options_of_headers({"accept": "*/*"}) is NO_OPTIONS

    @pytest.mark.parametrize(
        ("text", "seconds"), [("250", 0.25), ("0.5", 0.0005), ("1500.25", 1.50025)]
    )
    def test_a_time_is_in_milliseconds(self, text: str, seconds: float) -> None:
        assert options_of_headers({"x-request-timeout-ms": text}) == RequestOptions(timeout=seconds)

    @pytest.mark.parametrize(
        ("text", "priority"), [("1", HIGH), ("2", NORMAL), ("3", LOW), ("0", None)]
    )
    def test_a_priority_is_1_to_3_and_0_the_default(
        self, text: str, priority: Priority | None
    ) -> None:
        assert options_of_headers({"x-request-priority": text}).priority is priority

    @pytest.mark.parametrize(
        ("text", "group"),
        [
            ("a;n=8", ("a", 8)),
            ("7f3c-22:b/1 ; n=1", ("7f3c-22:b/1", 1)),
            (f"{'x' * 128};n=4096", ("x" * 128, 4096)),
        ],
    )
    def test_a_group_is_an_identifier_and_its_number_of_rows(
        self, text: str, group: tuple[str, int]
    ) -> None:
        expected = RequestGroup(id=group[0], size=group[1])
        assert options_of_headers({"x-request-group": text}).request_group == expected

    @pytest.mark.parametrize(
        "text", ["", "0", "0.0", "-5", "+5", "5ms", "1e3", "inf", "nan", "1_0", "٣", " 5", "9" * 13]
    )
    def test_a_time_that_makes_no_sense_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            options_of_headers({"x-request-timeout-ms": text})
        assert caught.value.mistake.field == "x-request-timeout-ms"
        assert caught.value.mistake.rule == "is not a number of milliseconds above 0 and below 1e12"

    @pytest.mark.parametrize("text", ["", "4", "-1", "12", "high", "01", "٢"])
    def test_a_priority_that_makes_no_sense_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidInput, match='^x-request-priority: ".*" is not 1 \\(high\\), 2'):
            options_of_headers({"x-request-priority": text})

    @pytest.mark.parametrize(
        "text",
        ["", "a", ";n=8", "a;n=0", "a;n=4097", "a;n=-1", "a;n=", "a b;n=2", "a;m=2", "a;n=2;n=3",
         '"a";n=2', f"{'x' * 129};n=2", "ä;n=2", "a;n=99999999999999999999"],
    )  # fmt: skip
    def test_a_group_that_makes_no_sense_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidInput, match="^x-request-group: .* is not id;n=rows with an id"):
            options_of_headers({"x-request-group": text})

    @given(st.text(max_size=12), st.text(max_size=4), st.text(max_size=12))
    def test_any_text_is_read_or_refused(self, timeout: str, priority: str, group: str) -> None:
        headers = {
            "x-request-timeout-ms": timeout,
            "x-request-priority": priority,
            "x-request-group": group,
        }
        for name, text in headers.items():
            with contextlib.suppress(InvalidInput):
                assert options_of_headers({name: text}) is not NO_OPTIONS


class TestParameters:
    def test_a_time_is_in_microseconds_as_in_triton(self) -> None:
        assert options_of_parameters({"timeout": 250_000}) == RequestOptions(timeout=0.25)

    def test_other_parameters_and_none_at_all_are_no_wish(self) -> None:
        assert options_of_parameters(None) is NO_OPTIONS
        assert options_of_parameters({"binary_data_output": True}) is NO_OPTIONS
        assert options_of_parameters({"timeout": None, "priority": 0}) == NO_OPTIONS
        assert options_of_parameters({"timeout": 0}) == NO_OPTIONS

    @pytest.mark.parametrize(
        ("parameters", "message"),
        [
            ({"timeout": -1}, "parameters.timeout: -1 is below the minimum 0"),
            ({"timeout": 1.5}, "parameters.timeout: 1.5 is not an integer"),
            ({"timeout": "9"}, 'parameters.timeout: "9" is not an integer'),
            ({"timeout": True}, "parameters.timeout: true is not an integer"),
            ({"priority": 4}, "parameters.priority: 4 is above the maximum 3"),
            ({"priority": -1}, "parameters.priority: -1 is below the minimum 0"),
            ({"priority": [1]}, "parameters.priority: [1] is not an integer"),
        ],
    )
    def test_a_value_that_makes_no_sense_is_refused(
        self, parameters: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(InvalidInput) as caught:
            options_of_parameters(parameters)
        assert str(caught.value) == message


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


class TestNames:
    @pytest.mark.parametrize(
        ("headers", "trace"),
        [
            ({}, None),
            ({"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}, TRACE),
            ({"traceparent": f"cc-{TRACE}-00f067aa0ba902b7-01-what-comes-later"}, TRACE),
            ({"traceparent": f"00-{TRACE.upper()}-00f067aa0ba902b7-01"}, None),
            ({"traceparent": "nonsense", "x-request-id": "a"}, "a"),
            ({"x-request-id": "a b"}, "a b"),
        ],
    )
    def test_a_request_is_called_by_its_trace_or_else_by_its_own_name(
        self, headers: dict[str, str], trace: str | None
    ) -> None:
        assert trace_of(headers) == trace
        assert options_of_headers(headers, traced=True).trace == trace
        assert options_of_headers(headers) is NO_OPTIONS

    @pytest.mark.parametrize("name", ["", "a" * 257, "Grüße", "a\tb", "\udcff"])
    def test_a_name_that_could_not_be_written_is_no_name(self, name: str) -> None:
        assert request_id({"x-request-id": name}) is None

    def test_trace_and_timing_stay_when_the_body_wishes_something(self) -> None:
        headers = options_of_headers({"x-request-id": "a", "x-timing": "on"}, traced=True)
        both = combined(headers, RequestOptions(timeout=1.0))
        assert (both.trace, both.timing, both.timeout) == ("a", True, 1.0)
        assert agreed(both, BatchSettings()).trace == "a"

    def test_a_switch_is_on_or_off(self) -> None:
        assert options_of_headers({"x-timing": "on"}).timing
        assert not options_of_headers({"x-timing": "off"}).timing
        with pytest.raises(InvalidInput, match='x-timing: "ON" is not on or off'):
            options_of_headers({"x-timing": "ON"})

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("x-request-timeout-ms", ("50", "5000")),
            ("x-request-priority", ("3", "1")),
            ("x-request-group", ("a;n=2", "b;n=2")),
            ("x-timing", ("on", "off")),
        ],
    )
    def test_a_header_with_two_values_is_refused_and_one_said_twice_is_not(
        self, name: str, values: tuple[str, str]
    ) -> None:
        one, other = values
        twice = CIMultiDict([(name, one), (name.upper(), one)])
        assert options_of_headers(twice) == options_of_headers({name: one})
        with pytest.raises(InvalidInput, match=f"^{name}: is sent more than once, with different"):
            options_of_headers(CIMultiDict([(name, one), (name.upper(), other)]))


def test_each_expectation_of_a_request_must_be_known() -> None:
    """Of two the first alone was judged, and a proxy on the way may have read the other."""
    known = ("expect", "100-Continue")
    assert unmet_expectation(CIMultiDict([known, known])) is None
    for sent in ([known, ("Expect", "200-ok")], [("Expect", "200-ok"), known]):
        told = unmet_expectation(CIMultiDict(sent))
        assert told == 'Expect: "200-ok" is not understood; 100-continue is'
