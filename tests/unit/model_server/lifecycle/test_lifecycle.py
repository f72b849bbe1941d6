"""The state of the model and those who follow it."""

import pytest

from batchedmodel_contract.link.batches import write_failure
from batchedmodel_contract.link.kinds import TO_SIDECAR, Kind
from batchedmodel_contract.link.model_frames import State, read_state, write_state
from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_contract.lora import AdapterPhase, AdapterState
from batchedmodel_model_server.errors import NotReady
from batchedmodel_model_server.lifecycle.versions import Lifecycle, Topic
from batchedmodel_model_server.link.orders import failure


class Follower:
    """Hears of changes, and notes what is so then."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.heard: list[tuple[Topic, State]] = []
        self._lifecycle = lifecycle
        lifecycle.follow(self.changed)

    def changed(self, topic: Topic) -> None:
        self.heard.append((topic, self._lifecycle.event))


def test_a_follower_hears_every_change_when_it_is_in_force() -> None:
    lifecycle = Lifecycle()
    lifecycle.enter(ModelState.WARMING, "warming")
    follower = Follower(lifecycle)
    ready = State(ModelState.READY, "ready", "1")
    lifecycle.enter(*ready)
    one = AdapterState(name="a", number=1, phase=AdapterPhase.READY)
    lifecycle.adapters_are((one,))
    lifecycle.adapters_are((one,))
    lifecycle.more_is_measured()
    lifecycle.end("the server was told to stop")
    assert follower.heard == [
        (Topic.STATE, ready),
        (Topic.ADAPTERS, ready),
        (Topic.PROFILE, ready),
        (Topic.STATE, State(ModelState.DRAINING, "the server was told to stop")),
    ]
    assert lifecycle.adapters == (one,)


def test_nothing_comes_after_the_end() -> None:
    lifecycle = Lifecycle()
    lifecycle.end("told to stop")
    lifecycle.enter(ModelState.READY, "loaded at last")
    assert lifecycle.state is ModelState.DRAINING


def test_a_follower_that_leaves_hears_nothing_more() -> None:
    lifecycle = Lifecycle()
    follower = Follower(lifecycle)
    lifecycle.leave(follower.changed)
    lifecycle.enter(ModelState.READY, "ready")
    assert follower.heard == []


def test_a_reason_can_be_sent_whatever_it_quotes() -> None:
    """A file's name, a tensor's or a handler's error may hold half of a surrogate pair."""
    lifecycle = Lifecycle()
    lifecycle.enter(ModelState.FAILED, "no \ud800\x1b[31m here\n")
    assert read_state(write_state(lifecycle.event)).detail == "no \\ud800\\x1b[31m here\\n"


def test_a_reason_without_end_is_cut_short() -> None:
    lifecycle = Lifecycle()
    lifecycle.enter(ModelState.FAILED, "config.json: architectures: " + "A" * 15_000_000)
    assert len(lifecycle.event.detail) < 10_000


@pytest.mark.parametrize("one", ["\U0001f600", "\U000e0001", "\x00", "\\", "\ud800"])
def test_any_detail_fits_into_a_frame(one: str) -> None:
    """A file of a model that cannot be loaded may say anything, and the reason is to be read."""
    lifecycle = Lifecycle()
    lifecycle.enter(ModelState.FAILED, one * 100_000)
    state = write_state(lifecycle.event)
    assert len(state) <= TO_SIDECAR[Kind.STATE]
    assert read_state(state) == lifecycle.event
    failed = failure(NotReady(lifecycle.event.detail), "a batch")
    assert sum(map(len, write_failure(failed))) <= TO_SIDECAR[Kind.FAILED]
