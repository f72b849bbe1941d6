"""The traffic of a simulation: drawn, or as a trace has it."""

import pytest

from batchedmodel_cli.simulate import traffic
from batchedmodel_cli.simulate.inputs import LengthsWish
from batchedmodel_cli.simulator.traces import read_trace
from batchedmodel_cli.simulator.workload import Constant, stream
from batchedmodel_scheduling.queue.items import Priority

TRACE = read_trace("seconds,length,output,priority\n0,10,3,1\n1,20,4,2\n3,30,5,3\n")


def test_prompts_and_answers_of_a_trace_stay_pairs() -> None:
    assert TRACE.outputs is not None
    sizes, outputs = traffic.recorded(TRACE.lengths), traffic.recorded(TRACE.outputs)
    drawn = traffic.drawn(rate=2.0, burstiness=1.0, requests=5, sizes=sizes, outputs=outputs)
    assert drawn.sizes.lengths.draw(5, stream(0, "a")) == [10, 20, 30, 10, 20]
    assert outputs.lengths.draw(5, stream(0, "b")) == [3, 4, 5, 3, 4]
    assert not drawn.recorded


def test_of_a_longer_trace_the_latest_are_replayed_at_their_speed() -> None:
    replayed = traffic.replayed(TRACE, speed=4.0, requests=2)
    assert replayed.recorded
    assert replayed.outputs is not None
    assert replayed.outputs.lengths.draw(2, stream(0, "b")) == [4, 5]
    assert replayed.rate == pytest.approx(4 * 1 / 2)
    assert replayed.described == "the latest of 3 recorded, 4 times as fast"


def test_a_trace_may_have_other_lengths() -> None:
    wish = traffic.wished(LengthsWish(median=7), 100)
    assert traffic.replayed(TRACE, requests=3, outputs=wish).outputs == wish
    assert wish.lengths == Constant(length=7)


def test_a_caller_may_lower_its_priority_but_not_raise_it_unless_it_is_trusted() -> None:
    low = traffic.replayed(TRACE, requests=3, trust_priority=False)
    assert low.priorities == (Priority.NORMAL, Priority.NORMAL, Priority.LOW)
    trusted = traffic.replayed(TRACE, requests=3)
    assert trusted.priorities == (Priority.HIGH, Priority.NORMAL, Priority.LOW)


def test_no_drawn_length_is_above_the_longest() -> None:
    sizes = traffic.wished(LengthsWish(median=60, sigma=2.0), 100)
    assert (sizes.typical, sizes.longest) == (60, 100)
    assert max(sizes.lengths.draw(1000, stream(0, "a"))) == 100
