"""`batchedmodel run` as a process, with tiny stand-ins for the two processes that it starts."""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import dedent
from typing import Final

import pytest

from batchedmodel_cli.run.supervisor import ONE_INTERRUPT_SECONDS
from batchedmodel_contract.link.model_state import ON_THE_CPU

STAND_IN: Final = """
    import os, signal, sys, threading

    def say(text):
        # Not print: a signal in the middle of one makes the next one fail.
        os.write(1, (text + "\\n").encode())

    def end(*_):
        say("got SIGTERM")
        if "{name}" in os.environ.get("STUBBORN", ""):
            return
        sys.exit(int(os.environ.get("{name}_STOP_EXIT", "0")))

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, lambda *_: say("got SIGINT"))
    say(f"pid {{os.getpid()}} settings {{os.environ.get('BATCHEDMODEL_SETTINGS_FOLDER')}}")
    code = os.environ.get("{name}_EXIT")
    if code:
        say("no use")
        sys.exit(int(code))
    if "{name}" == "batcher":
        say("INFO listening: data port 18080, admin port 19090, interpreted")
        if not os.environ.get("NEVER_READY"):
            say("INFO try: curl -sN http://127.0.0.1:18080/v2/models/toy/infer -d '{{}}'")
            say("INFO ready: toy on http://127.0.0.1:18080")
        if os.environ.get("REASON"):
            say("WARNING model not ready: the model is FAILED: " + os.environ["REASON"])
    if os.environ.get("{name}_SAYS"):
        say(os.environ["{name}_SAYS"])
    while True:
        signal.pause()
"""
MANIFEST: Final = """
    apiVersion: batchedmodel.dev/v1alpha1
    kind: BatchedModel
    metadata: {name: toy}
    spec: {model: {handler: simulated}}
"""


class Run:
    """A running command: its lines as they come, and how it ends."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self.popen = popen
        self.lines: list[str] = []

    def until(self, text: str) -> str:
        """Read on until a line holds the text."""
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self.lines.append(line.rstrip("\n"))
            if text in line:
                return self.lines[-1]
        raise AssertionError(f"ended without {text!r}:\n" + "\n".join(self.lines))

    def pid_of(self, name: str) -> int:
        """The process id that a stand-in told, the latest one."""
        told = [line for line in self.lines if line.startswith(name) and "| pid " in line]
        return int(told[-1].split()[3])

    def settings_folder(self) -> Path:
        """The folder that the batcher was told."""
        (told,) = [line for line in self.lines if line.startswith("batcher") and "| pid " in line]
        return Path(told.split()[-1])

    def interrupt(self) -> None:
        """Ctrl-C: every process of the terminal's foreground group gets the signal."""
        os.killpg(self.popen.pid, signal.SIGINT)

    def rest(self) -> int:
        """Read to the end; the exit code."""
        assert self.popen.stdout is not None
        self.lines += self.popen.stdout.read().splitlines()
        return self.popen.wait()

    def place(self, text: str) -> int:
        """The number of the line that holds the text."""
        (number,) = [number for number, line in enumerate(self.lines) if text in line]
        return number


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A folder whose stand-in packages are found before the real ones."""
    for name, package in (
        ("batcher", "batchedmodel_sidecar"),
        ("model", "batchedmodel_model_server"),
    ):
        (tmp_path / package).mkdir()
        text = dedent(STAND_IN).format(name=name)
        (tmp_path / package / "__main__.py").write_text(text, "utf-8")
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "toy.yaml").write_text(dedent(MANIFEST), "utf-8")
    return tmp_path


@contextmanager
def running(workplace: Path, *options: str, **environment: str) -> Iterator[Run]:
    popen = subprocess.Popen(
        [sys.executable, "-m", "batchedmodel_cli", "run", "toy.yaml", *options],
        cwd=workplace,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    with popen:
        try:
            yield Run(popen)
        finally:
            # Once more where that is not enough: it must leave neither process nor folder behind.
            popen.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                popen.wait(2 * ONE_INTERRUPT_SECONDS)
            popen.send_signal(signal.SIGINT)


def gone_within(pid: int, seconds: float) -> bool:
    """Whether a process that is not our child ended in that time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


def test_the_address_and_the_curl_line_appear_once_the_service_is_ready(workplace: Path) -> None:
    with running(workplace) as run:
        run.until("toy is ready")
        assert "http://127.0.0.1:18080" in run.until("service")
        assert "http://127.0.0.1:19090" in run.until("admin")
        assert "http://127.0.0.1:18080/v2/models/toy/infer" in run.until("curl -s")


def test_ctrl_c_ends_the_batcher_before_the_model_and_leaves_nothing(workplace: Path) -> None:
    with running(workplace) as run:
        run.until("curl")
        if not any(line.startswith("model ") for line in run.lines):
            run.until("model ")
        folder = run.settings_folder().parent
        assert folder.is_dir()
        run.interrupt()
        assert run.rest() == 0
        assert not folder.exists()
    order = ["stopping batcher", "batcher | got SIGTERM", "stopping model", "model   | got SIGTERM"]
    places = [run.place(text) for text in order]
    assert places == sorted(places)
    assert not any("got SIGINT" in line for line in run.lines)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_ways_to_ask_for_an_end_are_as_good(workplace: Path, number: signal.Signals) -> None:
    with running(workplace) as run:
        run.until("curl")
        run.popen.send_signal(number)
        assert run.rest() == 0


def test_a_second_ctrl_c_kills_at_once(workplace: Path) -> None:
    with running(workplace, STUBBORN="batcher model") as run:
        run.until("curl")
        run.interrupt()
        run.until("batcher | got SIGTERM")
        time.sleep(ONE_INTERRUPT_SECONDS)
        run.interrupt()
        assert run.rest() == 1
    assert gone_within(run.pid_of("batcher"), 0)


