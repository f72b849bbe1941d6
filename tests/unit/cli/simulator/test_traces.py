"""Reading recorded traces."""

import pytest

from batchedmodel_cli.simulator.traces import read_trace
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_scheduling.queue.items import Priority
from scheduling_bench.bursts import scaled_lengths

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 23:59:59.6805900,374,44
2023-11-17 00:00:00.9951690,8,109
2023-11-17 00:00:01,879,55
"""


def test_an_azure_trace_is_read_to_its_last_digit() -> None:
    trace = read_trace(AZURE)
    assert trace.times == (0, 1_314_579_000, 1_319_410_000)
    assert trace.lengths == (374, 8, 879)
    assert trace.outputs == (44, 109, 55)
    assert set(trace.priorities) == {Priority.NORMAL}


def test_the_later_azure_traces_name_the_time_zone() -> None:
    text = "TIMESTAMP,ContextTokens\n2024-05-10 00:00:00.009930+00:00,5\n2024-05-10T00:00:01Z,6\n"
    assert read_trace(text).times == (0, 990_070_000)


def test_our_own_form_may_name_priorities() -> None:
    trace = read_trace("\ufeffseconds, length ,priority,outcome\n1700000000.1,5,1,x\n\n1.7e9,6,3,y")
    assert trace.times == (0, 100_000_000)
    assert trace.lengths == (6, 5)
    assert trace.priorities == (Priority.LOW, Priority.HIGH)


def test_our_own_form_may_tell_the_tokens_of_the_answers() -> None:
    assert read_trace("seconds,length,output\n1,5,7\n0,6,8").outputs == (8, 7)
    assert read_trace("seconds,length\n1,5").outputs is None


def test_lengths_are_scaled_into_bounds_and_pair_with_times() -> None:
    trace = read_trace(AZURE)
    assert scaled_lengths(trace, divisor=16, lowest=1, highest=50).recorded == (23, 1, 50)
    assert trace.arrivals().recorded == trace.times


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", 'trace: line 1: "" must name the columns TIMESTAMP and ContextTokens or seconds'),
        ("time,length\n1,2", 'trace: line 1: "time,length" must name the columns'),
        ("seconds,length", "trace: must hold at least one request below its heading"),
        ("seconds,length\n1,2\n2", "trace: line 3, column length: is missing"),
        ("seconds,length\n1,0", 'line 2, column length: "0" must be a whole number from 1 to'),
        ("seconds,length\n1,1.5", 'line 2, column length: "1.5" must be a whole number'),
        ("seconds,length\n1,\u0663", "line 2, column length: .* must be a whole number"),
        ("seconds,length\n1,4294967296", "line 2, column length: .* to 2147483648"),
        ("seconds,length\n-1,1", 'column seconds: "-1" must be a number of seconds from 0'),
        ("seconds,length\nnan,1", 'column seconds: "nan" must be a number of seconds from 0'),
        ("seconds,length\n1e99,1", 'column seconds: "1e99" must be a number of seconds'),
        ("seconds,length,priority\n1,1,4", 'column priority: "4" must be 1 (high), 2'),
        ("TIMESTAMP,ContextTokens\n2023-13-01 00:00:00,1", "line 2, column TIMESTAMP: .* in UTC"),
        ("seconds,length,output\n1,2,0", 'column output: "0" must be a whole number from 1'),
        ("TIMESTAMP,ContextTokens\nnoon,1", 'column TIMESTAMP: "noon" must be a time in UTC'),
        ('seconds,length\n1,"2', "trace: line 2: is not CSV"),
    ],
)
def test_what_cannot_be_read_is_named_by_line_column_and_rule(text: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint.replace("(", r"\(").replace(")", r"\)")):
        read_trace(text)
