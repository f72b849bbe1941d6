"""What a start is at, by the model server's lines."""

import logging

import pytest

from batchedmodel_cli.run.stages import first_stage, stage_after
from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_model_server.lifecycle.versions import Lifecycle
from batchedmodel_model_server.sources.folder import Progress


def names(*lines: str) -> list[str]:
    """Of the stages behind each line."""
    stage, found = first_stage(0.0), list[str]()
    for number, line in enumerate(lines):
        stage = stage_after(stage, f"01:02:03 INFO {line}", 1.0 + number)
        found.append(stage.line(10.0))
    return found


def test_a_start_goes_through_download_load_and_warm_up() -> None:
    assert first_stage(0.0).line(2.4) == "starting the processes, for 2 s"
    progress = Progress(total=90_000_000, present=0, now=0.0)
    begun = progress.line(0.0)
    progress.add(45_000_000, 10.0)
    assert names(
        "LOADING: loading with handler hf",
        f"3 files, {begun}",
        progress.line(10.0),
        f"complete: {progress.line(10.0)}",
        "items share a forward pass: packed; tried",
        "WARMING: warming up on cpu",
    ) == [
        "loading the model, for 9 s",
        "downloading: 0 bytes of 90.0 MB (0 %), for 8 s",
        "downloading: 45.0 MB of 90.0 MB (50 %), 4.5 MB/s, for 8 s",
        "loading the model, for 6 s",
        "loading the model, for 6 s",
        "warming up, for 4 s",
    ]


def test_the_model_server_logs_its_states_as_they_are_read_here(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that is worded otherwise would leave people with the stage before."""
    caplog.set_level(logging.INFO)
    lifecycle = Lifecycle()
    for state in (ModelState.LOADING, ModelState.WARMING):
        lifecycle.enter(state, "as it is said")
    assert [line.partition(",")[0] for line in names(*caplog.messages)] == [
        "loading the model",
        "warming up",
    ]