def test_an_end_that_is_asked_for_twice_at_once_is_one(workplace: Path) -> None:
    with running(workplace) as run:
        run.until("curl")
        # Two signals, as two of the same kind may arrive as one.
        run.popen.send_signal(signal.SIGINT)
        run.popen.send_signal(signal.SIGTERM)
        assert run.rest() == 0
    assert not any("killing" in line for line in run.lines)


def test_a_batcher_that_left_requests_unanswered_makes_the_run_fail(workplace: Path) -> None:
    with running(workplace, batcher_STOP_EXIT="1") as run:
        run.until("curl")
        run.interrupt()
        assert run.rest() == 1
    told = run.place("run     | the batcher ended before every request was answered")
    assert told < run.place("stopping model")
    assert not any("exit code" in line for line in run.lines)


def test_a_model_that_cannot_be_loaded_ends_the_run(workplace: Path) -> None:
    with running(workplace, NEVER_READY="1", REASON="parameters.x: 1 is wrong") as run:
        assert run.rest() == 2
    told = run.place("run     | the model cannot be served: parameters.x: 1 is wrong")
    assert told < run.place("stopping batcher") < run.place("stopping model")


def test_a_model_that_fails_after_it_was_ready_is_told_and_kept(workplace: Path) -> None:
    with running(workplace, REASON="its files are gone") as run:
        run.until("run     | the model cannot be served: its files are gone")
        os.kill(run.pid_of("batcher"), signal.SIGKILL)
        run.until("starting it again")
        run.until("run     | the model cannot be served: its files are gone")
        run.interrupt()
        assert run.rest() == 0


def test_a_killed_batcher_is_started_again_and_the_model_left_alone(workplace: Path) -> None:
    with running(workplace) as run:
        run.until("curl")
        if not any(line.startswith("model ") for line in run.lines):
            run.until("model ")
        os.kill(run.pid_of("batcher"), signal.SIGKILL)
        run.until("run     | batcher ended with signal SIGKILL; starting it again in 0.2 s")
        run.until("batcher | INFO ready")
        model = run.pid_of("model")
        assert not gone_within(model, 0)
        assert sum("model   | pid" in line for line in run.lines) == 1


def test_a_command_that_is_killed_leaves_no_process(workplace: Path) -> None:
    with running(workplace) as run:
        run.until("curl")
        if not any(line.startswith("model ") for line in run.lines):
            run.until("model ")
        run.popen.kill()
        shutil.rmtree(run.settings_folder().parent)
        assert gone_within(run.pid_of("batcher"), 10)
        assert gone_within(run.pid_of("model"), 10)


@pytest.mark.parametrize(
    ("code", "expected", "words"),
    [("3", 1, "Is another program using the port?"), ("2", 2, "cannot use its settings")],
)
def test_a_batcher_that_cannot_go_on_ends_the_run(
    workplace: Path, code: str, expected: int, words: str
) -> None:
    with running(workplace, batcher_EXIT=code) as run:
        assert run.rest() == expected
    assert words in "\n".join(run.lines)
    assert sum("batcher | pid" in line for line in run.lines) == 1


def test_a_model_that_cannot_use_its_settings_ends_the_batcher_too(workplace: Path) -> None:
    with running(workplace, model_EXIT="2") as run:
        assert run.rest() == 2
    assert "stopping batcher" in "\n".join(run.lines)


def test_output_that_nobody_reads_any_more_ends_the_run_in_order(workplace: Path) -> None:
    with running(workplace) as run:
        run.until("curl")
        # Else the model's first line might be what is lost, and the batcher be killed while the run
        # stops it in order, which is a failure.
        if not any(line.startswith("model") for line in run.lines):
            run.until("model   | pid")
        assert run.popen.stdout is not None
        run.popen.stdout.close()
        os.kill(run.pid_of("batcher"), signal.SIGKILL)  # which the run would like to tell
        assert run.popen.wait() == 0


def test_a_wrong_manifest_starts_nothing(workplace: Path) -> None:
    (workplace / "toy.yaml").write_text(
        dedent(MANIFEST).replace("spec: {", "spec: {batching: {maxBatchSize: 0}, "), "utf-8"
    )
    with running(workplace) as run:
        assert run.rest() == 2
    assert run.lines == ["toy.yaml: spec.batching.maxBatchSize: 0 is below the minimum 1"]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ('{fixedSeconds: "-1"}', ["parameters.fixedSeconds", '"-1"', "is not a number of seconds"]),
        ('{sped: "1"}', ["parameters.sped", "is not known to handler simulated"]),
    ],
)
def test_a_wrong_parameter_of_the_handler_ends_the_real_processes(
    tmp_path: Path, parameters: str, words: list[str]
) -> None:
    (tmp_path / "toy.yaml").write_text(
        dedent(MANIFEST).replace(
            "handler: simulated", f"handler: simulated, parameters: {parameters}"
        ),
        "utf-8",
    )
    with running(tmp_path, "--port=0") as run:
        assert run.rest() == 2
    sentence = run.lines[run.place("run     | the model cannot be served: ")]
    assert all(word in sentence for word in words)


def test_that_the_cpu_computes_is_said_on_the_error_stream(workplace: Path) -> None:
    said = f"12:00:00 ERROR {ON_THE_CPU}: torch finds no accelerator"
    with running(workplace, model_SAYS=said) as run:
        line = run.until("WARNING: ")
        assert line == "WARNING: the model computes on the CPU: torch finds no accelerator"
