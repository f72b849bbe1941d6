"""Jobs that run beside each other, and what becomes of a run when one fails."""

import asyncio
import signal
import sys
import time
from pathlib import Path

import pytest

from suite.jobs import Job, run_all
from suite.lanes import LANES, jobs
from support.repository import ROOT


def _python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def _run(*several: Job) -> dict[str, bool]:
    return asyncio.run(run_all(several))


def test_jobs_that_wait_for_none_run_beside_each_other(tmp_path: Path) -> None:
    meet = (
        "import pathlib, sys, time; me, other = map(pathlib.Path, sys.argv[1:]); me.touch();"
        "[time.sleep(0.01) for _ in range(2000) if not other.exists()]; assert other.exists()"
    )
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    done = _run(
        Job(name="one", commands=((*_python(meet), one, other),)),
        Job(name="other", commands=((*_python(meet), other, one),)),
    )
    assert done == {"one": True, "other": True}


@pytest.mark.slow
def test_a_job_begins_when_those_before_it_have_ended(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    write = f"import time, pathlib; time.sleep(0.2); pathlib.Path({str(mark)!r}).touch()"
    see = f"import pathlib; assert pathlib.Path({str(mark)!r}).exists()"
    done = _run(
        Job(name="first", commands=(_python(write),)),
        Job(name="second", commands=(_python(see),), after=("first",)),
    )
    assert done["second"]


def test_a_command_that_fails_ends_its_job_and_leaves_out_who_needs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    never = _python(f"import pathlib; pathlib.Path({str(tmp_path)!r}, 'ran').touch()")
    done = _run(
        Job(name="bad", commands=(_python("print('why'); raise SystemExit(3)"), never)),
        Job(name="needs it", commands=(never,), needs=("bad",)),
        Job(name="goes on", commands=(_python("pass"),), after=("bad",)),
    )
    assert done == {"bad": False, "needs it": False, "goes on": True}
    said = capsys.readouterr().out
    assert "bad | why\n" in said
    assert "status 3" in said
    assert not (tmp_path / "ran").exists()


def test_a_line_may_be_of_any_length(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(Job(name="a", commands=(_python("print('x' * 5_000_000)"),)))["a"]
    assert len(capsys.readouterr().out) > 5_000_000


@pytest.mark.slow
async def test_a_run_that_is_given_up_lets_its_commands_clear_up_once(tmp_path: Path) -> None:
    told = tmp_path / "told"
    code = (
        f"import pathlib, time; told = pathlib.Path({str(told)!r})\n"
        "try: told.touch(); time.sleep(60)\n"
        "except KeyboardInterrupt: time.sleep(0.5); told.write_text('cleared up')"
    )
    run = asyncio.create_task(run_all([Job(name="a", commands=(_python(code),))]))
    while not told.exists():  # noqa: ASYNC110  # a process that tells nobody
        await asyncio.sleep(0.01)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert told.read_text() == "cleared up"


async def test_a_command_clears_up_too_when_it_began_before_its_start_was_heard_of(
    tmp_path: Path,
) -> None:
    told = tmp_path / "told"
    code = (
        f"import pathlib, time; told = pathlib.Path({str(told)!r})\n"
        "try: told.touch(); time.sleep(60)\n"
        "except KeyboardInterrupt: told.write_text('cleared up')"
    )
    run = asyncio.create_task(run_all([Job(name="a", commands=(_python(code),))]))
    for _ in range(3):
        await asyncio.sleep(0)  # until the process is started; nobody awaits its pipes yet
    while not told.exists():
        time.sleep(0.01)  # noqa: ASYNC251  # this process is busy, and hears of nothing
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert told.read_text() == "cleared up"


@pytest.mark.slow
async def test_commands_hear_of_the_end_though_the_run_began_in_a_shells_background(
    tmp_path: Path,
) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        await test_a_run_that_is_given_up_lets_its_commands_clear_up_once(tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_may_fail_fails_no_run() -> None:
    assert _run(Job(name="a", commands=(_python("raise SystemExit(1)"),), may_fail=True))["a"]


def test_a_lane_whose_tests_are_all_left_out_is_no_failure() -> None:
    assert _run(Job(name="a", commands=(_python("raise SystemExit(5)"),)))["a"]


def test_every_file_of_tests_is_in_one_lane(tmp_path: Path) -> None:
    files = {str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py")}
    for file in files:
        # A path that is named by itself is left out of the lane that names its folder.
        paths = [path for lane in LANES for path in lane.paths if f"{file}/".startswith(f"{path}/")]
        assert paths, f"{file} is in no lane"
    ignored = [word for job in jobs(tmp_path, nightly="all") for words in job.commands
               for word in words if word.startswith("--ignore=")]  # fmt: skip
    apart = [
        *("test_generation_story", "test_ipv6_story", "test_networks_story", "test_stories"),
        *("test_stream_story", "test_user_range_story"),
    ]
    assert ignored == [f"--ignore=tests/end_to_end/{name}.py" for name in apart]
